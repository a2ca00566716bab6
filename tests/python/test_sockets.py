"""Listeners on sockets in the file system, with the real binary and clients that take them."""

import json
import stat
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import openai
import pytest

from harness import MODEL, Process, command, done

AGENT = [sys.executable, str(Path(__file__).with_name("agent.py"))]
READY_WAIT_S = 60
ASKED = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def served(folder, *arguments):
    """A server with both listeners on sockets in `folder`."""
    where = ("--listen", f"unix:{folder}/data.sock", "--control", f"unix:{folder}/control.sock")
    process = Process("serve", "--model", MODEL, *where, "--store", folder / "a.db", *arguments,
                      folder=folder)
    try:
        until = time.monotonic() + READY_WAIT_S
        while "point an agent at it" not in process.stderr:
            assert process.child.poll() is None and time.monotonic() < until, process.stderr
            time.sleep(0.02)
        yield process
        process.end_well()
    finally:
        process.kill()


def client(folder, name):
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=str(folder / name)),
                        base_url="http://localhost", timeout=30)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_both_listeners_are_sockets_of_their_user_alone_and_go_with_the_server(tmp_path):
    with served(tmp_path) as process:
        data, control = tmp_path / "data.sock", tmp_path / "control.sock"
        assert (mode(data), mode(control)) == (0o600, 0o600)
        assert f"listening on unix:{data}, control on unix:{control}" in process.stderr
        assert f"rolltape run --proxy unix:{data} -- COMMAND" in process.stderr

        sdk = openai.OpenAI(base_url="http://localhost/e/by-sdk/v1", api_key="unused",
                            http_client=client(tmp_path, "data.sock"))
        assert sdk.chat.completions.create(**ASKED).choices[0].finish_reason
        with client(tmp_path, "control.sock") as asks:
            assert asks.get("/health").status_code == 200
            assert asks.get("/episodes/by-sdk").status_code == 401, "the token is required"
            bearer = {"authorization": "Bearer " + (tmp_path / "a.db-token").read_text().strip()}
            assert asks.get("/episodes/by-sdk", headers=bearer).json()["with_ids"] == 1
    assert not data.exists() and not control.exists()


def test_the_commands_reach_a_server_through_its_sockets(tmp_path):
    with served(tmp_path):
        control = ("--control", f"unix:{tmp_path}/control.sock", "--store", tmp_path / "a.db")
        ended = command("run", "--episode", "by-run", "--proxy", f"unix:{tmp_path}/data.sock",
                        *control, "--", *AGENT, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert "recorded by-run" in ended.stderr

        rows = done("feed", *control, folder=tmp_path).splitlines()
        assert [json.loads(row)["episode_id"] for row in rows] == ["by-run"]
        shown = command("show", "by-run", "--control", f"unix:{tmp_path}/control.sock",
                        "--control-token-env", "TOKEN", folder=tmp_path,
                        env={"TOKEN": (tmp_path / "a.db-token").read_text().strip()})
        assert shown.returncode == 0 and "by-run" in shown.stdout, shown.stderr


def test_a_live_socket_is_an_error_and_that_of_a_killed_server_is_replaced(tmp_path):
    with served(tmp_path) as first:
        taken = command("serve", "--model", MODEL, "--listen", f"unix:{tmp_path}/data.sock",
                        "--control", "127.0.0.1:0", "--store", tmp_path / "b.db", folder=tmp_path)
        assert taken.returncode == 1 and "listens on unix:" in taken.stderr, taken.stderr
        assert not (tmp_path / "b.db").exists()
        first.kill()
    assert (tmp_path / "data.sock").is_socket(), "a killed server leaves its file"
    with served(tmp_path, "--socket-mode", "0666"), client(tmp_path, "data.sock") as agent:
        assert mode(tmp_path / "data.sock") == 0o666
        assert mode(tmp_path / "control.sock") == 0o600
        assert agent.post("/e/again/v1/chat/completions", json=ASKED).status_code == 200
    left = [path.name for path in tmp_path.iterdir() if "sock" in path.name]
    assert left == [], "no file is left, and none of those that were bound beside"


@pytest.mark.parametrize("place", ["unix:", "unix:no/folder/a.sock", "unix:" + "a" * 120])
def test_a_place_that_cannot_be_bound_is_named(tmp_path, place):
    ended = command("serve", "--upstream", "http://127.0.0.1:9", "--listen", place,
                    folder=tmp_path)
    assert ended.returncode in (1, 2) and "unix:" in ended.stderr, ended.stderr
    assert not (tmp_path / "rolltape.db").exists()
