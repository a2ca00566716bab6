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
LIMIT_S = 1800
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


NEAR = ["as near to f32 as transformers", "beside transformers in bf16"]
# What rows of the table say of every part, for the tiny shapes.
ROWS = [
    "tiny        default       batch   1:", "tiny        sampled       batch   4:",
    "tiny        filtered      batch   4:", "tiny        fp8           batch   4:", "tiny        penalties     batch   1:",
    "tiny        one penalty   batch   4:", "batch 1, 400 positions each, splits of 128:",
    "attention of 16 rows behind 64, math", "product of 64^3", "3 decode, during a push: p50",
    "push of a folder", "/sleep", "from start to ready", "start from the page cache:",
    "adapter, rank 8   batch   3:",
    "adapter, rank 16  prompt of 64:", "serve, batch   3, cores 0:",
    "transformers, static cache, torch.compile eager", "behind 32     batch   1:",
    "3 repeats: median", "of 8 experts used in a layer", "deterministic batch   4:",
]


def missing(report):
    """What no row of the table says."""
    rows = [row["row"] for row in report["table"]]
    return [one for one in ROWS if not any(one in row for row in rows)]


@pytest.mark.trainers
@needs_torch
def test_every_part_runs_and_holds(emulated, tmp_path):
    status, report = run(tmp_path, emulated, "--tiny", "--seconds", LIMIT_S, "--python", TRAINERS)
    assert (status, named(report, "FAILED"), named(report, "not made")) == (0, [], [])
    assert report["whole"] and report["device"].startswith("Emulated GPU")
    assert set(named(report, "ok")) == {
        "every kernel beside its twin",
        "NCCL, a group of one",
        *(f"{count} positions: {NEAR[1]}" for count in (150, 300, 600)),
        f"long prompts: {NEAR[0]}",
        "--deterministic, 30 to 250 tokens, alone and in a batch of 6",
        "--deterministic, 30 to 250 tokens, whole and in pieces of 64",
        *(f"deviation 0.02: {what}" for what in NEAR),
        f"peaked logits: {NEAR[0]}",
        "the same requests again",
        "recorded steps and eager ones",
        "--deterministic, alone and in a batch",
        "--deterministic, whole prompts and pieces",
        "fp8, logprobs beside bf16",
        "fp8, --deterministic, alone and in a batch",
        *(f"{name}, {what}" for name in ("tiny", "tiny-moe", "tiny-hybrid")
          for what in ("12 requests", "prompts that were computed", "profile")),
    }
    assert not missing(report), missing(report)
    operations = report["profile tiny"]["operations"]
    variants = {"usual", "cublaslt", "in order", "deterministic", "fixed", "splits of 64",
                "splits of 128", "splits of 256", "upright", "warps", "wide", "whole depth",
                "in parts", "apart"}
    assert variants == {row["products"] for row in operations}
    steps = report["profile tiny"]["steps"]
    assert variants | {"late", "early"} == {step["variant"] for step in steps}
    assert {path.name for path in (tmp_path / "out").iterdir()} == PLAIN | {ARCHIVE}
    left = rest(tmp_path / "out")
    logs = [text for name, text in left.items() if name.startswith("engine-")]
    assert len(logs) == len(report["commands"]) > 20
    assert all("running on the GPU Emulated" in text for text in logs)
    assert json.loads(left["profile-tiny.json"])["operations"] == operations
    assert left["reference.txt"].count("torch is imported") == 1, "torch was imported again"
    *begun, table = (tmp_path / "out/report.txt").read_text().split("\n== ")
    order = [part.split(" (")[0] for part in begun[1:]]
    assert table.startswith("table\n")
    assert order[:6] == ["machine", "kernels", "torch", "bandwidth", "sampled, small", "penalties"]
    assert [one["part"] for one in report["parts"]] == order
    assert report["flags"][0] == str(harness.binary()) and len(report["commit"]) >= 40
    runs = [row["runs"] for row in report["table"] if row.get("manner") == "default"]
    assert runs and all(len(one) == 2 for one in runs)


def test_the_list_takes_ten_minutes_at_most():
    look = ("import types, pathlib, gpu; run = types.SimpleNamespace(tiny=False, variants=[],"
            " scratch=pathlib.Path('.'));"
            " print(*(f'{limit} {name}' for name, _, limit, _ in gpu.first(run) + gpu.listed(run)),"
            " sep='\\n')")
    done = subprocess.run([sys.executable, "-B", "-c", look], cwd=SCRIPT.parent, check=True,
                          capture_output=True, text=True)
    limits = dict(reversed(line.split(" ", 1)) for line in done.stdout.splitlines())
    # On an H100 the last one says that the memory is too small.
    assert sum(int(limit) for name, limit in limits.items() if name != "larger") <= 600
    assert list(limits)[3:6] == ["sampled, small", "sampled, large", "penalties"]


