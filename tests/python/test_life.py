"""The life of a store through the command: checked, planned, thinned out, copied."""

import json
import sqlite3

import openai

import harness
from game import QUESTION
from harness import command, done


def play(proxy, episode):
    """Two calls of one episode."""
    client = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=24)


def told(*arguments, folder):
    """What a command says with --json."""
    return json.loads(done(*arguments, "--json", folder=folder))


def test_verify_prune_backup(tmp_path):
    """Verify, plan, prune, verify, backup, verify."""
    with harness.world(tmp_path) as world:
        proxy = world.proxy
        for episode in ("kept", "gone"):
            play(proxy, episode)
        live = told("backup", "--to", tmp_path / "live.db", "--store", proxy.store, folder=tmp_path)
        assert live["bytes"] == (tmp_path / "live.db").stat().st_size
        assert told("verify", "--store", tmp_path / "live.db", folder=tmp_path)["calls"] == 4
        assert told("verify", "--store", proxy.store, folder=tmp_path)["clean"]
    on_store = ("--store", proxy.store)
    out = tmp_path / "out"
    done("export", "--episode", "kept", "--out", out, *on_store, folder=tmp_path)
    which = ("prune", "--keep-exported", out, *on_store)
    assert told(*which, "--dry-run", folder=tmp_path)["kept_open"] == 1, "it may go on"
    done("close", "gone", *on_store, folder=tmp_path)
    plan = told(*which, "--dry-run", folder=tmp_path)
    assert [one["episode_id"] for one in plan["pruned"]] == ["gone"]
    assert told("verify", *on_store, folder=tmp_path)["episodes"] == 2, "a plan changes nothing"
    pruned = told(*which, folder=tmp_path)
    assert pruned["pruned"] == plan["pruned"]
    assert pruned["file_bytes_after"] <= pruned["file_bytes_before"]
    assert told("verify", *on_store, folder=tmp_path)["episodes"] == 1
    done("backup", "--to", tmp_path / "copy.db", *on_store, folder=tmp_path)
    assert "nothing is broken" in done("verify", "--store", tmp_path / "copy.db", folder=tmp_path)
    again = command("backup", "--to", tmp_path / "copy.db", *on_store, folder=tmp_path)
    assert again.returncode == 1 and "exists already" in again.stderr


def test_what_is_broken_is_named(tmp_path):
    """Damage gives exit code 1, and the episode and the call on stdout."""
    with harness.world(tmp_path) as world:
        play(world.proxy, "hurt")
    store = world.proxy.store
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE body SET hash = zeroblob(16) WHERE body_key = 2")
    ended = command("verify", "--store", store, folder=tmp_path)
    assert ended.returncode == 1 and ended.stderr == ""
    assert "broken: episode `hurt` attempt 0, call `" in ended.stdout
    assert "its reply (`body` 2) is damaged" in ended.stdout


def test_prune_needs_to_be_told_what(tmp_path):
    """Without a choice of episodes it is wrong usage."""
    for arguments in (("prune",), ("prune", "--older-than", "soon"), ("prune", "--attempt", "1")):
        assert command(*arguments, folder=tmp_path).returncode == 2
