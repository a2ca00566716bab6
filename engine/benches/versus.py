r"""Compares the decoding speed of this engine and of llama.cpp on the same random weights.

    pip install numpy gguf llama-cpp-python     (the last one builds llama.cpp for this machine)
    cargo build --release -p cli
    python engine/benches/versus.py target/release/rolltape
    python engine/benches/versus.py target/release/rolltape --counts 4 900 \
        --config engine/models/tiny/config.json
    python engine/benches/versus.py target/release/rolltape --alone --config CONFIG_OF_A_MIXTURE
    python engine/benches/versus.py target/release/rolltape --config CONFIG_OF_A_HYBRID
    python engine/benches/versus.py target/release/rolltape --batches 1 --prompt 4000
    python engine/benches/versus.py target/release/rolltape --transformers PYTHON
    python engine/benches/versus.py target/release/rolltape --transformers PYTHON --without-llama

Writes random bf16 weights of the shape of Qwen3-0.6B, or of another Qwen3, Qwen3-MoE or Qwen3.5, as
a model folder and as two GGUF files, one in bf16 and one in Q8_0, which has about half the bytes. All
engines but transformers have their weights in huge pages. A hybrid must have as many value heads as key heads, because llama.cpp
orders them in another way. Both engines decode 1, 8 and 32 sequences greedily with the same number
of threads, behind prompts of 16 tokens or of `--prompt`, and take turns over some runs. A figure is tokens per second of decoding: the least time
of a long reply minus that of a short one, which excludes prompts and start-up. The limit is the
rate at which the weights could be read from memory once a step. llama.cpp runs through its batch
API, with one argmax per sequence and step in numpy; this engine is called over HTTP. With `--alone`
only this engine runs, on random weights that it makes in memory. With `--transformers`, `generate`
of transformers takes its turns, too, in bf16 on the CPU, under an interpreter that has torch and
transformers. With `--without-llama`, llama.cpp does not run, and ratios and tokens are beside those
of `reference`. Of a mixture of experts, the limit counts the weights that a step uses on average.
"""

import argparse
import concurrent.futures
import ctypes
import json
import math
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
TINY = pathlib.Path(__file__).parents[1] / "models" / "tiny"
# The most rows of a step of llama.cpp, as this engine's.
ROWS = 512
# The kinds of weights that llama.cpp runs with, and the names of its rows.
KINDS = {"BF16": "llama.cpp bf16", "Q8_0": "llama.cpp Q8_0"}
# What makes glibc ask for huge pages: this engine asks for them, llama.cpp does not.
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def is_hybrid(config):
    """True for the text model of a Qwen3.5."""
    return "linear_num_value_heads" in config


def is_linear(config, index):
    """True for a layer of a hybrid with a gated delta rule in the place of attention."""
    interval = config.get("full_attention_interval", 4)
    return is_hybrid(config) and (index + 1) % interval != 0


def is_mixture(config):
    """True for a mixture of experts in every layer."""
    return config.get("num_experts", 0) > 0


def architecture(config):
    """llama.cpp's name for the kind of model."""
    return "qwen35" if is_hybrid(config) else "qwen3moe" if is_mixture(config) else "qwen3"


def feed_forward(config):
    """The tensors behind attention, as in `tensors`; those of experts are one in GGUF."""
    hidden = config["hidden_size"]
    if is_mixture(config):
        count, inner = config["num_experts"], config["moe_intermediate_size"]
        return [
            ("mlp.gate", "ffn_gate_inp", (count, hidden)),
            ("mlp.experts.{}.gate_proj", "ffn_gate_exps", (count, inner, hidden)),
            ("mlp.experts.{}.up_proj", "ffn_up_exps", (count, inner, hidden)),
            ("mlp.experts.{}.down_proj", "ffn_down_exps", (count, hidden, inner)),
        ]
    inner = config["intermediate_size"]
    return [
        ("mlp.gate_proj", "ffn_gate", (inner, hidden)),
        ("mlp.up_proj", "ffn_up", (inner, hidden)),
        ("mlp.down_proj", "ffn_down", (hidden, inner)),
    ]


