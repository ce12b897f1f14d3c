"""One per cluster: admits pods that take turns, and puts the halves of a pair on one node."""
