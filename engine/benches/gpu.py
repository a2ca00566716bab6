r"""Runs a binary that was built without CUDA on a machine with a GPU: checks first, then times.

    cargo build --release -p cli                     (here, without CUDA)
    python gpu.py rolltape --out DIRECTORY           (there: Python 3.12, torch, transformers)
    python gpu.py rolltape --tiny --out DIRECTORY    (anywhere, to see that this script works)

Nothing else is needed there and nothing is fetched. In this order, each in a share of `--seconds`:

1. `rolltape doctor --gpu`, under compute-sanitizer as well where there is one;
2. logprobs of sampled tokens beside those of Hugging Face transformers, same random weights in bf16;
3. recorded steps (CUDA graphs) beside steps launched one by one: the same tokens and logprobs;
4. `--deterministic`: the same bits alone and in a batch;
5. decoding at batch 1, 32 and 256 beside the memory floor, with and without `--deterministic`,
   and 256 requests of 100 to 1,024 tokens in and out, for each shape;
6. Hugging Face `generate` at batch 256 beside the engine on the same prompts.

A floor is the time to read, once, all weights, the keys and values of every sequence, and the
logits twice, at the bandwidth that torch reaches here in the same run. What every part printed, and
the table, are left in `--out`.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

CONFIGS = {
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                   "num_attention_heads": 16, "tie_word_embeddings": True},
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "tie_word_embeddings": False},
}
COMMON = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151_936,
    "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960, "hidden_act": "silu", "attention_bias": False,
    "torch_dtype": "bfloat16", "eos_token_id": 0, "bos_token_id": 0,
}
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True, "vocab_size": 512,
    "max_position_embeddings": 4096,
}
# Shares of the floor that are aimed at, by shape and batch.
GOALS = {("qwen3-0.6b", 1): 0.4, ("qwen3-0.6b", 32): 0.6, ("qwen3-0.6b", 256): 0.6,
         ("qwen3-8b", 32): 0.6, ("qwen3-8b", 256): 0.6}


class Report:
    """Lines that are printed and kept, checks that failed, and the time that is left."""

    def __init__(self, folder, seconds):
        self.folder, self.until = folder, time.monotonic() + seconds
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "report.txt", "w", encoding="utf-8")
        self.failed, self.rows = [], []

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.file, flush=True)

    def check(self, name, holds, detail):
        self.say(f"{'ok  ' if holds else 'FAIL'} {name}: {detail}")
        if not holds:
            self.failed.append(name)

    def left(self):
        return self.until - time.monotonic()

    @contextlib.contextmanager
    def part(self, name, needed):
        """Runs a part if there is time for it; what goes wrong in it is said, and the next runs."""
        self.say(f"\n== {name} ({self.left():.0f} s left)")
        try:
            if self.left() < needed:
                raise TimeoutError(f"needs {needed} s")
            yield
        except Exception as error:  # noqa: BLE001: one part must not take the others along
            self.check(name, False, f"{type(error).__name__}: {error}")


def versions(report):
    """The machine, as it says itself."""
    import torch
    import transformers

    smi = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.mem",
           "--format=csv,noheader"]
    gpu = subprocess.run(smi, capture_output=True, text=True).stdout.strip() if shutil.which(
        smi[0]) else "no nvidia-smi"
    report.say(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    report.say(f"gpu: {gpu}")
    report.say(f"python {sys.version.split()[0]}, torch {torch.__version__}, transformers "
               f"{transformers.__version__}, {os.cpu_count()} cores")


def run(report, name, command, timeout):
    """Runs a program, keeps what it says, gives its exit status."""
    with open(report.folder / f"{name}.txt", "w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=timeout)
    return done.returncode


def doctor(report, args):
    """Every kernel beside its twin, and the bandwidth that each reaches."""
    command = [args.rolltape, "doctor", "--gpu"]
    status = run(report, "doctor", command, max(10, min(180, report.left())))
    text = (report.folder / "doctor.txt").read_text()
    report.say(text.rstrip())
    report.check("doctor --gpu", status == 0, f"exit status {status}")
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        return report.say("compute-sanitizer is not here: not run")
    for tool in ("memcheck", "racecheck"):
        under = [sanitizer, "--tool", tool, "--error-exitcode", "9", *command]
        status = run(report, f"sanitizer-{tool}", under, max(10, min(90, report.left())))
        report.check(f"compute-sanitizer {tool}", status == 0, f"exit status {status}")


class Server:
    """`rolltape engine` on the GPU, asked over HTTP."""

    def __init__(self, report, args, source, flags=(), length=2304):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [args.rolltape, "engine", *source, "--listen", f"127.0.0.1:{port}"]
        command += ["--max-model-len", str(length), *args.device, *flags]
        number = len(list(report.folder.glob("server-*.txt")))
        self.log = report.folder / f"server-{number}.txt"
        report.say("$ " + " ".join(map(str, ["rolltape", *command[1:]])))
        self.file = open(self.log, "w", encoding="utf-8")
        self.process = subprocess.Popen(command, stderr=self.file)
        self.wait(max(10, min(240, report.left())))

    def wait(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).read()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text()[-2000:]) from None
                time.sleep(0.1)
        self.close()
        raise TimeoutError("the engine does not answer")

    def ask(self, prompts, count, **fields):
        """One call; its choices in order, each with `token_ids` and logprobs if asked for."""
        body = {"prompt": prompts, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, **fields}
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), kind)
        try:
            answer = urllib.request.urlopen(request, timeout=300).read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None
        choices = json.loads(answer)["choices"]
        return sorted(choices, key=lambda choice: choice["index"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.file.close()


def prompts_of(config, count, length):
    """Prompts without a common beginning, so that none is taken from another's pages."""
    vocab = config["vocab_size"] - 2
    return [[(7919 * (n + 1) + 104_729 * i + i * i * n) % vocab + 1 for i in range(length)]
            for n in range(count)]


