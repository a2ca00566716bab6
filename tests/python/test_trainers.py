"""Exports are read by the trainers' own types, and TRL takes a step on them.

The trainers are in an environment of their own, which `trainers/install.sh` makes (6 GB). Without it
the tests are skipped, unless ROLLTAPE_TRAINERS=required.
"""

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import control
import harness
import upstream

FOLDER = harness.ROOT / "tests" / "python" / "trainers"
MADE = Path(os.environ.get("ROLLTAPE_TRAINERS_AT", FOLDER))
"""Where install.sh has made the environments."""
PYTHON = MADE / ".venv" / "bin" / "python"
WAIT_S = 240
LOGPROB_ERROR_MAX = 1e-3
PAGE = harness.ROOT / "docs" / "formats.md"
TABLE = re.compile(r"(?<=<!-- read -->\n).*?(?=<!-- /read -->)", re.DOTALL)
READ = (
    "art",
    "atif",
    "nemo-gym",
    "skyrl",
    "tinker",
    "trl-async",
    "verifiers",
    "verifiers-traces",
    "verl",
)
NAMES = {"verifiers": "results.jsonl", "verifiers-traces": "traces.jsonl"}
"""The names of files that a loader looks for in a folder."""
OWN = {"verifiers-traces": ".verifiers"}
"""Environments of trainers that do not go into `.venv`."""
TRAINED = {
    "grpo": "trl",
    "sft": "sft",
    "sft_tokens": "sft-tokens",
    "dpo": "preference",
    "kto": "kto",
    "distillation": "sft",
    "gkd": "sft",
}
"""The trainers of TRL, each with the format that it takes a step on."""
TAUGHT = ("tinker", "trl-distillation", "verl")
"""Formats with fields of a teacher, of trainers that are in a package registry."""
SCORED = ("art", "nemo-gym", "skyrl", "verifiers")

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.timeout(WAIT_S + 30),
    pytest.mark.skipif(
        not (MADE / ".venv" / ".installed").exists()
        and os.environ.get("ROLLTAPE_TRAINERS") != "required",
        reason="trainers/install.sh has not been run",
    ),
]


