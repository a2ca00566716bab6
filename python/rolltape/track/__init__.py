"""Rollouts and numbers of a recording to Weights & Biases, MLflow or Trackio.

`python -m rolltape.track wandb --project NAME` beside a run, or `Tracker` inside a training loop.
Each of the three libraries is imported only where it is used.
"""

from rolltape.track.rollouts import Rollout
from rolltape.track.tracker import Tracker
from rolltape.track.trackers import MissingLibrary

__all__ = ["MissingLibrary", "Rollout", "Tracker"]
