"""Copies the tapes into the corpora of the fuzz targets, in the form that each target reads.

A seed is a text and 8 bytes, the knobs, that say what is done with it; see `Knobs` in src/lib.rs.
"""

import gzip
import json
import pathlib
import random
import re
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TAPES = HERE.parent / "tapes"
DIALECTS = ["vllm", "sglang", "llamacpp", "rolltape", "openai"]
ROUTES = ["chat", "completions", "responses", "messages"]
TRANSLATED = ["messages", "responses"]
SEPARATOR = b"\x1e"


def knobs(name, *first):
    """Knobs that begin with `first`; the others differ from seed to seed and run to run alike."""
    rest = zlib.crc32(name.encode()).to_bytes(4, "little") * 2
    return bytes(first) + rest[len(first) :]


def plant(target, name, text, *first):
    folder = HERE / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name.replace("/", "-")).write_bytes(text + knobs(name, *first))


def case(entry):
    name, route = entry["name"], ROUTES.index(entry["wire"])
    dialect = DIALECTS.index(entry["upstream"])
    base = TAPES / name
    read = lambda ending: base.with_name(base.name + "." + ending).read_bytes()
    request, sent, asked = read("request.json"), read("sent.json"), read(entry["asked"])
    plant("editor", name, request, 0)
    plant("editor", name + "/sent", sent, 0)
    plant("requests", name, request, 0, dialect)
    plant("splitter", name, asked)
    plant("hider", name, asked, route, 0)
    plant("collector", name, asked, route, 0, 2)
    plant("foreign", name, asked, route)
    plant("foreign", name + "/request", request, route)
    # The chat route is what is translated; every reply is read back.
    for at, _ in enumerate(TRANSLATED):
        plant("replies", f"{name}/{at}", asked, at, dialect, at, 2)
    own = request + SEPARATOR + asked
    plant("replies", name + "/own", own, TRANSLATED.index(entry["wire"]) if route > 1 else 0, 0)


def hostile():
    """Replies that are small and ask for much: the fuzzer seldom thinks of them by itself."""
    choices = [{"index": n} for n in range(600)]
    spans = [{"version": "1", "start": 0, "end": 1}] * 200
    long = "x" * 6000
    most = 2**64 - 1
    calls = {"choices": [{"delta": {"tool_calls": [{}] * 1000}}]}
    usage = {"input_tokens": most, "cache_read_input_tokens": most}
    for name, reply in {
        "spans": {"choices": choices, "metadata": {"weight_versions": spans}},
        "version": {"choices": choices, "metadata": {"weight_version": long}},
        "id": {"id": long} | calls,
        "counts": {"usage": usage, "timings": {"prompt_n": most, "cache_n": most}},
        "code": {"error": {"message": long, "code": most}},
    }.items():
        event = b"data: " + json.dumps(reply).encode() + b"\n\n"
        for route, _ in enumerate(ROUTES):
            plant("collector", f"hostile-{name}-{route}", event, route, 0, 0)
        for route, _ in enumerate(TRANSLATED):
            plant("replies", f"hostile-{name}-{route}", event, route, 0, 0, 2)
    deep = b'{"messages":' + b"[" * 8000
    for target in ["editor", "requests", "hider", "collector"]:
        plant(target, "hostile-deep", deep, 0, 0)


REQUESTS = """POST /e/a/v1/chat/completions
POST /e/a/a/3/v1/responses?x=1
POST //e/a/./v1/%63hat/completions
GET /v1/models
POST /v1/chat/completions
x-episode-id: a
x-attempt: 2
x-group-id: g
x-episode-tag: k=v
POST /v1/messages
x-api-key: $KEY
authorization: Bearer $KEY
POST /e/a/v1/completions
authorization: bearer  $KEY
x-session-id: ses_1
POST /v1/chat/completions
cookie: k=$KEY
x-claude-code-session-id: s-1"""
BODY = '{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":{"user_id":"a"}}'
CONTROL = [
    '{"episode_id":"a","attempt":1,"group_id":"g","group_size":2,"labels":{"k":1}}',
    '{"value":null,"scope":"call","call_id":"x","choice":0,"start":1,"end":2}',
    '{"episodes":[{"episode_id":"a","attempt":0}],"delay_s":1,"lease_s":2}',
    '{"version":7,"checksum":"c"}',
    '{"status":"completed","ttl_s":3}',
    "attempt=1&consumer=t&limit=2",
    "attempt=%31&%61ttempt=2",
]


def requests():
    """Tagged requests; bodies and queries of the control listener; coded bodies."""
    for at, request in enumerate(re.split(r"\n(?=[A-Z]+ /)", REQUESTS)):
        for method, body in enumerate(["", BODY]):
            plant("tags", f"{at}-{method}", f"{request}\n\n{body}".encode(), method)
    for at, text in enumerate(CONTROL):
        plant("control", str(at), text.encode(), 0, 0)
    bomb = bytes(1 << 20)
    for at, coded in enumerate([gzip.compress(bomb), zlib.compress(bomb)]):
        plant("codings", f"bomb-{at}", coded, at, 0)
    for at in range(4):
        plant("codings", f"text-{at}", BODY.encode() * 9, at, 1)


def main():
    # There is no tape of an answer alone: the target reads any bytes as one.
    for n in range(32):
        plant("conversations", f"random-{n}", random.Random(n).randbytes(16 * n))
    hostile()
    requests()
    for entry in json.loads((TAPES / "index.json").read_text()):
        case(entry)


main()
