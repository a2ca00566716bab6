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
    least of two runs each."""
    return step_spread(engine, prompts, counts, **fields)[0]


def step_spread(engine, prompts, counts, **fields):
    """Returns the seconds of a decode step, and those by each of the runs. After the first run
    prompts come from the prefix cache, so only decoding differs; the first short reply is made
    again, because it computed them."""
    short, long = counts
    engine.ask(prompts, short, **fields)
    runs = []
    for _ in range(2):
        took = []
        for count in counts:
            start = time.perf_counter()
            engine.ask(prompts, count, **fields)
            took.append(time.perf_counter() - start)
        runs.append(took)
    least = [min(column) for column in zip(*runs)]
    each = [max(b - a, 1e-9) / (long - short) for a, b in runs]
    return max(least[1] - least[0], 1e-9) / (long - short), each


def decode(run, shape, engine, manner, batches=(1, 32, 256), context=960, **fields):
    """Times decoding at several batches. A batch that does not fit or fails is skipped."""
    name, config = shape
    # Of a tiny shape as many batches, but small ones.
    batches = [1, 4][:len(batches)] if run.tiny else batches
    context, counts = (min(context, 32), (2, 10)) if run.tiny else (context, (4, 132))
    for batch in batches:
        what = f"{name}, {manner}, batch {batch}"
        room = run.memory * 0.9 - step_bytes(config, 0, 0)
        if cache_bytes(config, batch * (context + max(counts))) > room:
            run.report.check(what, None, "keys and values do not fit into this GPU")
            continue
        try:
            found = step_spread(engine, prompts_of(config, batch, context), counts, **fields)
        except Exception as error:  # noqa: BLE001: the next batch may succeed
            run.report.check(what, False, f"{type(error).__name__}: {error}")
            if engine.process.poll() is not None:
                return
            continue
        decoded(run, (name, config, manner), (batch, context + sum(counts) / 2), *found)


def decoded(run, shape, size, seconds, runs=()):
    """Reports one batch with its spread, its floor and its goal."""
    (name, config, manner), (batch, context) = shape, size
    row = (f"{name:11} {manner:13} batch {batch:3}: {1000 * seconds:8.3f} ms a step, "
           f"{batch / seconds:9.0f} tok/s")
    values = {"shape": name, "manner": manner, "batch": batch, "seconds": seconds,
              "runs": list(runs)}
    if runs:
        row += f", runs {' and '.join(f'{1000 * one:.3f}' for one in runs)}"
    price = run.steps.get((name, batch))
    if manner == "default":
        run.steps.setdefault((name, batch), seconds)
    elif price:
        row += f", {seconds / price:.2f} x the time by default"
    if run.rates and not run.tiny:
        shared, more = shares(run, config, (batch, context), seconds)
        row, values = row + shared, values | more
    run.report.row(row, **values)
    goal = GOALS.get((name, batch))
    if goal and manner == "default" and "floor" in values:
        run.report.check(f"{name}, batch {batch}", values["floor"] / seconds >= goal,
                         f"{values['floor'] / seconds:.0%} of the floor, {goal:.0%} wanted")


def shares(run, config, size, seconds):
    """Returns a step's shares of the floor and of the specification, and its time above the floor
    for each layer, which can be compared between models: as words and as values."""
    moved, layers = step_bytes(config, *size), config["num_hidden_layers"]
    floor = moved / max(run.rates)
    overhead = 1e6 * (seconds - floor) / layers
    words = f", floor {1000 * floor:7.3f} ms, {floor / seconds:4.0%} of it"
    values = {"floor": floor, "overhead_us_a_layer": overhead}
    if run.specified:
        values["of_specification"] = moved / run.specified / seconds
        words += f", {values['of_specification']:4.0%} of the specification"
    return f"{words}, {overhead:.1f} us a layer above it", values


def mixed(run, name, config, engine):
    """Many requests of uneven lengths at once. No prompt may come from the prefix cache."""
    count = 12 if run.tiny else 256
    low, high = (5, 30) if run.tiny else (100, 1024)
    spread = high - low + 1
    lengths = [(low + 613 * n % spread, low + 397 * (n + 5) % spread) for n in range(count)]
    longest = prompts_of(config, count, high)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        start = time.perf_counter()
        jobs = [pool.submit(engine.answer, [prompt[:given]], wanted, cache_salt="mixed")
                for prompt, (given, wanted) in zip(longest, lengths)]
        answers = [job.result() for job in jobs]
        seconds = time.perf_counter() - start
    found = [len(answer["choices"][0]["token_ids"]) for answer in answers]
    details = [answer["usage"].get("prompt_tokens_details") or {} for answer in answers]
    cached = sum(one.get("cached_tokens", 0) for one in details)
    run.report.check(f"{name}, prompts that were computed", cached == 0, f"{cached} tokens cached")
    given, wanted = (sum(column) for column in zip(*lengths))
    run.report.check(f"{name}, {count} requests", found == [out for _, out in lengths],
                     f"{sum(found)} of {wanted} tokens")
    run.report.row(f"{name:11} {count} requests of {low} to {high} tokens in and out: "
                   f"{seconds:6.1f} s, {sum(found) / seconds:8.0f} tok/s out, "
                   f"{given / seconds:8.0f} tok/s in",
                   shape=name, seconds=seconds, tokens_out=sum(found), tokens_in=given)


# The ways to sample that are timed beside greedy decoding: a step of reinforcement learning, and
# one with filters.
MANNERS = {"sampled": {"temperature": 1, "logprobs": 0},
           "filtered": {"temperature": 1, "logprobs": 0, "top_p": 0.95, "top_k": 20}}


def measure(run, name, config, source):
    """Times one shape with default options."""
    with Engine(run, source) as engine:
        decode(run, (name, config), engine, "default")
        mixed(run, name, config, engine)


def sampled(run, name, config, source):
    """Times one shape with default options, greedy and as trainers sample."""
    with Engine(run, source) as engine:
        decode(run, (name, config), engine, "default")
        for manner, fields in MANNERS.items():
            decode(run, (name, config), engine, manner, **fields)
        mixed(run, name, config, engine)


def penalties(run, name, config, source):
    """Times decoding with a penalty, as Qwen3.5's recommended settings have it, beside decoding
    without one; and with one such row among many."""
    context, counts = (32, (2, 10)) if run.tiny else (960, (4, 132))
    batches = [1, 4] if run.tiny else [1, 32, 256]
    fields = {"presence_penalty": 1.5}
    with Engine(run, source) as engine:
        for batch in batches:
            prompts = prompts_of(config, batch, context)
            plain, penalized = (step_seconds(engine, prompts, counts, temperature=1, **one)
                                for one in ({}, fields))
            penalty(run, (name, "penalties", batch), penalized, plain)
        one = among(engine, prompts, counts, fields)
    penalty(run, (name, "one penalty", batch), one, plain)


def penalty(run, what, seconds, plain):
    """Reports a step with penalties beside one without."""
    (name, manner, batch), ratio = what, seconds / plain
    run.report.row(f"{name:11} {manner:13} batch {batch:3}: {1000 * seconds:8.3f} ms a step, "
                   f"{1000 * plain:.3f} without, {ratio:.2f} times",
                   shape=name, manner=manner, batch=batch, seconds=seconds, plain=plain)
    if not run.tiny:
        run.report.check(f"{name}, {manner}, batch {batch}", ratio <= PENALTIES_GOAL,
                         f"{ratio:.2f} times the time without, {PENALTIES_GOAL} wanted")


def among(engine, prompts, counts, fields):
    """Returns the seconds of a step in which one row of many has other fields. Both calls begin in
    one step, and that is part of what is timed."""
    least = {}
    for count in counts * 2:
        start = time.perf_counter()
        engine.ask_at_once([(prompts[:1], count, {"temperature": 1, **fields}),
                            (prompts[1:], count, {"temperature": 1})])
        took = time.perf_counter() - start
        least[count] = min(took, least.get(count, took))
    short, long = counts
    return max(least[long] - least[short], 1e-9) / (long - short)


def price(run, name, config, source):
    """Times the same steps with `--deterministic`."""
    with Engine(run, source, "--deterministic") as engine:
        decode(run, (name, config), engine, "deterministic")


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
