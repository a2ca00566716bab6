"""Staying up: stops, supervisors, a lost upstream, a database that comes and goes, the log."""

import csv
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from contextlib import contextmanager

import pytest

import control
import frames
import harness
import hostile
import http1
import lines
import paths
import relay
from lines import WAIT_S, connect

COMPLETE = "SELECT outcome FROM calls WHERE outcome IS NOT NULL"


class Thought:
    """An upstream that begins a stream and goes on when it may."""

    def __init__(self):
        self.asked, self.may_end = threading.Event(), threading.Event()

    def __call__(self, request):
        if request.method == "GET":
            return lines.MODELS
        return lines.stream([lines.EVENT, self._think, lines.LAST])

    def _think(self):
        self.asked.set()
        self.may_end.wait(WAIT_S)


@pytest.fixture
def thought():
    """What the upstream thinks; it ends at the latest with the test."""
    thought = Thought()
    yield thought
    thought.may_end.set()


def begun(proxy, thought):
    """A stream under way."""
    line = connect(proxy.data)
    line.sendall(lines.chat(stream=True, kept=False))
    assert thought.asked.wait(WAIT_S)
    return line


def is_refused(address):
    """Whether nobody listens at an address."""
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


# Drains.


def test_a_stop_waits_for_a_stream_and_commits_it(serve, thought):
    proxy = serve(answer=thought)
    with begun(proxy, thought) as line:
        proxy.process.child.send_signal(signal.SIGTERM)
        harness.until("the drain", lambda: "waiting up to" in proxy.process.stderr)
        thought.may_end.set()
        assert lines.to_end(line).endswith(b"0\r\n\r\n")
    assert proxy.process.child.wait(WAIT_S) == 0
    assert hostile.rows(proxy, COMPLETE) == [{"outcome": "complete"}]
    assert hostile.is_clean(proxy)


def test_a_server_that_drains_refuses_new_connections_at_once(serve, thought):
    proxy = serve(answer=thought)
    with begun(proxy, thought):
        proxy.process.child.send_signal(signal.SIGTERM)
        harness.until("a refusal", lambda: is_refused(proxy.data))
        assert proxy.process.child.poll() is None


def test_a_server_that_drains_says_so_on_control(serve, thought):
    proxy = serve(answer=thought)
    assert lines.control(proxy, "/ready").status == 200
    with begun(proxy, thought):
        proxy.process.child.send_signal(signal.SIGTERM)
        harness.until("a refusal", lambda: is_refused(proxy.data))
        ready = lines.control(proxy, "/ready")
        assert (ready.status, b"draining" in ready.body) == (503, True)
        assert lines.control(proxy, "/health").status == 200


def test_a_second_signal_ends_the_calls_and_records_it(serve, thought):
    proxy = serve(answer=thought)
    with begun(proxy, thought):
        proxy.process.child.send_signal(signal.SIGTERM)
        harness.until("the drain", lambda: "waiting up to" in proxy.process.stderr)
        proxy.process.child.send_signal(signal.SIGTERM)
        assert proxy.process.child.wait(WAIT_S) == 0
    assert hostile.rows(proxy, COMPLETE) == [{"outcome": "client_gone"}]


def test_a_drain_has_an_end(serve, thought):
    proxy = serve(answer=thought, env=harness.environment(ROLLTAPE_DRAIN_WAIT_S="1"))
    with begun(proxy, thought):
        proxy.process.child.send_signal(signal.SIGTERM)
        assert proxy.process.child.wait(WAIT_S) == 0
    assert hostile.rows(proxy, COMPLETE) == [{"outcome": "client_gone"}]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="silent"),
        pytest.param(b"POST /v1/chat", id="half-a-head"),
        pytest.param(frames.START, id="http2"),
        pytest.param(lines.chat(), id="kept"),
    ],
)
def test_agents_that_do_not_ask_hold_up_no_stop(serve, said):
    proxy = serve()
    held = [connect(address) for address in (proxy.data, proxy.control)]
    for line in held:
        line.sendall(said)
    time.sleep(0.3)  # nothing tells that half a head was read
    proxy.process.child.send_signal(signal.SIGTERM)
    assert proxy.process.child.wait(WAIT_S) == 0
    for line in held:
        line.close()


