"""`rolltape doctor` before a server that lies."""

import itertools
import json
import resource

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
    ended = harness.command("doctor", "--upstream", upstream.url, "--json", folder=tmp_path)
    upstream.stop()
    assert ended.returncode in (0, 1), ended.stderr
    told = json.dumps(json.loads(ended.stdout))
    assert "longer than 4194304 bytes" in told and "replies before had no end" in told
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 300 << 10
