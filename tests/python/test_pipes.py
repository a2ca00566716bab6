"""A reader of stdout or stderr that leaves early, as `head` does, is no failure."""

import os
import subprocess

import pytest

import harness
from harness import command

DONE, FAILED = 0, 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store of a game, and the name of its longest episode."""
    folder = tmp_path_factory.mktemp("pipes")
    ended = command("demo", "--out", folder / "demo", "--groups", "4", folder=folder)
    assert ended.returncode == DONE, ended.stderr
    assert "\\n" not in ended.stdout
    (shown,) = [line for line in ended.stdout.splitlines() if line.startswith("next")]
    return folder, folder / "demo" / "rolltape.db", shown.split()[3]


def left(words, folder, *gone):
    """Runs a command whose outputs in `gone` have lost their reader; gives its code and the rest.

    A pipe whose other end is closed already: every write to it fails."""
    pipes = {}
    for name in gone:
        reader, pipes[name] = os.pipe()
        os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
    try:
        ended = subprocess.run(
            [harness.binary(), *map(str, words)],
            cwd=folder,
            env=harness.environment(ROLLTAPE_LOG="info"),
            stdin=subprocess.DEVNULL,
            timeout=harness.COMMAND_WAIT_S,
            **streams,
        )
    finally:
        for pipe in pipes.values():
            os.close(pipe)
    return ended.returncode, (ended.stdout or b"") + (ended.stderr or b"")


def commands(store, episode):
    """Commands that print, each with its code."""
    of_store = [
        (["episodes"], DONE),
        (["episodes", "--json"], DONE),
        (["show", episode], DONE),
        (["show", episode, "--json"], DONE),
        (["verify"], DONE),
        (["verify", "--json"], DONE),
        (["prune", "--older-than", "1d", "--dry-run"], DONE),
        (["export", "--out", "-"], DONE),
        (["export", "--out", "-", "--encoding", "jsonl"], DONE),
        (["export", "--out", "-", "--encoding", "arrow"], DONE),
        (["export", "--out", "folder"], DONE),
        (["doctor", "--episode", episode], DONE),
    ]
    yield from (([*words, "--store", store], code) for words, code in of_store)
    yield ["--help"], DONE
    yield ["export", "--help"], DONE
    # A failure is one for whoever asks for the code.
    yield ["show", "nobody", "--store", store], FAILED


@pytest.mark.parametrize("gone", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_a_reader_that_has_left(recorded, gone):
    folder, store, episode = recorded
    for words, code in commands(store, episode):
        whole = left(words, folder)
        assert whole[0] == code, (words, whole)
        found, said = left(words, folder, *gone)
        assert found == code, (words, said)
        assert b"panicked" not in said and b"roken pipe" not in said, (words, said)


def test_the_feed_and_the_doctor_of_an_upstream(tmp_path):
    with harness.serve(tmp_path, "--model", harness.MODEL) as proxy:
        control = f"http://{harness.text(proxy.control)}"
        words = ["feed", "--control", control, "--store", proxy.store, "--format", "arrow"]
        assert left(words, tmp_path, "stdout") == (DONE, b"cursor 0\n")
        assert left(words, tmp_path, "stdout", "stderr") == (DONE, b"")
    with harness.engine(tmp_path) as address:
        words = ["doctor", "--upstream", f"http://{harness.text(address)}"]
        assert left(words, tmp_path, "stdout")[0] == DONE
