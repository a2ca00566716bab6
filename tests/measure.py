#!/usr/bin/env python3
"""Measures how the Rust code reads; docs/design/0014-the-house.md has the table.

measure.py            the table, of code that is not tests
measure.py --crate C  the same of one crate
measure.py --list M   the places that a measure counts: long, dense, closures, shadows, tuples,
                      parameters, openers, names, folders, tests
measure.py --hold     fails where a measure is over its limit
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What `--hold` allows of each measure. A limit may only fall.
LIMITS = {"dense": 0, "names": 40, "parameters": 0, "tests": 0}
TEST_NAME_LETTERS_MAX = 60
CRATES = "cli engine episode exporter kernels proxy store template viewer wire".split()
TEST_FILES = {"tests.rs", "properties.rs", "site.rs", "conservation.rs", "conformance.rs"}

# A doc comment opens with a noun or a verb; these open a question or an aside.
OPENERS = re.compile(
    r"(What|Whatever|Whether|How|However|Where|Wherever|When|Why|Which|Whichever|Who|Whose|That|If)\b"
)
FUNCTION = re.compile(r"^\s*(?:pub(?:\([a-z: ]+\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)")
# An indented `type` is that of a trait, which each implementation must repeat.
TYPE = re.compile(
    r"^(?:\s*(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|trait|union)|(?:pub(?:\([a-z: ]+\))? )?type) "
    r"([A-Z]\w*)"
)
CLOSURE = re.compile(r"^\s*let (?:mut )?\w+(?:: [^=]+)? = (?:move |async |async move )?\|")
LET = re.compile(r"^(\s*)let (?:mut )?(\w+)(?:: [^=]+)? = ")
# Strings, character literals and comments; a lifetime is no literal.
OPAQUE = re.compile(
    r"""r(?P<h>\#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{\w+\}|x\w\w|.)|[^'\\\n])'|//[^\n]*|/\*.*?\*/""",
    re.S,
)


@dataclasses.dataclass
class Function:
    """A function of a file: its lines without and with comments, and its parameters."""

    name: str
    line: int
    body: list[str]
    parameters: list[str]

    @property
    def code(self):
        return [line for line in self.body if line.strip() and not line.lstrip().startswith("//")]

    @property
    def blanks(self):
        return sum(not line.strip() for line in self.body)

    @property
    def comments(self):
        return sum("//" in line for line in self.body)


@dataclasses.dataclass
class File:
    path: pathlib.Path
    lines: list[str]
    functions: list[Function]

    def place(self, line):
        return f"{self.path.relative_to(ROOT)}:{line}"


def blanked(text):
    """The text with spaces for its strings, character literals and comments."""
    return OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def closing(text, start, pair="{}"):
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if depth == 0:
            return at
    return len(text)


def parameters_of(text, start):
    """The parameters of the function whose name ends at `start`, and where they end."""
    opened = text.index("(", closing(text, start, "<>") if text[start] == "<" else start)
    closed = closing(text, opened, "()")
    parts, depth = [""], 0
    for symbol in text[opened + 1 : closed].replace("->", "  "):
        depth += symbol in "([{<"
        depth -= symbol in ")]}>"
        if symbol == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += symbol
    return [part.strip() for part in parts if part.strip()], closed


def functions_of(text):
    plain = blanked(text)
    lines, starts = text.splitlines(), [0]
    for line in plain.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for number, line in enumerate(plain.splitlines()):
        found = FUNCTION.match(line)
        if not found:
            continue
        parameters, closed = parameters_of(plain, starts[number] + found.end())
        opened = re.compile(r"[{;]").search(plain, closed)
        if not opened or opened[0] == ";":
            continue
        first = plain.count("\n", 0, opened.start())
        last = plain.count("\n", 0, closing(plain, opened.start()))
        yield Function(found[1], number + 1, lines[first + 1 : last], parameters)


def files(crates):
    for crate in crates:
        for path in sorted((ROOT / crate).rglob("src/**/*.rs")):
            if path.name in TEST_FILES or "tests" in path.parts:
                continue
            text = path.read_text().split("\n#[cfg(test)]\nmod tests {")[0]
            yield File(path, text.splitlines(), list(functions_of(text)))


def long_test_names():
    """Rust tests whose name is a sentence that is too long."""
    test = re.compile(r"#\[(?:tokio::)?test[^\n]*\]\n(?:\s*#\[[^\n]*\n)*\s*(?:async )?fn (\w+)")
    for path in sorted(ROOT.glob("*/**/*.rs")):
        if "target" in path.parts or any(part.startswith(".") for part in path.parts):
            continue
        text = path.read_text()
        for found in test.finditer(text):
            if len(found[1]) > TEST_NAME_LETTERS_MAX:
                yield f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start(1)) + 1} {found[1]}"


def unpacked(parameter):
    """How many things a parameter holds: a tuple's are counted one by one."""
    of_type = parameter.split(":", 1)[-1].strip().lstrip("&").strip()
    return of_type.count(",") + 1 if of_type.startswith("(") and "," in of_type else 1


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0