def attention(config):
    """The tensors of attention, as in `tensors`; a hybrid has gates below each head's queries."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return [
        ("self_attn.q_proj", "attn_q", (query * (1 + is_hybrid(config)), hidden)),
        ("self_attn.k_proj", "attn_k", (kv, hidden)),
        ("self_attn.v_proj", "attn_v", (kv, hidden)),
        ("self_attn.q_norm", "attn_q_norm", (dim,)),
        ("self_attn.k_norm", "attn_k_norm", (dim,)),
        ("self_attn.o_proj", "attn_output", (hidden, query)),
    ]


def delta_rule(config):
    """The tensors of a gated delta rule, as in `tensors`."""
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    assert heads == config["linear_num_key_heads"], "llama.cpp orders such heads in another way"
    keys = heads * config["linear_key_head_dim"]
    width = heads * config["linear_value_head_dim"]
    return [
        ("linear_attn.in_proj_qkv", "attn_qkv", (2 * keys + width, hidden)),
        ("linear_attn.in_proj_z", "attn_gate", (width, hidden)),
        ("linear_attn.in_proj_b", "ssm_beta", (heads, hidden)),
        ("linear_attn.in_proj_a", "ssm_alpha", (heads, hidden)),
        ("linear_attn.conv1d", "ssm_conv1d", (2 * keys + width, config["linear_conv_kernel_dim"])),
        ("linear_attn.A_log", "ssm_a", (heads,)),
        ("linear_attn.dt_bias", "ssm_dt.bias", (heads,)),
        ("linear_attn.norm", "ssm_norm", (config["linear_value_head_dim"],)),
        ("linear_attn.out_proj", "ssm_out", (hidden, width)),
    ]


def tensors(config):
    """Yields the name in a folder, the name in GGUF, and the shape of each tensor."""
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", "token_embd.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", "output_norm.weight", (hidden,)
    post = "post_attention_norm" if is_hybrid(config) else "ffn_norm"
    shared = [
        ("input_layernorm", "attn_norm", (hidden,)),
        ("post_attention_layernorm", post, (hidden,)),
        *feed_forward(config),
    ]
    for index in range(config["num_hidden_layers"]):
        mixing = delta_rule(config) if is_linear(config, index) else attention(config)
        for ours, theirs, shape in shared + mixing:
            ours = ours if ours.endswith(("A_log", "dt_bias")) else f"{ours}.weight"
            theirs = theirs if theirs in ("ssm_a", "ssm_dt.bias") else f"{theirs}.weight"
            yield f"model.layers.{index}.{ours}", f"blk.{index}.{theirs}", shape


def write_shape(writer, config):
    """Writes the shape of a model to a GGUF file."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rope = config.get("rope_parameters", config)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if is_mixture(config):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if is_hybrid(config):
        heads = config["linear_num_value_heads"]
        rotated = int(config["head_dim"] * rope["partial_rotary_factor"])
        writer.add_rope_dimension_count(rotated)
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        writer.add_full_attention_interval(config.get("full_attention_interval", 4))
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * config["linear_value_head_dim"])


def values_of(name, shape, random):
    """The values of a tensor: norms and biases of one, rows of a matrix of about unit length."""
    if name.endswith("A_log"):
        return np.log(random.uniform(0.5, 16, shape)).astype(np.float32)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return random.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)


