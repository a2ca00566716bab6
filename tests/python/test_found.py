"""What a command finds that is told nothing: the server that runs here, and the episode meant."""

import json
import re
from contextlib import contextmanager

import openai
import pytest

import harness
import package  # noqa: F401 - names the binary for the package
import rolltape
from test_show import talk

AGENT = "import os, urllib.request as r; r.urlopen(os.environ['OPENAI_BASE_URL'] + '/models')"


@contextmanager
def served(folder, env):
    """A recorder that can be found: it says its addresses after it left its pointer."""
    with harness.serve(folder, "--model", harness.MODEL, env=env) as proxy:
        harness.until("the addresses", lambda: "listening on" in proxy.process.stderr)
        yield proxy


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A folder of states of its own."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, states):
    """A recorder with three episodes."""
    env = harness.environment(XDG_STATE_HOME=str(states))
    folder = tmp_path_factory.mktemp("found")
    with served(folder, env) as proxy:
        for name, text in (("claude-otter", "A"), ("claude-lynx", "B"), ("aider-lynx", "C")):
            talk(proxy, name, [text])
        yield proxy


@pytest.fixture
def told(states, tmp_path):
    """Runs a command of another folder that is told nothing."""
    env = harness.environment(XDG_STATE_HOME=str(states))
    return lambda *words: harness.command(*words, folder=tmp_path, env=env)


def test_a_command_finds_the_server_that_runs_here(proxy, told):
    assert told("control", "GET", "/ready").returncode == 0
    listed = told("episodes", "--json")
    assert listed.stdout.count("\n") == 3 and str(proxy.store) not in listed.stdout
    refused = told("control", "/nothing")
    assert refused.returncode == 1 and "404" in refused.stderr
    scored = told("control", "/episodes/claude-otter/rewards", "--json", '{"value": 0.5}')
    assert scored.returncode == 0, scored.stderr


def test_a_run_finds_the_server_and_has_a_name_one_can_say(proxy, told):
    ended = told("run", "python3", "-c", AGENT)
    name = re.search(r"recorded (python3-[a-z]+-[a-z]+-[a-z0-9]{4}):", ended.stderr)
    assert name, ended.stderr
    assert name[1] in told("episodes", "--json").stdout


def test_a_store_has_the_tokenizer_of_its_server(proxy, told, states, tmp_path):
    words = ("show", "claude-otter", "--tokens", "--json")
    tokens = json.loads(told(*words).stdout)
    assert tokens["text_source"] == "tokenizer" and None not in tokens["texts"]
    named = json.loads(told(*words, "--store", str(proxy.store)).stdout)
    assert named == tokens
    control = f"http://{harness.text(proxy.control)}"
    assert json.loads(told(*words, "--control", control).stdout) == tokens
    # Another user's state knows no server.
    alone = harness.environment(XDG_STATE_HOME=str(tmp_path))
    said = harness.command(*words, "--store", str(proxy.store), folder=tmp_path, env=alone)
    assert json.loads(said.stdout)["text_source"] is None


def test_an_option_of_the_agent_does_not_name_a_server(proxy, told):
    ended = told("run", "python3", "-c", AGENT, "--proxy", "http://127.0.0.1:1", "--store=x.db")
    assert ended.returncode == 0 and "recorded python3-" in ended.stderr, ended.stderr


def test_the_package_finds_the_server(proxy, told, states, tmp_path, monkeypatch):
    for name in ("ROLLTAPE_STORE", "ROLLTAPE_CONTROL_URL", "ROLLTAPE_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(states))
    monkeypatch.chdir(tmp_path)
    client = rolltape.Client()
    assert client.http.url == f"http://{harness.text(proxy.control)}"
    client.ready()
    assert client.http.get("/episodes/claude-otter")["calls"] == 1


def test_a_store_in_the_folder_is_the_one_that_is_read(proxy, told):
    own = told("run", "--model", harness.MODEL, "--episode", "own", "--", "python3", "-c", AGENT)
    assert own.returncode == 0, own.stderr
    (listed,) = told("episodes", "--json").stdout.splitlines()
    assert '"own"' in listed


def test_several_servers_are_not_chosen_from(proxy, told, states, tmp_path):
    env = harness.environment(XDG_STATE_HOME=str(states))
    other = tmp_path / "other"
    other.mkdir()
    with served(other, env) as second:
        assert told("episodes").returncode == 1
        at = f"http://{harness.text(second.control)}"
        # The token is found by the address.
        assert told("control", "/ready", "--control", at).returncode == 0
    assert told("episodes").returncode == 0


def test_a_server_that_was_killed_is_not_found(tmp_path):
    states = tmp_path / "states"
    env = harness.environment(XDG_STATE_HOME=str(states))
    with served(tmp_path, env) as proxy:
        assert len([*states.glob("rolltape/servers/*.json")]) == 1
        proxy.process.kill()
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        missing = harness.command("episodes", folder=folder, env=env)
        assert missing.returncode == 1 and "no store" in missing.stderr, missing.stderr
    assert not [*states.glob("rolltape/servers/*.json")]


def test_a_pointer_that_others_can_write_leads_nowhere(tmp_path):
    states = tmp_path / "states"
    env = harness.environment(XDG_STATE_HOME=str(states))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with served(tmp_path, env):
        (pointer,) = states.glob("rolltape/servers/*.json")
        assert pointer.stat().st_mode & 0o777 == 0o600
        assert harness.command("episodes", folder=folder, env=env).returncode == 0
        pointer.chmod(0o666)
        assert harness.command("episodes", folder=folder, env=env).returncode == 1


def test_the_newest_episode_needs_no_name(proxy, told):
    listed = told("episodes", "--json").stdout.splitlines()
    newest, second = [json.loads(line)["episode_id"] for line in listed[:2]]
    assert told("show").stdout == told("show", newest).stdout != ""
    compared = json.loads(told("diff", "--json").stdout)
    assert (compared["a"]["episode_id"], compared["b"]["episode_id"]) == (second, newest)


def test_a_name_may_be_cut_short_or_misspelled(proxy, told):
    assert told("show", "claude-o", "--json").stdout == told("show", "claude-otter", "--json").stdout
    several = told("show", "claude")
    assert several.returncode == 1
    assert "several episodes begin with" in several.stderr and "`claude-lynx`" in several.stderr
    near = told("show", "claude-oter")
    assert "did you mean `claude-otter`" in near.stderr, near.stderr
    nothing = told("show", "zzz")
    assert "no episode `zzz`" in nothing.stderr and "did you mean" not in nothing.stderr
