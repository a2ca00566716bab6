"""A PostgreSQL server, and a relay in front of it that can cut connections and refuse new ones."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import harness
import hostile

START_WAIT_S = 30


def _programs():
    """The folder of PostgreSQL's programs."""
    found = [Path(one) for one in Path("/usr/lib/postgresql").glob("*/bin")]
    found += [Path(one).parent for one in [shutil.which("initdb")] if one]
    for folder in found:
        if (folder / "initdb").exists():
            return folder
    pytest.skip("PostgreSQL is not installed")


def _as_other_user():
    """What starts a program as another user than root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


@contextmanager
def postgres():
    """A new server; gives its address."""
    programs, prefix = _programs(), _as_other_user()
    folder = tempfile.mkdtemp(prefix="rolltape-postgres-", dir="/tmp")
    if prefix:
        shutil.chown(folder, "postgres", "postgres")
    (address,) = harness.free_addresses(1)
    make = [programs / "initdb", "-D", f"{folder}/db", "-U", "test", "-A", "trust", "-E", "UTF8"]
    subprocess.run(
        [*prefix, *make, "--locale=C", "--no-sync"], check=True, cwd="/", capture_output=True
    )
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    child = subprocess.Popen(
        [*prefix, programs / "postgres", "-D", f"{folder}/db", "-p", str(address[1])]
        + ["-k", folder, *options],
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(programs, address)
        yield address
    finally:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)
        child.kill()
        shutil.rmtree(folder, ignore_errors=True)


def new_database(address):
    """The URL of a new database of the server at this address."""
    name = f"d{uuid.uuid4().hex}"
    server = f"postgres://test@{harness.text(address)}"
    make = [_programs() / "psql", f"{server}/postgres", "-q", "-c", f"CREATE DATABASE {name}"]
    subprocess.run(make, check=True, capture_output=True)
    return f"{server}/{name}"


@contextmanager
def recording(folder, url, *options, upstream=None):
    """A server that records in the database at this URL."""
    upstream = upstream or hostile.Upstream()
    data, control = harness.free_addresses(2)
    at = ("--listen", harness.text(data), "--control", harness.text(control))
    where = ("--upstream", upstream.url, *at, "--store", url)
    process = harness.Process("serve", *where, *options, folder=folder)
    try:
        process.await_answer(f"http://{harness.text(control)}/health")
        yield harness.Proxy(data, control, url, folder, process)
    finally:
        process.kill()
        upstream.stop()


def _await(programs, address):
    until = time.monotonic() + START_WAIT_S
    ask = [programs / "pg_isready", "-q", "-h", address[0], "-p", str(address[1])]
    while subprocess.run(ask, check=False).returncode != 0:
        assert time.monotonic() < until, "PostgreSQL did not start"
        time.sleep(0.05)


class Relay:
    """Passes bytes both ways, as long as it may."""

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = self._listener.getsockname()
        self._lines = set()
        self._refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._listener.close()
        self.cut()

    def cut(self):
        """Ends every connection without a word."""
        for line in list(self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._lines.clear()

    @contextmanager
    def away(self):
        """Ends every connection, and new ones at once, as long as the block runs."""
        self._refuses = True
        self.cut()
        try:
            yield
        finally:
            self._refuses = False

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            server = socket.create_connection(self._target)
            self._lines |= {client, server}
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source, target):
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for line in (source, target):
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
