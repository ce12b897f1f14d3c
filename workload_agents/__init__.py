"""What runs beside a workload: it parks and restores memory as the arbiter says."""

import os

# Before anything here imports grpc. Its fork handlers crashed one in ten forked children (workers
# of a DataLoader, say) while the session's thread was in a call; such children never use it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
