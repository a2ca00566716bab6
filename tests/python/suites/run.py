"""Runs the test suites of other servers against rolltape's engine, and compares with `known.py`.

    python run.py [SUITE]... [--through proxy] [--write] [--keep FOLDER]

A failure that `known.py` does not list is an error, and so is one that it lists and that passes.
A run of all suites holds `docs/suites.md` to what was found; `--write` puts it there. `--keep`
writes each test's outcome.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import known
import report
from engine import ROOT, SOURCES, TEMPLATES

HERE = Path(__file__).parent
LLAMA = "llama-cpp-python/vendor/llama.cpp/tools/server/tests"
WORKERS = "2"

PLACES = {
    "vllm": (SOURCES / "vllm", "vllm_suite"),
    "llamacpp": (SOURCES / LLAMA, "llama_suite"),
    "sglang": (HERE, None),
    "sdk": (HERE, None),
}
"""The folder and the plugin of each suite that pytest runs."""


def run_pytest(name, given):
    """The outcome of each test of a suite: `passed`, `failed` or `skipped`, and why."""
    folder, plugin = PLACES[name]
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(folder)]
    command += ["--confcutdir", str(folder), "-p", "outcomes", *(["-p", plugin] if plugin else [])]
    # llama.cpp marks those that need a model of some size.
    command += ["-n", WORKERS, "--dist", "loadfile", "-m", "not slow"]
    command += [f"--deselect={test}" for test in known.NOT_RUN.get(name, ())]
    with tempfile.TemporaryDirectory(prefix="rolltape-suite-") as scratch:
        out = Path(scratch) / "outcomes.json"
        environment = os.environ | {
            "PYTHONPATH": str(HERE),
            "ROLLTAPE_SUITE_OUTCOMES": str(out),
            "ROLLTAPE_SUITES_THROUGH": given.through,
            # The models and stores of all tests are thrown away with it.
            "TMPDIR": scratch,
        }
        result = subprocess.run(
            [*command, *known.FILES[name]], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        if not out.exists():
            raise SystemExit(result.stdout[-4000:])
        return json.loads(out.read_text())


def matches(pattern, test):
    """Compares a test's name with a pattern, where a `*` stands for any text."""
    texts = pattern.split("*")
    return re.fullmatch(".*".join(map(re.escape, texts)), test) is not None


def expected(name, through):
    """The failures of a suite that are known, by pattern: a reason each."""
    closed = known.PROXY.get(name, ()) if through == "proxy" else ()
    return known.FAILURES[name] | dict.fromkeys(closed, known.CLOSED)


def judge(name, outcomes, entries):
    """The counts of a suite by reason, and the sentences about what is not as `known.py` says."""
    counts, wrong = Counter(), []
    unused = set(entries)
    for test, (outcome, why) in sorted(outcomes.items()):
        pattern = max((p for p in entries if matches(p, test)), key=len, default=None)
        unused.discard(pattern)
        if outcome == "failed":
            counts[entries[pattern].kind if pattern else "unknown"] += 1
            if not pattern:
                wrong.append(f"{name}: {test} fails, and known.py does not say so: {why}")
            continue
        counts[outcome] += 1
        if outcome == "passed" and pattern:
            reason = entries[pattern].text
            wrong.append(f"{name}: {test} passes, and known.py says that it fails: {reason}")
    wrong += [f"{name}: no test is named {pattern}" for pattern in sorted(unused)]
    return counts, wrong


def run_templates(given):
    """Published templates by jinja2 and by ours, as `tests/python/oracle/templates.py` has them."""
    files = [*sorted(TEMPLATES.glob("*.jinja")), *sorted((SOURCES / "vllm/examples").glob("**/*.jinja"))]
    command = [sys.executable, str(ROOT / "tests/python/oracle/templates.py"), *map(str, files)]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    found = re.search(r"(\d+) compared, (\d+) of them refused by both, (\d+) differ", result.stdout)
    if not found:
        raise SystemExit(result.stdout[-4000:])
    compared, refused, differ = map(int, found.groups())
    counts = Counter(passed=compared - refused - differ, refused=refused, unknown=differ)
    wrong = [f"templates: {differ} differ:\n{result.stdout[-2000:]}"] if differ else []
    return report.Row(f"{len(files)} chat templates, beside transformers", counts), wrong


def run_schemas(given):
    """The schemas of the JSON Schema Test Suite as forms of replies."""
    import schemas_suite

    found = schemas_suite.outcomes()
    counts, refusals = schemas_suite.counted(found)
    wrong = [f"schemas: {name}: {why}" for name, (outcome, why) in found.items() if outcome == "defect"]
    if refusals != known.REFUSED_SCHEMAS:
        wrong.append(f"schemas: refused are {dict(refusals)}, and known.py has other counts")
    counts = Counter(passed=counts["valid"], absent=counts["refused"], skipped=counts["unfinished"],
                     unknown=counts["defect"])
    return report.Row(known.TITLES["schemas"], counts), wrong


def run_suite(name, given):
    """The row of a suite that pytest runs, and what is wrong with it."""
    outcomes = run_pytest(name, given)
    if given.keep:
        Path(given.keep).mkdir(parents=True, exist_ok=True)
        text = json.dumps(outcomes, indent=1)
        (Path(given.keep) / f"{name}-{given.through}.json").write_text(text)
    entries = expected(name, given.through)
    counts, wrong = judge(name, outcomes, entries)
    counts.update(reason.kind for reason in known.NOT_RUN.get(name, {}).values())
    return report.Row(known.TITLES[name], counts), wrong


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help=" ".join(known.TITLES))
    parser.add_argument("--through", default="engine", choices=("engine", "proxy"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--keep")
    given = parser.parse_args()
    given.suites = given.suites or list(known.TITLES)
    return given


def main():
    given = arguments()
    rows, wrong = [], []
    for name in given.suites:
        started = time.monotonic()
        run = {"templates": run_templates, "schemas": run_schemas}.get(name)
        row, found = run(given) if run else run_suite(name, given)
        rows.append(row)
        wrong += found
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)

    text = report.page(rows)
    print(text)
    if given.through == "engine" and set(given.suites) == set(known.TITLES):
        wrong += report.compare(text, given.write)
    print("\n".join(wrong))
    failed = len(wrong)
    print(f"{sum(row.counts['passed'] for row in rows)} passed, {failed} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
