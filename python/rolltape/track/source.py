"""Where a tracker reads: a running server, or a store by a `rolltape view` of its own."""

from __future__ import annotations

import os
import subprocess
from types import TracebackType
from urllib.parse import urlsplit

from rolltape import _servers
from rolltape._binary import binary
from rolltape.client import CONTROL_VARIABLE, Client

STORE_VARIABLE = "ROLLTAPE_STORE"
STORE = "rolltape.db"
STOP_WAIT_S = 10.0


class Source:
    """A client of what has the recording.

    `control` is the address of a server's control listener, `store` a file or a database. With
    neither it is the server that runs here, else the store in this folder.
    """

    def __init__(self, control: str | None = None, store: str | None = None) -> None:
        if control is None and store is None and not _finds_server():
            named = os.environ.get(STORE_VARIABLE) or STORE
            store = named if "://" in named or os.path.exists(named) else None
        self._view = None if control is not None or store is None else _view(store)
        if self._view is None:
            self.client = Client(control, store=store)
        else:
            try:
                self.client = _client_of(self._view)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Ends what was started to read."""
        if self._view is None:
            return
        self._view.terminate()
        try:
            self._view.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self._view.kill()
            self._view.wait()
        for pipe in (self._view.stdout, self._view.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _finds_server() -> bool:
    return bool(os.environ.get(CONTROL_VARIABLE)) or _servers.meant() is not None


def _view(store: str) -> subprocess.Popen[str]:
    """A `rolltape view` of a store, which only reads it."""
    words = [binary(), "--quiet", "view", "--store", store, "--listen", "127.0.0.1:0"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def _client_of(view: subprocess.Popen[str]) -> Client:
    """A client of the page whose link it prints. Raises RuntimeError with what it says instead."""
    link = urlsplit((view.stdout.readline() if view.stdout else "").strip())
    if not link.netloc:
        said = view.stderr.read().strip() if view.stderr else ""
        raise RuntimeError(f"the store cannot be read: {said}")
    token = link.fragment.removeprefix("token=").partition("&")[0]
    return Client(f"{link.scheme}://{link.netloc}", token=token)
