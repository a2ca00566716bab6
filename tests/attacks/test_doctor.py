"""`rolltape doctor` before a server that lies."""

import itertools
import json
import os
import subprocess

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


def test_a_stream_without_an_end_ends_the_probe(tmp_path):
    upstream = hostile.Upstream(endless)
    asked = [harness.binary(), "doctor", "--upstream", upstream.url, "--json"]
    with subprocess.Popen(asked, cwd=tmp_path, stdout=subprocess.PIPE) as doctor:
        said = doctor.stdout.read()
        # Of this process alone: other tests of this worker had children, too.
        _, status, used = os.wait4(doctor.pid, 0)
        doctor.returncode = os.waitstatus_to_exitcode(status)
    upstream.stop()
    assert doctor.returncode in (0, 1)
    told = json.dumps(json.loads(said))
    assert "longer than 4194304 bytes" in told and "replies before had no end" in told
    assert used.ru_maxrss < 300 << 10
