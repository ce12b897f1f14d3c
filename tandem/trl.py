"""The hook for TRL's GRPOTrainer; needs `torch` and `trl`, which a training image has."""

from workload_agents.adapters.trl import VllmRollout, WeightsCheck

__all__ = ["VllmRollout", "WeightsCheck"]
