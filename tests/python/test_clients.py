"""Real clients and agents, unmodified: each runs twice against the same scripted upstream, once
directly and once through rolltape, and then once against the recording alone.

`clients/install.sh` installs them. A client that is not there is skipped, unless ROLLTAPE_CLIENTS
is `all`: then a missing one fails, unless `install.sh` found no Python that is new enough for it.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import harness
from spelling import masked, meant, shown
from tap import Tap
from upstream import scripted

CLIENTS = Path(__file__).with_name("clients")
sys.path.append(str(CLIENTS))
import scripts  # noqa: E402

EPISODE = "a-run:1.0"
PREFIX = f"/e/{EPISODE}"
AGAIN = "again"
AGAIN_PREFIX = f"/e/{AGAIN}"
RUN_WAIT_S = 200
AT_ONCE = 2
PROBE = ("GET", "/v1/models")
SAMPLER = ("GET", "/server_info?config_format=json")
GENERATES = re.compile(r"/v1/(chat/completions|completions|responses|messages)(\?.*)?$")
BASES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE")
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOSTED_VLLM_API_KEY")
SAME_DATE = "2026-11-21T00:00:00Z"
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "GIT_AUTHOR_DATE": SAME_DATE,
    "GIT_COMMITTER_DATE": SAME_DATE,
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""Clients call nobody but the server that they were given, and commit the same each time."""
UNASKED = {
    "return_token_ids": (b'"token_ids":[', b'"prompt_token_ids":['),
    "logprobs": (b'"logprobs":{',),
    "include": (b'"logprobs":[{',),
    "return_weight_versions": (b'"weight_versions":[',),
    "enable_response_messages": (b"raw_message_tokens",),
}
"""What must not be in a reply, by the field of a request that would ask for it."""


@dataclass(frozen=True)
class Client:
    """A driver in `clients/` and how it is run."""

    name: str
    group: str
    mode: str = ""
    script: str = "WEATHER"
    sealed: bool = False
    """Whether it asks for its thoughts sealed and sends them back. vLLM's own route seals none, so
    only behind rolltape the model hears them again."""
    path: int = 1
    """Turns of its longest conversation that it gives back as the model said them; 1 where it drops
    the reasoning, says calls in other words, or asks each time anew."""
    ignored: tuple = ()
    """Rules for what differs between its runs, beside what never matters."""

    def __str__(self):
        return f"{self.name}-{self.mode}" if self.mode else self.name

    @property
    def python(self):
        """The interpreter that has this client."""
        return CLIENTS / ".venvs" / self.group / "bin" / "python"

    @property
    def installed(self):
        """Whether `clients/install.sh` got to its end."""
        return (self.python.parents[1] / ".installed").exists()

    @property
    def skipped(self):
        """Why `clients/install.sh` left it out, if it did."""
        why = CLIENTS / ".venvs" / f"{self.group}.skipped"
        return why.read_text().strip() if why.exists() else None

    @property
    def command(self):
        """The driver's command line."""
        named = CLIENTS / f"run_{self.name}_{self.mode}.py"
        if named.exists():
            return [str(self.python), str(named)]
        mode = [self.mode] if self.mode else []
        return [str(self.python), str(CLIENTS / f"run_{self.name}.py"), *mode]


MATRIX = (
    Client("openai", "current", "chat", path=2),
    Client("openai", "current", "text"),
    Client("openai", "current", "responses", path=2),
    Client("anthropic", "current", path=2),
    Client("litellm", "litellm", "chat", path=2),
    Client("litellm", "litellm", "responses"),
    Client("litellm", "litellm", "messages"),
    Client("langchain", "current", "chat"),
    Client("langchain", "current", "responses", path=2),
    Client("agents", "current", "chat", path=2),
    Client("agents", "current", "responses", path=2),
    Client("pydantic_ai", "current", "chat", "TWO_CALLS", path=2),
    Client("pydantic_ai", "current", "responses", "TWO_CALLS", path=2),
    Client("smolagents", "current", script="SMOLAGENTS"),
    Client("dspy", "litellm", script="DSPY"),
    Client("llama_index", "litellm"),
    Client("instructor", "litellm", script="INSTRUCTOR", path=2),
    Client("inspect", "current", "chat"),
    Client("inspect", "current", "vllm"),
    Client("inspect", "current", "responses", sealed=True, path=2),
    Client("autogen", "current"),
    Client("crewai", "crewai"),
    Client("llm", "current", path=2),
    Client("mini_swe_agent", "litellm", script="MINI", path=3),
    Client("aider", "aider", "stream", "AIDER"),
    Client("aider", "aider", "whole", "AIDER"),
    Client("openhands", "openhands", script="OPENHANDS", path=2),
)