def run(script, *arguments, folder, binary=None, venv=".venv"):
    """Runs a script with the trainers and gives the object that it prints last."""
    environment = harness.environment(
        CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1"
    )
    if binary:
        environment["ROLLTAPE_BIN"] = binary
    ended = subprocess.run(
        [MADE / venv / "bin" / "python", FOLDER / script, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return json.loads(ended.stdout.strip().splitlines()[-1])


def export(proxy, format, folder, *arguments):
    """Exports, and gives the file and the report."""
    out = folder / "out" / NAMES.get(format, "")
    words = ("export", "--out", out, "--format", format, "--json", *arguments)
    report = json.loads(proxy.command(*words))
    return report["files"][0], report


@pytest.fixture(scope="module")
def all_read(played, odd_files, tmp_path_factory):
    """What the trainers' types read, in one process for each environment: it costs as much to
    import them as to run."""
    folder = tmp_path_factory.mktemp("read")
    kinds = ("--kind", "main", "--group", "games")
    proxy = played.world.proxy
    files = {format: export(proxy, format, folder, *kinds)[0] for format in READ}
    files["verl-sessions"] = export(proxy, "verl", folder / "all", "--min-reward", "-1e9")[0]
    files |= {f"{format}/odd": file for format, file in odd_files.items() if format in READ}
    files |= taught_files(proxy, folder, kinds)
    files["mooncake"] = export(proxy, "mooncake", folder)[0]
    return read_all(files, folder)


def taught_files(proxy, folder, kinds):
    """Exports with the scores of a teacher, which is the model itself."""
    scores = folder / "scores"
    proxy.command("score", "--with", harness.MODEL, "--as", "self", "--top", "4", "--out", scores)
    words = (*kinds, "--scores", scores)
    made = {f"{f}/taught": export(proxy, f, folder / "taught", *words)[0] for f in TAUGHT}
    return made | {"trl-distillation": made.pop("trl-distillation/taught")}


def read_all(files, folder):
    """What the trainers' types find in files, each under its format's name and what follows `/`."""
    found = {}
    for venv in (".venv", *OWN.values()):
        named = [f"{k}={v}" for k, v in files.items() if OWN.get(k.split("/")[0], ".venv") == venv]
        if named:
            found |= run("read.py", *named, folder=folder, venv=venv)
    return found


@pytest.fixture(scope="module")
def read(all_read):
    """What they read of games, by format."""
    return {name: found for name, found in all_read.items() if "/" not in name}


@pytest.fixture(scope="module")
def odd(all_read, odd_files):
    """What they read of an agent whose messages and tools have all that the wire allows: the rows
    of the contract, and what was found."""
    found = {format: all_read[f"{format}/odd"] for format in READ}
    return pq.read_table(odd_files["trajectories"]).to_pylist(), found


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory):
    """Exports of that agent, by format."""
    folder = tmp_path_factory.mktemp("odd")
    look = [{"name": "look", "arguments": {"n": 1}}]
    script = [{"reasoning": "Why not?", "tool_calls": look}, {"text": "Seen."}]
    with upstream.scripted(folder, script) as server:
        with harness.serve(folder, "--upstream", server.url) as proxy:
            for episode in ("cut", "ended"):
                talk_oddly(f"{proxy.base_url(episode)}/chat/completions")
                control.reward(proxy, episode, 1.0)
            told = {"status": "truncated"}
            assert control.post(proxy, "/episodes/cut/close", told)[0] == 200
            control.close(proxy, "ended")
            return {f: export(proxy, f, folder)[0] for f in (*READ, "trajectories")}


def talk_oddly(url):
    """Two calls with pictures, sounds, a developer, named results, and tools half described."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}
    bare = {"name": "look", "description": None, "parameters": None}
    tools = [
        {"type": "function", "function": bare},
        {"type": "function", "function": {"name": "wait", "strict": None}},
    ]
    said = [
        {"role": "system", "content": [{"type": "text", "text": "Look."}]},
        {"role": "developer", "content": "Closely."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "?"}, picture, sound]},
    ]
    for _ in range(2):
        body = {"model": "scripted", "messages": said, "tools": tools, "logprobs": True}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            answer = json.load(reply)["choices"][0]["message"]
        called = answer["tool_calls"][0]["id"] if answer.get("tool_calls") else None
        result = {"role": "tool", "tool_call_id": called, "name": "look"}
        said += [answer, result | {"content": [{"type": "text", "text": "1"}, picture]}]


@pytest.fixture(scope="module")
def logged(played, tmp_path_factory):
    """What TRL's trainers log of one step each."""
    folder = tmp_path_factory.mktemp("train")
    scored = ("--group", "games", "--min-reward", "-1e9")
    formats = dict.fromkeys(TRAINED.values())
    made = {format: export(played.world.proxy, format, folder, *scored)[0] for format in formats}
    files = {name: made[format] for name, format in TRAINED.items()}
    arguments = (f"{name}={file}" for name, file in files.items())
    return run("train.py", harness.MODEL, folder / "o", *arguments, folder=folder)


@pytest.mark.parametrize("format", READ)
def test_the_trainers_own_types_read_the_rows(format, read, played, record_property):
    """The same tokens as in the contract: those that are trained."""
    record_property("version", read[format]["version"].split()[1])
    rows = [row for row in played.rows() if (row["kind"], row["group_id"]) == ("main", "games")]
    kept = [row for row in rows if row["reward"] is not None or format not in SCORED]
    assert "error" not in read[format], read[format]["error"]
    assert read[format]["rows"] == len(kept) > 0
    assert read[format]["ids"] == sum(sum(row["loss_mask"]) for row in kept)


@pytest.mark.parametrize("format", ("tinker/taught", "trl-distillation", "verl/taught"))
def test_trainers_read_the_scores_of_a_teacher(format, all_read, played):
    """As many tokens as without, each with what its trainer reads of a teacher."""
    found = all_read[format]
    assert "error" not in found, found["error"]
    rows = [row for row in played.rows() if (row["kind"], row["group_id"]) == ("main", "games")]
    assert (found["rows"], found["ids"]) == (len(rows), sum(sum(row["loss_mask"]) for row in rows))
    if format == "verl/taught":
        assert found["taught"] == len(rows) and found["divergence"] > 0


@pytest.mark.parametrize("format", READ)
def test_the_trainers_own_types_read_odd_messages_and_tools(format, odd):
    rows, read = odd
    assert "error" not in read[format], read[format]["error"]
    assert read[format]["rows"] == len(rows) == 2
    assert read[format]["ids"] == sum(sum(row["loss_mask"]) for row in rows) > 0


def test_verifiers_finds_the_trace_truncated_that_the_harness_cut(odd):
    assert odd[1]["verifiers-traces"]["cut"] == [True, False]


def test_verl_takes_sessions_of_several_outputs_with_a_score(read, played):
    """Its newest workers hand the last one's reward and extras to the others of the session."""
    scored = [row for row in played.rows() if row["reward"] is not None and any(row["loss_mask"])]
    found = read["verl-sessions"]
    assert found["rows"] == found["ids"] == len(scored) and found["several"] > 1
    expected = sorted(row["reward"] for row in scored)
    assert sorted(found["scores"].values()) == pytest.approx(expected)


def test_aiperf_reads_the_load_of_all_calls(read, played):
    """Its own type takes each line, and their lengths are those of the calls."""
    found = read["mooncake"]
    assert "error" not in found, found["error"]
    words = ("sql", "--json", "SELECT prompt_tokens, completion_tokens FROM calls")
    calls = [json.loads(line) for line in played.world.proxy.command(*words).splitlines()]
    assert found["rows"] == len(calls) > 0
    sums = [sum(call[name] for call in calls) for name in ("prompt_tokens", "completion_tokens")]
    assert [found["prompts"], found["ids"]] == sums


def test_nemo_gym_counts_what_was_played_as_rollouts_of_one_task(read):
    assert read["nemo-gym"]["groups"] == 1


@pytest.mark.parametrize("trainer", TRAINED, ids=lambda name: f"{TRAINED[name]}={name}")
def test_every_trainer_of_trl_takes_a_step(trainer, logged, record_property):
    """Those of distillation towards a teacher."""
    record_property("version", logged[trainer]["version"].split()[1])
    assert logged[trainer]["moved"] > 0 and logged[trainer]["loss"] == logged[trainer]["loss"]


def test_grpo_takes_a_step_and_finds_the_recorded_logprobs_its_own(logged):
    found = logged["grpo"]
    assert found["reward_std"] > 0 and found["moved"] > 0 and found["grad_norm"] > 0
    assert found["sampling/sampling_logp_difference/max"] < LOGPROB_ERROR_MAX


def test_sft_takes_a_step_on_what_the_assistant_said(logged):
    assert logged["sft"]["moved"] > 0 and 0 < logged["sft"]["loss"] < 20


def test_sft_takes_a_step_on_the_tokens_that_were_sampled_and_on_no_other(logged, played):
    found = logged["sft_tokens"]
    kept = [row for row in played.rows() if row["group_id"] == "games" and row["reward"] is not None]
    assert found["moved"] > 0 and found["rows"] == len([r for r in kept if any(r["loss_mask"])])
    assert found["labels"] == sum(sum(row["loss_mask"]) for row in kept)
    sampled = [lp for row in kept for lp, m in zip(row["logprobs"], row["loss_mask"]) if m]
    assert found["loss"] == pytest.approx(-sum(sampled) / len(sampled), rel=1e-3)


def test_dpo_takes_a_step_on_pairs(logged):
    assert logged["dpo"]["moved"] > 0
    assert logged["dpo"]["loss"] == pytest.approx(0.6931, abs=1e-3), "both sides are equally likely"


def test_the_page_tells_what_read_each_format(read, logged):
    named = [*((format, read[format]) for format in (*READ, "mooncake", "trl-distillation"))]
    named += [(format, logged[trainer]) for trainer, format in TRAINED.items()]
    lines = sorted(f"| `{format}` | `{by['loader']}` | {by['version']} |" for format, by in named)
    table = "\n".join(["| format | read by | of |", "| --- | --- | --- |", *lines, ""])
    page = PAGE.read_text()
    if os.environ.get("UPDATE_DOCS"):
        page = TABLE.sub(lambda _: table, page)
        PAGE.write_text(page)
    assert TABLE.search(page)[0] == table, "UPDATE_DOCS=1 writes the table anew"
