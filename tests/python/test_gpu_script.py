"""engine/benches/gpu.py, which will meet a GPU where nobody can mend it, on the emulated one.

What it says of times means nothing here; that every part runs, what it checks, what it leaves, and
how it ends, does.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest

import harness

SCRIPT = harness.ROOT / "engine/benches/gpu.py"
NUMERICS = harness.ROOT / "engine/benches/numerics.py"
TRAINERS = harness.ROOT / "tests/python/trainers/.venv/bin/python"
# Sizes of heads: of the tiny shape, of the tiny model, and those that `doctor --gpu` looks at.
HEAD_DIMS = ("16", "32", "64", "128", "256")
LIMIT_S = 900
pytestmark = pytest.mark.timeout(2 * LIMIT_S)
needs_torch = pytest.mark.skipif(
    not TRAINERS.exists(), reason="trainers/install.sh has not been run")


@pytest.fixture(scope="module")
def emulated():
    """The emulated libraries without their watch over memory, which other tests have: kernels run faster."""
    folder = harness.ROOT / "target" / "cuda-emulated-unwatched"
    folder.parent.mkdir(exist_ok=True)
    script = harness.ROOT / "kernels/emulator/build.sh"
    subprocess.run([script, folder, *HEAD_DIMS], check=True, env=dict(os.environ, UNWATCHED="1"))
    return folder


def command(folder, emulated, *options, script=SCRIPT):
    own = ["--emulated", emulated, "--out", folder / "out", *options]
    return list(map(str, [sys.executable, "-B", script, harness.binary(), *own]))


def run(folder, emulated, *options, script=SCRIPT, **changes):
    """How it ended, and the report that it left."""
    done = subprocess.run(command(folder, emulated, *options, script=script), timeout=LIMIT_S,
                          env=harness.environment(**changes), capture_output=True, text=True)
    print(done.stdout, done.stderr)
    return done.returncode, json.loads((folder / "out/report.json").read_text())


# What is left, for a machine that gives eight files back.
PLAIN = {"report.json", "report.txt", "doctor.json"}
ARCHIVE = "rest.tar.gz"


def rest(folder):
    """The archive, opened: texts by name."""
    with tarfile.open(folder / ARCHIVE) as archive:
        return {member.name.removeprefix("rest/"): archive.extractfile(member).read().decode()
                for member in archive.getmembers()}


def named(report, result):
    return [one["check"] for one in report["checks"] if one["result"] == result]


@pytest.mark.trainers
@needs_torch
def test_every_part_runs_and_holds(emulated, tmp_path):
    status, report = run(tmp_path, emulated, "--tiny", "--seconds", LIMIT_S, "--python", TRAINERS)
    assert (status, named(report, "FAILED"), named(report, "not made")) == (0, [], [])
    assert report["whole"] and report["device"].startswith("Emulated GPU")
    assert set(named(report, "ok")) == {
        "every kernel beside its twin",
        "NCCL, a group of one",
        "deviation 0.02: as near to f32 as transformers",
        "deviation 0.02: beside transformers in bf16",
        "the same requests again",
        "recorded steps and eager ones",
        "--deterministic, alone and in a batch",
        "--deterministic, whole prompts and pieces",
        "tiny, 12 requests",
        "tiny, profile",
        "tiny-moe, 12 requests",
        "tiny-moe, profile",
        "tiny-hybrid, 12 requests",
        "tiny-hybrid, profile",
        "peaked logits: as near to f32 as transformers",
    }
    # Five ways to compare for each of two models; two batches of the dense model by default and
    # exactly, and of the mixture and the hybrid; the uneven requests of each; the penalties.
    assert len(report["table"]) == 2 * 5 + 4 * 2 + 3 + 1
    operations = report["profile tiny"]["operations"]
    variants = {"usual", "cublaslt", "in order", "deterministic", "fixed", "upright", "warps",
                "wide", "apart"}
    assert variants == {row["products"] for row in operations}
    steps = report["profile tiny"]["steps"]
    assert variants | {"late"} == {step["variant"] for step in steps}
    assert {path.name for path in (tmp_path / "out").iterdir()} == PLAIN | {ARCHIVE}
    left = rest(tmp_path / "out")
    logs = [text for name, text in left.items() if name.startswith("engine-")]
    assert len(logs) == 12 and all("running on the GPU Emulated" in text for text in logs)
    assert json.loads(left["profile-tiny.json"])["operations"] == operations
    assert left["reference.txt"].count("torch is imported") == 1, "torch was imported again"
    begun = (tmp_path / "out/report.txt").read_text().split("\n== ")
    order = [part.split(" (")[0] for part in begun[1:]]
    assert order[:5] == ["machine", "kernels", "torch", "bandwidth",
                         "logprobs, weights as trainers begin with"]


def test_a_part_that_fails_does_not_stop_the_others(emulated, tmp_path):
    only = ("--tiny", "--only", "bits", "small", "generate", "--python", "/none")
    status, report = run(tmp_path, emulated, *only, ROLLTAPE_EMULATED_FAIL_COMPILE="1")
    assert status == 1 and report["whole"]
    assert named(report, "FAILED") == ["small", "bits, recorded", "bits, deterministic"]
    assert named(report, "not made") == ["generate"] and report["torch"].startswith("not used")
    reasons = [one["detail"] for one in report["checks"] if one["result"] == "FAILED"]
    assert all("could not be compiled for sm_90a" in reason for reason in reasons), reasons


def test_a_kernel_that_fails_is_told(emulated, tmp_path):
    only = ("--tiny", "--only", "bits, recorded", "--python", "/none")
    status, report = run(tmp_path, emulated, *only, ROLLTAPE_EMULATED_FAIL_LAUNCH="3")
    assert status == 1 and report["whole"] and named(report, "FAILED") == ["bits, recorded"]


def test_what_cannot_be_made_is_neither_held_nor_failed(emulated, tmp_path):
    only = ("--tiny", "--only", "generate", "bandwidth", "--python", "/none")
    status, report = run(tmp_path, emulated, *only)
    assert (status, named(report, "not made")) == (2, ["bandwidth", "generate"])
    late = ("--tiny", "--only", "small", "--seconds", "1", "--python", "/none")
    status, report = run(tmp_path, emulated, *late)
    assert (status, named(report, "not made")) == (2, ["small"])


# Stands in for NVIDIA's tools: runs what it is given, except for racecheck, which is given the same
# as memcheck, and writes a table as ncu does.
TOOL = """#!/bin/sh
echo "$0 $*" | head -c 120
case "$*" in *racecheck*) exit 0; esac
while [ "${1%/rolltape}" = "$1" ]; do shift; done
"$@" >/dev/null || exit 9
for line in 1 2 3; do
  printf '\\n"%s"' "$line"
  for n in 1 2 3 4 5 6 7 8 9; do printf ',"x"'; done
