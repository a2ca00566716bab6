"""Write a very small random Llama: bf16, two shards, config in the form of transformers 4.

Its rope scaling is chosen so that, of the four frequencies of a head, one is kept, one lies
between and two are divided. The tokenizer is byte-level without merges and knows lower-case
letters, digits, space, newline and some marks. Needs numpy alone.

    python make_llama.py [--out DIR]
"""

import argparse
import json
import string
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "tapes" / "engine" / "llama"
SEED = 7
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 64, 2, 4, 2, 8, 64
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.56.0",
    "use_cache": True,
    "vocab_size": VOCAB,
}


def shapes():
    """(name, shape) of every tensor, shape as [out, in] for matrices."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (HIDDEN,)
        yield f"{name}.self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield f"{name}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{name}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{name}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield f"{name}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{name}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{name}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{name}.mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def draw(rng, shape):
    """Random bf16 values as uint16: norms near one, rows of a matrix of about unit length."""
    values = rng.standard_normal(shape)
    values = 1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(shape[-1])
    bits = values.astype("<f4").view("<u4")
    return (bits >> 16).astype("<u2")  # truncated, not rounded: any bf16 value will do


def safetensors_bytes(tensors):
    """One safetensors file of {name: uint16 array holding bf16}."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in tensors.items():
        end = offset + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(bits.tobytes() for bits in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def write_weights(out):
    """Layer 0 and the embedding in the first shard, the rest in the second, and the index."""
    rng = np.random.default_rng(SEED)
    tensors = {name: draw(rng, shape) for name, shape in shapes()}
    files = [f"model-{i:05d}-of-00002.safetensors" for i in (1, 2)]
    first = ("model.embed_tokens.", "model.layers.0.")
    where = {name: files[not name.startswith(first)] for name in tensors}
    for file in files:
        shard = {name: bits for name, bits in tensors.items() if where[name] == file}
        (out / file).write_bytes(safetensors_bytes(shard))
    total = sum(bits.nbytes for bits in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_json(out / "model.safetensors.index.json", index)


def tokenizer():
    """tokenizer.json: 62 one-byte tokens after the two special ones, no merges."""
    marks = [c for c in string.punctuation if c not in "\\^`~$|@&"]
    symbols = ["\u0120", "\u010a", *string.ascii_lowercase, *string.digits, *marks]
    special = [
        {
            "id": i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, content in enumerate((BEGIN, END))
    ]
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **level},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate([BEGIN, END, *symbols])},
            "merges": [],
        },
    }


def write_json(path, value):
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", CONFIG)
    write_json(out / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    write_json(out / "tokenizer.json", tokenizer())
    write_json(
        out / "tokenizer_config.json",
        {
            "bos_token": BEGIN,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": 512,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_weights(out)


if __name__ == "__main__":
    main()