@dataclass(frozen=True)
class Run:
    """One run of a client: its result, what passed between it and its server, and what the
    upstream heard."""

    result: str
    exchanges: tuple
    heard: tuple

    def generations(self):
        """What the upstream was asked to generate."""
        return [request for request in self.heard if request.generates]

    def sent(self):
        """Method and path of each request of the client."""
        return Counter((e.request.method, path_of(e)) for e in self.exchanges)

    def seen(self):
        """Each reply that the client got, with what it was the reply to."""
        return Counter(
            (e.request.method, path_of(e), e.reply.status, shown(path_of(e), e.reply.body.decode()))
            for e in self.exchanges
        )

    def received(self):
        """Each reply as it was on the wire, with what it was the reply to."""
        return Counter(
            (e.request.method, path_of(e), e.reply.status, e.reply.header("content-type"))
            + (e.reply.body, e.reply.whole)
            for e in self.exchanges
        )


@dataclass(frozen=True)
class Replayed:
    """A client's run against the recording, and what was recorded of it."""

    run: Run
    calls: list
    choices: list
    rows: list
    said: str
    """What the server said of it."""


@dataclass(frozen=True)
class Compared:
    """A client's runs, and what was recorded of the one through rolltape."""

    client: Client
    direct: Run
    recorded: Run
    episodes: list
    calls: list
    choices: list
    rows: list
    replayed: Replayed

    def generations(self):
        """The recorded calls that sampled."""
        return [c for c in self.calls if c["method"] == "POST" and GENERATES.match(c["path"])]

    def conversations(self):
        """What the model read and said in each recorded call, as the export tells it."""
        said = {}
        for row in self.rows:
            for turn in row["turns"]:
                start, end = turn["start"], turn["end"]
                prompt, sampled = row["input_ids"][:start], row["input_ids"][start:end]
                found = said.setdefault(turn["call_id"], (tuple(prompt), set()))
                assert found[0] == tuple(prompt), "one call has one prompt"
                found[1].add(tuple(sampled))
        return Counter((prompt, frozenset(sampled)) for prompt, sampled in said.values())


def path_of(exchange):
    """The path that the upstream was to see."""
    return exchange.request.path.removeprefix(PREFIX).removeprefix(AGAIN_PREFIX)


def plain(counted):
    """Of counted methods and paths, those that sample nothing."""
    return Counter({key: n for key, n in counted.items() if not GENERATES.match(key[1])})


def surroundings(root, home):
    """The environment of a client: its base URL and a home of its own, and no way to ask others."""
    (home / ".gitconfig").write_text("[user]\nname = Nobody\nemail = nobody@localhost\n")
    bases = dict.fromkeys(BASES, f"{root}/v1")
    keys = dict.fromkeys(KEYS, "none")
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    return own | QUIET | bases | keys | {"ANTHROPIC_BASE_URL": root}


def run(client, folder, address, prefix=""):
    """Runs a client in empty folders whose paths are the same each time."""
    home, work = folder / "home", folder / "work"
    for path in (home, work):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    tap = Tap(address)
    try:
        ended = subprocess.run(
            client.command,
            cwd=work,
            env=surroundings(tap.url + prefix, home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_WAIT_S,
        )
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        return masked(ended.stdout.splitlines()[-1]), tuple(tap.exchanges())
    finally:
        tap.stop()


def rows_of(store, view, episode):
    """The rows of a view that are of an episode, as dicts."""
    calls = f"SELECT call_id FROM calls WHERE episode_id = '{episode}'"
    its = f"call_id IN ({calls})" if view == "choices" else f"episode_id = '{episode}'"
    with sqlite3.connect(store) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {view} WHERE {its}")]


def exported(store, folder, episode):
    """The exported rows of an episode."""
    its = ("--episode", episode, "--store", store)
    harness.done("export", *its, "--out", folder / "out" / episode, folder=folder)
    return pq.read_table(folder / "out" / episode / "trajectories.parquet").to_pylist()


def compare(client, folder):
    """Runs a client both ways, reads what was recorded, and runs it against that."""
    script = getattr(scripts, client.script)
    with scripted(folder, script) as upstream:
        ended = run(client, folder, upstream.address)
        direct = Run(*ended, tuple(upstream.heard()))
        upstream.log.rename(folder / "direct.jsonl")
    with scripted(folder, script) as upstream:
        with harness.serve(folder, "--upstream", upstream.url) as proxy:
            ended = run(client, folder, proxy.data, PREFIX)
        recorded = Run(*ended, tuple(upstream.heard()))
    found = [rows_of(proxy.store, view, EPISODE) for view in ("episodes", "calls", "choices")]
    rows = exported(proxy.store, folder, EPISODE)
    return Compared(client, direct, recorded, *found, rows, replay(client, folder))


def replay(client, folder):
    """Runs a client against its recording. The upstream is gone."""
    ignored = [f"--replay-ignore={rule}" for rule in client.ignored]
    with harness.serve(folder, "--replay", EPISODE, *ignored) as proxy:
        ended = run(client, folder, proxy.data, AGAIN_PREFIX)
    found = [rows_of(proxy.store, view, AGAIN) for view in ("calls", "choices")]
    rows = exported(proxy.store, folder, AGAIN)
    return Replayed(Run(*ended, ()), *found, rows, proxy.process.stderr)


@pytest.fixture(scope="session")
def comparisons(request, tmp_path_factory):
    """The runs of each client that is asked for, two clients at a time."""
    items = [item for item in request.session.items if "compared" in item.fixturenames]
    chosen = dict.fromkeys(item.callspec.params["compared"] for item in items)
    folders = {c: tmp_path_factory.mktemp(c.name) for c in chosen if c.installed}
    pool = ThreadPoolExecutor(AT_ONCE)
    yield {client: pool.submit(compare, client, folder) for client, folder in folders.items()}
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=MATRIX, ids=str)
def compared(request, comparisons):
    """The runs of one client."""
    client = request.param
    if client not in comparisons:
        if client.skipped:
            pytest.skip(client.skipped)
        assert os.environ.get("ROLLTAPE_CLIENTS") != "all", f"{client.group} is not installed"
        pytest.skip(f"not installed: tests/python/clients/install.sh {client.group}")
    return comparisons[client].result()


