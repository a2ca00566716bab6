"""`rolltape run`: a command that wants to reward itself, and what it finds on its way."""

import json
import sys

import pytest

import harness
import hostile
from knocking import JSON, knock

EPISODE = "mine"
SECRET = "secret-of-the-operator"

SEARCH = """
import glob, json, os, re, sys, urllib.error, urllib.request

def sockets(pid):
    found = set()
    for fd in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            found.update(re.findall(r"socket:\\[(\\d+)\\]", os.readlink(fd)))
        except OSError:
            pass
    return found

def listening(pid):
    held = sockets(pid)
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in held:
            yield int(fields[1].split(":")[1], 16)

def tried(port, headers):
    url = f"http://127.0.0.1:{port}/episodes/%s/rewards"
    body = json.dumps({"value": 1.0}).encode()
    kind = {"content-type": "application/json"}
    request = urllib.request.Request(url, body, kind | headers)
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code

ports = list(listening(os.getppid()))
guesses = [{}, {"authorization": "Bearer rolltape"}]
print(json.dumps({
    "ports": ports,
    "statuses": [tried(port, headers) for port in ports for headers in guesses],
    "env": dict(os.environ),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "parent": open(f"/proc/{os.getppid()}/cmdline").read(),
}))
""" % EPISODE


def run(folder, *options, code=SEARCH, env=None):
    """Runs Python code as an episode; gives what it printed, as JSON, and the ended process."""
    words = ("run", "--episode", EPISODE, *options, "--", sys.executable, "-c", code)
    ended = harness.command(*words, folder=folder, env=env or harness.environment())
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


def own(folder):
    """The options of a server that lives as long as the command."""
    return ("--upstream", "http://127.0.0.1:9", "--store", folder / "run.db")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a command found under `run` with a server of its own."""
    folder = tmp_path_factory.mktemp("run")
    return run(folder, *own(folder)), folder


def rewards(store):
    """The rewards of a store, by another process."""
    shown = harness.done("episodes", "--json", "--store", store, folder=store.parent)
    return [json.loads(line).get("reward") for line in shown.splitlines()]


def test_a_command_that_finds_the_control_port_cannot_reward_itself(found):
    told, folder = found
    assert len(told["ports"]) == 2, "it found the listeners"
    assert 401 in told["statuses"] and 200 not in told["statuses"]
    assert set(rewards(folder / "run.db")) == {None}


def test_the_token_of_a_server_for_one_command_is_in_no_file(found):
    _, folder = found
    assert [file.name for file in folder.iterdir() if "token" in file.name] == []


def test_a_command_inherits_no_descriptor_of_its_recorder(found):
    told, _ = found
    assert [fd for fd in told["fds"] if fd > 3] == [], "3 is its own look at the folder"


def test_a_command_s_environment_leads_neither_to_the_token_nor_to_the_store(tmp_path):
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(SECRET)
    secrets = {
        "ROLLTAPE_CONTROL_TOKEN": SECRET,
        "ROLLTAPE_CONTROL_TOKEN_FILE": str(file),
        "ROLLTAPE_CONTROL_TOKEN_ENV": "MINE",
        "MINE": SECRET + "-2",
        "ROLLTAPE_STORE": str(tmp_path / "run.db"),
    }
    env = harness.environment(**secrets)
    told = run(tmp_path, "--upstream", "http://127.0.0.1:9", env=env)
    assert not {*secrets} & {*told["env"]}
    seen = json.dumps(told["env"])
    assert SECRET not in seen and str(file) not in seen and "run.db" not in seen


def test_a_command_s_recorder_shows_no_token_on_its_command_line(tmp_path):
    env = harness.environment(MINE=SECRET)
    told = run(tmp_path, *own(tmp_path), "--control-token-env", "MINE", env=env)
    assert SECRET not in told["parent"] and "MINE" not in told["env"]


def test_a_command_beside_a_running_server_cannot_reward_itself(serve, tmp_path):
    proxy = serve()
    port = proxy.control[1]
    code = SEARCH.replace("list(listening(os.getppid()))", f"[{port}]")
    where = ("--proxy", f"http://{harness.text(proxy.data)}")
    where += ("--control", harness.text(proxy.control), "--store", proxy.store)
    folder = tmp_path / "agent"
    folder.mkdir()
    told = run(folder, *where, code=code)
    assert set(told["statuses"]) == {401}
    assert hostile.rows(proxy, "SELECT * FROM rewards") == []
    assert knock(proxy, "GET", f"/episodes/{EPISODE}").status == 200, "it was announced and closed"


def test_a_command_cannot_use_the_recorder_s_own_client_without_the_token(serve, tmp_path):
    proxy = serve()
    where = ("--proxy", f"http://{harness.text(proxy.data)}")
    where += ("--control", harness.text(proxy.control), "--store", proxy.store)
    look = f"""
