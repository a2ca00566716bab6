"""`rolltape run`: one episode around one process."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import harness
from harness import MODEL, Process, binary, command, environment

AGENT = [sys.executable, str(Path(__file__).with_name("agent.py"))]
OUTPUT_WAIT_S = 20
STARTS = 10


def run(folder, options, child, **changes):
    """Runs a command as an episode, with a store in `folder`."""
    env = environment(**changes)
    return command("run", *options, "--", *child, folder=folder, env=env)


def own(folder):
    """The options that serve from the command itself."""
    return ["--model", MODEL, "--store", folder / "run.db"]


def episodes(store):
    """The view `episodes`."""
    with sqlite3.connect(store) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM episodes")]


def test_the_child_is_pointed_at_its_episode(tmp_path):
    tags = ["--episode", "e1", "--group", "g1", "--task", "t1"]
    tags += ["--label", "owner=ann", "--label", "why=a=b"]
    ended = run(tmp_path, [*own(tmp_path), *tags], AGENT)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    env = told["env"]
    root = env["ANTHROPIC_BASE_URL"]
    assert root.startswith("http://127.0.0.1:") and root.endswith("/e/e1")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"):
        assert env[name] == f"{root}/v1"
    assert env["OPENAI_API_KEY"] and env["ANTHROPIC_API_KEY"]
    assert (env["ROLLTAPE_EPISODE"], env["ROLLTAPE_ATTEMPT"]) == ("e1", "0")
    (episode,) = episodes(tmp_path / "run.db")
    assert (episode["episode_id"], episode["group_id"], episode["task_id"]) == ("e1", "g1", "t1")
    assert episode["calls"] == told["calls"] > 0
    with sqlite3.connect(tmp_path / "run.db") as connection:
        labels = connection.execute("SELECT name, value FROM label ORDER BY name").fetchall()
    assert labels == [("owner", "ann"), ("why", "a=b")]


class Elsewhere(BaseHTTPRequestHandler):
    """An OpenAI-compatible server whose API is below a path of its own."""

    base = "/api/paas/v4"

    def do_POST(self):
        """A chat completion, at one address."""
        self.rfile.read(int(self.headers["content-length"]))
        is_there = self.path == f"{self.base}/chat/completions"
        message = {"role": "assistant", "content": "hi"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
        self.send_response(200 if is_there else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Nothing."""
        self.send_error(404)

    def log_message(self, *_):
        """Says nothing."""


def test_the_child_of_an_upstream_with_another_base_is_pointed_there(tmp_path):
    program = ("import openai; said = openai.OpenAI().chat.completions.create(model='m', "
               "messages=[{'role': 'user', 'content': 'a'}]); print(said.choices[0].message.content)")
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        upstream = f"http://127.0.0.1:{server.server_port}{Elsewhere.base}/"
        options = ["--upstream", upstream, "--store", tmp_path / "run.db"]
        ended = run(tmp_path, options, [sys.executable, "-c", program])
        server.shutdown()
    assert (ended.returncode, ended.stdout) == (0, "hi\n"), ended.stderr
    (episode,) = episodes(tmp_path / "run.db")
    assert episode["calls"] == 1


def test_a_child_that_called_nothing_is_told_of(tmp_path):
    ended = run(tmp_path, own(tmp_path), [sys.executable, "-c", "import sys; sys.exit(5)"])
    assert ended.returncode == 5
    assert ": 0 calls" in ended.stderr
    for word in ("called no model", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", '"$OPENAI_BASE_URL"'):
        assert word in ended.stderr, ended.stderr
    ended = run(tmp_path, own(tmp_path), AGENT)
    assert ended.returncode == 0 and "called no model" not in ended.stderr


def test_a_child_that_ends_well_and_called_nothing_has_failed(tmp_path):
    ended = run(tmp_path, own(tmp_path), ["true"])
    assert ended.returncode == 1 and "called no model" in ended.stderr, ended.stderr
    (tmp_path / "goose").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "goose").chmod(0o755)
    ended = run(tmp_path, own(tmp_path), [tmp_path / "goose", "run"], GOOSE_PROVIDER="anthropic")
    assert ended.returncode == 1 and "Goose was told to" in ended.stderr, ended.stderr
    told = dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)
    root = f"{told['OPENAI_HOST']}/{told['OPENAI_BASE_PATH']}".removesuffix("/chat/completions")
    assert root == told["OPENAI_BASE_URL"] and told["GOOSE_PROVIDER"] == "anthropic"


def test_everything_from_the_command_on_is_the_command_s(tmp_path):
    child = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--episode", "x", "--", "-v"]
    ended = command("run", *own(tmp_path), "--episode", "mine", *child, folder=tmp_path)
    assert ended.stdout == "['--episode', 'x', '--', '-v']\n", ended.stderr
    assert "recorded mine" in ended.stderr
    wrong = command("run", *own(tmp_path), "--episod", "x", *child, folder=tmp_path)
    assert wrong.returncode == 2 and "--episode" in wrong.stderr, "an option of ours is not guessed"


