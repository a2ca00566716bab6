"""Times of steps against the floor: the bytes that a step must move at the measured bandwidth."""

import concurrent.futures
import time

from .compare import reference
from .engine import Engine
from .report import Skipped
from .shapes import GOALS, PENALTIES_GOAL, cache_bytes, prompts_of, step_bytes


def bandwidth(run):
    """Reports the memory bandwidth: the best of torch and of our own probes."""
    if run.torch:
        run.rates.append(reference(run, "bandwidth", seconds=30)["bytes_per_second"])
    if not run.rates:
        raise Skipped("nothing measured the memory: neither the kernels nor torch")
    run.report.fact("bandwidth", f"{max(run.rates) / 1e9:.0f} GB/s")


def step_seconds(engine, prompts, counts, **fields):
    """Returns the seconds of a decode step: the time of a long reply minus that of a short one, the
    least of two runs each. After the first run prompts come from the prefix cache, so only decoding
    differs."""
    least = {}
    for _ in range(2):
        for count in counts:
            start = time.perf_counter()
            engine.ask(prompts, count, **fields)
            took = time.perf_counter() - start
            least[count] = min(took, least.get(count, took))
    short, long = counts
    return max(least[long] - least[short], 1e-9) / (long - short)


def decode(run, name, config, engine, manner):
    """Times decoding at several batches. A batch that does not fit or fails is skipped."""
    batches = [1, 4] if run.tiny else [1, 32, 256]
    context, counts = (32, (2, 10)) if run.tiny else (960, (4, 132))
    for batch in batches:
        what = f"{name}, {manner}, batch {batch}"
        room = run.memory * 0.9 - step_bytes(config, 0, 0)
        if cache_bytes(config, batch * (context + max(counts))) > room:
            run.report.check(what, None, "keys and values do not fit into this GPU")
            continue
        try:
            seconds = step_seconds(engine, prompts_of(config, batch, context), counts)
        except Exception as error:  # noqa: BLE001: the next batch may succeed
            run.report.check(what, False, f"{type(error).__name__}: {error}")
            if engine.process.poll() is not None:
                return
            continue
        decoded(run, (name, config, manner), (batch, context + sum(counts) / 2), seconds)


def decoded(run, shape, size, seconds):
    """Reports one batch with its floor and its goal."""
    (name, config, manner), (batch, context) = shape, size
    row = (f"{name:11} {manner:13} batch {batch:3}: {1000 * seconds:8.3f} ms a step, "
           f"{batch / seconds:9.0f} tok/s")
    values = {"shape": name, "manner": manner, "batch": batch, "seconds": seconds}
    price = run.steps.get((name, batch))
    run.steps.setdefault((name, batch), seconds)
    if price:
        row += f", {seconds / price:.2f} x the time by default"
    if run.rates and not run.tiny:
        floor = step_bytes(config, batch, context) / max(run.rates)
        row += f", floor {1000 * floor:7.3f} ms, {floor / seconds:4.0%} of it"
        values["floor"] = floor
    run.report.row(row, **values)
    goal = GOALS.get((name, batch))
    if goal and not price and "floor" in values:
        run.report.check(f"{name}, batch {batch}", values["floor"] / seconds >= goal,
                         f"{values['floor'] / seconds:.0%} of the floor, {goal:.0%} wanted")


def mixed(run, name, config, engine):
    """Many requests of uneven lengths at once."""
    count = 12 if run.tiny else 256
    low, high = (5, 30) if run.tiny else (100, 1024)
    spread = high - low + 1
    lengths = [(low + 613 * n % spread, low + 397 * (n + 5) % spread) for n in range(count)]
    longest = prompts_of(config, count, high)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        start = time.perf_counter()
        jobs = [pool.submit(engine.ask, [prompt[:given]], wanted)
                for prompt, (given, wanted) in zip(longest, lengths)]
        found = [len(job.result()[0]["token_ids"]) for job in jobs]
        seconds = time.perf_counter() - start
    given, wanted = (sum(column) for column in zip(*lengths))
    run.report.check(f"{name}, {count} requests", found == [out for _, out in lengths],
                     f"{sum(found)} of {wanted} tokens")
    run.report.row(f"{name:11} {count} requests of {low} to {high} tokens in and out: "
                   f"{seconds:6.1f} s, {sum(found) / seconds:8.0f} tok/s out, "
                   f"{given / seconds:8.0f} tok/s in",
                   shape=name, seconds=seconds, tokens_out=sum(found), tokens_in=given)


def measure(run, name, config, source):
    """Times one shape with default options."""
    with Engine(run, source) as engine:
        decode(run, name, config, engine, "default")
        mixed(run, name, config, engine)


def penalties(run, name, config, source):
    """Times decoding with a penalty, as Qwen3.5's recommended settings have it, beside decoding
    without one."""
    batch, context, counts = (4, 32, (2, 10)) if run.tiny else (256, 960, (4, 132))
    prompts = prompts_of(config, batch, context)
    with Engine(run, source) as engine:
        plain, penalized = (step_seconds(engine, prompts, counts, temperature=1, **fields)
                            for fields in ({}, {"presence_penalty": 1.5}))
    ratio = penalized / plain
    run.report.row(f"{name:11} penalties     batch {batch:3}: {1000 * penalized:8.3f} ms a step, "
                   f"{1000 * plain:.3f} without, {ratio:.2f} times",
                   shape=name, manner="penalties", batch=batch, seconds=penalized, plain=plain)
    if not run.tiny:
        run.report.check(f"{name}, penalties", ratio <= PENALTIES_GOAL,
                         f"{ratio:.2f} times the time without, {PENALTIES_GOAL} wanted")


def price(run, name, config, source):
    """Times the same steps with `--deterministic`."""
    with Engine(run, source, "--deterministic") as engine:
        decode(run, name, config, engine, "deterministic")


def beside_generate(run, name, config, folder):
    """Times the engine and then transformers' own loop on the same prompts and weights, each with
    the GPU alone."""
    batch, length, count = (4, 16, 8) if run.tiny else (256, 128, 96)
    prompts = prompts_of(config, batch, length)
    with Engine(run, ["--model", folder]) as engine:
        engine.ask(prompts_of(config, batch, 16), 2)
        start = time.perf_counter()
        choices = engine.ask(prompts, count)
        ours = sum(len(choice["token_ids"]) for choice in choices)
        ours /= time.perf_counter() - start
    found = reference(run, "generate", folder=folder, prompts=prompts, count=count)
    if found["tokens"] != batch * count:
        raise RuntimeError(f"transformers gave {found['tokens']} of {batch * count} tokens")
    theirs = found["tokens"] / found["seconds"]
    if run.tiny:
        return run.report.say("   both loops ran; an emulated device has no speed")
    run.report.row(f"{name:11} batch {batch}, {length} in, {count} out: {ours:.0f} tok/s, "
                   f"transformers' generate {theirs:.0f} tok/s, {ours / theirs:.1f} times",
                   shape=name, ours=ours, generate=theirs)
