"""Many paced streams at once through one `rolltape serve`: each whole, each recorded, and the
memory that a stream takes.

    ROLLTAPE_BIN=target/release/rolltape python tests/python/streams.py 10000

Agents, upstream and rolltape are three processes of this machine. Each stream needs two file
descriptors of rolltape: `ulimit -Hn` must be 22,000 for 10,000 streams.
"""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

REQUEST = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}).encode()
AT_ONCE = 500
"""Connections that are opened at a time."""


def event(number, ends=False):
    choice = {
        "index": 0,
        "delta": {"content": "x"},
        "token_ids": [number],
        "finish_reason": "stop" if ends else None,
    }
    said = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return f"data: {json.dumps(said)}\n\n".encode()


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answer(reader, writer, events, pause_s):
    """Answers the requests of one connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lengths = [l for l in head.lower().split(b"\r\n") if l.startswith(b"content-length:")]
            if lengths:
                await reader.readexactly(int(lengths[0].split(b":")[1]))
            if head.startswith(b"POST"):
                writer.write(HEAD)
                for number in range(events):
                    writer.write(chunk(event(number, ends=number + 1 == events)))
                    await asyncio.sleep(pause_s)
                writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            else:
                size = str(len(MODELS)).encode()
                kind = b"content-type: application/json"
                reply = b"HTTP/1.1 200 OK\r\n" + kind + b"\r\ncontent-length: " + size
                writer.write(reply + b"\r\n\r\n" + MODELS)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def upstream(events, pause_s):
    """Serves until it is killed; the port is the first line."""
    serve = lambda reader, writer: answer(reader, writer, events, pause_s)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def stream(address, number, gate, begun):
    """One stream; whether it was whole."""
    body = json.dumps(REQUEST).encode()
    path = f"/e/s-{number}/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    async with gate:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head.encode() + body)
        received = await reader.readuntil(b"data: ")
    begun.append(number)
    received += await reader.read(-1)
    writer.close()
    return received.endswith(b"0\r\n\r\n") and b"data: [DONE]" in received


def resident(process):
    """The memory of a process, in KiB."""
    status = Path(f"/proc/{process.child.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


async def measure(proxy, count):
    """Opens all streams, looks at the memory when all are open, and waits for their ends."""
    gate, begun = asyncio.Semaphore(AT_ONCE), []
    await asyncio.gather(*(stream(proxy.data, f"warm-{n}", gate, []) for n in range(20)))
    idle = resident(proxy.process)
    streams = asyncio.gather(*(stream(proxy.data, n, gate, begun) for n in range(count)))
    most = idle
    while len(begun) < count and not streams.done():
        await asyncio.sleep(0.2)
    together = len(begun)
    while not streams.done():
        most = max(most, resident(proxy.process))
        await asyncio.sleep(0.5)
    whole = sum(await streams)
    return {
        "streams": count,
        "whole": whole,
        "begun_before_the_first_look": together,
        "idle_kib": idle,
        "most_kib": most,
        "kib_a_stream": round((most - idle) / count, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", type=int, nargs="?", default=10_000)
    parser.add_argument("--events", type=int, default=12)
    parser.add_argument("--pause-s", type=float, default=5)
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    harness.raise_descriptors()
    if args.upstream:
        asyncio.run(upstream(args.events, args.pause_s))
        return

    paces = ["--events", str(args.events), "--pause-s", str(args.pause_s)]
    command = [sys.executable, __file__, "--upstream", *paces]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as served:
        port = int(served.stdout.readline())
        with tempfile.TemporaryDirectory() as folder:
            where = ("--upstream", f"http://127.0.0.1:{port}")
            with harness.serve(Path(folder), *where) as proxy:
                found = asyncio.run(measure(proxy, args.streams))
                with sqlite3.connect(proxy.store) as store:
                    query = "SELECT count(*) FROM calls WHERE outcome = 'complete'"
                    found["recorded"] = store.execute(query).fetchone()[0] - 20
        served.kill()
    print(json.dumps(found))
    ends_well = found["whole"] == found["recorded"] == args.streams
    sys.exit(0 if ends_well else 1)


if __name__ == "__main__":
    main()
