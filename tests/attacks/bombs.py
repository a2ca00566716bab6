"""What the bombs of less than 75 bytes cost, as a table: `python tests/attacks/bombs.py`, with the
release binary in `ROLLTAPE_BIN`.

Each bomb is sent ten times after one that is not counted; the table has the median, and of memory
the most above what was resident before the first.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import costs
import hostile

MIB = 1 << 20
TIMES = 10
CODED = [("content-encoding", "br")]


def request_bomb(stage):
    """A request that decodes to 20 MiB."""
    body = costs.coded("brotli", b'{"model":"m","messages":[],"x":"' + b" " * (20 * MIB) + b'"}')
    proxy = stage("--dialect", "vllm")
    return len(body), 413, proxy, lambda: hostile.post(proxy, body=body, headers=CODED)


def reply_bomb(stage):
    """A reply that decodes to 16 MiB."""
    document = b'{"choices":[{"index":0}],"x":"' + b" " * (16 * MIB) + b'"}'
    body = costs.coded("brotli", document)
    bomb = hostile.reply(body, headers=CODED)
    proxy = stage("--dialect", "vllm", answer=lambda request: bomb)
    return len(body), 502, proxy, lambda: hostile.post(proxy, "/e/a" + hostile.CHAT)


def plain_call(stage):
    """A call without a bomb, beside them."""
    proxy = stage("--dialect", "vllm")
    return len(json.dumps(hostile.BODY)), 200, proxy, lambda: hostile.post(proxy, "/e/a" + hostile.CHAT)


def measured(bomb):
    """The cells of a bomb's row."""
    with tempfile.TemporaryDirectory() as folder, hostile.Stage(Path(folder)) as stage:
        size, status, proxy, send = bomb(stage)
        assert send().status == status
        costs_of_all = []
        for _ in range(TIMES):
            with costs.Cost(proxy) as cost:
                assert send().status == status
            costs_of_all.append(cost)
    wall = statistics.median(cost.wall_s for cost in costs_of_all) * 1000
    cpu = sum(cost.cpu_s for cost in costs_of_all) / TIMES * 1000
    most = max(cost.mib for cost in costs_of_all)
    return f"| {bomb.__doc__.rstrip('.')} | {size} | {status} | {most:.1f} | {wall:.1f} | {cpu:.0f} |"


def main():
    print("| bomb | bytes | status | MiB | ms | processor ms |\n|---|---|---|---|---|---|")
    for bomb in (plain_call, request_bomb, reply_bomb):
        print(measured(bomb))


if __name__ == "__main__":
    main()
