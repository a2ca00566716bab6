r"""Runs a binary that was built without CUDA on a machine with a GPU: checks first, then times.

    cargo build --release -p cli && strip -o target/gpu/rolltape target/release/rolltape   (here)
    python3 engine/benches/gpu.py --out DIRECTORY                                          (there)
    python3 engine/benches/gpu.py --out DIRECTORY --only profile ncu        (there, a second time)
    python3 engine/benches/gpu.py --tiny --doubles FOLDER --out DIRECTORY             (anywhere)

The last runs on the emulated device of `kernels/emulator`, to see that this script works: FOLDER is
what `build.sh FOLDER 16 64 128` made.

There it needs Python 3.10 and a driver; nothing is fetched. NVRTC, cuBLASLt, NCCL, torch and
transformers are used where they are; what needs one that is not is said to be not made. The most
telling parts come first, each on its own, whatever became of the others, all within nine minutes:

    kernels      every kernel beside its twin, its time, and NCCL alone: `rolltape doctor --gpu`
    logprobs     of sampled tokens beside transformers', same random weights, f32 and bf16
    small        Qwen3-0.6B's shape: decoding at batch 1, 32 and 256 beside the memory floor, and
                 256 requests of 100 to 1,024 tokens in and out
    profile      where the time of such a step goes, operation by operation
    bits         recorded steps (CUDA graphs) and eager ones; `--deterministic` in any batch
    large        the same as small for Qwen3-8B's shape, and its profile
    price        the same steps with `--deterministic`
    generate     transformers' own loop at batch 256 beside the engine
    ncu          counters of kernels, where Nsight Compute is
    sanitizer    `doctor --gpu` under compute-sanitizer, where there is one

A floor is the time to read, once, all weights, the keys and values of every sequence, and the
logits twice, at the best bandwidth that torch and our own probes reach in the same run. All weights
are random; those of timed shapes are made by the engine in memory (`--random-weights`).

`--out` ($OUT where that is set) gets four files, whole at any moment: `report.txt`, `report.json`,
`doctor.json`, and `rest.tar.gz` with all that programs printed. Ends with 0 if all checks held, 1
if one failed, 2 if none failed but one could not be made.
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

from gpu_parts import bits, compare, doctor, profile, times
from gpu_parts.engine import Engine, logprobs_of
from gpu_parts.report import Report, Skipped
from gpu_parts.shapes import config_of, prompts_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = [ROOT / "target/gpu/rolltape", ROOT / "target/release/rolltape"]


def run_of(args, report, scratch):
    """What the parts take of a run."""
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
    if args.doubles:
        # For the binary alone: torch must not take these for the libraries that it needs.
        doubles = args.doubles.resolve()
        folders = [doubles, doubles / "nvrtc", doubles / "nccl"]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, folders))
    if args.cuda_libs:
        env["ROLLTAPE_CUDA_LIBS"] = str(args.cuda_libs.resolve())
    if args.kernel_texts:
        env["ROLLTAPE_KERNEL_TEXTS"] = str(args.kernel_texts.resolve())
    report.fact("binary", f"{found[0]}, {binary.stat().st_size >> 20} MiB")
    return types.SimpleNamespace(
        report=report, scratch=scratch, tiny=args.tiny, rolltape=str(binary), env=env,
        device=["--device", "cuda"], python=python,
        torch_device="cpu" if args.tiny else "cuda", torch=False, torch_process=None,
        rates=[], steps={}, memory=float("inf"))


def machine(run):
    """The machine, as it says itself. torch is imported meanwhile."""
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
    version = subprocess.run([run.rolltape, "--version"], capture_output=True, text=True,
                             timeout=30)
    run.report.fact("version", version.stdout.strip())


def torch(run):
    """Whether torch is there, and finds what it needs."""
    try:
        found = compare.reference(run, "look", seconds=100)
    except Exception as error:  # noqa: BLE001: whatever it is, there is no torch to use
        run.report.fact("torch", f"not used: {' '.join(str(error).split())[-300:]}")
        return
    run.torch = found["cuda"] or run.tiny
    used = "" if run.torch else ", not used: it finds no GPU"
    run.report.fact("torch", f"{found['torch']}, transformers {found['transformers']}{used}")


def small_model(run, config, std=None):
    """A folder of random weights, made once for each deviation."""
    if not run.torch:
        raise Skipped("torch and transformers are not here")
    folder = run.scratch / f"model-{std}"
    if not (folder / "tokenizer.json").exists():
        compare.make(run, folder, config, std)
    return folder


def logprobs(run, config, std, what, most=None):
    """Tokens that the engine samples, beside transformers' logprobs of them."""
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
    """Name, seconds that it should have, seconds that it may take, and the part; the most telling
    ones first."""
    name, large = ("tiny" if run.tiny else "qwen3-0.6b"), "qwen3-8b"
    small = config_of(name)

    def source(name):
        path = run.scratch / f"{name}.json"
        path.write_text(json.dumps(config_of(name)))
        return ["--random-weights", path]

    return [
        ("kernels", 5, 120, lambda: doctor.kernels(run)),
        ("torch", 0, 100, lambda: torch(run)),
        ("bandwidth", 2, 30, lambda: times.bandwidth(run)),
        ("logprobs, weights as trainers begin with", 20, 90, lambda: logprobs(
            run, small, 0.02, "deviation 0.02", compare.MEAN_MAX)),
        ("small", 15, 90, lambda: times.measure(run, name, small, source(name))),
        ("profile, small", 10, 60, lambda: profile.profile(run, name)),
        ("bits, recorded", 10, 60, lambda: bits.recorded(run, small, source(name))),
        ("bits, deterministic", 10, 60, lambda: bits.invariant(run, small, source(name))),
        ("large", 40, 120, lambda: times.measure(run, large, config_of(large), source(large))),
        ("profile, large", 25, 60, lambda: profile.profile(run, large)),
        ("price, small", 15, 60, lambda: times.price(run, name, small, source(name))),
        ("generate", 20, 60, lambda: times.beside_generate(run, name, small,
                                                           small_model(run, small, 0.02))),
        ("logprobs, peaked", 20, 60, lambda: logprobs(run, small, None, "peaked logits")),
        ("ncu", 25, 60, lambda: profile.ncu(run, name)),
        ("price, large", 50, 100, lambda: times.price(run, large, config_of(large),
                                                      source(large))),
        ("sanitizer", 50, 250, lambda: doctor.sanitizer(run)),
    ]


