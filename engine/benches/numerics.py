r"""Measures the error of logprobs in bf16 against f32: of this engine's GPU path and transformers.

    python engine/benches/numerics.py BINARY --emulated FOLDER [--out DIRECTORY]

The engine samples from small models on its GPU path, on the emulated device of `kernels/emulator`
(FOLDER is the output of `build.sh FOLDER 16 64`): the arithmetic is real and the speed is not.
transformers, on the CPU, computes logprobs of the same tokens in f32, in bf16, and in bf16 with the
last product in f32. Needs torch and transformers.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

from gpu_parts import compare
from gpu_parts.engine import Engine, logprobs_of
from gpu_parts.report import Report
from gpu_parts.shapes import COMMON, prompts_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = COMMON | {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 2048, "tie_word_embeddings": True,
}
# Name, configuration (none: the trained tiny model), and the standard deviation of weights (none:
# that of `--random-weights`, whose logits are as peaked as those of a trained model).
MODELS = [
    ("the trained tiny model", None, None),
    ("random, deviation 0.02", SMALL, 0.02),
    ("random, peaked logits", SMALL, None),
]


def run_of(args, folder):
    """The state that all parts of a run share."""
    environment = dict(os.environ, XDG_CACHE_HOME=str(folder / "cache"))
    environment["LD_LIBRARY_PATH"] = f"{args.emulated}:{args.emulated / 'nvrtc'}"
    report = Report(args.out or folder / "out", folder / "rest", 3600, patience=5)
    return types.SimpleNamespace(
        report=report, rolltape=str(args.rolltape.resolve()),
        device=["--device", "cuda"], env=environment, torch_device="cpu", scratch=folder,
        python=sys.executable, torch_process=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rolltape", type=pathlib.Path)
    parser.add_argument("--emulated", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--sizes", type=int, nargs=3, default=[8, 24, 24],
                        metavar=("PROMPTS", "IN", "OUT"))
    args = parser.parse_args()
    args.emulated = args.emulated.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = run_of(args, folder)
        for model in MODELS:
            run.report.part(model[0], (1, 1800), functools.partial(one, run, model, args.sizes))
        compare.rest(run)
        return run.report.end()


def one(run, model, sizes):
    """Samples from a model on the emulated GPU, and compares the logprobs of all dtypes."""
    (what, config, std), (count, given, wanted) = model, sizes
    source = ROOT / "engine/models/tiny"
    if config:
        source = run.scratch / f"model-{std}"
        compare.make(run, source, config, std)
    # No limit for peaked logits of random weights: transformers has the same error there.
    most = compare.MEAN_MAX if config is None or std else None
    config = json.loads((source / "config.json").read_text())
    prompts = prompts_of(config, count, given)
    with Engine(run, ["--model", source], length=256) as engine:
        choices = engine.ask(prompts, wanted, temperature=1.0, seed=1, logprobs=0)
    replies = [{"prompt": prompt, "tokens": choice["token_ids"]}
               for prompt, choice in zip(prompts, choices)]
    means = compare.table(run, what, source, replies, logprobs_of(choices))
    compare.judge(run, what, means, most)


if __name__ == "__main__":
    sys.exit(main())
