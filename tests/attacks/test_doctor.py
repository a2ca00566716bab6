"""`rolltape doctor` before a server that lies."""

import itertools
import json
import subprocess
import sys

import harness
import hostile
import paths

PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 4000 + b'"}}]}\n\n'
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}


def endless(request):
    """Streams without an end, whatever was asked."""
    if request.method == "GET":
        return hostile.reply(MODELS) if "models" in request.path else paths.vllm(request)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    return itertools.chain([head], itertools.repeat(PIECE))


# Linux counts the memory of whoever starts a process as that of the process, and a worker of these
# tests may be large. So a small one starts it, and says its exit code and its KiB.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


def test_a_stream_without_an_end_ends_the_probe(tmp_path):
    upstream = hostile.Upstream(endless)
    asked = [harness.binary(), "doctor", "--upstream", upstream.url, "--json"]
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *asked], cwd=tmp_path, capture_output=True, text=True
    )
    upstream.stop()
    code, kib = map(int, ended.stderr.splitlines()[-1].split())
    assert code in (0, 1)
    told = json.dumps(json.loads(ended.stdout))
    assert "longer than 4194304 bytes" in told and "replies before had no end" in told
    assert kib < 300 << 10
