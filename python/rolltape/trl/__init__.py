"""TRL's trainers on what rolltape recorded, and their weights back to the engine.

TRL and torch are imported when something of theirs is used, not before.
"""

from rolltape.trl.annotations import annotate
from rolltape.trl.rollout import rollout_func
from rolltape.trl.samples import recorded_reward
from rolltape.trl.transfer import WeightTransfer, sync_weights
from rolltape.trl.versions import newest_version
from rolltape.trl.worker import RolloutWorker

__all__ = [
    "RolloutWorker",
    "WeightTransfer",
    "annotate",
    "newest_version",
    "recorded_reward",
    "rollout_func",
    "sync_weights",
    "use_cpu",
]


def use_cpu() -> None:
    """Lets AsyncGRPOTrainer train on a CPU; call it before one is created."""
    from rolltape.trl import cpu

    cpu.use_cpu()
