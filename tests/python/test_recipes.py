"""The recipes, done as they say by a reader who has nothing else."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import harness
import recipes
from servers import running

PAGES = harness.ROOT / "docs/recipes"
AIDER = harness.ROOT / "tests/python/clients/.venvs/aider/bin/aider"
TRAINERS = harness.ROOT / "tests/python/trainers/.venv/bin/python3"
SSHD = Path("/usr/sbin/sshd")
CODEX = harness.ROOT / "tests/node/node_modules/.bin/codex"
CLAUDE = harness.ROOT / "tests/node/node_modules/.bin/claude"

pytestmark = pytest.mark.skipif(
    not recipes.available(), reason="a reader cannot be shut off from the network here")

NOTES = [
    {"text": "I write the file.", "tool_calls": [
        {"name": "Write", "arguments": {"file_path": "notes.txt", "content": "one\ntwo\n"}}]},
    {"text": "I look at it.", "tool_calls": [
        {"name": "Read", "arguments": {"file_path": "notes.txt"}}]},
    {"text": "Done: notes.txt has two lines."},
]
COMMANDS = [
    {"text": "I write the file.", "tool_calls": [
        {"name": "exec_command", "arguments": {"cmd": "printf 'one\\ntwo\\n' > notes.txt"}}]},
    {"text": "I look at it.", "tool_calls": [
        {"name": "exec_command", "arguments": {"cmd": "cat notes.txt"}}]},
    {"text": "Done: notes.txt has two lines."},
]
EDIT = [{"text": textwrap.dedent("""\
    basket.py
    ```python
    <<<<<<< SEARCH
        return 0
    =======
        return sum(prices)
    >>>>>>> REPLACE
    ```
    """)}]
PYTHON3 = {"python3": f"{sys.prefix}/bin/python3"}
NUMBERS = [{"text": "3"}, {"text": "4"}]


def scripted(turns, folder, port=8000, server="scripted.py"):
    """Commands that start an inference server which says these turns."""
    script = folder / "script.json"
    script.write_text(json.dumps(turns))
    program = f"{sys.executable} {harness.ROOT}/tests/python/{server}"
    options = f"--port {port} --script {script} --log {folder}/asked.jsonl"
    wait = f"until curl -s http://127.0.0.1:{port}/v1/models >/dev/null; do sleep 0.1; done"
    return f"{program} {options} >/dev/null &\n{wait}"


def done(name, setting, tmp_path, *facts):
    """Does a recipe and holds its outputs against what it shows, and against the facts, which are
    patterns with the numbers that are the same each time."""
    page = PAGES / name
    said = recipes.run(page, setting, tmp_path)
    recipes.check_texts(page, said)
    printed = "\n".join(said.values())
    for fact in facts:
        assert re.search(fact, printed, re.MULTILINE), f"{name}: {fact}\n{printed[-6000:]}"


def python():
    """This Python with the package, as pip would have installed both."""
    return {"PYTHONPATH": str(harness.ROOT / "python")}


@pytest.mark.skipif(not CLAUDE.exists(), reason="npm has not installed Claude Code")
def test_claude_code(tmp_path):
    programs = {"claude": CLAUDE, "node": shutil.which("node")}
    setting = recipes.Setting(programs, scripted(NOTES, tmp_path), variables={
        "ANTHROPIC_API_KEY": "unused", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1"})
    done("claude-code.md", setting, tmp_path)


@pytest.mark.skipif(not CODEX.exists(), reason="npm has not installed Codex")
def test_codex(tmp_path):
    programs = {"codex": CODEX, "node": shutil.which("node")}
    done("codex.md", recipes.Setting(programs, scripted(COMMANDS, tmp_path)), tmp_path)
    written = (tmp_path / "work/project/notes.txt").read_text()
    assert written == "one\ntwo\n", written


@pytest.mark.skipif(not AIDER.exists(), reason="clients/install.sh has not been run")
def test_aider(tmp_path):
    done("aider.md", recipes.Setting({"aider": AIDER}, scripted(EDIT, tmp_path)), tmp_path,
         "from 2 episodes")


def test_own_agent(tmp_path):
    setting = recipes.Setting(PYTHON3,
                              scripted(NUMBERS, tmp_path), variables=python())
    done("own-agent.md", setting, tmp_path, "^numbers 5 attempts$", "^6 rows from 6 episodes")


def test_hosted_api(tmp_path):
    servers = [scripted(NUMBERS, tmp_path),
               scripted(NUMBERS, tmp_path, 8001, "anthropic_server.py")]
    setting = recipes.Setting(
        before="\n".join(servers),
        instead={"https://api.openai.com": "http://127.0.0.1:8000 --dialect openai",
                 "https://api.anthropic.com": "http://127.0.0.1:8001"},
        variables={"OPENAI_API_KEY": "sk-mine", "ANTHROPIC_API_KEY": "sk-ant-mine"})
    done("hosted-api.md", setting, tmp_path, "^1 row from 1 episode,")


def test_sandbox(tmp_path):
    done("sandbox.md", recipes.Setting(PYTHON3, scripted(NUMBERS, tmp_path)), tmp_path)


@pytest.mark.skipif(not SSHD.exists(), reason="OpenSSH's server is not installed")
def test_one_connection(tmp_path):
    done("one-connection.md", recipes.Setting(PYTHON3, scripted(NUMBERS, tmp_path)), tmp_path)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_fleet(tmp_path):
    setting = recipes.Setting(PYTHON3, f"ln -s {harness.MODEL} $HOME/model")
    facts = (r"^ +8 +1\nengines\n +2$", r"^2\n8\n2$")
    done("fleet.md", setting, tmp_path, *facts)


@pytest.mark.skipif(
    "vllm" not in running.CHOSEN or bool(running.KINDS["vllm"].why_not),
    reason="vLLM is not chosen, or could not be installed")
@pytest.mark.timeout(600)
def test_vllm(tmp_path):
    kind = running.KINDS["vllm"]
    options = "--max-model-len 1024 --max-num-seqs 8 --enforce-eager --dtype float32"
    served = f"{kind.python} -m vllm.entrypoints.cli.main serve {harness.MODEL} {options}"
    setting = recipes.Setting(
        PYTHON3,
        instead={"vllm serve Qwen/Qwen3-0.6B": served, **downloaded("weights/v1")},
        variables=python() | running.QUIET | kind.environment, wait_s=500)
    done("vllm.md", setting, tmp_path, r"^after +1$", "^2 rows from 2 episodes")


@pytest.mark.skipif(not TRAINERS.exists(), reason="trainers/install.sh has not been run")
@pytest.mark.timeout(600)
def test_trl(tmp_path):
    setting = recipes.Setting(
        {"python3": TRAINERS}, instead={"train.py 20": "train.py 3", **downloaded("model")},
        variables=python() | {"HF_HUB_OFFLINE": "1", "ROLLTAPE_BIN": str(harness.binary())},
        wait_s=500)
    done("trl.md", setting, tmp_path, r"^ *1 +\d+ *$", r"^ *2 +\d+ *$")


def test_operations(tmp_path):
    engine = f"rolltape engine --model {harness.MODEL} --listen 127.0.0.1:8000"
    wait = "until curl -sf http://127.0.0.1:8000/health >/dev/null; do sleep 0.1; done"
    before = f"exec -a other {engine} >/dev/null 2>&1 & \n{wait}"
    done(PAGES.parent / "operations.md", recipes.Setting(before=before), tmp_path)


def downloaded(folder):
    """The tiny model in place of a download."""
    return {f"hf download Qwen/Qwen3-0.6B --local-dir {folder}":
            f"mkdir -p $(dirname {folder}) && cp -r {harness.MODEL} {folder}"}


def test_every_recipe_is_done():
    """No page of the folder is without a test."""
    tests = Path(__file__).read_text()
    assert all(f'done("{page.name}"' in tests for page in PAGES.glob("*.md"))
