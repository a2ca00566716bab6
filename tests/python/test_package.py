"""The package `rolltape`: a server of its own, episodes, rewards, keys, errors, connections."""

import json
import multiprocessing
import pickle
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import harness
from game import Agent, Game
from harness import MODEL, command, environment
from package import PYTHON, rolltape

VERSION = r"rolltape \S+ \([^;]+; features: cpu, sqlite, postgres(, cuda, nccl)?\)\n"
LOOK = """
import sys
before = set(sys.modules)
import rolltape, rolltape.trl, rolltape.openenv, rolltape.sessions, rolltape.track
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A recorder in front of the tiny model, started by the package."""
    store = tmp_path_factory.mktemp("package") / "rolltape.db"
    with rolltape.Server(model=MODEL, store=store) as running:
        yield running


def rows(server, query, *values):
    """What the store says."""
    with sqlite3.connect(server.store) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]


def found(server, episode_id):
    """An episode in the view `episodes`."""
    (one,) = rows(server, "SELECT * FROM episodes WHERE episode_id = ?", episode_id)
    return one


def play(episode, secret=4, **options):
    """One game by an agent that was told no more than a base URL and a key."""
    client = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
    agent = Agent(client.with_options(**options) if options else client, seed=1)
    agent.play(Game(secret))
    return agent


def test_it_needs_the_standard_library_alone():
    words = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(PYTHON)!r}){LOOK}"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["rolltape"]


