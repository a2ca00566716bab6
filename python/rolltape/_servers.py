"""The servers of this user on this machine, found where the command line finds them.

`rolltape serve` leaves a file for each, and holds a lock on it while it runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

BYTES_MAX = 1 << 16
OF_OTHERS = 0o077
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
STORE = "rolltape.db"
SAYING = ("ROLLTAPE_STORE", "ROLLTAPE_CONTROL_URL", "ROLLTAPE_PROXY")
"""Variables that say which server is meant."""


@dataclass(frozen=True)
class Server:
    """The addresses of a server, its store, and the file of its token."""

    agents: str
    control: str
    store: str
    token_file: str | None


def states() -> str:
    """The folder of states."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(folder, "rolltape")


def running() -> list[Server]:
    """The servers that run here."""
    folder = os.path.join(states(), "servers")
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    found = (_read(os.path.join(folder, name)) for name in names)
    return [server for server in found if server is not None]


def meant() -> Server | None:
    """The only server, or that of the store in this folder; None if a variable says another."""
    if any(os.environ.get(name) for name in SAYING):
        return None
    # Sockets in the file system are not for this client.
    servers = [one for one in running() if not (one.agents + one.control).count("unix:")]
    own = [one for one in servers if one.store == os.path.abspath(STORE) and os.path.exists(STORE)]
    return own[0] if own else servers[0] if len(servers) == 1 else None


def token_file(control: str) -> str | None:
    """The file of the token of the server here whose control listener has this address."""

    at = _place(control)
    return next((one.token_file for one in running() if _place(one.control) == at), None)


def _place(address: str) -> str:
    """An address without what may be left out; a name of loopback is another address."""
    return address.rstrip("/").removeprefix("http://")


def _here() -> str:
    """This machine since it was started, and the network of this process."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()} {os.readlink('/proc/self/ns/net')}"
    return ""


def _read(path: str) -> Server | None:
    """A file's server; None if it has died, or if others could have written the file."""
    try:
        opened = os.open(path, FLAGS)
    except OSError:
        return None
    with open(opened, encoding="utf-8", errors="replace") as content:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), 0):
            return None
        if about.st_mode & OF_OTHERS or _is_unlocked(opened):
            return None
        try:
            said = json.loads(content.read(BYTES_MAX))
            if said["place"] != _here():
                return None
            return Server(said["agents"], said["control"], said["store"], said["token_file"])
        except (ValueError, KeyError, TypeError):
            return None


def _is_unlocked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
