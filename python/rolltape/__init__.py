"""rolltape from Python: the control API, episodes, the feed, and adapters for trainers.

Importing this needs only the standard library. `rolltape.trl` needs TRL and torch,
`rolltape.openenv` wants OpenEnv, `rolltape.track` the library of a tracker.
"""

from rolltape._binary import binary
from rolltape.http import RolltapeError
from rolltape.recording import Recording
from rolltape.replay import Replay
from rolltape.client import Client, Key
from rolltape.episodes import Episode, episode, fork
from rolltape.feed import Feed, Lease, Row, rows_of
from rolltape.server import Server

__all__ = [
    "Client",
    "Episode",
    "Feed",
    "Key",
    "Lease",
    "Recording",
    "Replay",
    "RolltapeError",
    "Row",
    "Server",
    "binary",
    "episode",
    "fork",
    "rows_of",
]
