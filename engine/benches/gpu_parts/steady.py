"""How steady figures are: repeats beside the clocks, few cores, sizes of splits, other kernels."""

import json
import os
import shutil
import statistics
import subprocess
import time

from . import clocks
from .doctor import command_of
from .engine import Engine
from .profile import flags_of
from .report import Skipped
from .shapes import prompts_of
from .times import step_seconds

REPEATS = 10


def spread(run, name, config, source):
    """Times ten repeats of decoding, with the clocks and the power beside each."""
    batches = [1, 4] if run.tiny else [1, 32, 256]
    context, (short, long) = (32, (2, 6)) if run.tiny else (960, (4, 52))
    repeats = 3 if run.tiny else REPEATS
    with Engine(run, source) as engine:
        for batch in batches:
            prompts, each, seen = prompts_of(config, batch, context), [], []
            engine.ask(prompts, short)
            for _ in range(repeats):
                took = []
                for count in (short, long):
                    begun = time.perf_counter()
                    engine.ask(prompts, count)
                    took.append(time.perf_counter() - begun)
                each.append(max(took[1] - took[0], 1e-9) / (long - short))
                seen.append(clocks.now())
            middle, least, most = statistics.median(each), min(each), max(each)
            run.report.row(f"{name:11} batch {batch:3}, {repeats} repeats: median "
                           f"{1000 * middle:.3f} ms, {1000 * least:.3f} to {1000 * most:.3f}, "
                           f"spread {(most - least) / middle:.1%}",
                           shape=name, manner="spread", batch=batch, runs=each, clocks=seen)


def cores(run, name, config, folder):
    """Times decoding through `rolltape serve` on one core, on two, and on all."""
    taskset = shutil.which("taskset")
    if not taskset:
        raise Skipped("taskset is not here")
    batch, context, counts = (3, 32, (2, 8)) if run.tiny else (32, 512, (4, 68))
    prompts, plain = prompts_of(config, batch, context), None
    for list_ in ("", "0,1", "0"):
        under = [taskset, "-c", list_] if list_ else []
        store = run.scratch / f"serve-{list_ or 'all'}.db"
        flags = ["--store", store, "--control", "127.0.0.1:0"]
        with Engine(run, ["--model", folder], *flags, under=under, name="serve") as engine:
            seconds = step_seconds(engine, prompts, counts)
        plain = plain or seconds
        what = f"cores {list_}" if list_ else f"all {os.cpu_count()} cores"
        run.report.row(f"{name:11} serve, batch {batch:3}, {what}: {1000 * seconds:8.3f} ms a "
                       f"step, {seconds / plain:.2f} x the time on all",
                       shape=name, manner=f"serve, {what}", batch=batch, seconds=seconds)


def profiled(run, log, *flags, env=None):
    """Returns a profile of `doctor --gpu`."""
    done = subprocess.run(command_of(run, *flags), capture_output=True, text=True,
                          env={**run.env, **(env or {})}, timeout=run.report.limit(60))
    (run.report.folder / f"{log}.txt").write_text(done.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-1500:]}")
    (run.report.folder / f"{log}.json").write_text(done.stdout)
    return json.loads(done.stdout)


def splits(run, name):
    """Times whole steps of one sequence by the positions of a split."""
    for context in (200, 400) if run.tiny else (1_028, 4_096, 16_384):
        flags = flags_of(run, name, "--batch", "1", "--no-prompts", "--context", str(context))
        found = profiled(run, f"splits-{context}", *flags)
        case = f"batch 1, {context} positions each"
        steps = {one["variant"]: one["microseconds"] for one in found["steps"]
                 if one["case"] == case}
        for variant in ("usual", "fixed", "splits of 64", "splits of 128", "splits of 256"):
            run.report.row(f"{name:11} {case}, {variant}: {steps[variant]:9.1f} us a step, "
                           f"{steps[variant] / steps['usual']:5.1%}",
                           shape=name, context=context, variant=variant,
                           microseconds=steps[variant])


def variants(run, name, folders):
    """Times whole steps with kernels of other folders beside those that are built in."""
    if not folders:
        raise Skipped("no folder of kernel texts was named with --variants")
    few = ["--batch", "1,20", "--steps", "1"] if run.tiny else ["--batch", "1,32"]
    flags, plain = flags_of(run, name, "--no-prompts", *few), {}
    for number, folder in enumerate([None, *folders]):
        env = {"ROLLTAPE_KERNEL_TEXTS": str(folder.resolve())} if folder else {}
        found = profiled(run, f"variant-{number}", *flags, env=env)
        for one in found["steps"]:
            if one["variant"] != "usual":
                continue
            case, seconds = one["case"], one["microseconds"]
            before = plain.setdefault(case, seconds)
            run.report.row(f"{name:11} kernels of {folder or 'the program'}, {case}: "
                           f"{seconds:9.1f} us a step, {seconds / before:5.1%}",
                           shape=name, kernels=str(folder), case=case, microseconds=seconds)
