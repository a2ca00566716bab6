"""torch and transformers in a process of their own, which can be killed and frees the GPU's memory
after each answer.

    reference.py [--torch-device cuda|cpu]

Reads one JSON document a line, and answers each with a line: `{"found": ...}`, or
`{"error": ...}`. `what` is one of

    look                               the installed versions
    make      folder, config, std      a model folder of random weights
    score     folder, replies          logprobs of given tokens
    generate  folder, prompts, count   transformers' own loop
    compiled  folder, prompts, counts  its static cache, with `torch.compile`: a step
    attend    heads, rows, front       attention of rows behind others, by each library
    multiply  side                     a product of square matrices
    bandwidth                          bytes a second of a sum

`--torch-device cpu` needs no GPU.
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import time
import types

# Without this folder in the path: transformers imports optional parts by names that it may contain.
sys.path.pop(0)

import torch  # noqa: E402
import transformers  # noqa: E402


def look(_):
    """Returns the installed versions."""
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "cuda": torch.cuda.is_available()}


def make(args):
    """Writes a model folder with random bf16 weights. Without `std`, products keep the variance of
    their input and logits are as peaked as those of a trained model; with it, all weights have that
    deviation, as when training starts."""
    config, args.folder = args.config, pathlib.Path(args.folder)
    args.folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config)
    (args.folder / "config.json").write_text(text)
    torch.manual_seed(0)
    made = transformers.AutoConfig.from_pretrained(args.folder)
    with torch.device(args.torch_device):
        model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 1:
                weights.normal_(1, 0.1 if args.std is None else 0.0)
                continue
            wide = 3.0 if "embed" in name or "lm_head" in name else 1.0
            weights.normal_(0, args.std or wide * weights.shape[-1] ** -0.5)
    model.save_pretrained(args.folder)
    # Replaces the file that transformers wrote, in which names may be newer than the engine knows.
    (args.folder / "config.json").write_text(text)
    (args.folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])))
    return {"parameters": sum(weights.numel() for weights in model.parameters())}


def tokenizer(vocab):
    """A tokenizer with an id for every byte and made-up names for the rest; prompts are ids."""
    alphabet = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in alphabet]
    table = {byte: chr(byte) for byte in alphabet}
    table |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    ids = {"<|end|>": 0} | {table[byte]: byte + 1 for byte in range(256)}
    ids |= {f"<{n}>": n for n in range(257, vocab)}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<|end|>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": ids, "merges": []},
    }


def load(args, dtype):
    """Loads the model of a folder in one dtype."""
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=dtype)
    return model.to(args.torch_device).eval()


def score(args):
    """Returns transformers' logprobs of the tokens of replies, `[reply][token]`: in f32, in bf16
    with the last product in f32 (as in this engine), and in bf16 throughout."""
    replies = args.replies
    exact = scored(args, torch.float32, replies, head=None)
    halves = load(args, torch.bfloat16)
    wide = halves.lm_head.weight.float()
    return {"f32": exact, "bf16, logits in f32": scored(args, None, replies, wide, halves),
            "bf16": scored(args, None, replies, None, halves)}


def scored(args, dtype, replies, head, model=None):
    """Returns the logprobs of one dtype."""
    model = load(args, dtype) if model is None else model
    all_found = []
    for reply in replies:
        prompt, tokens = reply["prompt"], reply["tokens"]
        ids = torch.tensor([prompt + tokens], device=args.torch_device)
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, len(prompt) - 1:-1]
            logits = model.lm_head(hidden).float() if head is None else hidden.float() @ head.T
        found = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt):, None])[:, 0]
        all_found.append(found.tolist())
    return all_found


def generate(args):
    """Times greedy decoding with transformers' own loop."""
    prompts = args.prompts
    model = load(args, torch.bfloat16)
    ids = torch.tensor(prompts, device=args.torch_device)
    fields = {"do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        model.generate(ids[:, :8], attention_mask=torch.ones_like(ids[:, :8]), max_new_tokens=2,
                       **fields)
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.count,
                             min_new_tokens=args.count, **fields)
        out = out.tolist()
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": len(out) * (len(out[0]) - ids.shape[1])}


