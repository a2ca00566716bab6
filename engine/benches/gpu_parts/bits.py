"""Checks for equal bits: of recorded and eager steps, alone and in a batch."""

from .engine import Engine, logprobs_of
from .shapes import prompts_of

COLD = ["--no-prefix-caching"]


def same_bits(run, name, first, second):
    """Checks that two lists of choices have the same tokens and logprobs."""
    ids = [a["token_ids"] == b["token_ids"] for a, b in zip(first, second, strict=True)]
    pairs = zip(logprobs_of(first), logprobs_of(second), strict=True)
    numbers = [a == b for a, b in pairs]
    run.report.check(name, all(ids) and all(numbers),
                     f"{sum(ids)} of {len(ids)} with the same tokens, {sum(numbers)} with the same "
                     "logprobs")


def sizes(run):
    """Returns the tokens of a reply and the requests of a batch."""
    return (12, 6) if run.tiny else (64, 48)


def asked(run, config, engine):
    """Asks for a batch, half of it greedy and half sampled."""
    count, many = sizes(run)
    prompts = prompts_of(config, many, 40)
    half = many // 2
    return engine.ask_at_once([
        (prompts[:half], count, {"logprobs": 0}),
        (prompts[half:], count, {"logprobs": 0, "temperature": 1.0, "seed": 3}),
    ])


def recorded(run, config, source):
    """Compares steps recorded as CUDA graphs with eager ones. No prefix cache: a prompt with
    a cached beginning has fewer rows, which a library may add up in another order.
    """
    with Engine(run, source, *COLD) as engine:
        first = asked(run, config, engine)
        again = asked(run, config, engine)
    same_bits(run, "the same requests again", first, again)
    with Engine(run, source, *COLD, "--enforce-eager") as engine:
        same_bits(run, "recorded steps and eager ones", first, asked(run, config, engine))


def invariant(run, config, source):
    """Compares, with `--deterministic`, a request alone, in a batch, and with a chunked prompt."""
    count, many = sizes(run)
    prompts = prompts_of(config, many, 40)
    with Engine(run, source, "--deterministic") as engine:
        batch = engine.ask(prompts, count, logprobs=0)
        alone = [engine.ask([prompt], count, logprobs=0)[0] for prompt in prompts[:6]]
    same_bits(run, "--deterministic, alone and in a batch", alone, batch[:6])
    flags = ["--deterministic", "--max-num-batched-tokens", "16", *COLD]
    with Engine(run, source, *flags) as engine:
        pieces = engine.ask(prompts[:6], count, logprobs=0)
    same_bits(run, "--deterministic, whole prompts and pieces", pieces, batch[:6])
