"""Equal to the last bit: recorded steps and eager ones, alone and in a batch."""

from .engine import Engine, logprobs_of
from .shapes import prompts_of

COLD = ["--no-prefix-caching"]


def same_bits(run, name, first, second):
    """Tokens and logprobs of two lists of choices."""
    ids = [a["token_ids"] == b["token_ids"] for a, b in zip(first, second, strict=True)]
    pairs = zip(logprobs_of(first), logprobs_of(second), strict=True)
    numbers = [a == b for a, b in pairs]
    run.report.check(name, all(ids) and all(numbers),
                     f"{sum(ids)} of {len(ids)} with the same tokens, {sum(numbers)} with the same "
                     "logprobs")


def sizes(run):
    """Tokens of a reply, and requests of a batch."""
    return (12, 6) if run.tiny else (64, 48)


def asked(run, config, engine):
    """Half of a batch greedy, half by chance."""
    count, many = sizes(run)
    prompts = prompts_of(config, many, 40)
    half = many // 2
    return engine.ask_at_once([
        (prompts[:half], count, {"logprobs": 0}),
        (prompts[half:], count, {"logprobs": 0, "temperature": 1.0, "seed": 3}),
    ])


def recorded(run, config, source):
    """Steps as CUDA graphs, and the same asked for launch by launch. Without the prefix cache: a
    prompt whose beginning is there has fewer rows, and a library may add those up in another order.
    """
    with Engine(run, source, *COLD) as engine:
        first = asked(run, config, engine)
        again = asked(run, config, engine)
    same_bits(run, "the same requests again", first, again)
    with Engine(run, source, *COLD, "--enforce-eager") as engine:
        same_bits(run, "recorded steps and eager ones", first, asked(run, config, engine))


def invariant(run, config, source):
    """`--deterministic`: a request alone, in a batch, and behind a prompt of many chunks."""
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
