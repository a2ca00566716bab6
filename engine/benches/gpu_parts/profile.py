"""Profiles of a step: `rolltape doctor --gpu --profile`, and the same under ncu."""

import json
import subprocess

from .doctor import command_of, tool
from .shapes import config_of

# A pattern for the names of our kernels and cuBLASLt's.
NAMES = "regex:gemm|nvjet|cutlass|attention|norm|rope|silu|sample|embed|route|sort|combine"
METRICS = ["gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
           "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed",
           "sm__warps_active.avg.pct_of_peak_sustained_active",
           "launch__registers_per_thread", "launch__occupancy_limit_shared_mem"]


def flags_of(run, name, *flags):
    """Returns the flags for a shape; with `--tiny`, sizes for an emulated device."""
    path = run.scratch / f"profile-{name}.json"
    path.write_text(json.dumps(config_of(name)))
    small = ["--context", "24"] if run.tiny and "--context" not in flags else []
    return ["--json", "--profile", str(path), *small, *flags]


def profile(run, name):
    """Times every operation of steps between two events: that decode, at several batches, and of
    prompts."""
    few = ["--batch", "1,20", "--steps", "1"] if run.tiny else []
    done = subprocess.run(command_of(run, *flags_of(run, name, *few)), capture_output=True,
                          text=True, env=run.env, timeout=run.report.limit(150))
    (run.report.folder / f"profile-{name}.json").write_text(done.stdout)
    (run.report.folder / f"profile-{name}.txt").write_text(done.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-1500:]}")
    found = json.loads(done.stdout)
    for case in found["left_out"]:
        run.report.say(f"   no room for {case}")
    said = None
    for row in found["operations"]:
        kind = f"{row['case']}, products {row['products']}"
        if kind != said:
            run.report.say(f"   {kind}")
            said = kind
        run.report.say(f"   {row['calls']:4} x {row['microseconds']:9.2f} us, "
                       f"{row['bytes'] / 1e6:9.3f} MB, {row['share']:4.0%} of read: "
                       f"{row['operation']}")
    said, usual = None, 0.0
    for step in found["steps"]:
        if step["case"] != said:
            said, usual = step["case"], step["microseconds"]
            run.report.say(f"   {said}, whole steps")
        run.report.say(f"   {step['microseconds']:9.1f} us, {step['microseconds'] / usual:5.1%}: "
                       f"{step['variant']}")
    run.report.keep(f"profile {name}", found)
    usual = [row for row in found["operations"] if row["products"] == "usual"]
    run.report.check(f"{name}, profile", bool(usual), f"{len(usual)} operations timed")


def ncu(run, name):
    """Counts events of the kernels of some layers, if ncu is installed."""
    under = [tool("ncu"), "--clock-control", "none", "--csv", "--page", "raw", "-k", NAMES,
             "-s", "40", "-c", "36", "--metrics", ",".join(METRICS)]
    asked = command_of(run, *flags_of(run, name, "--batch", "32", "--steps", "1"))
    log = run.report.folder / f"ncu-{name}.csv"
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run([*under, *asked], stdout=file, stderr=subprocess.STDOUT, env=run.env,
                              timeout=run.report.limit(100))
    lines = log.read_text(errors="replace").splitlines()
    counted = sum(line.count('","') >= len(METRICS) for line in lines)
    last = "".join(lines[-1:])[-200:]
    run.report.check("ncu", done.returncode == 0 and counted > 1,
                     f"exit status {done.returncode}, {counted} lines; {last}")
