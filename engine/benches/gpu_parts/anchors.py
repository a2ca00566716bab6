"""What others reach on the same card: torch's attention and products, a compiled transformers,
vLLM and SGLang."""

import json
import subprocess

from .compare import reference
from .engine import Engine
from .report import Skipped
from .shapes import config_of, prompts_of
from .times import decode

# Heads of queries, of keys, and their size: Qwen3-0.6B and 8B.
HEADS = {"qwen3-0.6b": (16, 8, 128), "qwen3-8b": (32, 8, 128)}


def prompts(run):
    """Times torch's attention of 2,048 rows behind many positions, by each of its libraries, and a
    product of 4,096^3 by cuBLAS."""
    need_torch(run)
    rows, fronts = (16, (32, 64)) if run.tiny else (2_048, (8_192, 65_536))
    side = 64 if run.tiny else 4_096
    for name, heads in HEADS.items():
        for front in fronts:
            found = reference(run, "attend", seconds=30, heads=heads, rows=rows, front=front)
            for library, seconds in sorted(found.items()):
                what = f"{name:11} attention of {rows} rows behind {front}, {library}"
                if isinstance(seconds, str):
                    run.report.say(f"   {what}: {seconds}")
                    continue
                # Two products; every row attends to all that is in front, and to all rows.
                rate = 4 * heads[0] * heads[2] * rows * (front + rows) / seconds
                run.report.row(f"{what}: {1e6 * seconds:.1f} us, {rate / 1e12:.0f} TFLOP/s",
                               what=what, seconds=seconds, flops=rate)
    seconds = reference(run, "multiply", seconds=30, side=side)["seconds"]
    rate = 2 * side ** 3 / seconds
    run.report.row(f"product of {side}^3 in bf16, cuBLAS: {1e6 * seconds:.1f} us, "
                   f"{rate / 1e12:.0f} TFLOP/s", what="product", seconds=seconds, flops=rate)


def baseline(run, name, config, folder):
    """Times transformers with a static cache and `torch.compile`, beside the same replies here."""
    need_torch(run)
    batches, length, counts = ([1, 2], 16, (2, 6)) if run.tiny else ([1, 32, 256], 128, (8, 72))
    with Engine(run, ["--model", folder]) as engine:
        decode(run, (name, config), engine, "its folder", batches)
    for batch in batches:
        prompts = prompts_of(config, batch, length)
        found = reference(run, "compiled", folder=folder, prompts=prompts, counts=counts,
                          seconds=60)
        run.report.row(f"{name:11} batch {batch:3}, transformers, static cache, {found['mode']}: "
                       f"{1000 * found['step']:8.3f} ms a step, {batch / found['step']:.0f} tok/s, "
                       f"compiled in {found['compiled']:.0f} s",
                       shape=name, batch=batch, manner="compiled", seconds=found["step"])


def public(run, source):
    """Times the shape of Llama-3.2-1B at batch 1 behind 32 tokens, of which others publish times:
    972.8 us by a megakernel and 979.5 us by a graph, on an H100."""
    name = "tiny" if run.tiny else "llama-3.2-1b"
    with Engine(run, source(name)) as engine:
        decode(run, (name, config_of(name)), engine, "behind 32", [1], context=32)


def peer(run, server, config, folder):
    """Times another server on the same weights and prompts, offline and in its own process."""
    need_torch(run)
    if not found(run, server):
        raise Skipped(f"{server} is not installed for {run.python}")
    script = __file__.replace("anchors.py", "peer.py")
    batches, length, counts = ([1, 2], 16, (2, 6)) if run.tiny else ([1, 32, 256], 960, (4, 132))
    asked = {"server": server, "folder": str(folder), "counts": counts,
             "prompts": {batch: prompts_of(config, batch, length) for batch in batches}}
    path = run.scratch / f"peer-{server}.json"
    path.write_text(json.dumps(asked))
    log = run.report.folder / f"peer-{server}.txt"
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run([run.python, script, path], stdout=subprocess.PIPE, stderr=file,
                              text=True, timeout=run.report.limit(280))
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{server} ended with {done.returncode}: {log.read_text()[-1500:]}")
    answer = json.loads(lines[-1])
    for batch, seconds in answer["steps"].items():
        run.report.row(f"{server} {answer['version']}, batch {int(batch):3}: "
                       f"{1000 * seconds:8.3f} ms a step, {int(batch) / seconds:9.0f} tok/s",
                       manner=server, batch=int(batch), seconds=seconds)


def found(run, package):
    """Returns whether the Python of the run has a package."""
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([run.python, "-c", look], timeout=60).returncode == 0


def need_torch(run):
    """Leaves the part out if there is no torch to compare with."""
    if not run.torch:
        raise Skipped("torch and transformers are not here")