def test_a_model_inside_answers_calls_under_way_while_it_stops(tmp_path):
    with harness.serve(tmp_path, "--model", harness.MODEL) as proxy:
        with connect(proxy.data) as line:
            line.sendall(lines.chat(model="tiny", stream=True, max_tokens=200, kept=False))
            harness.until("a call", lambda: hostile.rows(proxy, "SELECT 1 FROM calls"))
            proxy.process.child.send_signal(signal.SIGTERM)
            assert lines.to_end(line).endswith(b"0\r\n\r\n")
        assert proxy.process.child.wait(WAIT_S) == 0
    assert hostile.rows(proxy, COMPLETE) == [{"outcome": "complete"}]


# Supervisors.


PASS = """
import fcntl, os, sys
passed = [int(number) for number in sys.argv[1].split(",")]
high = [fcntl.fcntl(number, fcntl.F_DUPFD, 50) for number in passed]
for number in passed:
    os.close(number)
for at, number in enumerate(high):
    os.dup2(number, 3 + at)
    os.close(number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Gives sockets the numbers that a supervisor gives them, and becomes the program."""


@contextmanager
def supervised(folder, passed, names, *arguments):
    """A server that gets listening sockets from whoever starts it."""
    numbers = [one.fileno() for one in passed]
    env = harness.environment(LISTEN_FDS=str(len(passed)))
    env |= {"LISTEN_FDNAMES": names} if names else {}
    command = [harness.binary(), "serve", "--store", folder / "recorded.db", *arguments]
    with (folder / "supervised.stderr").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", PASS, ",".join(map(str, numbers)), *map(str, command)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=log,
            pass_fds=numbers,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def passed():
    """Two listening sockets."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        with socket.create_server(("127.0.0.1", 0)) as other:
            yield [one, other]


@pytest.mark.parametrize("names", ["data:control", "control:data", None])
def test_sockets_of_a_supervisor_are_served(tmp_path, passed, names):
    upstream = hostile.Upstream()
    addresses = [one.getsockname() for one in passed]
    data, control = addresses if names != "control:data" else reversed(addresses)
    with connect(data) as early:  # before there is a server
        early.sendall(lines.chat(kept=False))
        where = ("--upstream", upstream.url, "--listen", "127.0.0.1:1", "--control", "127.0.0.1:1")
        with supervised(tmp_path, passed, names, *where):
            assert http1.read(lines.to_end(early))[0].status == 200
            health = http1.exchange(control, http1.request("GET", "/health"), timeout=WAIT_S)
            assert health.status == 200
    upstream.stop()


def test_a_socket_of_another_name_is_refused_by_a_sentence(tmp_path, passed):
    where = ("--upstream", "http://127.0.0.1:1")
    with supervised(tmp_path, passed, "data:web", *where) as child:
        assert child.wait(WAIT_S) == 1
    said = (tmp_path / "supervised.stderr").read_text()
    assert "`web`" in said and "data or control" in said


def test_a_passed_control_socket_beyond_loopback_needs_a_token(tmp_path, passed):
    where = ("--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--control-open")
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        given = [passed[0], everywhere]
        with supervised(tmp_path, given, "data:control", *where) as child:
            assert child.wait(WAIT_S) == 1
    assert "token" in (tmp_path / "supervised.stderr").read_text()


def test_a_supervisor_hears_of_the_start_and_the_stop(serve, tmp_path):
    at = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(at))
        heard.settimeout(WAIT_S)
        proxy = serve(env=harness.environment(NOTIFY_SOCKET=str(at)))
        assert heard.recv(100).startswith(b"READY=1")
        proxy.process.child.send_signal(signal.SIGTERM)
        assert heard.recv(100).startswith(b"STOPPING=1")


def test_descriptors_are_raised_to_what_the_system_allows(serve, monkeypatch, tmp_path):
    program = tmp_path / "soft"
    program.write_text(f'#!/bin/sh\nulimit -Sn 256\nexec {harness.binary()} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("ROLLTAPE_BIN", str(program))
    proxy = serve()
    with open(f"/proc/{proxy.process.child.pid}/limits") as limits:
        (line,) = (line for line in limits if line.startswith("Max open files"))
    soft, hard = line.split()[3:5]
    assert soft == hard


# A lost upstream.


def test_a_lost_upstream_shows_and_so_does_its_return(serve):
    away = hostile.Upstream()
    proxy = serve(upstream=away)
    assert hostile.post(proxy).status == 200
    assert lines.metric(proxy, "rolltape_upstream_up") == 1
    port = away.address
    away._listener.shutdown(socket.SHUT_RDWR)
    away.stop()
    harness.until("the upstream's end", lambda: is_refused(port))
    harness.until("failures", lambda: hostile.post(proxy).status == 502)
    for _ in range(5):
        assert hostile.post(proxy).status == 502
    ready = lines.control(proxy, "/ready")
    assert (ready.status, b"connection refused" in ready.body) == (503, True)
    assert lines.metric(proxy, "rolltape_upstream_up") == 0
    assert proxy.process.stderr.count("the upstream cannot be reached") == 1

    listener = socket.create_server(port, backlog=64)
    threading.Thread(target=answer_all, args=(listener,), daemon=True).start()
    # It is asked anew, so a server that gets no calls comes back as well.
    assert lines.control(proxy, "/ready").status == 200
    assert lines.metric(proxy, "rolltape_upstream_up") == 1
    assert proxy.process.stderr.count("the upstream answers again") == 1
    listener.close()


def answer_all(listener):
    """Answers each connection once, and says that it ends with that."""
    said = lines.MODELS.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    while True:
        try:
            line, _ = listener.accept()
            with line:
                line.recv(1 << 16)
                line.sendall(said)
        except OSError:
            return


# PostgreSQL.


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A PostgreSQL server behind a relay that can cut and stall."""
    with relay.postgres() as address, relay.Relay(address) as between:
        yield between


