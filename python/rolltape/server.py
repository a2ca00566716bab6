"""A private `rolltape serve` that lives as long as a block."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from rolltape._binary import binary
from rolltape.client import Client

LISTENING = re.compile(r"listening on (\S+?),? control on (\S+?),? in front of")
TOKEN_PLACE = re.compile(r"the control listener's token is in (?:the variable (\S+)|(.+))$")
SAID_LINES_MAX = 200
START_WAIT_S = 60.0
STOP_WAIT_S = 30.0


class Server:
    """Starts `rolltape serve` on free ports; stopped when the block ends.

    `model` is a model folder, `upstream` the URL of a server that is there already; one of them.
    `arguments` are further words of its command line.
    """

    def __init__(
        self,
        *arguments: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        upstream: str | None = None,
        store: str | os.PathLike[str] = "rolltape.db",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if (model is None) == (upstream is None):
            raise ValueError("one of `model` and `upstream`")
        what = ("--model", model) if model is not None else ("--upstream", upstream)
        where = ("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--store", store)
        self.store = os.fspath(store)
        self._words = [binary(), "serve", *map(str, (*what, *where, *arguments))]
        self._environment = {**os.environ, **(environment or {})}
        self._said: deque[str] = deque(maxlen=SAID_LINES_MAX)
        self._ready = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client of the running server."""
        if self._client is None:
            raise RuntimeError("the server does not run")
        return self._client

    @property
    def said(self) -> str:
        """The last lines of its log."""
        return "".join(self._said)

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process

    def start(self) -> Client:
        """Starts it and waits until it listens. Raises RuntimeError with its log if it ends.

        After `stop` it may be started again, on other ports and the same store.
        """
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError("the server runs already")
        self._client, self._ready = None, threading.Event()
        self._said.clear()
        self._process = subprocess.Popen(
            self._words,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        told = (self._process, self._ready)
        threading.Thread(target=self._listen, args=told, name="rolltape-log", daemon=True).start()
        if not self._ready.wait(START_WAIT_S) or self._client is None:
            self.stop()
            raise RuntimeError(f"rolltape did not start:\n{self.said}")
        return self._client

    def stop(self) -> None:
        """Stops it, and kills it if it does not stop."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def command(self, *arguments: str | os.PathLike[str]) -> str:
        """Runs another rolltape command on the same store; returns its stdout."""
        words = [binary(), *map(str, arguments), "--store", self.store]
        done = subprocess.run(words, capture_output=True, text=True, env=self._environment)
        if done.returncode:
            raise RuntimeError(f"rolltape {arguments[0]}: {done.returncode}\n{done.stderr}")
        return done.stdout

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        """Keeps its log; reads from it where the token is, and then the addresses."""
        token: dict[str, str | None] = {"store": self.store}
        for line in process.stderr or ():
            self._said.append(line)
            place = TOKEN_PLACE.match(line)
            if place and not ready.is_set():
                variable, file = place.groups()
                token = {"token": self._environment.get(variable or ""), "token_file": file}
            found = LISTENING.search(line)
            if found and not ready.is_set():
                self._client = Client(found[2], found[1], **token)
                ready.set()
        ready.set()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
