"""Processes under test: found, started, waited for, stopped."""

import itertools
import os
import resource
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ports
from tap import Tap

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "engine" / "models" / "tiny"
STEERING = ("ROLLTAPE_", "OPENAI_", "ANTHROPIC_", "HOSTED_VLLM_")
READY_WAIT_S = 50
STOP_WAIT_S = 25
COMMAND_WAIT_S = 30
UNTIL_S = 40
"""Room for a busy machine; what is waited for comes sooner."""

started = []
"""Every process that the current test could have met, for the report of a failure."""
token_files = {}
"""The token files of control listeners, by their addresses."""
_numbers = itertools.count()


def binary():
    """The rolltape to test: ROLLTAPE_BIN, else the release build here, else the debug build."""
    named = os.environ.get("ROLLTAPE_BIN")
    built = [ROOT / "target" / kind / "rolltape" for kind in ("release", "debug")]
    for path in [Path(named)] if named else built:
        if path.is_file():
            return str(path.resolve())
    raise FileNotFoundError("no rolltape binary: run `cargo build --release` or set ROLLTAPE_BIN")


def token_file(store):
    """The file of the token that `rolltape serve` makes beside a store."""
    return Path(f"{store}-token")


def forget_ended():
    """Leaves only the processes that still run in `started`."""
    started[:] = [process for process in started if process.child.poll() is None]


def raise_descriptors():
    """Gives this process as many file descriptors as it may have, and says how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def environment(**changes):
    """This process's environment without what would steer rolltape or a client."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(STEERING)}
    return kept | changes


def free_addresses(count):
    """Free addresses of this machine, all different."""
    return [("127.0.0.1", port) for port in ports.free(count)]


def text(address):
    """HOST:PORT."""
    return f"{address[0]}:{address[1]}"


class Process:
    """A running rolltape; what it says on stderr is kept in `folder`."""

    def __init__(self, *arguments, folder, env=None, stdout=None):
        self.arguments = [str(a) for a in arguments]
        env = env or environment()
        if env.get("XDG_STATE_HOME") == os.environ.get("XDG_STATE_HOME"):
            # A command of another test must not find this server.
            env = env | {"XDG_STATE_HOME": str(folder / "states")}
        self._log = folder / f"{self.arguments[0]}-{next(_numbers)}.stderr"
        with self._log.open("wb") as log:
            self.child = subprocess.Popen(
                [binary(), *self.arguments],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stdout or subprocess.DEVNULL,
                stderr=log,
            )
        self.killed = False
        started.append(self)

    @property
    def stderr(self):
        """What it said on stderr so far."""
        return self._log.read_text(errors="replace")

    def await_answer(self, url):
        """Waits until `url` answers."""
        until = time.monotonic() + READY_WAIT_S
        while time.monotonic() < until:
            assert self.child.poll() is None, f"ended early:\n{self.stderr}"
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.002)
        raise TimeoutError(f"no answer from {url}:\n{self.stderr}")

    def stop(self, number=signal.SIGTERM):
        """Asks it to stop and gives its exit code."""
        if self.child.poll() is None:
            self.child.send_signal(number)
        try:
            return self.child.wait(STOP_WAIT_S)
        finally:
            self.kill()

    def kill(self):
        """Makes sure that it is gone."""
        if self.child.poll() is None:
            self.killed = True
            self.child.kill()
            self.child.wait()

    def end_well(self):
        """Stops it, unless a test has killed it: then there is no good end to ask for. A panic of
        one task ends a connection, and no process."""
        assert self.killed or self.stop() == 0, f"{self.child.returncode}\n{self.stderr}"
        assert "panicked at" not in self.stderr, self.stderr


def until(what, found, wait_s=UNTIL_S):
    """Waits for what `found` gives."""
    end = time.monotonic() + wait_s
    while not (result := found()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
    return result


def command(*arguments, folder, **options):
    """Runs a rolltape command to its end."""
    options.setdefault("env", environment())
    return subprocess.run(
        [binary(), *map(str, arguments)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", COMMAND_WAIT_S),
        **options,
    )


def done(*arguments, folder, **options):
    """Runs a command that must succeed and gives its stdout."""
    ended = command(*arguments, folder=folder, **options)
    assert ended.returncode == 0, f"{arguments}: {ended.returncode}\n{ended.stderr}"
    return ended.stdout


@contextmanager
def engine(folder, *arguments):
    """The inference backend alone, with the tiny model; gives its address."""
    (address,) = free_addresses(1)
    where = ("--model", MODEL, "--listen", text(address))
    process = Process("engine", *where, *arguments, folder=folder)
    try:
        process.await_answer(f"http://{text(address)}/health")
        yield address
        process.end_well()
    finally:
        process.kill()


@dataclass
class Proxy:
    """A serving rolltape."""

    data: tuple[str, int]
    control: tuple[str, int]
    store: Path
    folder: Path
    process: Process

    def base_url(self, episode=None):
        """The base URL for an agent, tagged by path if an episode is given."""
        tag = f"/e/{episode}" if episode else ""
        return f"http://{text(self.data)}{tag}/v1"

    @property
    def token(self):
        """The control listener's token."""
        return token_of(self.control)

    def command(self, *arguments, **options):
        """Runs a command on the store that this one writes to; it must succeed."""
        return done(*arguments, "--store", self.store, folder=self.folder, **options)


def token_of(control):
    """The token of the control listener at an address that `serve` started; None if it has none."""
    file = token_files.get(tuple(control))
    return file.read_text().strip() if file and file.is_file() else None


@contextmanager
def serve(folder, *arguments, env=None):
    """`rolltape serve` on free ports with a store in `folder`."""
    data, control = free_addresses(2)
    store = folder / "recorded.db"
    token_files[control] = token_file(store)
    where = ("--listen", text(data), "--control", text(control), "--store", store)
    process = Process("serve", *arguments, *where, folder=folder, env=env)
    try:
        process.await_answer(f"http://{text(control)}/health")
        yield Proxy(data, control, store, folder, process)
        process.end_well()
    finally:
        process.kill()


@dataclass
class World:
    """An engine, a tap on its line, and a proxy in front."""

    engine: tuple[str, int]
    tap: Tap
    proxy: Proxy


@contextmanager
def world(folder):
    """The whole chain: agent -> proxy -> tap -> engine."""
    with engine(folder) as backend:
        tap = Tap(backend)
        try:
            # Calls through the proxy and past it find the same prefixes.
            alike = ("--dialect", "rolltape", "--share-prefixes")
            with serve(folder, "--upstream", tap.url, *alike) as proxy:
                yield World(backend, tap, proxy)
        finally:
            tap.stop()