def make_folder(folder, config, args):
    """A model folder with random bf16 weights, made by torch."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    made = transformers.AutoConfig.from_pretrained(folder)
    with torch.device(args.torch_device):
        model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                wide = 3.0 if "embed" in name or "lm_head" in name else 1.0
                weights.normal_(0, wide * weights.shape[-1] ** -0.5)
            else:
                weights.normal_(1, 0.1)
    model.save_pretrained(folder)
    # As transformers writes it now, with what this engine reads.
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])))
    return model.eval()


def tokenizer(vocab):
    """One that has an id for every byte and names for the rest: prompts are given as ids here."""
    alphabet = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in alphabet]
    table = {byte: chr(byte) for byte in alphabet}
    table |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    ids = {table[byte]: byte + 1 for byte in range(256)}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 0, "content": "<|end|>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {"<|end|>": 0} | ids | {
                      f"<{n}>": n for n in range(257, vocab)}, "merges": []},
    }


def logprobs_of(choices):
    return [choice["logprobs"]["token_logprobs"] for choice in choices]


def beside_transformers(report, args, config, model, server):
    """Logprobs of sampled tokens: what a trainer with transformers would compute for them, with
    the last product in f32, as it is here, and as transformers does it, rounded to bf16."""
    import torch

    count = 24 if args.tiny else 128
    prompts = prompts_of(config, 4 if args.tiny else 32, 24 if args.tiny else 200)
    choices = server.ask(prompts, count, temperature=1.0, seed=1, logprobs=0)
    head = model.lm_head.weight.float()
    exact, rounded = [], []
    for prompt, choice, found in zip(prompts, choices, logprobs_of(choices)):
        ids = torch.tensor([prompt + choice["token_ids"]], device=args.torch_device)
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, len(prompt) - 1:-1]
            both = (hidden.float() @ head.T, model.lm_head(hidden).float())
        for logits, differences in zip(both, (exact, rounded)):
            expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt):, None])[:, 0]
            differences += [abs(a - b) for a, b in zip(found, expected.tolist())]
    mean = statistics.fmean(exact)
    report.check("logprobs beside transformers", mean <= 0.01,
                 f"{len(exact)} sampled tokens, mean |difference| {mean:.5f} (at most 0.01), "
                 f"largest {max(exact):.4f}; with logits in bf16 {statistics.fmean(rounded):.5f}")


def same_bits(report, name, first, second):
    """Tokens and logprobs of two lists of choices, equal to the last bit."""
    ids = [a["token_ids"] == b["token_ids"] for a, b in zip(first, second)]
    numbers = [a == b for a, b in zip(logprobs_of(first), logprobs_of(second))]
    report.check(name, all(ids) and all(numbers),
                 f"{sum(ids)} of {len(ids)} with the same tokens, {sum(numbers)} the same logprobs")


def bits(report, args, config, source, server):
    """Graphs beside eager steps, and a batch beside one alone."""
    count, many = (12, 6) if args.tiny else (64, 48)
    prompts = prompts_of(config, many, 40)
    recorded = server.ask(prompts, count, logprobs=0)
    if "--enforce-eager" in args.help:
        with Server(report, args, source, ["--enforce-eager"]) as eager:
            same_bits(report, "recorded steps and eager ones", recorded,
                      eager.ask(prompts, count, logprobs=0))
    else:
        report.check("recorded steps and eager ones", False, "no --enforce-eager in this binary")
    if "--deterministic" not in args.help:
        return report.check("batch invariance", False, "no --deterministic in this binary")
    with Server(report, args, source, ["--deterministic"]) as fixed:
        batch = fixed.ask(prompts, count, logprobs=0)
        alone = [fixed.ask([prompt], count, logprobs=0)[0] for prompt in prompts[:6]]
        same_bits(report, "--deterministic, alone and in a batch", alone, batch[:6])


def bandwidth(args):
    """Bytes a second that torch reads here, the best of some runs."""
    import torch

    if args.torch_device == "cpu":
        return 1e10
    numbers = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        numbers.sum()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    del numbers
    torch.cuda.empty_cache()
    return 4 * (1 << 30) / best


def floor(config, batch, context, rate):
    """Seconds of a decode step that only reads and writes what it must."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = hidden * (2 * query + 2 * kv) + 3 * hidden * inner
    weights = 2 * (config["num_hidden_layers"] * layer + config["vocab_size"] * hidden)
    cache = batch * context * config["num_hidden_layers"] * 2 * kv * 2
    logits = batch * config["vocab_size"] * 4 * 2
    return (weights + cache + logits) / rate


