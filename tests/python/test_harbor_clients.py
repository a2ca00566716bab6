"""`rolltape run --harbor` around Harbor, unmodified, with its own agents and a scripted model.

`clients/install.sh harbor` installs Harbor, and the other groups and `node/install.sh` the agents.
What is not there is skipped, unless ROLLTAPE_CLIENTS is `all`. UPDATE_DOCS=1 writes the table of
docs/harbor.md.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from dataclasses import dataclass, field

import pytest

import harness
from upstream import scripted

PYTHON = harness.ROOT / "tests" / "python"
CLIENTS = PYTHON / "clients" / ".venvs"
NODE = harness.ROOT / "tests" / "node" / "node_modules" / ".bin"
HARBOR = CLIENTS / "harbor" / "bin" / "harbor"
HOSTED = PYTHON / "harbor"
PAGE = harness.ROOT / "docs" / "harbor.md"
TABLE = re.compile(r"(?<=<!-- agents -->\n).*?(?=<!-- /agents -->)", re.DOTALL)
WAIT_S = 150
TRIALS = 2

pytestmark = pytest.mark.timeout(WAIT_S * 2)


def typed(commands, done):
    """A turn of terminus-2."""
    said = {"analysis": "-", "plan": "-", "commands": commands, "task_complete": done}
    return {"text": json.dumps(said)}


def called(name, **arguments):
    """A turn that calls a tool."""
    return {"text": "I write it.", "tool_calls": [{"name": name, "arguments": arguments}]}


WRITE = "echo hello > greeting.txt"
DONE = {"text": "Done."}
TERMINUS = [
    typed([{"keystrokes": f"{WRITE}\n", "duration": 0.3}], False),
    typed([], True),
    typed([], True),
]
BLOCK = "greeting.txt\n```\nhello\n```\n"


@dataclass(frozen=True)
class Agent:
    """An agent of Harbor, where its command is, and what the model says to it."""

    name: str
    folder: object
    command: str
    script: list = field(hash=False)
    model: str = "openai/scripted"
    options: tuple = ("skip_install=true",)

    @property
    def installed(self):
        return (self.folder / self.command).exists()


AGENTS = (
    Agent("aider", CLIENTS / "aider" / "bin", "aider", [{"text": f"I write it.\n\n{BLOCK}"}]),
    Agent(
        "claude-code",
        NODE,
        "claude",
        [called("Write", file_path="greeting.txt", content="hello\n"), DONE],
        "anthropic/claude-sonnet-4-5",
    ),
    Agent("codex", NODE, "codex", [called("exec_command", cmd=WRITE), DONE], "openai/gpt-5.1-codex"),
    Agent(
        "mini-swe-agent",
        CLIENTS / "litellm" / "bin",
        "mini-swe-agent",
        [
            called("bash", command=WRITE),
            called("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ],
    ),
    Agent(
        "qwen-coder",
        NODE,
        "qwen",
        [
            called("run_shell_command", command=WRITE, is_background=False, description="write"),
            DONE,
        ],
    ),
    Agent(
        "terminus-2",
        HARBOR.parent,
        "harbor",
        TERMINUS,
        options=("record_terminal_session=false", "temperature=1.0"),
    ),
)
BY_NAME = {agent.name: agent for agent in AGENTS}


@dataclass
class Job:
    """A job that ended: its folder, what was printed, what was recorded and what the model saw."""

    folder: object
    ended: object
    store: object
    heard: list

    @property
    def trials(self):
        """Each trial of rolltape's file by its name, with its result."""
        told = json.loads((self.folder / "rolltape.json").read_text())["trials"]
        results = {t["trial"]: self.folder / t["trial"] / "result.json" for t in told}
        return {t["trial"]: (t, json.loads(results[t["trial"]].read_text())) for t in told}

    def rows(self, query):
        with sqlite3.connect(self.store) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query)]

    def turns(self):
        """Each recorded turn by its call."""
        out = self.store.with_suffix(".turns.jsonl")
        words = ("export", "--store", self.store, "--format", "turns", "--out", out, "--overwrite")
        harness.done(*words, folder=self.store.parent)
        return {turn["call_id"]: turn for turn in map(json.loads, out.open())}