def test_agents_are_listed_and_one_that_is_not_recorded_is_refused(tmp_path):
    listed = harness.done("run", "--list-agents", folder=tmp_path)
    for name in ("Aider", "Claude Code", "Codex", "opencode", "Qwen Code", "Cline", "Goose"):
        assert name in listed
    refused = run(tmp_path, own(tmp_path), ["gemini", "-p", "x"])
    assert refused.returncode == 1 and "not recorded" in refused.stderr, refused.stderr
    assert "--list-agents" in refused.stderr and not (tmp_path / "run.db").exists()


def test_the_lines_that_point_an_agent_at_a_server_work_as_they_are_copied(tmp_path):
    """What `serve` prints, and the README's line, with OpenAI's own SDK."""
    program = "import openai; print(openai.OpenAI().models.list().data[0].id)"
    (tmp_path / "agent.py").write_text(program)
    with harness.serve(tmp_path, "--model", MODEL) as proxy:
        # A server may answer before it has said it.
        said = re.compile(r".*BASE_URL.*\n")
        (hint,) = harness.until("the hint", lambda: said.findall(proxy.process.stderr))
        readme = (harness.ROOT / "README.md").read_text()
        (line,) = [line for line in readme.splitlines() if line.startswith("OPENAI_BASE_URL=")]
        line = line.replace("127.0.0.1:8080", harness.text(proxy.data))
        env = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for shown in (hint.split(": ", 1)[1], line):
            ended = subprocess.run(
                ["sh", "-c", shown], cwd=tmp_path, env=env, capture_output=True, text=True
            )
            assert (ended.returncode, ended.stdout) == (0, "tiny\n"), (shown, ended.stderr)


def test_the_demo_of_aider_takes_a_relative_path(tmp_path):
    """Each of its agents runs in a folder of its own."""
    pretended = tmp_path / "bin" / "aider"
    pretended.parent.mkdir()
    pretended.write_text(f"#!/bin/sh\nexec {' '.join(AGENT)}\n")
    pretended.chmod(0o755)
    demo = harness.ROOT / "examples" / "aider" / "run.py"
    words = [sys.executable, str(demo), "--aider", "bin/aider", "--agents", "1", "--out", "out"]
    env = environment(ROLLTAPE_BIN=binary())
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["rows"] >= 1


def test_one_line_says_what_was_recorded(tmp_path):
    ended = run(tmp_path, [*own(tmp_path), "--episode", "e1"], AGENT)
    calls = json.loads(ended.stdout)["calls"]  # and nothing of rolltape's own is in it
    device, memory, line = ended.stderr.splitlines()
    assert device.startswith("running on ") and memory.startswith("the KV cache grows to ")
    assert line.startswith("recorded e1: ")
    assert f"{calls} call" in line and f"{calls} with token ids" in line
    assert "read it: rolltape show e1 --store " in line
    assert ", or in a browser: rolltape view e1/0 --store " in line


def test_a_quiet_run_says_nothing(tmp_path):
    ended = run(tmp_path, [*own(tmp_path), "--quiet"], AGENT)
    assert ended.returncode == 0 and json.loads(ended.stdout)["calls"] > 0
    assert "recorded" not in ended.stderr and "read it" not in ended.stderr, ended.stderr


def test_a_key_of_the_users_own_is_kept(tmp_path):
    ended = run(tmp_path, own(tmp_path), AGENT, OPENAI_API_KEY="mine")
    assert json.loads(ended.stdout)["env"]["OPENAI_API_KEY"] == "mine"


def test_the_child_sees_no_token_and_no_key_that_is_not_its_own(tmp_path):
    """With the token it could reward itself, with the key call past the recorder."""
    secrets = {
        "ROLLTAPE_CONTROL_TOKEN": "s1",
        "ROLLTAPE_CONTROL_TOKEN_ENV": "ROLLTAPE_TEST_TOKEN",
        "ROLLTAPE_CONTROL_TOKEN_FILE": "s4",
        "ROLLTAPE_TEST_TOKEN": "s2-long-enough-to-be-taken",
    }
    options = [*own(tmp_path), "--upstream-key-env", "OPENAI_API_KEY"]
    ended = run(tmp_path, options, AGENT, OPENAI_API_KEY="s3", ANTHROPIC_OTHER="kept", **secrets)
    assert ended.returncode == 0, ended.stderr
    env = json.loads(ended.stdout)["env"]
    assert env["ANTHROPIC_OTHER"] == "kept" and env["OPENAI_API_KEY"] == "rolltape"
    assert not {*secrets} & {*env} and not {*secrets.values(), "s3"} & {*env.values()}


@pytest.mark.parametrize("code, status", [(0, "completed"), (7, "failed")])
def test_the_exit_code_is_passed_on_and_the_episode_closed(tmp_path, code, status):
    ended = run(tmp_path, own(tmp_path), [*AGENT, "--exit", str(code)])
    assert ended.returncode == code, ended.stderr
    (episode,) = episodes(tmp_path / "run.db")
    assert episode["closed_at"] and episode["status"] == status
    out = tmp_path / "out"
    harness.done("export", "--store", tmp_path / "run.db", "--out", out, folder=tmp_path)
    assert (out / "trajectories.parquet").is_file()


