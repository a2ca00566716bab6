"""Keys and values in FP8: steps beside those with bf16, and logprobs beside them."""

import statistics

from .bits import same_bits
from .engine import Engine
from .shapes import FP8_CACHE, FP8_GOALS, prompts_of
from .times import decode

FLAGS = ["--kv-cache-dtype", "fp8"]
# The most that logprobs may differ from those with bf16, in the mean. Random weights are further
# apart than trained ones.
MEAN_MAX = 0.2


def steps(run, name, config, source):
    """Times decoding with FP8. The steps with bf16 are those of the part `sampled`."""
    known = len(run.report.rows)
    with Engine(run, source, *FLAGS) as engine:
        decode(run, (name, config | {FP8_CACHE: True}), engine, "fp8")
    for row in run.report.rows[known:]:
        batch = row["batch"]
        before = run.steps.get((name, batch))
        if before and batch in FP8_GOALS and not run.tiny:
            gain = before / row["seconds"]
            run.report.check(f"{name}, fp8, batch {batch}", gain >= FP8_GOALS[batch],
                             f"{gain:.2f} times as fast as with bf16, {FP8_GOALS[batch]} wanted")


def scores(engine, prompts):
    """Returns the logprobs of the tokens of prompts but the first ones."""
    choices = engine.ask(prompts, 1, prompt_logprobs=0)
    return [entry[str(token)]["logprob"]
            for prompt, choice in zip(prompts, choices)
            for token, entry in zip(prompt[1:], choice["prompt_logprobs"][1:])]


def numbers(run, config, source):
    """Compares logprobs with those of bf16, and bits alone and in a batch."""
    many, length, count = (3, 60, 8) if run.tiny else (16, 1_000, 32)
    prompts = prompts_of(config, many, length)
    cold = ["--deterministic", "--no-prefix-caching"]
    with Engine(run, source, *cold) as engine:
        expected = scores(engine, prompts)
    with Engine(run, source, *cold, *FLAGS) as engine:
        found = scores(engine, prompts)
        batch = engine.ask(prompts, count, logprobs=0)
        alone = [engine.ask([prompt], count, logprobs=0)[0] for prompt in prompts[:3]]
    gaps = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    mean, worst = statistics.fmean(gaps), max(gaps)
    run.report.check("fp8, logprobs beside bf16", 0 < mean <= MEAN_MAX,
                     f"{len(gaps)} tokens, mean {mean:.5f}, worst {worst:.4f}, {MEAN_MAX} allowed "
                     "in the mean")
    same_bits(run, "fp8, --deterministic, alone and in a batch", alone, batch[:3])
