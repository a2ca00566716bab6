r"""Checks and times a binary on a machine with a GPU. The binary needs no CUDA to be built.

    cargo build --release -p cli && strip -o target/gpu/rolltape target/release/rolltape   (here)
    python3 engine/benches/gpu.py --out DIRECTORY                                          (there)
    python3 engine/benches/gpu.py --out DIRECTORY --only profile ncu        (there, a second time)
    python3 engine/benches/gpu.py --tiny --emulated FOLDER --out DIRECTORY             (anywhere)

The last command runs on the emulated device of `kernels/emulator`, to test this script. FOLDER is
the output of `build.sh FOLDER 16 64 128`.

The machine needs Python 3.10 and a driver; nothing is downloaded. NVRTC, cuBLASLt, NCCL, torch and
transformers are used if they are installed; a check that needs a missing one is reported as not
made. The most telling parts run first. Each part runs whether or not the others failed:

    kernels      every kernel against plain loops, its time, and NCCL alone: `rolltape doctor --gpu`
    sampled      Qwen3-0.6B's and 8B's shapes: decoding at batch 1, 32 and 256, greedy and as
                 trainers sample, and 256 requests of 100 to 1,024 tokens in and out
    penalties    steps with `presence_penalty`, and one such row among many
    fp8          steps with keys and values in FP8
    long         logprobs behind 8,000 to 32,000 positions beside transformers', and
                 `--deterministic` for prompts of up to 6,000 tokens
    variants     whole steps with kernels of the folders that `--variants` names
    splits       steps of one sequence by the positions of a split of attention
    prompts      torch's attention of a prompt behind many positions, and a large product
    updates      a push of a folder while 32 sequences decode, sleep, and a start
    adapters     steps and a prompt with LoRA adapters of rank 16 and 64
    cores        decoding through `rolltape serve` on one core and on two
    baseline     transformers with a static cache and `torch.compile`; Llama-3.2-1B's shape
    spread       ten repeats, with clocks and power
    sanitizer    `doctor --gpu` under compute-sanitizer, if it is installed
    peaked       logprobs of peaked logits
    larger       shapes for an H200's memory

These take at most ten minutes together by the limits of each. In the time that they leave:

    loading      a start from a folder, beside its bytes over PCIe and from the disk
    logprobs     of sampled tokens against transformers', same random weights, f32 and bf16
    fp8          logprobs with keys and values in FP8 beside those with bf16, and bits
    bits         recorded steps (CUDA graphs) and eager ones; `--deterministic` in any batch
    profile      the time of each operation of a step
    mixture, hybrid    the same as sampled for a mixture of experts and for a hybrid, greedy
    price        the same steps with `--deterministic`
    generate     transformers' own loop at batch 256 against the engine
    peer         vLLM and SGLang on the same weights, if `--python` has them
    ncu          counters of kernels, if Nsight Compute is installed

A floor is the time to read, once, all weights, the keys and values of every sequence, and the
logits twice, at the best bandwidth that torch and our own probes reach in the same run. Beside its
share stand that of the specification, where the bus of the memory is known, and the time above the
floor for each layer. All weights are random; the engine makes those of timed shapes in memory
(`--random-weights`).

`--out` (default: $OUT) gets four files, each complete at any moment: `report.txt`, `report.json`,
`doctor.json`, and `rest.tar.gz` with the output of all programs. The exit status is 0 if all checks
passed, 1 if one failed, 2 if none failed but one could not be made.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

from gpu_parts import (adapters, anchors, bits, clocks, compare, doctor, fp8, larger, loading,
                       long, profile, steady, times, updates)
from gpu_parts.engine import Engine, logprobs_of
from gpu_parts.report import Report, Skipped
from gpu_parts.shapes import config_of, prompts_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = [ROOT / "target/gpu/rolltape", ROOT / "target/release/rolltape"]


def run_of(args, report, scratch):
    """The state that all parts of a run share."""
    found = [args.rolltape] if args.rolltape else [one for one in BINARIES if one.exists()]
    if not found:
        raise SystemExit(f"there is no binary at {' or '.join(map(str, BINARIES))}")
    # A copy that was carried here may have lost its permission to run.
    binary = scratch / "rolltape"
    shutil.copyfile(found[0], binary)
    binary.chmod(0o755)
    python = args.python or sys.executable
    # The engine asks the first Python in the path where its packages have CUDA's libraries.
    path = os.pathsep.join([str(pathlib.Path(python).parent), os.environ.get("PATH", "")])
    env = dict(os.environ, XDG_CACHE_HOME=str(scratch / "cache"), PATH=path)
    if args.emulated:
        # For the binary alone: torch must not take these for the libraries that it needs.
        emulated = args.emulated.resolve()
        folders = [emulated, emulated / "nvrtc", emulated / "nccl"]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, folders))
    if args.cuda_libs:
        env["ROLLTAPE_CUDA_LIBS"] = str(args.cuda_libs.resolve())
    if args.kernel_texts:
        env["ROLLTAPE_KERNEL_TEXTS"] = str(args.kernel_texts.resolve())
    report.fact("flags", sys.argv[1:])
    report.fact("commit", commit())
    named = found[0].relative_to(ROOT) if found[0].is_relative_to(ROOT) else found[0].name
    report.fact("binary", f"{named}, {binary.stat().st_size >> 20} MiB")
    return types.SimpleNamespace(
        report=report, scratch=scratch, tiny=args.tiny, rolltape=str(binary), env=env,
        device=["--device", "cuda"], python=python,
        torch_device="cpu" if args.tiny else "cuda", torch=False, torch_process=None,
        rates=[], specified=None, steps={}, memory=float("inf"), all_memory=0,
        variants=args.variants)


def commit():
    """Returns the commit of this clone, with a mark if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if done.returncode:
        return "unknown: this is no clone"
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True,
                             text=True).stdout.strip()
    return done.stdout.strip() + (", with changes" if changed else "")