def test_the_module_is_the_command(tmp_path):
    env = environment() | {"PYTHONPATH": str(PYTHON), "ROLLTAPE_BIN": harness.binary()}
    run = [sys.executable, "-m", "rolltape"]
    told = subprocess.run([*run, "--version"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert told.returncode == 0 and re.fullmatch(VERSION, told.stdout), told
    wrong = subprocess.run([*run, "episodes", "--colour"], cwd=tmp_path, env=env, capture_output=True)
    assert wrong.returncode == 2 and b"--colour" in wrong.stderr, wrong


def test_an_episode_is_announced_played_rewarded_and_closed(server):
    client = server.client
    tags = {"group_id": "g", "task_id": "t", "labels": {"split": "train", "by": "test"}}
    with rolltape.episode(client, "one", **tags) as episode:
        agent = play(episode)
        episode.reward(0.5, source="test")
        episode.reward(None, name="style")
        assert not client.show("one")["closed"]
    told = client.show("one")
    assert told["generations"] == told["with_ids"] == len(agent.reply_ids) > 0
    assert (told["closed"], told["status"], told["reward"]) == (True, "completed", 0.5)
    assert (told["group_id"], told["task_id"]) == ("g", "t")
    labels = rows(server, "SELECT name, value FROM labels WHERE episode_id = 'one'")
    assert {row["name"]: row["value"] for row in labels} == {"split": "train", "by": "test"}
    rewards = rows(server, "SELECT name, value, source FROM rewards WHERE episode_id = 'one'")
    assert [tuple(r.values()) for r in rewards] == [("reward", 0.5, "test"), ("style", None, "api")]


def test_a_block_that_fails_closes_its_episode_as_failed(server):
    with pytest.raises(ZeroDivisionError), rolltape.episode(server.client, "failing"):
        raise ZeroDivisionError
    assert server.client.show("failing")["status"] == "failed"
    with rolltape.episode(server.client, "judged") as episode:
        episode.status = "truncated"
    assert server.client.show("judged")["status"] == "truncated"


def test_a_closed_episode_takes_no_more_calls(server):
    with rolltape.episode(server.client, "closed") as episode:
        play(episode)
    with pytest.raises(openai.ConflictError):
        play(episode)
    with rolltape.episode(server.client, "closed", attempt=1) as again:
        play(again)
    assert again.base_url.endswith("/e/closed/a/1/v1")
    with pytest.raises(rolltape.RolltapeError, match='give another attempt, or "next"'):
        with rolltape.episode(server.client, "closed"):
            pass
    for number in (2, 3):
        with rolltape.episode(server.client, "closed", attempt="next") as next_one:
            assert next_one.attempt == number
    with rolltape.episode(server.client, "first-of-all", attempt="next") as first:
        assert first.attempt == 0


def test_a_person_comments_on_an_episode_and_on_a_call(server):
    with rolltape.episode(server.client, "judged-by-ada") as episode:
        play(episode)
    call = server.client.recording.tree("judged-by-ada")["turns"][0]["call_id"]
    server.client.comment("judged-by-ada", "gives up too early", author="ada", score=0.25)
    server.client.comment("judged-by-ada", "why?", call_id=call)
    told = server.client.recording.tree("judged-by-ada")["comments"]
    said = [(one["author"], one["text"], one["score"], one["call_id"]) for one in told]
    assert said == [("ada", "gives up too early", 0.25, None), ("api", "why?", None, call)]
    with pytest.raises(rolltape.RolltapeError) as refused:
        server.client.comment("judged-by-ada")
    assert refused.value.status == 400


def test_a_key_names_its_episode_and_no_other(server):
    with rolltape.episode(server.client, "keyed", attempt=2, key=True) as episode:
        assert "/e/" not in episode.base_url and episode.api_key.startswith("rt-")
        play(episode)
        with pytest.raises(openai.BadRequestError):
            play(episode, default_headers={"x-episode-id": "another"})
    assert server.client.show("keyed", 2)["with_ids"] > 0


def test_without_an_announcement_the_agent_carries_the_tags(server):
    options = {"group_id": "g2", "task_id": "t2", "labels": {"k": "v"}, "announce": False}
    with rolltape.episode(server.client, "headers", **options) as episode:
        play(episode, default_headers=episode.headers)
    one = found(server, "headers")
    assert (one["group_id"], one["task_id"], one["attempt"]) == ("g2", "t2", 0)
    with pytest.raises(ValueError, match="one label"):
        with rolltape.episode(server.client, labels={"a": "1", "b": "2"}, announce=False):
            pass


def test_the_environment_is_what_agents_read(server):
    with rolltape.episode(server.client, "env") as episode:
        environment = episode.environ()
        client = "import openai; print(openai.OpenAI().base_url)"
        words = [sys.executable, "-c", client]
        said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip().rstrip("/") == episode.base_url
    assert environment["ANTHROPIC_BASE_URL"] + "/v1" == episode.base_url


def test_an_unannounced_episode_that_nobody_calls_hides_nothing(server):
    with pytest.raises(ValueError, match="the agent's own"):
        with rolltape.episode(server.client, "never", announce=False):
            raise ValueError("the agent's own")
    with rolltape.episode(server.client, "never", announce=False):
        pass
    with pytest.raises(rolltape.RolltapeError, match="no episode"):
        server.client.show("never")
    gone = rolltape.Client("http://127.0.0.1:9", server.client.data)
    with pytest.raises(rolltape.RolltapeError):
        with rolltape.episode(gone, "unreached"):
            pass


def test_the_environment_is_that_of_rolltape_run(server, tmp_path):
    client = server.client
    look = "import json, os; print(json.dumps(dict(os.environ)))"
    where = ["--proxy", client.data, "--control", client.http.url, "--episode", "ran"]
    where += ["--store", server.store, "--attempt", "3"]
    ended = command("run", *where, "--", sys.executable, "-c", look, folder=tmp_path)
    assert "called no model" in ended.stderr, ended.stderr
    ran = json.loads(ended.stdout)
    with rolltape.episode(client, "ran", attempt=3, announce=False) as episode:
        told = episode.environment
    before = environment()
    added = {name: held for name, held in ran.items() if before.get(name) != held}
    assert added == told
    assert told["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"


def test_a_reward_is_finite(server):
    with rolltape.episode(server.client, "finite") as episode:
        for value in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="finite"):
                episode.reward(value)


def test_an_agent_s_environment_holds_no_secret(server, monkeypatch):
    secrets = {
        "ROLLTAPE_CONTROL_TOKEN": "s1",
        "ROLLTAPE_CONTROL_TOKEN_ENV": "MY_TOKEN",
        "MY_TOKEN": "s2",
        "ROLLTAPE_UPSTREAM_KEY_ENV": "OPENAI_API_KEY",
        "OPENAI_API_KEY": "s3",
        "ANOTHER_NAME": "s4",
        "ROLLTAPE_CONTROL_TOKEN_FILE": "s5",
    }
    for name, held in {**secrets, "KEPT": "kept"}.items():
        monkeypatch.setenv(name, held)
    token = server.client.http.token
    monkeypatch.setenv("ANOTHER_NAME", token)
    client = rolltape.Client(server.client.http.url, server.client.data, token=token)
    with rolltape.episode(client, "secretless") as episode:
        given = episode.environ()
    assert given["KEPT"] == "kept" and given["OPENAI_API_KEY"] == episode.api_key
    assert not {"s1", "s2", "s3", token, "s5"} & {*given.values()}
    assert {*secrets} & {*given} == {"OPENAI_API_KEY"}


def test_the_names_that_agents_do_not_get_are_those_of_the_command_line():
    rust = (harness.ROOT / "cli" / "src" / "run" / "environment.rs").read_text()
    (listed,) = re.findall(r"const REMOVED: \[&str; \d+\] = \[(.*?)\];", rust, re.DOTALL)
    assert rolltape.episodes.REMOVED == tuple(re.findall(r'"(\w+)"', listed))


PLACES = ("given", "file", "mine", "variable", "named", "store")
TOKENS = {place: f"{place}-{'x' * 16}" for place in PLACES}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A token in each place where one is looked for, as what a client is given."""
    store = tmp_path / "rolltape.db"
    files = {place: tmp_path / place for place in ("file", "named")}
    for place, file in {**files, "store": harness.token_file(store)}.items():
        file.touch(0o600)
        file.write_text(TOKENS[place] + "\n")
    monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN_ENV", "MY_TOKEN")
    monkeypatch.setenv("MY_TOKEN", TOKENS["mine"])
    monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN", TOKENS["variable"])
    monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN_FILE", str(files["named"]))
    return {"token": TOKENS["given"], "token_file": files["file"], "store": store}


def test_the_token_is_looked_for_in_the_order_of_the_command_line(places, monkeypatch):
    def found():
        return rolltape.Client(**places).http.token

    assert found() == TOKENS["given"]
    del places["token"]
    assert found() == TOKENS["file"]
    del places["token_file"]
    assert found() == TOKENS["mine"]
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(ValueError, match="MY_TOKEN, which ROLLTAPE_CONTROL_TOKEN_ENV names"):
        found()
    monkeypatch.delenv("ROLLTAPE_CONTROL_TOKEN_ENV")
    assert found() == TOKENS["variable"]
    monkeypatch.delenv("ROLLTAPE_CONTROL_TOKEN")
    assert found() == TOKENS["named"]
    monkeypatch.delenv("ROLLTAPE_CONTROL_TOKEN_FILE")
    assert found() == TOKENS["store"]
    monkeypatch.setenv("ROLLTAPE_STORE", str(places.pop("store")))
    assert found() == TOKENS["store"]


def test_the_addresses_are_those_of_the_command_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("ROLLTAPE_CONTROL_URL", "http://127.0.0.1:18")
    monkeypatch.setenv("ROLLTAPE_PROXY", "127.0.0.1:19")
    # What a server listens on is no address for its clients.
    monkeypatch.setenv("ROLLTAPE_CONTROL", "0.0.0.0:20")
    monkeypatch.setenv("ROLLTAPE_LISTEN", "0.0.0.0:21")
    client = rolltape.Client()
    assert (client.http.url, client.data) == ("http://127.0.0.1:18", "http://127.0.0.1:19")
    monkeypatch.delenv("ROLLTAPE_CONTROL_URL")
    monkeypatch.delenv("ROLLTAPE_PROXY")
    client = rolltape.Client()
    assert (client.http.url, client.data) == ("http://127.0.0.1:8081", "http://127.0.0.1:8080")


def test_a_client_beside_a_server_takes_the_variable_that_the_server_took(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN", TOKENS["variable"])
    env = environment(ROLLTAPE_CONTROL_TOKEN=TOKENS["variable"])
    with harness.serve(tmp_path, "--upstream", "http://127.0.0.1:9", env=env) as proxy:
        where = {"control": harness.text(proxy.control), "store": proxy.store}
        assert rolltape.Client(**where).versions() == []
        monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN", TOKENS["named"])
        with pytest.raises(rolltape.RolltapeError, match="token in ROLLTAPE_CONTROL_TOKEN is"):
            rolltape.Client(**where).versions()


def test_what_the_server_refuses_is_an_error_with_its_words(server):
    with pytest.raises(rolltape.RolltapeError, match="no episode") as caught:
        server.client.reward("nobody-knows-it", 1.0)
    assert caught.value.status == 404
    with pytest.raises(rolltape.RolltapeError, match="status") as caught:
        server.client.close("one", "splendid")
    assert caught.value.status == 400


def test_a_server_that_is_not_there_is_an_error_too():
    ((_, port),) = harness.free_addresses(1)
    with pytest.raises(rolltape.RolltapeError) as caught:
        rolltape.Client(f"127.0.0.1:{port}").health()
    assert caught.value.status is None
    with pytest.raises(ValueError, match="not an address"):
        rolltape.Client("ftp://example.org")


def test_many_threads_share_a_client(server):
    def one(number):
        with rolltape.episode(server.client, f"thread-{number}") as episode:
            episode.reward(number)
        return server.client.show(episode.id)["reward"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(32))) == [float(n) for n in range(32)]


def test_processes_get_a_client_of_their_own(server):
    copy = pickle.loads(pickle.dumps(server.client))
    copy.health()
    fork = multiprocessing.get_context("fork")
    children = [
        fork.Process(target=server.client.announce, args=(f"forked-{n}",)) for n in range(4)
    ]
    server.client.health()  # a connection is open when they begin
    for child in children:
        child.start()
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    server.client.health()
    assert all(server.client.show(f"forked-{n}")["calls"] == 0 for n in range(4))


def test_a_kept_connection_that_has_gone_is_made_anew():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    asked = []

    def serve(listener):
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(4096).split(b"\r\n")[0])
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        http = rolltape.http.Http("127.0.0.1:%d" % listener.getsockname()[1], timeout_s=10)
        assert http.get("/a", {"x": "ä b", "y": True, "z": None}) == {} and http.post("/b") == {}
        thread.join()
    assert asked == [b"GET /a?x=%C3%A4+b&y=true HTTP/1.1", b"POST /b HTTP/1.1"]


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = rolltape.Server("--no-such-option", model=MODEL, store=tmp_path / "x.db")
    with pytest.raises(RuntimeError, match="no-such-option"):
        server.start()
    with pytest.raises(ValueError, match="one of"):
        rolltape.Server()


def test_a_server_that_was_stopped_starts_again(tmp_path):
    server = rolltape.Server(model=MODEL, store=tmp_path / "again.db")
    first = server.start()
    first.announce("kept")
    with pytest.raises(RuntimeError, match="already"):
        server.start()
    server.stop()
    second = server.start()
    try:
        assert second is not first and server.client is second
        assert second.show("kept")["closed"] is False
    finally:
        server.stop()


def test_commands_run_on_the_same_store(server, tmp_path):
    with rolltape.episode(server.client, "commanded") as episode:
        play(episode)
    server.command("export", "--out", tmp_path / "out", "--episode", "commanded")
    assert (tmp_path / "out" / "trajectories.parquet").exists()
    with pytest.raises(RuntimeError, match="nobody"):
        server.command("show", "nobody-knows-it")


def test_patience_begins_with_the_first_failure():
    """A long poll may take longer than the patience before it fails for the first time."""
    from rolltape.http import RolltapeError, patiently

    asked = []

    def call():
        asked.append(None)
        if len(asked) == 1:
            time.sleep(1.5)
            raise RolltapeError("gone", None)
        return "there"

    assert patiently(call, until_s=1.0) == "there"

    def gone():
        asked.append(None)
        raise RolltapeError("gone", 503)

    asked.clear()
    with pytest.raises(RolltapeError):
        patiently(gone, until_s=0.25)
    assert len(asked) == 2, "after 0.1 s once more; the next time would be too late"