done
"""


def test_tools_are_used_where_they_are(emulated, tmp_path):
    for name in ("ncu", "compute-sanitizer"):
        (tmp_path / name).write_text(TOOL)
        (tmp_path / name).chmod(0o755)
    only = ("--tiny", "--only", "ncu", "sanitizer", "--python", "/none", "--seconds", LIMIT_S)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    status, report = run(tmp_path, emulated, *only, PATH=path)
    assert (status, named(report, "FAILED"), named(report, "not made")) == (0, [], [])
    assert named(report, "ok") == ["ncu", "compute-sanitizer memcheck",
                                   "compute-sanitizer racecheck"]
    assert "--clock-control none" in rest(tmp_path / "out")["ncu-tiny.csv"]
    (tmp_path / "ncu").write_text("#!/bin/sh\nexit 3\n")
    status, report = run(tmp_path, emulated, "--tiny", "--only", "ncu", "--python", "/none",
                         PATH=path)
    assert (status, named(report, "FAILED")) == (1, ["ncu"])


def test_whoever_ends_it_has_what_it_found(emulated, tmp_path):
    only = ("--tiny", "--only", "bits", "price", "--python", "/none")
    # What it starts has this folder in its arguments.
    started = subprocess.Popen(command(tmp_path, emulated, *only),
                               env=harness.environment(TMPDIR=str(tmp_path)),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report, until = tmp_path / "out/report.json", time.monotonic() + LIMIT_S
    while not (report.exists() and json.loads(report.read_text())["checks"]):
        assert started.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 1
    found = json.loads(report.read_text())
    assert found["whole"] and "the whole run" in named(found, "FAILED")
    assert named(found, "ok"), "what was found before is lost"
    # The engine that was running has left what it had said so far.
    assert any("running on the GPU" in text for text in rest(tmp_path / "out").values())
    engines = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert not engines.stdout, "an engine was left behind"


def test_the_folder_of_the_environment_is_the_usual_one(emulated, tmp_path):
    own = ["--tiny", "--emulated", emulated, "--only", "none", "--python", "/none"]
    command = list(map(str, [sys.executable, "-B", SCRIPT, harness.binary(), *own]))
    out = tmp_path / "returned"
    done = subprocess.run(command, env=harness.environment(OUT=str(out)), timeout=LIMIT_S,
                          capture_output=True, text=True)
    assert done.returncode == 0 and json.loads((out / "report.json").read_text())["whole"]
    bare = subprocess.run(command, env=harness.environment(), capture_output=True, text=True,
                          timeout=LIMIT_S)
    assert bare.returncode == 2 and "--out" in bare.stderr


@pytest.mark.trainers
@needs_torch
def test_bf16_is_as_near_to_f32_as_that_of_transformers(emulated, tmp_path):
    command = [TRAINERS, "-B", NUMERICS, harness.binary(), "--emulated", emulated, "--out",
               tmp_path / "out", "--sizes", "4", "12", "12"]
    done = subprocess.run(command, timeout=LIMIT_S, env=harness.environment(),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert len(named(report, "ok")) == 5