def compiled(args):
    """Times a step of greedy decoding with a static cache and `torch.compile`: the time of a long
    reply minus that of a short one, the least of two each."""
    model, on_gpu = load(args, torch.bfloat16), args.torch_device != "cpu"
    # Without a GPU only to see that it runs: nothing is compiled.
    kind = {"mode": "reduce-overhead"} if on_gpu else {"backend": "eager"}
    model.forward = torch.compile(model.forward, dynamic=False, **kind)
    ids = torch.tensor(args.prompts, device=args.torch_device)
    short, long = args.counts

    def sample(count):
        begun = time.perf_counter()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                 pad_token_id=0, max_new_tokens=count, min_new_tokens=count,
                                 cache_implementation="static")
        out.tolist()
        return time.perf_counter() - begun

    # Both lengths have a cache, and so a graph, of their own.
    made = sum(sample(count) for count in (short, long, short, long))
    least = {count: min(sample(count) for _ in range(2)) for count in (short, long)}
    return {"step": max(least[long] - least[short], 1e-9) / (long - short), "compiled": made,
            "mode": f"torch.compile {next(iter(kind.values()))}"}


def timed(call, device):
    """Returns the seconds of a call, the least of some, timed on the device where it is a GPU."""
    best = float("inf")
    for _ in range(10):
        if device == "cpu":
            begun = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - begun)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        best = min(best, first.elapsed_time(last) / 1e3)
    return best


def attend(args):
    """Times `scaled_dot_product_attention` by each library that takes the shapes. Every row attends
    to all positions: no library takes a mask for rows behind others."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, kv, dim = args.heads
    kind = {"dtype": torch.bfloat16, "device": args.torch_device}
    queries = torch.randn(1, query, args.rows, dim, **kind)
    keys, values = (torch.randn(1, kv, args.front + args.rows, dim, **kind) for _ in range(2))
    # One key head for each query head: not every library groups them by itself.
    keys, values = (one.repeat_interleave(query // kv, 1) for one in (keys, values))
    libraries = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}
    if args.torch_device == "cpu":
        libraries = {"math": SDPBackend.MATH}
    found = {}
    for name, backend in libraries.items():
        try:
            with sdpa_kernel(backend), torch.no_grad():
                found[name] = timed(lambda: torch.nn.functional.scaled_dot_product_attention(
                    queries, keys, values), args.torch_device)
        except Exception as error:  # noqa: BLE001: another library may take it
            found[name] = f"not made: {' '.join(str(error).split())[:200]}"
    return found


def multiply(args):
    """Times a product of square matrices in bf16."""
    kind = {"dtype": torch.bfloat16, "device": args.torch_device}
    a, b = (torch.randn(args.side, args.side, **kind) for _ in range(2))
    return {"seconds": timed(lambda: a @ b, args.torch_device)}


def bandwidth(args):
    """Returns the bytes a second of a large sum, the best of some runs."""
    on_gpu = args.torch_device != "cpu"
    numbers = torch.ones(1 << (30 if on_gpu else 22), dtype=torch.float32,
                         device=args.torch_device)
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    best = float("inf")
    for _ in range(10):
        wait()
        start = time.perf_counter()
        numbers.sum()
        wait()
        best = min(best, time.perf_counter() - start)
    return {"bytes_per_second": 4 * numbers.numel() / best}


def answer(line, device):
    """Answers one line, and frees the GPU's memory."""
    asked = types.SimpleNamespace(**json.loads(line), torch_device=device)
    try:
        return {"found": QUESTIONS[asked.what](asked)}
    except Exception as error:  # noqa: BLE001: later lines may succeed
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


QUESTIONS = {"look": look, "make": make, "score": score, "generate": generate,
             "compiled": compiled, "attend": attend, "multiply": multiply,
             "bandwidth": bandwidth}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-device", default="cuda")
    device = parser.parse_args().torch_device
    if device == "cpu":
        torch.set_num_threads(1)
    print("torch is imported", file=sys.stderr, flush=True)
    # Only answers go to stdout. The output of libraries goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(line, device)), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