def widened(halves):
    """The values of numbers in bf16."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def gguf_writers(folder, config):
    """A writer for each of `KINDS`."""
    import gguf

    writers = {}
    for kind in KINDS:
        writers[kind] = gguf.GGUFWriter(folder / f"{kind}.gguf", architecture(config))
        write_shape(writers[kind], config)
    return writers


def add_matrix(writers, name, halves):
    """Adds a matrix to each file, in the kind of the file."""
    import gguf

    for kind, writer in writers.items():
        of_file = gguf.GGMLQuantizationType[kind]
        if kind == "BF16":
            writer.add_tensor(name, halves.view(np.uint8), raw_dtype=of_file)
        else:
            packed = gguf.quants.quantize(widened(halves), of_file)
            writer.add_tensor(name, packed, raw_dtype=of_file)


def add_floats(writers, name, values):
    """Adds a vector, or what no file has in fewer bits."""
    for writer in writers.values():
        writer.add_tensor(name, values)


def finish(writers):
    """Writes the files."""
    for writer in writers.values():
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def make(folder, config):
    """Writes the folder and the GGUF files."""
    random = np.random.default_rng(0)
    writers = gguf_writers(folder, config)
    header, parts, at = {}, [], 0
    for ours, theirs, shape in tensors(config):
        halves = (values_of(ours, shape, random).view(np.uint32) >> 16).astype(np.uint16)
        if ours.endswith("A_log"):
            add_floats(writers, theirs, -np.exp(widened(halves)))
        elif len(shape) == 1 or ours.endswith(("conv1d.weight", "mlp.gate.weight")):
            add_floats(writers, theirs, widened(halves))
        else:
            add_matrix(writers, theirs, halves)
        # A hybrid's folder has such norms less one.
        if is_hybrid(config) and ours.endswith("norm.weight") and "linear_attn" not in ours:
            halves = np.zeros_like(halves)
        if ours.endswith("conv1d.weight"):
            shape = (shape[0], 1, shape[1])
        # A folder has each expert by itself.
        for index, part in enumerate(halves if "{}" in ours else [halves]):
            place = [at, at + part.nbytes]
            of_one = shape[1:] if "{}" in ours else shape
            header[ours.format(index)] = {"dtype": "BF16", "shape": of_one, "data_offsets": place}
            at += part.nbytes
            parts.append(part)
    finish(writers)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part.tobytes())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config))


def prompts(count, length):
    """Returns prompts of ids that the tokenizer of the folder has."""
    return [[(7 * i + 3 * n) % 250 + 1 for i in range(length)] for n in range(count)]


class Llama:
    """llama.cpp through its batch API."""

    def __init__(self, folder, kind, args):
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = False
        path = str(folder / f"{kind}.gguf").encode()
        self.model = llama_cpp.llama_model_load_from_file(path, params)
        assert self.model, "llama.cpp cannot load the file"
        self.threads, self.length = args.threads, args.prompt
        self.most, self.contexts = args.prompt + max(args.counts), {}

    def context(self, batch):
        """The context of a batch, which keeps the keys of its prompts."""
        if batch not in self.contexts:
            self.contexts[batch] = self.new_context(batch)
        return self.contexts[batch]

    def new_context(self, batch):
        params = self.api.llama_context_default_params()
        params.n_ctx = batch * (self.most + 32)
        params.n_batch = params.n_ubatch = ROWS
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = self.threads
        return self.api.llama_init_from_model(self.model, params)

    def step(self, context, rows):
        """Decodes rows of (token, position, sequence, wanted). Returns those of wanted rows."""
        batch = self.api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        status = self.api.llama_decode(context, batch)
        assert status == 0, status
        found = []
        for i, row in enumerate(rows):
            if row[3]:
                logits = self.api.llama_get_logits_ith(context, i)
                found.append(int(np.ctypeslib.as_array(logits, (CONFIG["vocab_size"],)).argmax()))
        self.api.llama_batch_free(batch)
        return found

    def read_prompts(self, context, batch):
        """Computes the prompts, of those that the context has only the last token each. Returns the
        first token of each reply."""
        last = self.length - 1
        memory = self.api.llama_get_memory(context)
        known = self.api.llama_memory_seq_pos_max(memory, 0) >= last
        kept = all(self.api.llama_memory_seq_rm(memory, n, last, -1) for n in range(batch))
        if not (known and kept):
            self.api.llama_memory_clear(memory, True)
        start = last if known and kept else 0

        rows = [
            (token, position, n, position == last)
            for n, prompt in enumerate(prompts(batch, self.length))
            for position, token in enumerate(prompt)
            if position >= start
        ]
        found = [self.step(context, rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)]
        return [token for part in found for token in part]

    def run(self, batch, count):
        """Returns replies of `count` tokens, and the seconds that they took."""
        context = self.context(batch)
        start = time.perf_counter()
        replies = [[token] for token in self.read_prompts(context, batch)]
        for position in range(self.length, self.length + count - 1):
            rows = [(reply[-1], position, n, True) for n, reply in enumerate(replies)]
            for reply, token in zip(replies, self.step(context, rows)):
                reply.append(token)
        seconds = time.perf_counter() - start
        return replies, seconds

    def close(self):
        for context in self.contexts.values():
            self.api.llama_free(context)
        self.api.llama_model_free(self.model)


class Rolltape:
    """`rolltape engine` over HTTP."""

    def __init__(self, args, model, flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [args.rolltape, "engine", *model, "--listen", f"127.0.0.1:{port}", *flags]
        self.length = args.prompt
        most = max(1024, args.prompt + max(args.counts))
        command += ["--max-model-len", str(most), "--threads", str(args.threads)]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stderr=self.log)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/health").read()
                return
            except OSError:
                if self.process.poll() is not None:
                    self.log.seek(0)
                    raise SystemExit(f"the engine has ended: {self.log.read()}") from None
                time.sleep(0.2)
        raise AssertionError("the engine does not answer")

    def run(self, batch, count):
        """Makes one call with all prompts, so that they begin together."""
        body = {
            "prompt": prompts(batch, self.length),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        kind = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        start = time.perf_counter()
        request = urllib.request.Request(f"{self.url}/v1/completions", data, kind)
        answer = urllib.request.urlopen(request).read()
        seconds = time.perf_counter() - start
        return [choice["token_ids"] for choice in json.loads(answer)["choices"]], seconds

    def close(self):
        self.process.terminate()
        self.process.wait()


class Transformers:
    """`generate` of transformers in another interpreter, asked by lines."""

    PROGRAM = """