def step_seconds(server, config, batch, context, counts):
    """Seconds of a decode step: a long reply less a short one, the least of two runs each."""
    prompts, least = prompts_of(config, batch, context), {}
    for _ in range(2):
        for count in counts:
            start = time.perf_counter()
            server.ask(prompts, count)
            took = time.perf_counter() - start
            least[count] = min(took, least.get(count, took))
    short, long = counts
    return (least[long] - least[short]) / (long - short)


def decode(report, args, name, config, server, rate, manner=""):
    """Decoding beside the floor, batch by batch; prompts come from the prefix cache after the
    first run, so that only decoding differs."""
    batches = [1, 4] if args.tiny else [1, 32, 256]
    context, counts = (32, (2, 10)) if args.tiny else (960, (4, 132))
    steps = {}
    for batch in batches:
        seconds = step_seconds(server, config, batch, context, counts)
        least = floor(config, batch, context + sum(counts) / 2, rate)
        steps[batch] = seconds
        goal = None if manner or args.tiny else GOALS.get((name, batch))
        row = (f"{name:11} {manner or 'default':14} batch {batch:3}: {1000 * seconds:8.3f} ms a "
               f"step, {batch / seconds:9.0f} tok/s, floor {1000 * least:7.3f} ms, "
               f"{least / seconds:4.0%}")
        report.rows.append(row)
        report.say(row)
        if goal:
            report.check(f"{name}, batch {batch}", least / seconds >= goal,
                         f"{least / seconds:.0%} of the floor, {goal:.0%} wanted")
    return steps


def mixed(report, args, name, config, server):
    """Many requests of uneven lengths at once."""
    count = 12 if args.tiny else 256
    low, high = (5, 30) if args.tiny else (100, 1024)
    spread = high - low + 1
    lengths = [(low + 613 * n % spread, low + 397 * (n + 5) % spread) for n in range(count)]
    longest = prompts_of(config, count, high)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        start = time.perf_counter()
        jobs = [pool.submit(server.ask, [prompt[:given]], wanted)
                for prompt, (given, wanted) in zip(longest, lengths)]
        wanted = sum(out for _, out in lengths)
        found = sum(len(job.result()[0]["token_ids"]) for job in jobs)
        seconds = time.perf_counter() - start
    report.check(f"{name}, {count} requests", found == wanted, f"{found} of {wanted} tokens")
    row = (f"{name:11} {count} requests of {low} to {high} tokens in and out: {seconds:6.1f} s, "
           f"{found / seconds:8.0f} tok/s out, "
           f"{sum(given for given, _ in lengths) / seconds:8.0f} tok/s in")
    report.rows.append(row)
    report.say(row)


