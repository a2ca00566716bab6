"""Runs the test suites of other servers against rolltape's engine, and compares with `known.py`.

    python run.py [SUITE]... [--through proxy] [--write]

An unknown failure is an error, and so is a known one that passes. `--write` puts the table into
`docs/conformance-suites.md`; without it the table there must be the one that was found.
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
from engine import ROOT, SOURCES, TEMPLATES

HERE = Path(__file__).parent
PAGE = ROOT / "docs/conformance-suites.md"
LLAMA = "llama-cpp-python/vendor/llama.cpp/tools/server/tests"
WORKERS = "2"

SUITES = {
    "vllm": ("vLLM 0.33.0, entrypoints", SOURCES / "vllm", "vllm_suite", known.VLLM_FILES),
    "llamacpp": ("llama.cpp, server tests", SOURCES / LLAMA, "llama_suite", known.LLAMA_FILES),
    "sglang": ("SGLang 0.5.23, kits", HERE, None, ["sglang_suite.py"]),
}
"""Name in the table, folder, plugin and files of each suite that pytest runs."""
TITLES = {"defect": "defects", "absent": "absent", "model": "real model", "words": "other words"}


def run_pytest(name, through, extra):
    """The outcome of each test of a suite: `passed`, `failed` or `skipped`, and why."""
    _, folder, plugin, files = SUITES[name]
    out = Path(tempfile.mkdtemp()) / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(folder)]
    command += ["--confcutdir", str(folder), "-p", "outcomes", *(["-p", plugin] if plugin else [])]
    # llama.cpp's tests name one port, and mark those that need a model of some size.
    command += ["-n", WORKERS, "--dist", "loadfile"] if name == "vllm" else ["-m", "not slow"]
    environment = os.environ | {
        "PYTHONPATH": str(HERE),
        "ROLLTAPE_SUITE_OUTCOMES": str(out),
        "ROLLTAPE_SUITES_THROUGH": through,
    }
    chosen = [*files, *(f"--deselect={test}" for test in known.LEFT_OUT.get(name, ()))]
    result = subprocess.run(
        [*command, *extra, *chosen], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    if not out.exists():
        raise SystemExit(result.stdout[-4000:])
    return json.loads(out.read_text())


def matches(pattern, test):
    """Compares a test's name with a pattern: the whole name, or its start before a `*`."""
    return test.startswith(pattern[:-1]) if pattern.endswith("*") else test == pattern


def judge(name, outcomes, through):
    """The counts of a suite by reason, and the sentences about what is not as `known.py` says."""
    counts, wrong = Counter(), []
    entries = known.FAILURES[name] | (known.PROXY.get(name, {}) if through == "proxy" else {})
    unused = dict(entries)
    for test, (outcome, why) in sorted(outcomes.items()):
        pattern = max((p for p in entries if matches(p, test)), key=len, default=None)
        unused.pop(pattern, None)
        if outcome == "skipped":
            counts["skipped"] += 1
        elif outcome == "passed":
            counts["passed"] += 1
            if pattern:
                wrong.append(f"{name}: {test} passes, and known.py says that it fails: {entries[pattern]}")
        elif pattern:
            counts[entries[pattern][0]] += 1
        else:
            counts["unknown"] += 1
            wrong.append(f"{name}: {test} fails: {why}")
    wrong += [f"{name}: no test is named {pattern}" for pattern in unused]
    return counts, wrong


def run_templates():
    """Published templates by jinja2 and by ours, as `tests/python/oracle/templates.py` has them."""
    files = [*sorted(TEMPLATES.glob("*.jinja")), *sorted((SOURCES / "vllm/examples").glob("**/*.jinja"))]
    command = [sys.executable, str(ROOT / "tests/python/oracle/templates.py"), *map(str, files)]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    same = re.search(r"(\d+) of (\d+)", result.stdout)
    line = result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "nothing"
    wrong = [f"templates: {line}"] if result.returncode else []
    return f"{len(files)} templates: {same.group(0) if same else line}", wrong


def row(name, counts):
    total = sum(counts.values())
    cells = [f"{SUITES[name][0]} ({total})", counts["passed"]]
    cells += [counts[kind] for kind in (*TITLES, "skipped")]
    return "| " + " | ".join(map(str, cells)) + " |"


def table(rows):
    """The table of the page."""
    heads = ["suite (tests)", "passed", *TITLES.values(), "skipped"]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    return "\n".join([*lines, *rows]) + "\n"


def compare(text, write):
    """Holds the page to the table that was found, or writes it there."""
    start, end = "<!-- suites -->\n", "<!-- end: suites -->"
    page = PAGE.read_text()
    old = page[page.index(start) + len(start) : page.index(end)]
    if write:
        PAGE.write_text(page.replace(start + old + end, start + text + end))
        return []
    return [] if old == text else [f"{PAGE.name} has another table; `just suites --write` writes it"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help=" ".join((*SUITES, "schemas", "templates")))
    parser.add_argument("--through", default="engine", choices=("engine", "proxy"))
    parser.add_argument("--write", action="store_true")
    options, extra = parser.parse_known_args()
    chosen = options.suites or [*SUITES, "schemas", "templates"]
    rows, wrong, notes = [], [], []
    for name in chosen:
        started = time.monotonic()
        if name in SUITES:
            counts, found = judge(name, run_pytest(name, options.through, extra), options.through)
            rows.append(row(name, counts))
        elif name == "templates":
            note, found = run_templates()
            notes.append(note)
        else:
            import schemas_suite

            note, found = schemas_suite.run()
            notes.append(note)
        wrong += found
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)

    text = table(rows) + "\n" + "".join(f"- {note}\n" for note in notes)
    print(text)
    if not options.suites and options.through == "engine":
        wrong += compare(text, options.write)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