import json, sys, time
import torch
from transformers import AutoModelForCausalLM

folder, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
model.eval()
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    prompts, count = json.loads(line)
    ids = torch.tensor(prompts)
    start = time.perf_counter()
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                               min_new_tokens=count, max_new_tokens=count, pad_token_id=0)
    seconds = time.perf_counter() - start
    print(json.dumps([found[:, ids.shape[1]:].tolist(), seconds]), flush=True)
"""

    def __init__(self, folder, args):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [args.transformers, "-c", self.PROGRAM, folder, str(args.threads)]
        self.length = args.prompt
        self.process = subprocess.Popen(command, text=True, **pipes)
        assert self.process.stdout.readline(), "transformers cannot load the folder"

    def run(self, batch, count):
        """Returns replies of `count` tokens, and the seconds that they took."""
        self.process.stdin.write(json.dumps([prompts(batch, self.length), count]) + "\n")
        self.process.stdin.flush()
        replies, seconds = json.loads(self.process.stdout.readline())
        return replies, seconds

    def close(self):
        self.process.terminate()
        self.process.wait()


def bandwidth(threads):
    """Returns the bytes a second that the threads read, the best of some runs."""
    numbers = np.ones(1 << 26, np.float64)
    parts = np.array_split(numbers, threads)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def once():
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            return time.perf_counter() - start

        return numbers.nbytes / min(once() for _ in range(8))


def measure(engines, args):
    """Returns the time of a step and the replies, for every engine and batch. The time is the least
    of a long reply minus the least of a short one."""
    found = {}
    for batch in args.batches:
        least = {(name, count): float("inf") for name in engines for count in args.counts}
        for _ in range(args.runs):
            for name, engine in engines.items():
                for count in args.counts:
                    replies, seconds = engine.run(batch, count)
                    least[name, count] = min(least[name, count], seconds)
                found[name, batch] = replies
        short, long = args.counts
        for name in engines:
            step = (least[name, long] - least[name, short]) / (long - short)
            found[name, batch] = step, found[name, batch]
    return found


def rolltapes(args, model):
    """This engine with both numerics."""
    flags = {"reference": [], "fast": ["--numerics", "fast"]}
    return {name: Rolltape(args, model, flags) for name, flags in flags.items()}


def bytes_used(config, batch):
    """The bytes of bf16 weights that a step of `batch` sequences uses, on average over routings."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    attention = hidden * ((2 + is_hybrid(config)) * query + 2 * kv)
    experts = config.get("num_experts", 0)
    inner = 3 * hidden * config["intermediate_size"]
    if experts:
        share = 1 - (1 - config["num_experts_per_tok"] / experts) ** batch
        inner = experts * hidden + share * experts * 3 * hidden * config["moe_intermediate_size"]
    count = config["num_hidden_layers"]
    linear = sum(is_linear(config, index) for index in range(count))
    rule = 0
    if linear:
        rule = sum(math.prod(shape) for _, _, shape in delta_rule(config))
    layers = count * inner + (count - linear) * attention + linear * rule
    return 2 * (layers + config["vocab_size"] * hidden)


