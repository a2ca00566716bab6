"""The correctness and the bandwidth of every kernel: `rolltape doctor --gpu`."""

import glob
import json
import shutil
import subprocess

from .report import Skipped

# The usual folders of NVIDIA's tools outside of the path.
FOLDERS = ["/usr/local/cuda*/bin", "/opt/nvidia/nsight-compute/*"]


def tool(name):
    """Returns the path of a tool of NVIDIA's."""
    found = shutil.which(name)
    for folder in FOLDERS:
        found = found or next(iter(sorted(glob.glob(f"{folder}/{name}"), reverse=True)), None)
    if not found:
        raise Skipped(f"{name} is not here")
    return found


def command_of(run, *flags):
    return [run.rolltape, "doctor", "--gpu", *flags]


def kernels(run):
    """Checks every kernel against plain loops. Keeps the measured bandwidths for the run."""
    flags = ["--json", "--no-times"] if run.tiny else ["--json"]
    done = subprocess.run(command_of(run, *flags), capture_output=True, text=True, env=run.env,
                          timeout=run.report.limit(240))
    (run.report.out / "doctor.json").write_text(done.stdout)
    (run.report.folder / "doctor.txt").write_text(done.stderr)
    if not done.stdout.strip():
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-1500:]}")
    found = json.loads(done.stdout)
    for name in ("device", "arch", "processors", "memory_free", "memory", "driver", "nvrtc",
                 "cublaslt", "compiled", "seed"):
        run.report.fact(name, found[name])
    run.memory, run.all_memory = found["memory_free"], found["memory"]
    wrong = [one for one in found["kernels"] if one["worst"] is None or one["worst"] > 1]
    for one in wrong:
        run.report.say(f"   wrong: {one['kernel']}, {one['worst']} of what is allowed")
    run.report.check("every kernel beside its twin", done.returncode in (0, 1) and not wrong,
                     f"{len(found['kernels'])} comparisons, {len(wrong)} wrong")
    nccl = found["nccl"]
    run.report.check("NCCL, a group of one", None if nccl["absent"] else not nccl["wrong"],
                     nccl["said"])
    for one in found["speeds"]:
        run.report.row(f"kernel      {one['kernel']}: {one['microseconds']:.1f} us, "
                       f"{one['gigabytes']:.0f} GB/s", **one)
    reads = [one["gigabytes"] * 1e9 for one in found["speeds"] if "probe" in one["kernel"]]
    run.rates += reads


def sanitizer(run):
    """Runs the same under compute-sanitizer, if it is installed."""
    found = tool("compute-sanitizer")
    for kind in ("memcheck", "racecheck", "initcheck"):
        under = [found, "--tool", kind, "--error-exitcode", "9", *command_of(run, "--no-times")]
        log = run.report.folder / f"sanitizer-{kind}.txt"
        with open(log, "w", encoding="utf-8") as file:
            try:
                done = subprocess.run(under, stdout=file, stderr=file, env=run.env,
                                      timeout=run.report.limit(60))
            except subprocess.TimeoutExpired as late:
                run.report.check(f"compute-sanitizer {kind}", None,
                                 f"not through after {late.timeout:.0f} s")
                continue
        run.report.check(f"compute-sanitizer {kind}", done.returncode == 0,
                         f"exit status {done.returncode}")
