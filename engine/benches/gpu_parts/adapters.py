"""What LoRA adapters cost: files of random adapters, steps and a prompt with them."""

import json
import os
import struct
import time

from .engine import Engine
from .shapes import prompts_of
from .times import step_seconds

# Signs and exponents of numbers between 2^-7 and 2^-6, as the upper byte of bf16.
UPPER = bytes(0x3C if byte % 2 else 0xBC for byte in range(256))


def projections(config):
    """Returns the adapted products of a layer: rows and columns by name."""
    hidden, wide, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {"self_attn.q_proj": (query, hidden), "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide)}


def numbers(count):
    """Returns the bytes of so many small random bf16 numbers."""
    out = bytearray(2 * count)
    out[0::2] = os.urandom(count)
    out[1::2] = os.urandom(count).translate(UPPER)
    return out


def write(folder, config, rank):
    """Writes an adapter of all products as PEFT does."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
                 "target_modules": [name.split(".")[1] for name in projections(config)]}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    header, offset = {}, 0
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns) in projections(config).items():
            for side, shape in (("A", [rank, columns]), ("B", [rows, rank])):
                end = offset + 2 * shape[0] * shape[1]
                key = f"base_model.model.model.layers.{layer}.{name}.lora_{side}.weight"
                header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
                offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "adapter_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        # Random numbers take long, so a piece of them is repeated.
        piece = numbers(min(offset // 2, 8 << 20))
        while offset > 0:
            offset -= file.write(piece[:offset])


def measure(run, name, config, source):
    """Times steps and a prompt with adapters of two ranks beside those without."""
    ranks, batches = ([8, 16], [1, 3]) if run.tiny else ([16, 64], [1, 32, 256])
    context, counts, rows = (32, (2, 8), 64) if run.tiny else (512, (4, 68), 2_048)
    with Engine(run, source, "--max-lora-rank", max(ranks)) as engine:
        for rank in ranks:
            folder = run.scratch / f"adapter-{name}-{rank}"
            write(folder, config, rank)
            engine.post("/v1/load_lora_adapter", lora_name=f"rank-{rank}", lora_path=str(folder))
        manners = {"none": {}} | {f"rank {rank}": {"model": f"rank-{rank}"} for rank in ranks}
        plain = {}
        for manner, fields in manners.items():
            for batch in batches:
                prompts = prompts_of(config, batch, context)
                seconds = step_seconds(engine, prompts, counts, **fields)
                plain.setdefault(batch, seconds)
                row(run, (name, manner, f"batch {batch:3}"), seconds, plain[batch])
            for prompt in prompts_of(config, 3, rows):
                begun = time.perf_counter()
                engine.ask([prompt], 1, cache_salt=f"{manner} {prompt[0]}", **fields)
                took = time.perf_counter() - begun
            # The last one: algorithms are chosen by then.
            plain.setdefault("prompt", took)
            row(run, (name, manner, f"prompt of {rows}"), took, plain["prompt"])


def row(run, what, seconds, plain):
    """Reports a time with adapters beside that without."""
    name, manner, case = what
    run.report.row(f"{name:11} adapter, {manner:8} {case}: {1000 * seconds:8.3f} ms, "
                   f"{seconds / plain:.2f} x the time without",
                   shape=name, manner=f"adapter, {manner}", case=case, seconds=seconds)