import json, subprocess
words = [{harness.binary()!r}, "feed", "--control", {harness.text(proxy.control)!r}]
ended = subprocess.run(words, capture_output=True, text=True, cwd={str(tmp_path)!r})
print(json.dumps([ended.returncode, ended.stderr]))
"""
    folder = tmp_path / "agent"
    folder.mkdir()
    code, said = run(folder, *where, code=look)
    assert code == 1 and "401" in said


def test_a_command_can_close_no_episode_and_sign_no_key(serve, tmp_path):
    proxy = serve()
    assert knock(proxy, "POST", "/episodes", {"episode_id": "other"}, [JSON]).status == 200
    port = proxy.control[1]
    code = SEARCH.replace("list(listening(os.getppid()))", f"[{port}]")
    for action in ("close", "key", "rewards"):
        attack = code.replace(f"{EPISODE}/rewards", f"other/{action}").replace('"value": 1.0', "")
        where = ("--proxy", f"http://{harness.text(proxy.data)}")
        where += ("--control", harness.text(proxy.control), "--store", proxy.store)
        told = run(tmp_path, *where, "--attempt", str(len(action)), code=attack)
        assert set(told["statuses"]) == {401}
    assert json.loads(knock(proxy, "GET", "/episodes/other").body)["closed"] is False


def test_the_demo_leaves_no_token_behind(tmp_path):
    words = ("demo", "--out", "demo", "--groups", "1", "--episodes", "1")
    harness.done(*words, folder=tmp_path)
    assert [file.name for file in tmp_path.rglob("*token*") if file.name.endswith("-token")] == []


CALL = """
import json, os, urllib.error, urllib.request
root = os.environ["OPENAI_BASE_URL"].split("/e/")[0]
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()

def tried(episode, key):
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    url = f"{root}/e/{episode}/v1/chat/completions"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code

key = os.environ["OPENAI_API_KEY"]
print(json.dumps([tried("%s", key), tried("%s", "guess"), tried("others", "guess")]))
""" % (EPISODE, EPISODE)


@pytest.mark.parametrize("keyed, statuses", [(True, [200, 401, 401]), (False, [200, 200, 200])])
def test_the_port_before_a_socket_takes_what_the_socket_takes(tmp_path, keyed, statuses):
    upstream = hostile.Upstream()
    needs = ["--require-key"] if keyed else []
    data, control = (f"unix:{tmp_path}/{name}.sock" for name in ("data", "control"))
    where = ("--listen", data, "--control", control, "--store", tmp_path / "a.db")
    server = harness.Process("serve", "--upstream", upstream.url, *where, *needs, folder=tmp_path)
    try:
        harness.until("it listens", lambda: "point an agent at it" in server.stderr)
        options = ("--proxy", data, "--control", control, "--store", tmp_path / "a.db", *needs)
        words = ("run", "--episode", EPISODE, *options, "--", sys.executable, "-c", CALL)
        ended = harness.command(*words, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout.splitlines()[0]) == statuses
        server.end_well()
    finally:
        server.kill()
        upstream.stop()