def test_connections_to_a_database_that_were_cut_cost_no_call(database, tmp_path):
    with relay.recording(tmp_path, relay.new_database(database.address)) as proxy:
        for _ in range(3):
            assert hostile.post(proxy, "/e/cut/v1/chat/completions").status == 200
            database.cut()
        assert hostile.post(proxy, "/e/cut/v1/chat/completions").status == 200
        proxy.process.stop()
    shown = harness.done("episodes", "--json", "--store", proxy.store, folder=tmp_path)
    assert '"calls":4' in shown.replace(" ", "")


def test_a_database_that_is_away_gives_503_and_comes_back(database, tmp_path):
    with relay.recording(tmp_path, relay.new_database(database.address)) as proxy:
        assert hostile.post(proxy, "/e/away/v1/chat/completions").status == 200
        with database.away():
            for _ in range(3):
                refused = hostile.post(proxy, "/e/away/v1/chat/completions")
                assert (refused.status, b"recorder_error" in refused.body) == (503, True)
        assert hostile.post(proxy, "/e/away/v1/chat/completions").status == 200
        proxy.process.stop()
    shown = harness.done("verify", "--json", "--store", proxy.store, folder=tmp_path)
    assert json.loads(shown)["clean"]


WORDS = [
    "a'); DROP TABLE call; --",
    "'; UPDATE reward SET value = 1; --",
    'x"; DELETE FROM "episode"; --',
    "$1 ?1 %s :a @b {0} \\'",
    "\\'; SELECT pg_sleep(30); --",
    "' OR '1'='1",
    "' UNION SELECT * FROM setting --",
]
CLAUDE = ("user-agent", "claude-cli/2.0.0 (external, cli)")


def named_as_asked(request):
    """A reply with ids, of the model that the request names."""
    if request.method == "GET":
        return lines.MODELS
    model = json.loads(request.body)["model"]
    return hostile.reply({**paths.CHAT_IDS, "model": model})


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def stored(request, tmp_path):
    """A server before either database, whose upstream repeats the name of the model."""
    upstream, options = hostile.Upstream(named_as_asked), ("--dialect", "vllm", "--control-open")
    if request.param == "SQLite":
        yield request.getfixturevalue("serve")(*options, upstream=upstream)
        return
    url = relay.new_database(request.getfixturevalue("database").address)
    with relay.recording(tmp_path, url, *options, upstream=upstream) as proxy:
        yield proxy


def asked(proxy, query):
    """The words that a query gives, in their order."""
    if not isinstance(proxy.store, str):
        return [word for row in hostile.rows(proxy, query) for word in row.values()]
    psql = [relay._programs() / "psql", proxy.store, "--csv", "--tuples-only", "-c", query]
    env = harness.environment(PGOPTIONS="-c search_path=rolltape")
    told = subprocess.run(psql, check=True, capture_output=True, text=True, env=env).stdout
    return [word for row in csv.reader(io.StringIO(told)) for word in row]