def task(folder, name, test):
    """A task that asks for a file, with a script that judges it."""
    made = folder / "tasks" / name
    for place in ("environment", "tests"):
        (made / place).mkdir(parents=True)
    (made / "instruction.md").write_text("Write hello into greeting.txt.\n")
    (made / "environment" / "Dockerfile").write_text("FROM scratch\n")
    limits = "[verifier]\ntimeout_sec = 60.0\n[agent]\ntimeout_sec = 60.0\n"
    (made / "task.toml").write_text(f'schema_version = "1.4"\n{limits}[environment]\n')
    (made / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
    return made


JUDGED = 'if [ "$(cat greeting.txt)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'


def harbor(folder, url, *arguments):
    """Runs Harbor under rolltape, and gives what ended."""
    path = os.pathsep.join(str(agent.folder) for agent in AGENTS if agent.folder != HARBOR.parent)
    env = harness.environment(
        PYTHONPATH=str(HOSTED),
        HOSTED_PATH=path,
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        HARBOR_TELEMETRY="0",
        HOME=str(folder),
    )
    own = ("--harbor", "--upstream", url, "--store", "recorded.db")
    words = ("run", *own, "--", HARBOR, *arguments)
    return harness.command(*words, folder=folder, env=env, timeout=WAIT_S)


def job(folder, script, *arguments, name="job"):
    """A job of Harbor's on this machine, against a scripted model."""
    with scripted(folder, script) as upstream:
        where = ("--env", "hosted:Host", "--jobs-dir", folder / "jobs", "--job-name", name, "-y")
        ended = harbor(folder, upstream.url, "run", *arguments, *where)
        heard = [one for one in upstream.heard() if one.generates]
    return Job(folder / "jobs" / name, ended, folder / "recorded.db", heard)


def options_of(agent):
    """The arguments by which Harbor runs an agent."""
    told = [word for option in agent.options for word in ("--ak", option)]
    return ("-a", agent.name, "-m", agent.model, *told)


@pytest.fixture(scope="session", autouse=True)
def present():
    """Harbor, which every test here needs."""
    skipped = CLIENTS / "harbor.skipped"
    if skipped.exists():
        pytest.skip(skipped.read_text().strip())
    if not HARBOR.exists():
        assert os.environ.get("ROLLTAPE_CLIENTS") != "all", "harbor is not installed"
        pytest.skip("not installed: tests/python/clients/install.sh harbor")


@pytest.fixture(scope="session")
def jobs(tmp_path_factory):
    """The job of each agent, made when it is asked for."""
    made = {}

    def of(agent):
        if not agent.installed or not (agent.name != "terminus-2" or shutil.which("tmux")):
            assert os.environ.get("ROLLTAPE_CLIENTS") != "all", f"{agent.command} is not installed"
            pytest.skip(f"not installed: {agent.command}")
        if agent.name not in made:
            folder = tmp_path_factory.mktemp(agent.name)
            told = (*options_of(agent), "-k", TRIALS, "-n", TRIALS)
            made[agent.name] = job(folder, agent.script, "-p", task(folder, "greet", JUDGED), *told)
        return made[agent.name]

    return of


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def ran(request, jobs):
    """An agent that is installed, and its job."""
    found = jobs(request.param)
    assert found.ended.returncode == 0, f"{found.ended.stdout}\n{found.ended.stderr}"
    return request.param, found


STEPS = ("first", "second")


def task_of_steps(folder):
    """A task of two steps, each judged by itself."""
    made = task(folder, "steps", JUDGED)
    (made / "instruction.md").unlink()
    shutil.rmtree(made / "tests")
    lines = [f'[[steps]]\nname = "{name}"\n' for name in STEPS]
    with (made / "task.toml").open("a") as config:
        config.write("".join(lines))
    for name in STEPS:
        (made / "steps" / name / "tests").mkdir(parents=True)
        (made / "steps" / name / "instruction.md").write_text(f"Write hello, the {name} time.\n")
        (made / "steps" / name / "tests" / "test.sh").write_text(f"#!/bin/bash\n{JUDGED}\n")
    return made


def test_each_step_of_a_trial_has_the_ids_of_its_turns(tmp_path):
    agent = BY_NAME["terminus-2"]
    ran = job(tmp_path, TERMINUS * len(STEPS), "-p", task_of_steps(tmp_path), *options_of(agent))
    assert ran.ended.returncode == 0, f"{ran.ended.stdout}\n{ran.ended.stderr}"
    ((told, result),) = ran.trials.values()
    assert told["problems"] == [] and told["exact_calls"] == told["calls"] == 3 * len(STEPS)
    turns = ran.turns()
    order = [row["call_id"] for row in ran.rows("SELECT call_id FROM call ORDER BY started_at")]
    for number, step in enumerate(result["step_results"]):
        assert step["step_name"] == STEPS[number]
        calls = order[3 * number:3 * number + 3]
        details = step["agent_result"]["rollout_details"]
        assert [call for detail in details for call in detail["extra"]["call_id"]] == calls
        for detail in details:
            for call, sampled in zip(detail["extra"]["call_id"], detail["completion_token_ids"]):
                assert sampled == turns[call]["completion_ids"]


def test_each_trial_is_an_episode_with_exact_ids(ran):
    _, job = ran
    trials = job.trials
    assert len(trials) == TRIALS
    for told, result in trials.values():
        assert told["exact_calls"] == told["calls"] > 0, told
        assert told["problems"] == [] and told["exception"] is None
        assert result["config"]["agent"]["base_url"].find(f"/e/{told['episode_id']}") > 0
    episodes = {row["episode_id"]: row for row in job.rows("SELECT * FROM episodes")}
    assert set(episodes) == set(trials)
    assert {row["status"] for row in episodes.values()} == {"completed"}
    assert {row["task_id"] for row in episodes.values()} == {"greet"}
    assert len({row["group_id"] for row in episodes.values()}) == 1


def test_the_ids_in_the_result_are_those_of_the_store_and_of_the_model(ran):
    _, job = ran
    turns, written = job.turns(), []
    for told, result in job.trials.values():
        own = []
        for detail in result["agent_result"]["rollout_details"]:
            columns = ("prompt_token_ids", "completion_token_ids", "logprobs")
            parts = [*map(detail.get, columns), detail["extra"]["call_id"]]
            own += list(zip(*parts, strict=True))
        assert len({call for *_, call in own}) == len(own) == told["calls"]
        for prompt, sampled, logprobs, call in own:
            turn = turns[call]
            assert turn["episode_id"] == told["episode_id"]
            assert (prompt, sampled) == (turn["prompt_ids"], turn["completion_ids"])
            assert logprobs == pytest.approx(turn["logprobs"], abs=1e-6)
        written += [(tuple(prompt), tuple(sampled)) for prompt, sampled, *_ in own]
    heard = [(one.prompt, *one.sampled) for one in job.heard]
    assert Counter(written) == Counter(heard)


def test_the_reward_of_the_verifier_is_that_of_the_episode(ran):
    _, job = ran
    given = {row["episode_id"]: row for row in job.rows("SELECT * FROM rewards")}
    for told, result in job.trials.values():
        reward = given[told["episode_id"]]
        assert result["verifier_result"]["rewards"] == told["rewards"] == {"reward": 1.0}
        assert (reward["name"], reward["value"], reward["source"]) == ("reward", 1.0, "harbor")


def test_harbor_reads_its_files_as_it_wrote_them(ran):
    """The result by its own type; the configuration as planned, so that a job can be resumed."""
    agent, job = ran
    script = (
        "import sys, json; from harbor.models.trial.result import TrialResult as R;"
        "print(json.dumps([len(R.model_validate_json(open(p).read()).agent_result.rollout_details)"
        " for p in sys.argv[1:]]))"
    )
    results = [str(job.folder / name / "result.json") for name in job.trials]
    read = subprocess.run(
        [HARBOR.with_name("python"), "-c", script, *results], capture_output=True, text=True
    )
    assert read.returncode == 0, read.stderr
    assert all(count >= 1 for count in json.loads(read.stdout))
    for name in job.trials:
        config = json.loads((job.folder / name / "config.json").read_text())
        assert config["agent"].get("base_url") is None
    line = next(line for line in job.ended.stdout.splitlines() if line.startswith(agent.name))
    assert line.split()[1:3] == [str(TRIALS), str(TRIALS)] and line.split()[-1] == "1.000"


def test_two_agents_of_a_job_and_a_trial_without_a_call(tmp_path):
    agent = BY_NAME["terminus-2"]
    config = {
        "tasks": [{"path": str(task(tmp_path, "greet", JUDGED))}],
        "agents": [
            {"name": "nop"},
            {
                "name": agent.name,
                "model_name": agent.model,
                "kwargs": {"record_terminal_session": False, "temperature": 1.0},
            },
        ],
    }
    (tmp_path / "job.json").write_text(json.dumps(config))
    ran = job(tmp_path, agent.script, "-c", tmp_path / "job.json")
    assert ran.ended.returncode == 0, f"{ran.ended.stdout}\n{ran.ended.stderr}"
    by_agent = {told["agent"]: told for told, _ in ran.trials.values()}
    assert by_agent["terminus-2"]["exact_calls"] == 3
    silent = by_agent["nop"]
    assert silent["calls"] == 0 and silent["rewards"] == {"reward": 0.0}
    why = f"{silent['trial']}: no call was recorded: its agent takes no base URL"
    assert why in ran.ended.stdout
    groups = {row["group_id"] for row in ran.rows("SELECT * FROM episodes")}
    assert len(groups) == 2, "two agents are not compared with each other"


def test_a_trial_that_fails_says_so_and_gets_no_reward(tmp_path):
    agent = BY_NAME["terminus-2"]
    broken = task(tmp_path, "broken", "true")
    ran = job(tmp_path, agent.script, "-p", broken, *options_of(agent))
    ((told, result),) = ran.trials.values()
    assert told["exception"] == "RewardFileNotFoundError"
    assert f"{told['trial']}: ended by RewardFileNotFoundError" in ran.ended.stdout
    assert told["rewards"] == {} and ran.rows("SELECT * FROM rewards") == []
    assert told["exact_calls"] == 3 and result["agent_result"]["rollout_details"]
    (episode,) = ran.rows("SELECT * FROM episodes")
    assert episode["status"] == "infrastructure_failed"


def test_a_trial_that_runs_again_is_another_attempt(tmp_path):
    again = ("-a", "hosted:Flaky", "-m", "openai/scripted", "--max-retries", "1")
    ran = job(tmp_path, [DONE], "-p", task(tmp_path, "greet", JUDGED), *again)
    assert ran.ended.returncode == 0, f"{ran.ended.stdout}\n{ran.ended.stderr}"
    ((told, result),) = ran.trials.values()
    assert (told["attempt"], told["calls"], told["rewards"]) == (1, 1, {"reward": 1.0})
    assert result["config"]["agent"]["base_url"].endswith(f"/e/{told['episode_id']}/a/1/v1")
    query = "SELECT attempt, status, calls, reward FROM episodes ORDER BY attempt"
    found = [tuple(row.values()) for row in ran.rows(query)]
    assert [(attempt, calls) for attempt, _, calls, _ in found] == [(0, 1), (1, 1)]
    assert found[0][1] in ("failed", "infrastructure_failed") and found[1][1] == "completed"
    assert found[1][3] == 1.0


def test_a_job_that_was_cut_short_is_resumed(tmp_path, jobs):
    agent = BY_NAME["terminus-2"]
    first = jobs(agent)
    folder = shutil.copytree(first.folder, tmp_path / "jobs" / "job")
    lost = sorted(first.trials)[0]
    (folder / lost / "result.json").unlink()
    with scripted(tmp_path, agent.script) as upstream:
        ended = harbor(tmp_path, upstream.url, "job", "resume", "-p", folder)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    resumed = Job(folder, ended, tmp_path / "recorded.db", [])
    assert len(resumed.trials) == TRIALS and lost not in resumed.trials
    (episode,) = resumed.rows("SELECT * FROM episodes")
    assert episode["episode_id"] not in first.trials and episode["reward"] == 1.0


def test_a_command_that_is_not_harbor_s_is_told(tmp_path):
    with scripted(tmp_path, [DONE]) as upstream:
        own = ("run", "--harbor", "--upstream", upstream.url, "--store", "recorded.db")
        ended = harness.command(*own, "--", "true", folder=tmp_path)
    assert ended.returncode == 1
    assert "the command started no trial of Harbor" in ended.stderr


def test_the_page_has_the_table_of_agents(jobs):
    rows = ["| agent | wire | trials | with exact ids | reward |", "| --- | --- | --- | --- | --- |"]
    for agent in AGENTS:
        job = jobs(agent)
        told = [trial for trial, _ in job.trials.values()]
        exact = sum(trial["exact_calls"] == trial["calls"] > 0 for trial in told)
        wires = sorted({row["route"] for row in job.rows("SELECT route FROM calls")})
        reward = sum(trial["rewards"]["reward"] for trial in told) / len(told)
        cells = (f"`{agent.name}`", ", ".join(wires), len(told), exact, f"{reward:.2f}")
        rows.append(f"| {' | '.join(map(str, cells))} |")
    table = "\n".join(rows) + "\n"
    page = PAGE.read_text()
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(TABLE.sub(lambda _: table, page))
    else:
        assert TABLE.search(page)[0] == table, "run this with UPDATE_DOCS=1"
