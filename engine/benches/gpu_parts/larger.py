"""Shapes that need the memory of an H200."""

import base64

from .engine import Engine
from .report import Skipped
from .shapes import config_of, prompts_of
from .times import decode

# Bytes of memory below which they are left out.
MEMORY_MIN = 120e9


def measure(run, source):
    """Times Qwen3-32B's shape, and all layers of Qwen3-30B-A3B with the experts counted."""
    if not run.tiny and run.all_memory < MEMORY_MIN:
        raise Skipped(f"this GPU has {run.all_memory / 1e9:.0f} GB; an H200's are needed")
    dense, mixture = ("tiny", "tiny-moe") if run.tiny else ("qwen3-32b", "qwen3-30b-a3b")
    with Engine(run, source(dense)) as engine:
        decode(run, (dense, config_of(dense)), engine, "default", [1, 32])
    with Engine(run, source(mixture)) as engine:
        config = config_of(mixture)
        decode(run, (mixture, config), engine, "default")
        for batch in [4] if run.tiny else [32, 256]:
            used(run, (mixture, config), engine, batch)


def used(run, shape, engine, batch):
    """Counts the experts that the rows of a step use in a layer, beside those of random choices."""
    name, config = shape
    length = 24 if run.tiny else 128
    choices = engine.ask(prompts_of(config, batch, length), 2, return_routed_experts=True)
    rows = [last_row(choice["routed_experts"], config) for choice in choices]
    layers = range(config["num_hidden_layers"])
    counts = [len({one for row in rows for one in row[layer]}) for layer in layers]
    all_, chosen = config["num_experts"], config["num_experts_per_tok"]
    random = all_ * (1 - (1 - chosen / all_) ** batch)
    mean = sum(counts) / len(counts)
    run.report.row(f"{name:11} batch {batch:3}: {mean:.1f} of {all_} experts used in a layer, "
                   f"{random:.1f} by chance", shape=name, batch=batch, experts=mean, chance=random)


def last_row(text, config):
    """Returns the experts of the last position of a reply, by layers, of a NumPy file of bytes."""
    layers, chosen = config["num_hidden_layers"], config["num_experts_per_tok"]
    row = base64.b64decode(text)[-layers * chosen:]
    return [list(row[layer * chosen:(layer + 1) * chosen]) for layer in range(layers)]