def beside_generate(report, args, config, model, server):
    """Hugging Face's own loop on the same prompts, at the same batch."""
    import torch

    batch, length, count = (4, 16, 8) if args.tiny else (256, 128, 96)
    prompts = prompts_of(config, batch, length)
    server.ask(prompts[:1], 2)
    start = time.perf_counter()
    server.ask(prompts, count)
    ours = batch * count / (time.perf_counter() - start)
    ids = torch.tensor(prompts, device=args.torch_device)
    fields = {"do_sample": False, "min_new_tokens": count, "pad_token_id": 0}
    with torch.no_grad():
        model.generate(ids[:, :8], attention_mask=torch.ones_like(ids[:, :8]),
                       max_new_tokens=2, do_sample=False, pad_token_id=0)
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                             **fields)
        taken = time.perf_counter() - start
    theirs = (out.shape[1] - length) * batch / taken
    shape = "tiny" if args.tiny else "qwen3-0.6b"
    row = (f"{shape:11} batch {batch}, {length} in, {count} out: {ours:.0f} tok/s, transformers' "
           f"generate {theirs:.0f} tok/s, {ours / theirs:.1f} times")
    report.rows.append(row)
    report.say(row)
    if not args.tiny:
        report.check("beside generate", ours >= 10 * theirs, f"{ours / theirs:.1f} times, 10 wanted")


def measure(report, args, name, config, source, rate):
    """Times of one shape, and what --deterministic costs."""
    with Server(report, args, source) as server:
        plain = decode(report, args, name, config, server, rate)
        mixed(report, args, name, config, server)
    if "--deterministic" not in args.help:
        return
    with Server(report, args, source, ["--deterministic"]) as server:
        fixed = decode(report, args, name, config, server, rate, "deterministic")
    prices = [f"batch {batch} {fixed[batch] / plain[batch]:.2f}x" for batch in plain]
    row = f"{name:11} --deterministic costs: {', '.join(prices)} of the time of a step"
    report.rows.append(row)
    report.say(row)


def parts(report, args, scratch):
    """Everything, in order of worth: a cut run has what matters."""
    versions(report)
    small = COMMON | (TINY if args.tiny else CONFIGS["qwen3-0.6b"])
    with report.part("kernels", 20):
        if "--gpu" in args.doctor_help:
            doctor(report, args)
        else:
            report.check("doctor --gpu", False, "this binary has none")
    folder = scratch / "small"
    model = make_folder(folder, small, args)
    source = ["--model", folder]
    with report.part("beside transformers, and bits", 30), Server(report, args, source) as server:
        beside_transformers(report, args, small, model, server)
        bits(report, args, small, source, server)
    with report.part("beside generate", 30), Server(report, args, source) as server:
        beside_generate(report, args, small, model, server)
    del model
    rate = bandwidth(args)
    report.say(f"\nmemory gives {rate / 1e9:.0f} GB/s to torch")
    with report.part("times of the small shape", 60):
        measure(report, args, "tiny" if args.tiny else "qwen3-0.6b", small, source, rate)
    if args.tiny:
        return
    with report.part("times of the large shape", 120):
        large = COMMON | CONFIGS["qwen3-8b"]
        path = scratch / "large" / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(large))
        measure(report, args, "qwen3-8b", large, ["--random-weights", path], rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rolltape", help="the binary, built in release mode without CUDA")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="for what is printed")
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("/tmp/rolltape-gpu"))
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape; transformers on the CPU")
    args = parser.parse_args()
    args.rolltape = str(pathlib.Path(args.rolltape).resolve())
    args.torch_device = "cpu" if args.tiny else "cuda"
    help_of = lambda *words: subprocess.run(  # noqa: E731
        [args.rolltape, *words, "--help"], capture_output=True, text=True).stdout
    args.help, args.doctor_help = help_of("engine"), help_of("doctor")
    args.device = ["--device", "cuda"] if "--device" in args.help else []
    report = Report(args.out, args.seconds)
    shutil.rmtree(args.scratch, ignore_errors=True)
    try:
        parts(report, args, args.scratch)
    finally:
        shutil.rmtree(args.scratch, ignore_errors=True)
    report.say("\n" + "\n".join(report.rows))
    report.say(f"\n{'FAILED: ' + ', '.join(report.failed) if report.failed else 'all well'}")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
