"""Logprobs of the same tokens beside those of transformers."""

import json
import statistics
import subprocess

OURS = "ours"
# The largest mean difference that is allowed, the mismatch that trainers publish.
MEAN_MAX = 0.01
# How far we may be from f32, as a part of how far transformers is in bf16.
SHARE_MAX = 1.25


def reference(run, what, *options, seconds=150):
    """What `reference.py` says, in a process of its own."""
    out = run.scratch / f"{what}.json"
    out.unlink(missing_ok=True)
    script = __file__.replace("compare.py", "reference.py")
    command = [run.python, script, what, out, "--torch-device", run.torch_device, *options]
    log = run.report.folder / f"reference-{what}.txt"
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run(list(map(str, command)), stdout=file, stderr=file,
                              timeout=run.report.limit(seconds))
    if done.returncode != 0:
        said = log.read_text()[-1500:]
        raise RuntimeError(f"torch, asked to {what}, ended with {done.returncode}: {said}")
    return json.loads(out.read_text())


def make(run, folder, config, std=None):
    """A model folder of random weights."""
    path = run.scratch / "made.json"
    path.write_text(json.dumps(config))
    options = ["--folder", folder, "--config", path]
    return reference(run, "make", *options, *(["--std", std] if std else []))


def differences(first, second):
    """Mean and largest absolute difference of two lists of replies."""
    apart = [abs(a - b) for x, y in zip(first, second) for a, b in zip(x, y)]
    return statistics.fmean(apart), max(apart)


def table(run, what, folder, replies, found):
    """All ways to compute beside f32, and ours beside transformers; returns the means."""
    path = run.scratch / "replies.json"
    path.write_text(json.dumps(replies))
    ways = reference(run, "score", "--folder", folder, "--replies", path)
    ways[OURS] = found
    theirs = [way for way in ways if way not in (OURS, "f32")]
    pairs = [(OURS, "f32")] + [(way, "f32") for way in theirs] + [(OURS, way) for way in theirs]
    count, means = sum(len(reply["tokens"]) for reply in replies), {}
    for first, second in pairs:
        mean, largest = differences(ways[first], ways[second])
        means[first, second] = mean
        run.report.row(f"{what}: {first} beside {second}: mean |difference| {mean:.5f}, largest "
                       f"{largest:.4f} ({count} sampled tokens)", mean=mean, largest=largest)
    return means


def judge(run, what, means, most=None):
    """As near to f32 as transformers in bf16 is, and within what is allowed beside it."""
    ours, theirs = means[OURS, "f32"], means["bf16, logits in f32", "f32"]
    run.report.check(f"{what}: as near to f32 as transformers", ours <= SHARE_MAX * theirs,
                     f"{ours:.5f}, transformers in bf16 {theirs:.5f}")
    if most is not None:
        apart = means[OURS, "bf16, logits in f32"]
        run.report.check(f"{what}: beside transformers in bf16", apart <= most,
                         f"mean |difference| {apart:.5f}, at most {most}")
