"""Aider processes side by side, each on its own copy of a repository whose tests fail.

    python examples/aider/run.py [--agents N] [--upstream URL --name MODEL] [--out DIR]

Aider is the one that pip installs; it is told its base URL by the environment and knows nothing
else. Each process is an episode of one group, its reward is the share of tests that pass when it
has ended, and the group is exported to DIR/data at the end. With `--upstream` the model is yours;
without, it is the tiny model in the engine, which knows nothing of Python: its edits are nonsense,
and what is recorded, rewarded and exported is whole all the same.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

import rolltape  # noqa: E402

TINY = HERE.parents[1] / "engine" / "models" / "tiny"
TINY_POSITIONS = 32768
"""Its tokenizer knows little but bytes, so Aider's instructions are long."""
TINY_REPLY_TOKENS = 128
TASK = "repair-basket"
ASKED = "The tests in test_basket.py fail. Repair shop/basket.py."
CHECK = f"{sys.executable} -m unittest -q test_basket"
AGENT_WAIT_S = 900
QUIET = (
    "--yes-always",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--analytics-disable",
    "--no-pretty",
    "--no-fancy-input",
    "--no-gitignore",
    "--no-detect-urls",
    "--disable-playwright",
)


def tiny_model(folder):
    """The tiny model with room for long prompts: the same weights, another bound."""
    copy = folder / "tiny"
    shutil.copytree(TINY, copy, ignore=shutil.ignore_patterns("make.py"))
    config = json.loads((copy / "config.json").read_text())
    config["max_position_embeddings"] = TINY_POSITIONS
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def repository(folder):
    """A copy of the repository, with a history of one commit."""
    shutil.copytree(HERE / "repository", folder, ignore=shutil.ignore_patterns("__pycache__"))
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-qm", "start"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def passed(folder):
    """The share of the tests that pass."""
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "test_basket"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    ran = re.search(r"Ran (\d+) test", done.stderr)
    wrong = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", done.stderr)))
    broken = "unittest.loader._FailedTest" in done.stderr
    return 0.0 if not ran or broken else 1 - wrong / int(ran[1])


def work(client, options, number):
    """One agent, from its copy to its reward."""
    began = time.monotonic()
    folder = repository(options.out / f"agent-{number}")
    name = f"aider-{number}"
    with rolltape.episode(client, name, group_id="aider", task_id=TASK) as episode:
        words = [options.aider, "--model", f"openai/{options.name}", "--edit-format", "whole"]
        words += ["--map-tokens", "0", "--auto-test", "--test-cmd", CHECK, *QUIET]
        words += ["--message", ASKED, "shop/basket.py", "--read", "test_basket.py"]
        home = {"HOME": str(options.out), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with open(options.out / f"{name}.log", "wb") as log:
            done = subprocess.run(
                words,
                cwd=folder,
                env=episode.environ() | home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=AGENT_WAIT_S,
            )
        episode.status = "completed" if done.returncode == 0 else "failed"
        reward = passed(folder)
        episode.reward(reward, source="tests")
    told = client.show(name)
    return {
        "episode": name,
        "reward": reward,
        "status": episode.status,
        "calls": told["generations"],
        "tokens": told["completion_tokens"],
        "seconds": round(time.monotonic() - began, 1),
    }


def arguments():
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--upstream", help="an OpenAI-compatible server, else the tiny model")
    parser.add_argument("--name", default="tiny", help="the model's name at the upstream")
    parser.add_argument("--aider", default=shutil.which("aider"), help="the command")
    parser.add_argument("--out", type=Path, default=Path("aider-demo"))
    options = parser.parse_args()
    if not options.aider:
        parser.error("no `aider` on the PATH: pip install aider-chat, or give --aider")
    # Each agent runs in a folder of its own, where a relative path would name nothing.
    options.aider = shutil.which(options.aider)
    if not options.aider:
        parser.error("--aider is not a command that can be run: pip install aider-chat")
    options.aider = str(Path(options.aider).absolute())
    options.out = options.out.resolve()
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    if options.upstream:
        words, where = [], {"upstream": options.upstream}
    else:
        words = ["--served-model-name", options.name]
        words += ["--force-sampling", f"max_tokens={TINY_REPLY_TOKENS}"]
        where = {"model": tiny_model(options.out)}
    with rolltape.Server(*words, store=options.out / "rolltape.db", **where) as server:
        with ThreadPoolExecutor(options.agents) as pool:
            numbers = range(options.agents)
            told = list(pool.map(lambda n: work(server.client, options, n), numbers))
        server.command("export", "--out", options.out / "data", "--advantage", "grpo")
    for one in told:
        print(json.dumps(one), file=sys.stderr)
    manifest = json.loads((options.out / "data" / "manifest.json").read_text())
    report = {"agents": len(told), "rows": manifest["rows"], "out": str(options.out / "data")}
    report["mean_reward"] = sum(one["reward"] for one in told) / len(told)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