def machine(run):
    """Reports the machine. Starts the import of torch, which takes long."""
    try:
        compare.begin(run)
    except OSError as error:
        run.report.say(f"   no torch: {error}")
    run.report.fact("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    run.report.fact("host", f"{platform.platform()}, {os.cpu_count()} cores")
    if smi := shutil.which("nvidia-smi"):
        query = [smi, "--query-gpu=name,driver_version,memory.total,clocks.max.mem,power.limit",
                 "--format=csv,noheader"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=30)
        run.report.fact("nvidia-smi", (said.stdout or said.stderr).strip())
    found = clocks.ask(("name", "clocks.max.mem"))
    highest = found.get("clocks.max.mem", "")
    if highest.isdigit():
        run.specified = clocks.specified(found["name"], int(highest))
    run.report.fact("specified", f"{run.specified / 1e9:.0f} GB/s" if run.specified else
                    "not known: shares of it are left out")
    run.report.clock("the start")
    version = subprocess.run([run.rolltape, "--version"], capture_output=True, text=True,
                             timeout=30)
    run.report.fact("version", version.stdout.strip())


def torch(run):
    """Reports torch, and decides whether the run uses it."""
    try:
        found = compare.reference(run, "look", seconds=100)
    except Exception as error:  # noqa: BLE001: any failure means no torch
        run.report.fact("torch", f"not used: {' '.join(str(error).split())[-300:]}")
        return
    run.torch = found["cuda"] or run.tiny
    used = "" if run.torch else ", not used: it finds no GPU"
    run.report.fact("torch", f"{found['torch']}, transformers {found['transformers']}{used}")


def small_model(run, config, std=None):
    """Returns a folder of random weights, made once for each deviation."""
    if not run.torch:
        raise Skipped("torch and transformers are not here")
    folder = run.scratch / f"model-{std}"
    if not (folder / "tokenizer.json").exists():
        compare.make(run, folder, config, std)
    return folder


def logprobs(run, config, std, what, most=None):
    """Compares the logprobs of sampled tokens with those of transformers."""
    folder = small_model(run, config, std)
    count = 24 if run.tiny else 128
    prompts = prompts_of(config, 4 if run.tiny else 32, 24 if run.tiny else 200)
    with Engine(run, ["--model", folder]) as engine:
        choices = engine.ask(prompts, count, temperature=1.0, seed=1, logprobs=0)
    replies = [{"prompt": prompt, "tokens": choice["token_ids"]}
               for prompt, choice in zip(prompts, choices)]
    means = compare.table(run, what, folder, replies, logprobs_of(choices))
    compare.judge(run, what, means, most)


def parts(run):
    """The parts, most telling first: name, seconds that must be left, time limit, call."""
    return first(run) + listed(run) + further(run)


def names(run):
    """The names of the usual shapes: small, large, of a mixture, of a hybrid."""
    if run.tiny:
        return "tiny", "tiny", "tiny-moe", "tiny-hybrid"
    return "qwen3-0.6b", "qwen3-8b", "qwen3-moe", "qwen3.5-0.8b"


def source_of(run):
    """Returns a function that gives an engine's flags for random weights of a shape by name."""
    def source(name):
        path = run.scratch / f"{name}.json"
        path.write_text(json.dumps(config_of(name)))
        return ["--random-weights", path]
    return source


def first(run):
    """The parts that others need."""
    return [
        ("kernels", 5, 30, lambda: doctor.kernels(run)),
        ("torch", 0, 20, lambda: torch(run)),
        ("bandwidth", 2, 5, lambda: times.bandwidth(run)),
    ]


def listed(run):
    """The parts whose answers decide most, in their order."""
    (name, large, *_), source = names(run), source_of(run)
    small, big = config_of(name), config_of(large)

    def weights():
        return small_model(run, small, 0.02)

    return [
        ("sampled, small", 10, 35, lambda: times.sampled(run, name, small, source(name))),
        ("sampled, large", 30, 70, lambda: times.sampled(run, large, big, source(large))),
        ("penalties", 10, 35, lambda: times.penalties(run, name, small, source(name))),
        ("fp8, steps", 5, 15, lambda: fp8.steps(run, name, small, source(name))),
        ("long, logprobs", 10, 35, lambda: long.logprobs(run, small, weights())),
        ("long, deterministic", 10, 25, lambda: long.invariant(run, small, source(name))),
        ("variants", 5, 20, lambda: steady.variants(run, name, run.variants)),
        ("splits", 5, 20, lambda: steady.splits(run, name)),
        ("prompts", 5, 20, lambda: anchors.prompts(run)),
        ("updates", 20, 60, lambda: updates.folder(
            run, large, big, source(large), small_model(run, big, 0.03))),
        ("adapters, small", 5, 15, lambda: adapters.measure(run, name, small, source(name))),
        ("adapters, large", 15, 30, lambda: adapters.measure(run, large, big, source(large))),
        ("cores", 5, 15, lambda: steady.cores(run, name, small, weights())),
        ("baseline, compiled", 10, 40, lambda: anchors.baseline(run, name, small, weights())),
        ("baseline, public", 5, 10, lambda: anchors.public(run, source)),
        ("spread", 5, 20, lambda: steady.spread(run, name, small, source(name))),
        ("sanitizer", 20, 60, lambda: doctor.sanitizer(run)),
        ("peaked", 10, 20, lambda: logprobs(run, small, None, "peaked logits")),
        ("larger", 20, 45, lambda: larger.measure(run, source)),
    ]


def further(run):
    """The parts for the time that is left."""
    (name, large, mixture, hybrid), source = names(run), source_of(run)
    small, big = config_of(name), config_of(large)

    def weights():
        return small_model(run, small, 0.02)

    return [
        ("loading", 10, 60, lambda: loading.measure(run, large, small_model(run, big, 0.03))),
        ("logprobs, weights as trainers begin with", 20, 90, lambda: logprobs(
            run, small, 0.02, "deviation 0.02", compare.MEAN_MAX)),
        ("fp8, numbers", 10, 40, lambda: fp8.numbers(run, small, source(name))),
        ("bits, recorded", 10, 60, lambda: bits.recorded(run, small, source(name))),
        ("bits, deterministic", 10, 60, lambda: bits.invariant(run, small, source(name))),
        ("profile, small", 10, 60, lambda: profile.profile(run, name)),
        ("hybrid", 20, 90, lambda: times.measure(run, hybrid, config_of(hybrid), source(hybrid))),
        ("mixture", 30, 90, lambda: times.measure(run, mixture, config_of(mixture),
                                                  source(mixture))),
        ("profile, large", 25, 60, lambda: profile.profile(run, large)),
        ("profile, mixture", 20, 60, lambda: profile.profile(run, mixture)),
        ("profile, hybrid", 15, 60, lambda: profile.profile(run, hybrid)),
        ("price, small", 15, 60, lambda: times.price(run, name, small, source(name))),
        ("generate", 20, 60, lambda: times.beside_generate(run, name, small, weights())),
        ("ncu", 25, 60, lambda: profile.ncu(run, name)),
        ("peer, vllm", 60, 300, lambda: anchors.peer(run, "vllm", small, weights())),
        ("peer, sglang", 60, 300, lambda: anchors.peer(run, "sglang", small, weights())),
        ("price, large", 50, 100, lambda: times.price(run, large, big, source(large))),
    ]


# Parts that need a real GPU or its tools. `--tiny` skips them unless `--only` names them.
REAL = ["sampled, large", "adapters, large", "profile, large", "price, large", "variants", "ncu",
        "sanitizer", "peer, vllm", "peer, sglang"]


def chosen(args, name):
    """Returns whether a part is to run; torch always is."""
    if args.only is None:
        return not (args.tiny and name in REAL)
    return name == "torch" or any(map(name.startswith, args.only))


def stop(*_):
    """Ends the program on a signal, with its report."""
    raise SystemExit("ended from outside")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rolltape", nargs="?", type=pathlib.Path,
                        help="the binary [default: target/gpu/rolltape or target/release/rolltape]")
    given = os.environ.get("OUT")
    parser.add_argument("--out", type=pathlib.Path, required=not given, default=given or None,
                        help="folder for the report [default: $OUT]")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of all parts")
    parser.add_argument("--only", nargs="*", help="run only parts whose name begins so")
    parser.add_argument("--cuda-libs", type=pathlib.Path, help="as for `rolltape engine`")
    parser.add_argument("--kernel-texts", type=pathlib.Path, metavar="DIR",
                        help="kernel sources to compile in place of the built-in ones")
    parser.add_argument("--variants", nargs="*", type=pathlib.Path, metavar="DIR", default=[],
                        help="folders of kernel sources to time beside the built-in ones")
    parser.add_argument("--python", help="Python with torch and transformers [default: this one]")
    parser.add_argument("--tiny", action="store_true",
                        help="use a tiny shape, and transformers on the CPU; times mean nothing")
    parser.add_argument("--emulated", type=pathlib.Path,
                        help="emulated device built by kernels/emulator/build.sh, for --tiny")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    status = 1
    with tempfile.TemporaryDirectory(prefix="rolltape-gpu-") as scratch:
        scratch = pathlib.Path(scratch)
        patience = 30 if args.tiny else 1
        report = Report(args.out, scratch / "rest", args.seconds, patience)
        run = None
        try:
            run = run_of(args, report, scratch)
            report.part("machine", (0, 60), lambda: machine(run))
            for name, *limits, part in parts(run):
                if chosen(args, name):
                    report.part(name, limits, part)
        except BaseException as error:
            report.check("the whole run", False, f"{type(error).__name__}: {error}")
            raise
        finally:
            if run:
                compare.rest(run)
            status = report.end()
    sys.exit(status)


if __name__ == "__main__":
    main()
