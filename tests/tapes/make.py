"""Write the pairs of tapes: what a server answers when it is asked for more, and when it is not.

A case is an agent's request and a script of what the engine sampled. `asked` is the answer of the
server (maker/) to the request that rolltape sends, `plain` its answer to the agent's own. Both
come from the one script, so nothing but the ask can differ.

    python make.py            write all tapes and index.json
    python make.py --check    compare with what is here, and check the pairs themselves
"""

import json
import sys
from pathlib import Path

from maker import cases
from maker.checks import check
from maker.files import files

HERE = Path(__file__).resolve().parent
UPSTREAMS = ("vllm", "sglang", "llamacpp", "openai")
# Folders of bytes that were recorded from running servers: no script writes them.
RECORDED = ("generate", "real")


def main():
    wanted, index = {}, []
    for case in cases.all():
        made, entry = files(case)
        check(case, made)
        assert not wanted.keys() & made.keys(), case.name
        wanted |= made
        index.append(entry)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in index)
    wanted["index.json"] = f"[\n{lines}\n]\n"
    if "--check" in sys.argv[1:]:
        wrong = [name for name, text in wanted.items() if read(HERE / name) != text.encode()]
        there = [path for upstream in UPSTREAMS for path in HERE.glob(f"{upstream}/*/*")]
        there = [path for path in there if path.parent.name not in RECORDED]
        kept = {path.relative_to(HERE).as_posix() for path in there}
        wrong += sorted(kept - wanted.keys())
        if wrong:
            sys.exit("not as make.py writes them:\n" + "\n".join(wrong))
    else:
        for name, text in wanted.items():
            (HERE / name).parent.mkdir(parents=True, exist_ok=True)
            (HERE / name).write_bytes(text.encode())
    print(f"{len(index)} cases, {len(wanted)} files")


def read(path):
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    main()