@pytest.mark.parametrize("kind, code", [("absent", 127), ("unreadable", 126)])
def test_a_command_that_does_not_start_fails_its_episode(tmp_path, kind, code):
    program = tmp_path / kind
    if kind == "unreadable":
        program.write_text("no program")
        program.chmod(0o600)
    ended = run(tmp_path, [*own(tmp_path), "--group", "g"], [str(program)])
    assert ended.returncode == code, ended.stderr
    assert f"cannot run `{program}`" in ended.stderr
    (episode,) = episodes(tmp_path / "run.db")
    assert (episode["status"], episode["group_id"]) == ("failed", "g") and episode["closed_at"]


def test_an_attempt_has_its_own_path(tmp_path):
    options = [*own(tmp_path), "--episode", "e1", "--attempt"]
    for attempt in ("0", "1"):
        ended = run(tmp_path, [*options, attempt], AGENT)
        assert ended.returncode == 0, ended.stderr
    found = [(e["episode_id"], e["attempt"]) for e in episodes(tmp_path / "run.db")]
    assert sorted(found) == [("e1", 0), ("e1", 1)]
    again = run(tmp_path, [*options, "1"], AGENT)
    assert again.returncode == 1 and again.stdout == "", "a closed attempt is not run again"
    assert "--attempt next" in again.stderr
    assert run(tmp_path, [*options, "next"], AGENT).returncode == 0
    found = [(e["episode_id"], e["attempt"]) for e in episodes(tmp_path / "run.db")]
    assert sorted(found) == [("e1", 0), ("e1", 1), ("e1", 2)]
    refused = run(tmp_path, [*options, "last"], AGENT)
    assert refused.returncode == 2 and "`next`" in refused.stderr


def test_a_serving_rolltape_is_used(world, tmp_path):
    proxy = world.proxy
    urls = [f"http://{harness.text(address)}" for address in (proxy.data, proxy.control)]
    token = ["--control-token-file", harness.token_file(proxy.store)]
    options = ["--proxy", urls[0], "--control", urls[1], *token, "--episode", "from-outside"]
    ended = run(tmp_path, options, AGENT)
    assert ended.returncode == 0, ended.stderr
    env = json.loads(ended.stdout)["env"]
    assert env["OPENAI_BASE_URL"] == f"{urls[0]}/e/from-outside/v1"
    assert f"in a browser: {urls[1]}/#/e/from-outside/0/read" in ended.stderr
    (episode,) = [e for e in episodes(proxy.store) if e["episode_id"] == "from-outside"]
    assert episode["closed_at"] and episode["status"] == "completed"
    assert list(tmp_path.glob("*.db")) == []


def signalled(tmp_path, number, *options):
    """Starts a waiting agent, sends a signal to rolltape alone, and gives rolltape's exit code."""
    child = [*AGENT, "--wait", *options]
    process = Process("run", *own(tmp_path), "--", *child, folder=tmp_path, stdout=subprocess.PIPE)
    try:
        until = time.monotonic() + OUTPUT_WAIT_S
        line = process.child.stdout.readline()  # the agent has played and waits now
        assert line and time.monotonic() < until, process.stderr
        code = process.stop(number)
        assert process.child.stdout.read() == b"", "the agent is gone and its end of the pipe too"
        return code, process.stderr
    finally:
        process.kill()


def test_sigterm_is_passed_on(tmp_path):
    code, said = signalled(tmp_path, signal.SIGTERM, "--quit-on-term", "5")
    assert code == 5, said
    (episode,) = episodes(tmp_path / "run.db")
    assert episode["closed_at"] and episode["status"] == "failed"


def test_a_child_that_a_signal_ends_gives_128_and_the_signal(tmp_path):
    code, said = signalled(tmp_path, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, said
    assert [line for line in said.splitlines() if line.startswith("recorded ")]


def test_sigterm_is_passed_on_as_soon_as_the_child_runs(tmp_path):
    """A signal that comes early must not leave the child alone and the episode open."""
    for _ in range(STARTS):
        child = ["sh", "-c", "echo $$; exec sleep 30"]
        options = ["--upstream", "http://127.0.0.1:9", "--store", tmp_path / "run.db"]
        process = Process("run", *options, "--", *child, folder=tmp_path, stdout=subprocess.PIPE)
        try:
            pid = int(process.child.stdout.readline())
            assert process.stop() == 128 + signal.SIGTERM, process.stderr
        finally:
            process.kill()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert all(episode["closed_at"] for episode in episodes(tmp_path / "run.db"))


def test_the_child_keeps_stdin_and_stdout(tmp_path):
    """What stands on stdin goes to the child, and its output is the output."""
    ended = subprocess.run(
        [binary(), "run", *map(str, own(tmp_path)), "--", "cat"],
        cwd=tmp_path,
        env=environment(),
        input="through\n",
        capture_output=True,
        text=True,
        timeout=harness.COMMAND_WAIT_S,
    )
    assert ended.stdout == "through\n", ended.stderr