# What needs a GPU, or tools that come with one: left out on an emulated one unless asked for.
REAL = ["large", "profile, large", "price, large", "ncu", "sanitizer"]


def chosen(args, name):
    """Whether a part is wanted; torch is looked for in any case."""
    if args.only is None:
        return not (args.tiny and name in REAL)
    return name == "torch" or any(map(name.startswith, args.only))


def stop(*_):
    """Whoever ends this program gets what it has found."""
    raise SystemExit("ended from outside")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rolltape", nargs="?", type=pathlib.Path,
                        help="the binary; else target/gpu/rolltape or target/release/rolltape")
    given = os.environ.get("OUT")
    parser.add_argument("--out", type=pathlib.Path, required=not given, default=given or None,
                        help="for what is found; else the folder that $OUT names")
    parser.add_argument("--seconds", type=float, default=540, help="for all parts together")
    parser.add_argument("--only", nargs="*", help="parts whose name begins with one of these")
    parser.add_argument("--cuda-libs", type=pathlib.Path, help="as for `rolltape engine`")
    parser.add_argument("--kernel-texts", type=pathlib.Path, metavar="DIR",
                        help="texts of kernels to compile in place of those built in")
    parser.add_argument("--python", help="one that has torch and transformers, if not this one")
    parser.add_argument("--tiny", action="store_true",
                        help="a tiny shape, and transformers on the CPU; times mean nothing")
    parser.add_argument("--doubles", type=pathlib.Path,
                        help="the emulated device that kernels/emulator/build.sh made, for --tiny")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    status = 1
    with tempfile.TemporaryDirectory(prefix="rolltape-gpu-") as scratch:
        scratch = pathlib.Path(scratch)
        patience = 5 if args.tiny else 1
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
