"""Logprobs of the same tokens, compared with those of transformers."""

import json
import pathlib
import select
import statistics
import subprocess

OURS = "ours"
# The tolerance of the mean difference: the mismatch that trainers publish.
MEAN_MAX = 0.01
# The tolerance of our error against f32, as a multiple of that of transformers in bf16.
SHARE_MAX = 1.25


class Torch:
    """The process that has torch imported. There is one, because the import takes many seconds."""

    def __init__(self, run):
        script = __file__.replace("compare.py", "reference.py")
        self.log = run.report.folder / "reference.txt"
        with open(self.log, "a", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [run.python, script, "--torch-device", run.torch_device], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)

    def ask(self, what, asked, seconds):
        """Its answer to one question."""
        print(json.dumps({"what": what, **asked}), file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"torch, asked to {what}, did not answer in {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError(f"torch, asked to {what}, ended with {self.process.returncode}: "
                               f"{self.log.read_text()[-1500:]}")
        return json.loads(line)

    def close(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


def begin(run):
    """Starts the process, whose import of torch runs beside other parts."""
    run.torch_process = run.torch_process or Torch(run)


def rest(run):
    """Ends the process; the next question starts it again."""
    process, run.torch_process = run.torch_process, None
    if process:
        process.close()


def reference(run, what, seconds=150, **asked):
    """Asks `reference.py`. A process that does not answer is ended."""
    begin(run)
    asked = {name: str(value) if isinstance(value, pathlib.Path) else value
             for name, value in asked.items()}
    try:
        answer = run.torch_process.ask(what, asked, run.report.limit(seconds))
    except BaseException:
        rest(run)
        raise
    if "error" in answer:
        raise RuntimeError(f"torch, asked to {what}: {answer['error']}")
    return answer["found"]


def make(run, folder, config, std=None):
    """Writes a model folder of random weights."""
    return reference(run, "make", folder=folder, config=config, std=std)


def differences(first, second):
    """Returns the mean and the largest absolute difference of two lists of replies."""
    apart = [abs(a - b) for x, y in zip(first, second) for a, b in zip(x, y)]
    return statistics.fmean(apart), max(apart)


def table(run, what, folder, replies, found):
    """Reports and returns mean errors: of each dtype against f32, and ours against transformers."""
    ways = reference(run, "score", folder=folder, replies=replies)
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
    """Checks that our error against f32 is like that of transformers in bf16, and that they differ
    by at most `most`."""
    ours, theirs = means[OURS, "f32"], means["bf16, logits in f32", "f32"]
    run.report.check(f"{what}: as near to f32 as transformers", ours <= SHARE_MAX * theirs,
                     f"{ours:.5f}, transformers in bf16 {theirs:.5f}")
    if most is not None:
        judge_apart(run, what, means, most)


def judge_apart(run, what, means, most):
    """Checks that we differ from transformers in bf16 by at most `most`."""
    apart = means[OURS, "bf16, logits in f32"]
    run.report.check(f"{what}: beside transformers in bf16", apart <= most,
                     f"mean |difference| {apart:.5f}, at most {most}")