def alone(args):
    """Prints the speed of this engine on weights that it makes."""
    engines = rolltapes(args, ["--random-weights", args.config])
    try:
        memory = bandwidth(args.threads)
        found = measure(engines, args)
        memory = max(memory, bandwidth(args.threads))
    finally:
        for engine in engines.values():
            engine.close()
    print(f"{args.threads} threads, memory gives {memory / 1e9:.1f} GB/s")
    print("batch  engine       tok/s  bytes of a step  of memory")
    for batch in args.batches:
        used = bytes_used(CONFIG, batch)
        for name in engines:
            step, _ = found[name, batch]
            print(f"{batch:5}  {name:9} {batch / step:8.1f}", end="")
            print(f"  {used / 1e9:12.2f} GB  {used / memory / step:8.0%}")


def compare(folder, args):
    size = (folder / "model.safetensors").stat().st_size
    kinds = {} if args.without_llama else KINDS
    engines = {name: Llama(folder, kind, args) for kind, name in kinds.items()}
    engines |= rolltapes(args, ["--model", folder])
    if args.transformers:
        engines["transformers"] = Transformers(folder, args)
    try:
        memory = bandwidth(args.threads)
        found = measure(engines, args)
        memory = max(memory, bandwidth(args.threads))
    finally:
        for engine in engines.values():
            engine.close()
    print(f"{args.threads} threads, memory gives {memory / 1e9:.1f} GB/s, ", end="")
    print(f"weights are {size / 1e9:.2f} GB: at most {memory / size:.1f} steps/s with all")
    first = next(iter(engines))
    print(f"batch  engine            tok/s  of {first:9}  of memory  tokens as its")
    for batch in args.batches:
        weights = bytes_used(CONFIG, batch) if is_mixture(CONFIG) else size
        base, expected = found[first, batch]
        for name in engines:
            step, replies = found[name, batch]
            pairs = [(a, b) for x, y in zip(replies, expected) for a, b in zip(x, y)]
            same = sum(a == b for a, b in pairs) / len(pairs)
            print(f"{batch:5}  {name:14} {batch / step:8.1f}  {base / step:11.2f}x", end="")
            of_memory = "" if name.endswith("Q8_0") else f"{weights / memory / step:.0%}"
            print(f"  {of_memory:>8}  {same:8.0%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rolltape", help="the binary, built in release mode")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    help = "tokens of a short and of a long reply"
    parser.add_argument("--counts", type=int, nargs=2, default=[4, 36], help=help)
    parser.add_argument("--prompt", type=int, default=16, help="tokens of a prompt")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--config", type=pathlib.Path, help="config.json of another shape")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp; needs --config")
    parser.add_argument("--transformers", metavar="PYTHON", help="measure `generate` under it, too")
    parser.add_argument("--without-llama", action="store_true", help="llama.cpp is not installed")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the model in this folder")
    args = parser.parse_args()
    if os.environ.get("GLIBC_TUNABLES") != HUGE_PAGES:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if args.config:
        CONFIG.clear()
        CONFIG.update(json.loads(args.config.read_text()))
    if args.alone:
        return alone(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").exists():
            make(folder, CONFIG)
        compare(folder, args)


if __name__ == "__main__":
    main()