pytestmark = pytest.mark.timeout(240)


def test_the_client_comes_to_the_same_result(compared):
    """To the letter, but on the Responses route."""
    recorded, direct = (json.loads(run.result) for run in (compared.recorded, compared.direct))
    if compared.client.mode == "responses":
        recorded, direct = meant(recorded), meant(direct)
    assert recorded == direct


def test_the_client_sends_and_sees_the_same(compared):
    """Its requests are the same ones, and the replies the same bytes."""
    assert compared.recorded.sent() == compared.direct.sent()
    if not compared.client.sealed:
        assert compared.recorded.seen() == compared.direct.seen()


def test_the_model_hears_and_says_the_same(compared):
    """Whatever the route to the upstream is, the tokens are those of the direct run; where thoughts
    come back sealed, those that are sampled."""
    direct, recorded = (
        Counter(request.conversation for request in run.generations())
        for run in (compared.direct, compared.recorded)
    )
    if compared.client.sealed:
        direct, recorded = (Counter(said for _, said in run) for run in (direct, recorded))
    assert recorded == direct


def test_nothing_that_was_asked_for_on_the_way_reaches_the_client(compared):
    for exchange in compared.recorded.exchanges:
        asked = json.loads(exchange.request.body or b"{}")
        for field, marks in UNASKED.items():
            if not asked.get(field) and asked.get(field) != 0:
                assert not [mark for mark in marks if mark in exchange.reply.body], field
    assert all(request.reports for request in compared.recorded.generations())


def test_each_call_is_recorded_once_in_the_one_episode(compared):
    (episode,) = compared.episodes
    assert (episode["episode_id"], episode["attempt"], episode["source"]) == (EPISODE, 0, "path")
    made = compared.recorded.exchanges
    assert episode["calls"] == len(compared.calls) == len(made)
    recorded = Counter((call["method"], call["path"]) for call in compared.calls)
    heard = Counter((r.method, r.path) for r in compared.recorded.heard if not r.generates)
    others = plain(compared.recorded.sent())
    asked = heard - others
    assert 1 <= asked.pop(SAMPLER) <= 2, "it asks how the server samples, and again in a minute"
    assert plain(recorded) == others and asked == Counter([PROBE]), "it asks once itself"
    assert len(compared.recorded.generations()) == len(compared.generations())


def test_each_call_is_complete_with_the_ids_that_the_upstream_reported(compared):
    calls, heard = compared.generations(), compared.recorded.generations()
    assert calls and {call["outcome"] for call in compared.calls} == {"complete"}
    assert all(choice["has_token_ids"] for choice in compared.choices)
    assert {choice["call_id"] for choice in compared.choices} == {c["call_id"] for c in calls}
    assert len(compared.choices) == sum(request.choices for request in heard)
    assert compared.conversations() == Counter(request.conversation for request in heard)


def test_what_the_client_gives_back_faithfully_is_one_trajectory(compared):
    assert max(len(row["turns"]) for row in compared.rows) == compared.client.path


def test_the_recording_answers_as_the_upstream_did(compared):
    """To the byte, and the client cannot tell: it comes to the same result."""
    replayed = compared.replayed.run
    assert replayed.sent() == compared.recorded.sent()
    assert replayed.received() == compared.recorded.received()
    assert json.loads(replayed.result) == json.loads(compared.recorded.result)


def test_a_replayed_call_names_the_recorded_one_and_trains_nothing(compared):
    calls = compared.replayed.calls
    assert Counter(c["replayed"] for c in calls if GENERATES.match(c["path"])) == Counter(
        c["call_id"] for c in compared.generations()
    )
    assert {call["replayed"] for call in calls} <= {call["call_id"] for call in compared.calls}
    assert len(compared.replayed.choices) == len(compared.choices)
    rows = compared.replayed.rows
    assert not [row for row in rows if any(row["loss_mask"])]
    assert all("replayed" in row["reasons"] for row in rows)