def exported(proxy, form, folder):
    """The rows of an export."""
    out = folder / f"{form}.jsonl"
    proxy.command("export", "--format", form, "--out", out)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_no_word_is_taken_for_sql(stored, tmp_path):
    for number, word in enumerate(WORDS):
        episode, session = f"sql-{number}", ("x-claude-code-session-id", word)
        told = {"episode_id": episode, "labels": {word: word}}
        assert control.post(stored, "/episodes", told)[0] == 200
        path = f"/e/{episode}{hostile.CHAT}?q={urllib.parse.quote(word)}"
        headers = [CLAUDE, session, ("x-claude-code-agent-id", word)]
        assert hostile.post(stored, path, hostile.BODY | {"model": word}, headers).status == 200
        control.reward(stored, episode, number, name="reward", source=word)
        told = {"version": f"{word}-{number}", "checksum": word}
        assert control.post(stored, "/version", told)[0] == 200
    calls = exported(stored, "calls", tmp_path)
    assert [call["model"] for call in calls] == WORDS
    paths_of = [urllib.parse.unquote(call["path"].partition("?q=")[2]) for call in calls]
    assert paths_of == WORDS
    rows = exported(stored, "trajectories", tmp_path)
    assert [row["metadata"]["labels"] for row in rows] == [{word: word} for word in WORDS]
    assert [[(one["source"], one["value"]) for one in row["rewards"]] for row in rows] == [
        [(word, number)] for number, word in enumerate(WORDS)
    ]
    found = asked(stored, "SELECT session, agent FROM calls ORDER BY call_id")
    assert found == [word for word in WORDS for _ in ("session", "agent")]
    versions = control.page(stored, "/versions")["versions"]
    assert [version["checksum"] for version in versions] == WORDS
    assert hostile.is_clean(stored)


def test_no_name_of_an_episode_is_taken_for_sql(stored):
    assert hostile.post(stored, f"/e/mine{hostile.CHAT}").status == 200
    before, where = stored.command("episodes", "--json"), ("--store", stored.store)
    for word in WORDS:
        quoted = urllib.parse.quote(word, safe="")
        assert hostile.post(stored, f"/e/{quoted}{hostile.CHAT}").status == 400
        assert hostile.post(stored, headers=[("x-episode-id", word)]).status == 400
        assert control.post(stored, f"/episodes/{quoted}/close", {})[0] == 400
        assert control.post(stored, f"/feed?consumer=t&episode={quoted}", {})[0] == 400
        for command in (["prune", "--episode"], ["close"], ["show"]):
            ended = harness.command(*command, word, *where, folder=stored.folder)
            assert ended.returncode != 0, command
    assert stored.command("episodes", "--json") == before


# The log.


def test_a_log_in_json_has_one_object_a_line(serve):
    odd = {"model": "m\u001b[2J\n\u009b2J\r{\"level\":\"ERROR\"}"}
    proxy = serve(
        answer=lambda request: hostile.reply({"error": {"message": "no"}}, "400 Bad Request")
        if b"logprobs" in request.body
        else hostile.reply(hostile.REPLY),
        env=harness.environment(ROLLTAPE_LOG_FORMAT="json", ROLLTAPE_LOG="debug"),
    )
    hostile.post(proxy, body=hostile.BODY | odd)
    hostile.post(proxy, path="/v1/nothing")
    proxy.process.stop()
    logged = [line for line in proxy.process.stderr.splitlines() if line.startswith("{")]
    assert logged and all("level" in json.loads(line) for line in logged)


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_agents_say_cannot_drive_the_terminal_of_the_log(serve, form):
    odd = "m\u001b]0;x\u0007\u001b[2J\r\u009b2J\u007f\nERROR forged"

    def refuse(request):
        if lines.is_v1_models(request):
            return lines.MODELS
        if b"return_token_ids" in request.body:
            error = {"error": {"message": odd + " return_token_ids"}}
            return hostile.reply(error, "400 Bad Request")
        return hostile.reply(hostile.REPLY)

    env = harness.environment(ROLLTAPE_LOG_FORMAT=form, ROLLTAPE_LOG="debug")
    proxy = serve(answer=refuse, env=env)
    hostile.post(proxy, body=hostile.BODY | {"model": odd})
    proxy.process.stop()
    with open(proxy.process._log, "rb") as log:
        said = log.read()
    assert b"refuses requests" in said
    for control in (b"\x1b", b"\x07", b"\r", b"\xc2\x9b", b"\x7f"):
        assert control not in said, control
    assert not any(line.startswith(b"ERROR forged") for line in said.splitlines())


@pytest.mark.parametrize("filter", ["proxy=loud", "a=b=c", "[", "=="])
def test_a_log_filter_that_is_none_is_an_error(tmp_path, filter):
    ended = harness.command(
        "episodes", folder=tmp_path, env=harness.environment(ROLLTAPE_LOG=filter)
    )
    assert ended.returncode == 2
    assert "`ROLLTAPE_LOG` is not a log filter" in ended.stderr
