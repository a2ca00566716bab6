"""Correctness at thousands of positions: logprobs beside transformers', and `--deterministic`."""

import statistics
import time

from . import compare
from .bits import same_bits
from .engine import Engine, logprobs_of
from .shapes import prompts_of


def logprobs(run, config, folder):
    """Compares the logprobs of tokens behind long prompts with those of transformers."""
    lengths, count = ((150, 300, 600), 96) if run.tiny else ((8_000, 16_000, 32_000), 128)
    prompts = [prompts_of(config, 1, length)[0] for length in lengths]
    flags = ["--max-num-batched-tokens", "512"] if run.tiny else []
    with Engine(run, ["--model", folder], *flags, length=max(lengths) + count + 1) as engine:
        begun = time.perf_counter()
        choices = [engine.ask([prompt], count, temperature=1.0, seed=1, logprobs=0)[0]
                   for prompt in prompts]
        run.report.say(f"   asked in {time.perf_counter() - begun:.1f} s")
    all_means = []
    for prompt, choice in zip(prompts, choices):
        what = f"{len(prompt)} positions"
        replies = [{"prompt": prompt, "tokens": choice["token_ids"]}]
        all_means.append(compare.table(run, what, folder, replies, logprobs_of([choice])))
        compare.judge_apart(run, what, all_means[-1], compare.MEAN_MAX)
    # Few tokens say little of the distance to f32, so those of all lengths are taken together.
    means = {pair: statistics.fmean(one[pair] for one in all_means) for pair in all_means[0]}
    compare.judge(run, "long prompts", means)


def invariant(run, config, source):
    """Compares, with `--deterministic`, long prompts alone, in a batch, and in pieces."""
    many, low, high = (6, 30, 250) if run.tiny else (64, 30, 6_000)
    count, piece = (6, 64) if run.tiny else (32, 512)
    spread = [low + (high - low) * n // (many - 1) for n in range(many)]
    prompts = [prompts_of(config, 1, length)[0] for length in spread]
    looked_at = range(0, many, 2 if run.tiny else 9)
    cold = ["--deterministic", "--no-prefix-caching"]
    longest = high + count + 1
    with Engine(run, source, *cold, length=longest) as engine:
        batch = engine.ask(prompts, count, logprobs=0)
        alone = [engine.ask([prompts[n]], count, logprobs=0)[0] for n in looked_at]
    batch = [batch[n] for n in looked_at]
    what = f"--deterministic, {low} to {high} tokens"
    same_bits(run, f"{what}, alone and in a batch of {many}", alone, batch)
    flags = ["--max-num-batched-tokens", piece]
    with Engine(run, source, *cold, *flags, length=longest) as engine:
        pieces = [engine.ask([prompts[n]], count, logprobs=0)[0] for n in looked_at]
    same_bits(run, f"{what}, whole and in pieces of {piece}", pieces, batch)