def shadows(file):
    """`let x = ..` right after a `let x = ..`."""
    before = None
    for number, line in enumerate(file.lines, 1):
        found = LET.match(line)
        if found and before == found.groups():
            yield number
        if found or (line.strip() and not line.startswith(" " * 8)):
            before = found and found.groups()


def documented(file):
    """First lines of doc comments."""
    before = ""
    for number, line in enumerate(file.lines, 1):
        text = line.strip()
        if text.startswith(("/// ", "//! ")) and not before.startswith(text[:3]):
            yield number, text[4:]
        before = text


def places(found):
    """What each measure counts, as lines for a reader."""
    every = [(file, function) for file in found for function in file.functions]
    long = [pair for pair in every if len(pair[1].code) >= 20]
    tell = lambda pairs: [f"{file.place(f.line)} {f.name}" for file, f in pairs]
    types = collections.defaultdict(set)
    for file in found:
        for number, line in enumerate(file.lines, 1):
            if name := TYPE.match(line):
                if name[1] not in ("Err", "Error", "Data", "Args", "Item", "Output"):
                    types[name[1]].add(file.place(number))
    folders = collections.Counter(file.path.parent.relative_to(ROOT) for file in found)
    return {
        "long": tell(pair for pair in every if len(pair[1].code) > 60),
        "dense": tell(pair for pair in long if not pair[1].blanks),
        "closures": [
            file.place(number)
            for file in found
            for number, line in enumerate(file.lines, 1)
            if CLOSURE.match(line)
        ],
        "shadows": [file.place(number) for file in found for number in shadows(file)],
        "tuples": tell(
            pair for pair in every if any(unpacked(part) > 1 for part in pair[1].parameters)
        ),
        "parameters": tell(pair for pair in every if sum(map(unpacked, pair[1].parameters)) > 5),
        "openers": [
            f"{file.place(number)} {text}"
            for file in found
            for number, text in documented(file)
            if OPENERS.match(text)
        ],
        "names": [
            f"{name} {len(at)}: {' '.join(sorted(at))}"
            for name, at in sorted(types.items(), key=lambda entry: (-len(entry[1]), entry[0]))
            if len(at) > 1
        ],
        "folders": [f"{folder} {count}" for folder, count in folders.most_common()],
        "types": list(types),
        "docs": [number for file in found for number in documented(file)],
        "tests": list(long_test_names()),
        "twenty": long,
        "functions": every,
    }


def table(found, counted):
    count = {name: len(entries) for name, entries in counted.items()}
    lines = sum(len(file.lines) for file in found)
    share = lambda part, whole: f"{100 * part / max(whole, 1):.1f} %"
    sizes = [len(file.lines) for file in found]
    codes = [len(function.code) for _, function in counted["functions"]]
    twenty = [function for _, function in counted["twenty"]]
    inside = sum(function.comments for function in twenty)
    body = sum(len(function.body) for function in twenty)
    yield "files, lines", f"{len(found)}, {lines}"
    yield "lines of a file, p50 / p95 / max", "{} / {} / {}".format(
        *(percentile(sizes, part) for part in (0.5, 0.95, 1))
    )
    yield "code lines of a function, p95 / max", "{} / {}".format(
        *(percentile(codes, part) for part in (0.95, 1))
    )
    yield "functions over 60 lines", count["long"]
    yield "functions of 20 lines and more without a blank line", "{} of {}, {}".format(
        count["dense"], len(twenty), share(count["dense"], len(twenty))
    )
    yield "comment lines inside those of 20 and more", share(inside, body)
    yield "closures bound by `let`, per 1,000 lines", f"{1000 * count['closures'] / lines:.1f}"
    yield "`let x = ..; let x = ..`, per 1,000 lines", f"{1000 * count['shadows'] / lines:.2f}"
    yield "functions with a tuple of parameters", share(count["tuples"], len(codes))
    yield "functions that take more than five things", count["parameters"]
    yield "doc comments that open with What, Whether, How ...", share(
        count["openers"], count["docs"]
    )
    yield "type names in several files", f"{count['names']} of {count['types']}"
    yield f"names of tests over {TEST_NAME_LETTERS_MAX} letters", count["tests"]
    yield "files in the largest folder", counted["folders"][0].replace(" ", ": ")


def over_limits(counted):
    """The measures that are over their limits, with their places."""
    for name, limit in LIMITS.items():
        if len(counted[name]) > limit:
            yield f"{name}: {len(counted[name])}, at most {limit}"
            yield from (f"  {place}" for place in counted[name])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crate", choices=CRATES, action="append")
    parser.add_argument("--list", metavar="MEASURE")
    parser.add_argument("--hold", action="store_true")
    asked = parser.parse_args()
    found = list(files(asked.crate or CRATES))
    counted = places(found)
    if asked.list:
        print("\n".join(counted[asked.list]))
        return
    if asked.hold:
        over = list(over_limits(counted))
        sys.exit("\n".join(over) if over else 0)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    print(f"| at {commit.stdout.strip()} | |\n| --- | --- |")
    for name, value in table(found, counted):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
