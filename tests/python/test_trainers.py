"""Exports are read by the trainers' own types, and TRL takes a step on them.

The trainers are in an environment of their own, which `trainers/install.sh` makes (6 GB). Without it
the tests are skipped, unless ROLLTAPE_TRAINERS=required.
"""

import json
import os
import subprocess

import pytest

import harness

FOLDER = harness.ROOT / "tests" / "python" / "trainers"
PYTHON = FOLDER / ".venv" / "bin" / "python"
WAIT_S = 240
LOGPROB_ERROR_MAX = 1e-3
READ = ("art", "atif", "nemo-gym", "skyrl", "tinker", "trl-async", "verifiers", "verl")
SCORED = ("art", "nemo-gym", "skyrl", "verifiers")

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.timeout(WAIT_S + 30),
    pytest.mark.skipif(
        not (FOLDER / ".venv" / ".installed").exists()
        and os.environ.get("ROLLTAPE_TRAINERS") != "required",
        reason="trainers/install.sh has not been run",
    ),
]


def run(script, *arguments, folder, binary=None):
    """Runs a script with the trainers and gives the object that it prints last."""
    environment = harness.environment(
        CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1"
    )
    if binary:
        environment["ROLLTAPE_BIN"] = binary
    ended = subprocess.run(
        [PYTHON, FOLDER / script, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return json.loads(ended.stdout.strip().splitlines()[-1])


def export(played, format, folder, *arguments):
    """Exports, and gives the file and the report."""
    name = "out/results.jsonl" if format == "verifiers" else "out"
    words = ("export", "--out", folder / name, "--format", format, "--json", *arguments)
    report = json.loads(played.world.proxy.command(*words))
    return report["files"][0], report


@pytest.fixture(scope="module")
def read(played, tmp_path_factory):
    """What the trainers' types read, in one process: it costs as much to import them as to run."""
    folder = tmp_path_factory.mktemp("read")
    kinds = ("--kind", "main", "--group", "games")
    files = {format: export(played, format, folder, *kinds)[0] for format in READ}
    files["verl-sessions"] = export(played, "verl", folder / "all", "--min-reward", "-1e9")[0]
    return run("read.py", *(f"{k}={v}" for k, v in files.items()), folder=folder)


@pytest.fixture(scope="module")
def logged(played, tmp_path_factory):
    """What TRL's trainers log of one step each."""
    folder = tmp_path_factory.mktemp("train")
    scored = ("--group", "games", "--min-reward", "-1e9")
    made = {"grpo": "trl", "sft": "sft", "sft_tokens": "sft-tokens", "dpo": "preference"}
    files = {name: export(played, what, folder, *scored)[0] for name, what in made.items()}
    arguments = (f"{name}={file}" for name, file in files.items())
    return run("train.py", harness.MODEL, folder / "o", *arguments, folder=folder)


@pytest.mark.parametrize("format", READ)
def test_the_trainers_own_types_read_the_rows(format, read, played):
    """The same tokens as in the contract: those that are trained."""
    rows = [row for row in played.rows() if (row["kind"], row["group_id"]) == ("main", "games")]
    kept = [row for row in rows if row["reward"] is not None or format not in SCORED]
    assert read[format]["rows"] == len(kept) > 0
    assert read[format]["ids"] == sum(sum(row["loss_mask"]) for row in kept)


def test_verl_takes_sessions_of_several_outputs_with_a_score(read, played):
    """Its newest workers hand the last one's reward and extras to the others of the session."""
    scored = [row for row in played.rows() if row["reward"] is not None and any(row["loss_mask"])]
    found = read["verl-sessions"]
    assert found["rows"] == found["ids"] == len(scored) and found["several"] > 1
    expected = sorted(row["reward"] for row in scored)
    assert sorted(found["scores"].values()) == pytest.approx(expected)


def test_nemo_gym_counts_what_was_played_as_rollouts_of_one_task(read):
    assert read["nemo-gym"]["groups"] == 1


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
