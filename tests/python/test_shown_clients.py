"""Real agents that are shown pictures and documents, and whose server searches the web by itself.

The server is a hosted one, which tells no tokens. What is wanted of the record is one conversation
of whole words, in which no part that chat has no form for cuts the history.
"""

import json
import os

import pytest

import harness
import test_clients
from scripts import ANSWER  # a module of the clients, on the path since the line before
from upstream import scripted

CLIENTS = {
    test_clients.Client("agents", "current", "shown", "HELPED"): ["main 3", "subagent 1"],
    test_clients.Client("anthropic", "current", "shown", "SEARCHED"): ["main 2"],
    test_clients.Client("pydantic_ai", "current", "shown", "WEATHER"): ["main 2"],
}
"""The agents, each with the kinds of its rows and their numbers of turns."""

pytestmark = pytest.mark.timeout(240)


def rows_of(folder, store, form):
    """The rows of an export."""
    out = folder / f"{form}.jsonl"
    harness.done("export", "--store", store, "--format", form, "--out", out, folder=folder)
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_what_is_shown_cuts_no_conversation(client, tmp_path):
    if not client.installed:
        assert os.environ.get("ROLLTAPE_CLIENTS") != "all", f"{client.group} is not installed"
        pytest.skip(f"not installed: tests/python/clients/install.sh {client.group}")
    script = getattr(test_clients.scripts, client.script)
    with scripted(tmp_path, script) as upstream:
        hosted = ("--upstream", upstream.url, "--dialect", "openai")
        with harness.serve(tmp_path, *hosted) as proxy:
            result, exchanges = test_clients.run(client, tmp_path, proxy.data, test_clients.PREFIX)
    assert ANSWER in json.dumps(json.loads(result), ensure_ascii=False)
    assert {exchange.reply.status for exchange in exchanges} == {200}
    (episode,) = test_clients.rows_of(proxy.store, "episodes", test_clients.EPISODE)
    assert (episode["episode_id"], episode["calls"]) == (test_clients.EPISODE, len(exchanges))

    rows = rows_of(tmp_path, proxy.store, "trajectories")
    told = sorted(f"{row['kind']} {len(row['turns'])}" for row in rows)
    assert told == CLIENTS[client]
    (main,) = (row["trajectory_id"] for row in rows if row["kind"] == "main")
    talks = rows_of(tmp_path, proxy.store, "sft")
    (talk,) = (talk for talk in talks if talk["trajectory_id"] == main)
    turns = script["turns"] if isinstance(script, dict) else script
    words = [said["content"] for said in talk["messages"] if said["role"] == "assistant"]
    assert words == [turn["text"] for turn in turns]
