"""What a user gets wrong is answered by one sentence and an exit code, never by a trace."""

import json
import re
import shutil
import socket
import sqlite3
import sys
import time
import urllib.error
import urllib.request

import openai
import pytest

import control
import harness
from harness import MODEL, command

FAILED, USAGE, NOT_FOUND = 1, 2, 127
# What a user should never meet.
INNARDS = re.compile(r"panicked|RUST_BACKTRACE|Traceback|stack backtrace|Error \{|Some\(|Os \{")


def told(ended, code):
    """The sentence of a failure: one line, and perhaps one more that says what to do."""
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert not INNARDS.search(ended.stderr), ended.stderr
    if code == USAGE:
        assert ended.stderr.startswith("error: ") and "--help" in ended.stderr
        return ended.stderr
    sentence, *hint = ended.stderr.splitlines()
    assert sentence.startswith("rolltape: "), ended.stderr
    assert len(hint) <= 1 and all(line.startswith("  ") for line in hint), ended.stderr
    return sentence


@pytest.fixture
def store(tmp_path):
    """A store without an episode, as a serving rolltape leaves it."""
    with harness.serve(tmp_path, "--upstream", "http://127.0.0.1:9") as proxy:
        path = proxy.store
    return path


@pytest.mark.parametrize("option", ["--listen", "--control"])
def test_a_port_in_use(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken_at = harness.text(taken.getsockname())
        free = {"--listen": "127.0.0.1:0", "--control": "127.0.0.1:0"} | {option: taken_at}
        where = [word for pair in free.items() for word in pair]
        ended = command("serve", "--model", MODEL, *where, folder=tmp_path)
    sentence = told(ended, FAILED)
    assert taken_at in sentence and option in ended.stderr
    assert list(tmp_path.glob("*.db")) == [], "nothing is touched before everything is checked"


def test_a_port_in_use_by_the_engine(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken_at = harness.text(taken.getsockname())
        ended = command("engine", "--model", MODEL, "--listen", taken_at, folder=tmp_path)
    assert taken_at in told(ended, FAILED)


@pytest.mark.parametrize(
    "before", [["engine"], ["serve", "--control", "127.0.0.1:0"], ["run"]], ids=lambda b: b[0]
)
def test_a_missing_model_folder(tmp_path, before):
    listen = [] if before == ["run"] else ["--listen", "127.0.0.1:0"]
    after = ["--", "true"] if before == ["run"] else []
    ended = command(*before, *listen, "--model", "nowhere", *after, folder=tmp_path)
    assert "nowhere" in told(ended, FAILED)
    assert list(tmp_path.glob("*.db")) == []


@pytest.mark.parametrize("named", ["file", "folder", "shape"])
def test_a_gguf_file_is_named_as_what_it_is(tmp_path, named):
    model = tmp_path / "models" / "smol.Q4_1.gguf"
    model.parent.mkdir()
    model.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(64))
    option = "--random-weights" if named == "shape" else "--model"
    given = model.parent if named == "folder" else model
    ended = command("engine", option, given, "--listen", "127.0.0.1:0", folder=tmp_path)
    assert f"`{model}` is a GGUF file" in told(ended, FAILED)
    assert "base model" in ended.stderr and "config.json" in ended.stderr


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_broken_model_folder(tmp_path, name, harm):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.py", "*.md"))
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    if harm == "cut":
        (folder / name).write_bytes(whole[: len(whole) // 2])
    ended = command("engine", "--model", folder, "--listen", "127.0.0.1:0", folder=tmp_path)
    sentence = told(ended, FAILED)
    assert name in sentence or (name, harm) == ("model.safetensors", "gone")


@pytest.mark.parametrize("reader", ["export", "episodes", "show", "reward", "close", "serve"])
def test_a_store_of_a_newer_version(tmp_path, store, reader):
    with sqlite3.connect(store) as connection:
        connection.execute(
            "INSERT INTO _sqlx_migrations SELECT version + 1000, description, installed_on,"
            " success, checksum, execution_time FROM _sqlx_migrations"
        )
    connection.close()
    arguments = {
        "export": ["--out", tmp_path / "out"],
        "show": ["e"],
        "reward": ["e", "1"],
        "close": ["e"],
        "serve": ["--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
        + ["--control", "127.0.0.1:0"],
    }
    ended = command(reader, *arguments.get(reader, []), "--store", store, folder=tmp_path)
    told(ended, FAILED)
    assert "newer" in ended.stderr and "rolltape" in ended.stderr


def test_an_empty_export(tmp_path, store):
    ended = command("export", "--store", store, "--out", tmp_path / "out", folder=tmp_path)
    assert "nothing to export" in told(ended, FAILED)
    assert not (tmp_path / "out" / "trajectories.parquet").exists()


@pytest.mark.parametrize("reader", ["export", "episodes", "show", "reward", "close"])
def test_a_store_that_is_not_there(tmp_path, reader):
    more = {"export": ["--out", "out"], "show": ["e"], "reward": ["e", "1"], "close": ["e"]}
    ended = command(reader, *more.get(reader, []), "--store", "gone.db", folder=tmp_path)
    assert "gone.db" in told(ended, FAILED)
    assert list(tmp_path.iterdir()) == [], "a reader makes no store"


@pytest.mark.parametrize("reader", ["export", "serve"])
def test_a_store_that_is_something_else(tmp_path, reader):
    other = tmp_path / "notes.db"
    other.write_text("not a database, however long this sentence is" * 100)
    free = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    more = {"export": ["--out", "out"], "serve": ["--upstream", "http://127.0.0.1:9", *free]}
    ended = command(reader, *more[reader], "--store", other, folder=tmp_path)
    assert "notes.db" in told(ended, FAILED)


def test_a_database_of_others_is_left_alone(tmp_path):
    other = tmp_path / "theirs.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = other.read_bytes()
    ended = command("export", "--store", other, "--out", "out", folder=tmp_path)
    assert "theirs.db" in told(ended, FAILED)
    assert other.read_bytes() == before


def test_an_unknown_episode(tmp_path, store):
    for arguments in (["show", "nobody"], ["reward", "nobody", "1"], ["close", "nobody"]):
        ended = command(*arguments, "--store", store, folder=tmp_path)
        assert "nobody" in told(ended, FAILED)


def test_files_of_others_are_not_replaced(played, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "trajectories.parquet").write_text("mine")
    proxy = played.world.proxy
    ended = command("export", "--store", proxy.store, "--out", out, folder=tmp_path)
    told(ended, FAILED)
    assert (out / "trajectories.parquet").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["serve"],
        ["serve", "--model", "a", "--upstream", "http://127.0.0.1:9"],
        ["serve", "--upstream", "not a url"],
        ["serve", "--upstream", "http://127.0.0.1:9", "--dialect", "french"],
        ["serve", "--upstream", "http://127.0.0.1:9", "--listen", "here"],
        ["serve", "--upstream", "http://127.0.0.1:9/v1/chat/completions"],
        ["engine"],
        ["export"],
        ["run"],
        ["run", "--episode", "a b", "--", "true"],
        ["reward", "e"],
        ["reward", "e", "well"],
        ["show", ""],
    ],
    ids=lambda arguments: " ".join(arguments) or "nothing",
)
def test_wrong_usage(tmp_path, arguments):
    ended = command(*arguments, folder=tmp_path)
    if arguments:
        told(ended, USAGE)
    else:
        assert ended.returncode == USAGE and "Usage: rolltape" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, way",
    [
        (["engine", "--model", "a", "--listen", ":8090"], "127.0.0.1:8080"),
        (["serve", "--model", "a", "--listen", "db.example:8095"], "a port alone"),
        (["serve", "--upstream", "http://h/v1/messages"], "without `/messages`"),
        (["episodes", "--store", "."], "./rolltape.db"),
        (["show", "e", "--call", "nope"], "rolltape show EPISODE --json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_told_a_way_out(tmp_path, arguments, way):
    ended = command(*arguments, folder=tmp_path)
    assert way in told(ended, USAGE)
    assert list(tmp_path.iterdir()) == []


FREE = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
NOBODY = "postgres://nobody@127.0.0.1:9/none"


@pytest.mark.parametrize(
    "arguments, way",
    [
        (["serve", "--upstream", "http://127.0.0.1:9", *FREE, "--store", "no/x.db"], "mkdir -p no"),
        (["serve", "--upstream", "http://127.0.0.1:9", *FREE, "--store", NOBODY], "PGPASSWORD"),
        (["engine", "--model", "empty", "--listen", "127.0.0.1:0"], "config.json, *.safetensors"),
        (["episodes", "--store", "notes.db"], "that `rolltape serve` records to with --store"),
        (["feed", "--control", "127.0.0.1:9"], "--control"),
        (["run", "--control", "http://127.0.0.1:9", "--", "true"], "rolltape serve"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_failures_are_told_a_way_out(tmp_path, arguments, way):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.db").write_text("not a database, however long this sentence is" * 100)
    ended = command(*arguments, folder=tmp_path)
    told(ended, FAILED)
    assert way in ended.stderr.splitlines()[-1], ended.stderr


def test_an_engine_that_is_given_up_has_not_panicked(tmp_path):
    for _ in range(4):
        ended = command("serve", "--model", MODEL, *FREE, "--store", "no/x.db", folder=tmp_path)
        assert ended.returncode == FAILED and "mkdir -p no" in ended.stderr
        assert not INNARDS.search(ended.stderr), ended.stderr


def test_a_feed_that_is_asked_at_the_wrong_door_or_without_its_token(tmp_path):
    options = ["--upstream", "http://127.0.0.1:9", "--control-token-env", "SECRET"]
    env = harness.environment(SECRET="s" * 16)
    with harness.serve(tmp_path, *options, env=env) as proxy:
        at = harness.text(proxy.control)
        without = command("feed", "--control", at, folder=tmp_path)
        assert "401" in told(without, FAILED) and "--control-token-env" in without.stderr
        ran = command("run", "--control", at, "--", "true", folder=tmp_path)
        assert "401" in told(ran, FAILED)
        assert "--control-token-env" in ran.stderr and "serve` first" not in ran.stderr
        with_it = ["--control", at, "--control-token-env", "SECRET"]
        odd = command("feed", *with_it, "--consumer", "a b", folder=tmp_path, env=env)
        assert "`consumer`" in told(odd, FAILED)


def test_a_feed_of_the_agents_door(world, tmp_path):
    ended = command("feed", "--control", harness.text(world.proxy.data), folder=tmp_path)
    assert "403" in told(ended, FAILED) and "--control must name" in ended.stderr


def test_a_pruned_name_that_nobody_has(tmp_path, store):
    ended = command("prune", "--episode", "nope", "--store", store, folder=tmp_path)
    assert ended.returncode == 0 and "gone: 0 episodes" in ended.stdout
    assert "`nope`" in ended.stderr


def test_a_reward_of_tokens_that_were_not_sampled(played, tmp_path):
    # A copy: what was played is looked at by others.
    store = tmp_path / "copy.db"
    played.world.proxy.command("backup", "--to", store)
    with sqlite3.connect(store) as connection:
        query = "SELECT episode_id, attempt, call_id, tokens FROM choices WHERE tokens > 0"
        episode, attempt, call, tokens = connection.execute(query).fetchone()
    words = ["reward", episode, "1", "--attempt", attempt, "--name", "far", "--call", call]
    ended = command(*words, "--tokens", f"0..{tokens + 1}", "--store", store, folder=tmp_path)
    assert f"{tokens} at most" in told(ended, FAILED)
    ended = command(*words, "--tokens", f"0..{tokens}", "--store", store, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_a_base_url_that_is_almost_right_is_told_once(world, path):
    for _ in range(2):
        control.post_at(world.proxy.data, f"/e/almost{path}", {"model": "tiny", "messages": []})
    said = [line for line in world.proxy.process.stderr.splitlines() if f'path="{path}"' in line]
    said = [line for line in said if "OPENAI_BASE_URL" in line]
    assert len(said) == 1 and "WARN" in said[0], world.proxy.process.stderr


def test_an_unreachable_upstream(tmp_path):
    """The proxy starts all the same; the agent is told, and the call is recorded as failed."""
    (nowhere,) = harness.free_addresses(1)
    upstream = f"http://{harness.text(nowhere)}"
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        client = openai.OpenAI(base_url=proxy.base_url("e"), api_key="k", max_retries=0)
        with pytest.raises(openai.InternalServerError) as met:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ""}])
        assert met.value.status_code == 502
        assert met.value.response.headers["x-rolltape-error"] == "1"
        assert harness.text(nowhere) not in met.value.response.json()["error"]["message"]
        assert harness.text(nowhere) in proxy.process.stderr
        (line,) = proxy.command("show", "e", "--tree").splitlines()[1:]
        assert "upstream_failed" in line
        assert not INNARDS.search(proxy.process.stderr)


def test_an_upstream_that_goes_and_comes_back_is_told_once_each(tmp_path):
    """At the start, before any call, and with calls on a connection that was kept."""
    (address,) = harness.free_addresses(1)
    where = ("engine", "--model", MODEL, "--listen", harness.text(address))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}

    def ready():
        headers = control.headers_for(proxy.control)
        url = f"http://{harness.text(proxy.control)}/ready"
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, ""
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["message"]

    def call():
        return control.post_at(proxy.data, "/e/e/v1/chat/completions", body)[0]

    def until(sentence, times):
        harness.until(sentence, lambda: proxy.process.stderr.count(sentence) >= times)

    gone, back = "the upstream cannot be reached", "the upstream answers again"
    with harness.serve(tmp_path, "--upstream", f"http://{harness.text(address)}") as proxy:
        until(gone, 1)
        status, reason = ready()
        assert status == 503 and "connection refused" in reason
        assert [call(), call(), call()] == [502] * 3
        for times in (1, 2):
            engine = harness.Process(*where, folder=tmp_path)
            until(back, times)
            assert ready() == (200, "") and call() == 200
            engine.stop()
            # Whoever looks first, nobody has to call.
            assert ready()[0] == 503
            assert [call(), call(), call(), call()] == [502] * 4
            until(gone, times + 1)
        said = proxy.process.stderr
        assert (said.count(gone), said.count(back)) == (3, 2), said
        assert len([line for line in said.splitlines() if "WARN" in line]) == 3, said


def test_an_upstream_without_tls_is_noticed_at_the_start_and_named(tmp_path):
    with harness.serve(tmp_path, "--model", MODEL) as engine:
        beyond = tmp_path / "beyond"
        beyond.mkdir()
        upstream = f"https://{harness.text(engine.data)}"
        with harness.serve(beyond, "--upstream", upstream) as proxy:
            said = "it does not speak TLS: name it with http://"
            harness.until(said, lambda: said in proxy.process.stderr)


def test_one_of_two_upstreams_that_is_away_costs_no_call(tmp_path):
    (address,) = harness.free_addresses(1)
    with harness.serve(tmp_path, "--model", MODEL) as engine:
        beyond = tmp_path / "beyond"
        beyond.mkdir()
        upstreams = [f"http://{harness.text(one)}" for one in (engine.data, address)]
        words = [word for one in upstreams for word in ("--upstream", one)]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        with harness.serve(beyond, *words) as proxy:
            statuses = [
                control.post_at(proxy.data, f"/e/e{at}/v1/chat/completions", body)[0]
                for at in range(6)
            ]
            assert statuses == [200] * 6
            lines = [line for line in proxy.process.stderr.splitlines() if "be reached" in line]
            assert all("calls that no other upstream takes get a 502" in line for line in lines)


@pytest.mark.parametrize("filter", ["loud", "proxi=debug", "debug,proxy=", "proxy=loud", "a b"])
def test_a_log_filter_that_would_do_nothing(tmp_path, filter):
    env = harness.environment(ROLLTAPE_LOG=filter)
    ended = command("episodes", folder=tmp_path, env=env)
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    sentence, hint = ended.stderr.splitlines()
    assert "`ROLLTAPE_LOG` is not a log filter" in sentence and "warn,proxy=debug" in hint


def test_run_with_an_unreachable_upstream_ends_as_the_child_ends(tmp_path):
    agent = [sys.executable, "-c", "import sys; sys.exit(4)"]
    options = ["--upstream", "http://127.0.0.1:9", "--store", "run.db"]
    ended = command("run", *options, "--", *agent, folder=tmp_path)
    assert ended.returncode == 4 and not INNARDS.search(ended.stderr)


def test_run_without_a_serving_rolltape(tmp_path):
    nowhere = [f"http://{harness.text(address)}" for address in harness.free_addresses(2)]
    options = ["--proxy", nowhere[0], "--control", nowhere[1]]
    ended = command("run", *options, "--", "true", folder=tmp_path)
    assert nowhere[1] in told(ended, FAILED)
    assert "rolltape serve" in ended.stderr


def test_run_of_a_command_that_is_not_there(tmp_path):
    options = ["--upstream", "http://127.0.0.1:9", "--store", "run.db"]
    # The log would say that this upstream cannot be reached.
    env = harness.environment(ROLLTAPE_LOG="error")
    ended = command("run", *options, "--", "no-such-command", folder=tmp_path, env=env)
    assert "no-such-command" in told(ended, NOT_FOUND)


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/episodes/nobody/rewards", {"value": 1}, 404),
        ("/episodes/nobody/close", {}, 404),
        ("/episodes/a%20b/close", {}, 400),
        ("/episodes/e/rewards", {}, 400),
        ("/episodes/e/rewards", {"value": "good"}, 400),
        ("/episodes/e/rewards", [1], 400),
        ("/episodes/e/rewards?attempt=x", {"value": 1}, 400),
        ("/nothing", {}, 404),
    ],
)
def test_the_control_listener_says_what_is_wrong(world, path, body, status):
    found, reply = control.post(world.proxy, path, body)
    assert found == status, json.dumps(reply)
    assert reply["error"]["code"] == status and len(reply["error"]["message"]) > 8


def test_two_episodes_in_one_request(world):
    client = openai.OpenAI(
        base_url=world.proxy.base_url("a"),
        api_key="k",
        max_retries=0,
        default_headers={"x-episode-id": "b"},
    )
    with pytest.raises(openai.BadRequestError, match="named twice"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
