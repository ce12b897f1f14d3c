"""What runs beside a workload: it parks and restores memory as the arbiter says."""
