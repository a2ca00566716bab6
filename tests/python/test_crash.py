"""A recorder that is killed loses nothing that an agent saw the end of."""

import http.client
import json
import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from game import QUESTION
from harness import Process, engine, free_addresses, text

ROUNDS = 5
AGENTS = 12
PATH = "/e/{}/v1/chat/completions"


def call(address, episode, stream):
    """One call under an episode of its own; true when its end was seen."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 24, "stream": stream}
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("POST", PATH.format(episode), json.dumps(body))
        reply = connection.getresponse()
        read = reply.read()
        return reply.status == 200 and (b"[DONE]" in read if stream else bool(json.loads(read)))
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        return False
    finally:
        connection.close()


def agent(address, name, dead):
    """Calls until the recorder is dead; gives the episodes begun and those acknowledged."""
    begun, seen = [], []
    for number in count():
        if dead():
            return begun, seen
        begun.append(f"{name}-{number}")
        if call(address, begun[-1], stream=number % 2 == 0):
            seen.append(begun[-1])


def recorded(store):
    """Outcome by episode, after the database has passed its own check."""
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        query = "SELECT episode_id, outcome, completion_tokens FROM calls"
        return {episode: rest for episode, *rest in connection.execute(query)}


def test_kill_9_loses_nothing_acknowledged(tmp_path):
    """Killed at random moments under load, and started again on the same store."""
    moments = random.Random(7)
    store = tmp_path / "killed.db"
    acknowledged = []
    with engine(tmp_path) as backend:
        for turn in range(ROUNDS):
            data, control = free_addresses(2)
            where = ("--listen", text(data), "--control", text(control), "--store", store)
            upstream = ("--upstream", f"http://{text(backend)}")
            process = Process("serve", *upstream, *where, folder=tmp_path)
            process.await_answer(f"http://{text(control)}/health")
            with ThreadPoolExecutor(AGENTS) as pool:
                dead = lambda: process.child.poll() is not None  # noqa: E731
                names = [f"r{turn}-a{n}" for n in range(AGENTS)]
                playing = [pool.submit(agent, data, name, dead) for name in names]
                time.sleep(moments.uniform(0.2, 0.7))
                process.kill()
                ended = [game.result(timeout=30) for game in playing]
            acknowledged += [episode for _, seen in ended for episode in seen]
    found = recorded(store)
    lost = [e for e in acknowledged if found.get(e, [None])[0] != "complete"]
    assert acknowledged and not lost
    assert all(tokens for outcome, tokens in found.values() if outcome == "complete")
    holes = sum(outcome is None for outcome, _ in found.values())
    print(f"{len(acknowledged)} acknowledged, {len(found)} recorded, {holes} visible holes")
