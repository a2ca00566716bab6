"""Two real vLLMs behind one rolltape: threads stay, weights go to both, one dies.

By hand, with `ROLLTAPE_SERVERS=vllm ROLLTAPE_FLEET=1`: a second vLLM takes a minute to start.
"""

import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import openai
import pyarrow.parquet as pq
import pytest

import control
import harness
import package  # noqa: F401  puts the package on the path
import rolltape
from servers import running, truth
from servers.running import NAME
from test_servers_weights import PROMPT, flatter

SESSIONS = 6
TURNS = 3
LOST_WAIT_S = 10

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "ROLLTAPE_FLEET" not in os.environ or bool(running.KINDS["vllm"].why_not),
        reason="ROLLTAPE_FLEET is not set, or vLLM is not installed"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two vLLMs, started at once, and the stack that ends each."""
    kind = running.KINDS["vllm"]
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    with ExitStack() as first, ExitStack() as second, ThreadPoolExecutor(2) as pool:
        stacks = [first, second]
        started = [
            pool.submit(stack.enter_context, running.running(kind, folder))
            for stack, folder in zip(stacks, folders)
        ]
        yield [one.result() for one in started], stacks


@pytest.fixture(scope="module")
def proxy(pair, tmp_path_factory):
    """One rolltape in front of both."""
    servers, _ = pair
    named = [f"{server.url} name={name}" for server, name in zip(servers, ("one", "two"))]
    upstreams = [word for one in named for word in ("--upstream", one)]
    with harness.serve(tmp_path_factory.mktemp("proxy"), *upstreams) as proxy:
        yield proxy


def talk(proxy, episode, turns, said=()):
    """A conversation of some turns; gives its messages."""
    agent = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=2)
    messages = list(said)
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Guess {turn}."})
        reply = agent.chat.completions.create(
            model=NAME, messages=messages, max_tokens=12, temperature=1.0, seed=turn)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return messages


def ask(proxy, query):
    """Rows of the recording."""
    with closing(sqlite3.connect(proxy.store)) as store:
        return store.execute(query).fetchall()


def exported(proxy, episodes, name):
    """The rows of episodes, which are closed for it."""
    for episode in episodes:
        control.close(proxy, episode)
    out = proxy.folder / name
    proxy.command("export", "--out", out)
    rows = pq.read_table(out / "trajectories.parquet").to_pylist()
    return [row for row in rows if row["episode_id"] in episodes]


def test_threads_stay_on_their_vllm(proxy):
    episodes = [f"stays-{number}" for number in range(SESSIONS)]
    for episode in episodes:
        talk(proxy, episode, TURNS)
    placed = ask(proxy, """
        SELECT episode_id, count(*), count(DISTINCT engine), min(engine) FROM calls
        WHERE episode_id LIKE 'stays-%' GROUP BY episode_id""")
    assert [row[1:3] for row in placed] == [(TURNS, 1)] * SESSIONS
    assert {row[3] for row in placed} == {"one", "two"}
    assert {row["verdict"] for row in exported(proxy, episodes, "stays")} == {"exact"}


def test_weights_go_to_both_vllms(pair, proxy, tmp_path):
    servers, _ = pair
    ids = [*PROMPT, 391, 386]
    before = [truth.score(server, ids, 1) for server in servers]
    url = f"http://{harness.text(proxy.control)}"
    client = rolltape.Client(url, proxy.base_url()[:-3], store=proxy.store)
    client.reload_weights(flatter(tmp_path / "flat"), 7)
    after = [truth.score(server, ids, 1) for server in servers]
    for old, new in zip(before, after):
        assert max(abs(a - b) for a, b in zip(old, new) if a and b) > 0.1
    assert after[0] == pytest.approx(after[1], abs=1e-4)

    episodes = [f"new-{number}" for number in range(SESSIONS)]
    for episode in episodes:
        talk(proxy, episode, 1)
    engines = ask(proxy, "SELECT DISTINCT engine FROM calls WHERE episode_id LIKE 'new-%'")
    assert len(engines) == 2
    for row in exported(proxy, episodes, "new"):
        assert set(row["versions"][row["prompt_len"] :]) == {7}, row["episode_id"]


def test_when_one_vllm_dies_its_threads_go_on_at_the_other(pair, proxy):
    _, stacks = pair
    episodes = [f"goes-{number}" for number in range(SESSIONS)]
    said = {episode: talk(proxy, episode, 1) for episode in episodes}
    stacks[0].close()
    until = time.monotonic() + LOST_WAIT_S
    while {one["name"]: one["state"] for one in control.page(proxy, "/upstreams")["upstreams"]}[
        "one"
    ] != "lost":
        assert time.monotonic() < until
        time.sleep(0.1)
    for episode, messages in said.items():
        talk(proxy, episode, 1, messages)
    last = ask(proxy, """
        SELECT engine, count(*) FROM calls WHERE episode_id LIKE 'goes-%'
        AND routed NOT LIKE 'new' GROUP BY engine""")
    assert last == [("two", SESSIONS)]
    moved = ask(proxy, "SELECT count(*) FROM calls WHERE routed LIKE 'moved%'")[0][0]
    assert 0 < moved < SESSIONS
    assert {row["verdict"] for row in exported(proxy, episodes, "goes")} == {"exact"}
