"""The node driver: the devices of one node, and the one authority on whose turn it is there."""