# Stands in for nvidia-smi.
SMI = """#!/bin/sh
case "$1" in
  *clocks.sm*) echo "1980, 2619, 412.50, 51" ;;
  *name,clocks.max.mem) echo "NVIDIA H100 80GB HBM3, 2619" ;;
  *) echo "NVIDIA H100 80GB HBM3, 580.159, 81559 MiB, 2619 MHz, 700.00 W" ;;
esac
"""


def test_clocks_and_kernels_of_a_folder_are_in_the_report(emulated, tmp_path):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    texts = harness.ROOT / "kernels/cuda"
    only = ("--tiny", "--only", "variants", "--variants", texts, "--python", "/none")
    status, report = run(tmp_path, emulated, *only, PATH=path)
    assert (status, named(report, "FAILED")) == (0, [])
    # 5,120 bits, two transfers a clock: what the specification of an H100 says.
    assert report["specified"] == "3352 GB/s"
    assert [one["behind"] for one in report["clocks"]] == ["the start", "machine", "torch",
                                                          "variants"]
    assert report["clocks"][0]["power.draw"] == "412.50"
    kernels = {row["kernels"] for row in report["table"]}
    assert kernels == {"None", str(texts)}
    status, report = run(tmp_path, emulated, "--tiny", "--only", "variants", "peer", "sanitizer",
                         "--python", "/none")
    reasons = {one["check"]: one["detail"] for one in report["checks"]}
    assert status == 2 and set(named(report, "not made")) == set(reasons)
    assert "--variants" in reasons["variants"] and "torch" in reasons["peer, vllm"]
    assert "compute-sanitizer is not here" in reasons["sanitizer"]


def test_a_part_that_fails_does_not_stop_the_others(emulated, tmp_path):
    only = ("--tiny", "--only", "bits", "sampled, small", "generate", "--python", "/none")
    status, report = run(tmp_path, emulated, *only, ROLLTAPE_EMULATED_FAIL_COMPILE="1")
    assert status == 1 and report["whole"]
    assert named(report, "FAILED") == ["sampled, small", "bits, recorded", "bits, deterministic"]
    assert named(report, "not made") == ["generate"] and report["torch"].startswith("not used")
    reasons = [one["detail"] for one in report["checks"] if one["result"] == "FAILED"]
    assert all("could not be compiled for sm_90a" in reason for reason in reasons), reasons


def test_keys_of_fp8_are_timed_and_compared(emulated, tmp_path):
    only = ("--tiny", "--only", "fp8", "--python", "/none")
    status, report = run(tmp_path, emulated, *only)
    assert (status, named(report, "FAILED"), named(report, "not made")) == (0, [], [])
    assert named(report, "ok") == ["fp8, logprobs beside bf16",
                                   "fp8, --deterministic, alone and in a batch"]
    assert [row["batch"] for row in report["table"]] == [1, 4]
    logs = [text for name, text in rest(tmp_path / "out").items() if name.startswith("engine-")]
    assert sum("the KV cache of FP8 takes" in text for text in logs) == 2 < len(logs)


def test_a_kernel_that_fails_is_told(emulated, tmp_path):
    only = ("--tiny", "--only", "bits, recorded", "--python", "/none")
    status, report = run(tmp_path, emulated, *only, ROLLTAPE_EMULATED_FAIL_LAUNCH="3")
    assert status == 1 and report["whole"] and named(report, "FAILED") == ["bits, recorded"]


def test_what_cannot_be_made_is_neither_held_nor_failed(emulated, tmp_path):
    only = ("--tiny", "--only", "generate", "bandwidth", "--python", "/none")
    status, report = run(tmp_path, emulated, *only)
    assert (status, named(report, "not made")) == (2, ["bandwidth", "generate"])
    late = ("--tiny", "--only", "sampled, small", "--seconds", "1", "--python", "/none")
    status, report = run(tmp_path, emulated, *late)
    assert (status, named(report, "not made")) == (2, ["sampled, small"])


# Stands in for NVIDIA's tools: runs what it is given, but for those that are given the same
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
    assert named(report, "ok") == ["compute-sanitizer memcheck", "compute-sanitizer racecheck",
                                   "compute-sanitizer initcheck", "ncu"]
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
