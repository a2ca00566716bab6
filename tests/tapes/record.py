"""Record pairs of tapes from a running server: what it answers when it is asked for more, and when
it is not.

    python record.py FOLDER URL [CASE...]     such as: vllm_rust http://127.0.0.1:8000

The requests are those of CASES. The bytes are the server's own, but for what no two replies have
in common: ids and times, which are put in the place of letters and zeros in both replies. A pair
that still differs in what was sampled is refused.
"""

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ASK = {"chat": {"logprobs": True, "return_token_ids": True}}
ASK["completions"] = {"logprobs": 0, "return_token_ids": True}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
REFUSED = ["return_weight_versions"]

GOAL = "Find the secret number from 1 to 7. You have 3 guesses."
GUESS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}
TOOLS = [{"type": "function", "function": {"name": "guess", "parameters": GUESS}}]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": GOAL}], "max_tokens": 24}
CHAT |= {"temperature": 0, "seed": 3}
TEXT = {"model": "tiny", "prompt": GOAL, "max_tokens": 12, "temperature": 0, "seed": 3}
STREAM = {"stream": True}
HOT = {"prompt": "\u00e9", "max_tokens": 8, "temperature": 2, "seed": 5, "ignore_eos": True}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
COUNTED = {"stream_options": {"include_usage": True}}

# From a server with a parser of thoughts and a model that does not think of itself: it begins to.
THINKS = {"max_tokens": 8, "structured_outputs": {"choice": ["<think>\nhm, 4\n</think>\n\n4"]}}

# The tiny model does not know this tool, and gets lost in its arguments.
CITY = {"type": "string", "enum": ["Paris", "London"]}
PLACE = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
LOOK = {"name": "get_weather", "description": "The weather of a city", "parameters": PLACE}
ASKED = "What is the weather in Paris? Use the tool if there is one."
WEATHER = {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 64, "seed": 7}
WEATHER |= {"tools": [{"type": "function", "function": LOOK}], "tool_choice": "required"}

CASES = {
    "chat/text": (CHAT, "plain text; nulls are spelled in whole replies"),
    "chat/text_stream": (CHAT | STREAM, "plain text; a stream leaves out what is null"),
    "chat/tools": (CHAT | {"tools": TOOLS}, "a call"),
    "chat/tools_stream": (
        CHAT | {"tools": TOOLS} | STREAM,
        "asked, two deltas of a call share a chunk, and tags are chunks with an empty delta",
    ),
    "chat/required_stream": (
        CHAT | {"tools": TOOLS, "tool_choice": "required"} | STREAM,
        "the same where a call is forced",
    ),
    "chat/broken_stream": (
        CHAT | WEATHER | STREAM,
        "a call that breaks off in a text: its name and the text share a chunk",
    ),
    "chat/own_logprobs_stream": (
        CHAT | {"tools": TOOLS, "logprobs": True} | STREAM,
        "the agent asks for logprobs: deltas share a chunk unasked, too",
    ),
    "chat/own_ids_stream": (CHAT | {"return_token_ids": True} | STREAM, "the agent asks for ids"),
    "chat/running_usage_stream": (
        CHAT | {"tools": TOOLS} | RUNNING | STREAM,
        "a count in every chunk: deltas share a chunk unasked, too",
    ),
    "chat/usage_stream": (CHAT | COUNTED | STREAM, "a count in a chunk of its own"),
    "chat/reasoning": (CHAT | THINKS, "thoughts only; whole"),
    "chat/reasoning_stream": (CHAT | THINKS | STREAM, "thoughts only"),
    "completions/text": (TEXT, "nulls are spelled in whole replies"),
    "completions/text_stream": (TEXT | STREAM, "asked, the prompt's ids have a chunk of their own"),
    "completions/hot_stream": (TEXT | HOT | STREAM, "half a character is a chunk without text"),
    "completions/own_ids_stream": (
        TEXT | {"return_token_ids": True} | STREAM,
        "the agent asks for ids: the chunk of the prompt's ids stays",
    ),
}  # fmt: skip


def post(url, body):
    head = {"content-type": "application/json"}
    request = urllib.request.Request(url, body.encode(), head)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def stilled(text):
    """A reply without what differs between any two."""
    text = re.sub(r'"id":"(chatcmpl|cmpl|call)[-_][0-9a-f]+"', r'"id":"\1-0"', text)
    return re.sub(r'"created":[0-9]+', '"created":0', text)


def documents(text, streams):
    if not streams:
        return [json.loads(text)]
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def facts_of(text, streams):
    """What is to be recorded of an asked reply, read as its parts stand in it."""
    ids, logprobs, prompt, usage, ended = [], [], None, {}, {}
    for doc in documents(text, streams):
        prompt = doc.get("prompt_token_ids") or prompt
        usage = doc.get("usage") or usage
        for choice in doc["choices"]:
            prompt = choice.get("prompt_token_ids") or prompt
            ids += choice.get("token_ids") or []
            told = choice.get("logprobs") or {}
            logprobs += [entry["logprob"] for entry in told.get("content") or []]
            logprobs += told.get("token_logprobs") or []
            if choice.get("finish_reason"):
                ended = choice
    assert len(ids) == len(logprobs), (len(ids), len(logprobs))
    counts = (usage.get("prompt_tokens", len(prompt)), usage.get("completion_tokens", len(ids)))
    assert counts == (len(prompt), len(ids)), counts
    choice = {"index": 0, "token_ids": ids, "logprobs": logprobs}
    choice |= {key: ended.get(key) for key in ("finish_reason", "stop_reason")} | {"versions": []}
    usage = dict(zip(("prompt", "completion"), counts, strict=True))
    return {"prompts": [prompt], "choices": [choice], "usage": usage, "error": None}


def said(text, streams):
    """What a reply says, in whatever chunks."""
    whole = {}
    for doc in documents(text, streams):
        for choice in doc["choices"]:
            part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            for key in ("content", "reasoning"):
                whole[key] = whole.get(key, "") + (part.get(key) or "")
            for call in part.get("tool_calls") or []:
                for key in ("name", "arguments"):
                    whole[key] = whole.get(key, "") + (call["function"].get(key) or "")
    return whole


def record(folder, url, name):
    request, shows = CASES[name]
    wire, streams = name.split("/")[0], bool(request.get("stream"))
    added = {key: value for key, value in ASK[wire].items() if key not in request}
    body = json.dumps(request, separators=(",", ":"))
    sent = json.dumps(request | added, separators=(",", ":"))
    kind = "sse" if streams else "json"
    (status, asked), (plain_status, plain) = (post(url + PATHS[wire], text) for text in (sent, body))
    assert status == plain_status == 200, (name, asked, plain)
    asked, plain = stilled(asked), stilled(plain)
    assert said(asked, streams) == said(plain, streams), name
    facts = json.dumps(facts_of(asked, streams), separators=(",", ":")) + "\n"
    made = {"request.json": body, "sent.json": sent, f"asked.{kind}": asked}
    made |= {f"plain.{kind}": plain, "facts.json": facts}
    for ending, text in made.items():
        (HERE / folder / wire).mkdir(parents=True, exist_ok=True)
        (HERE / folder / f"{name}.{ending}").write_bytes(text.encode())
    return {
        "name": f"{folder}/{name}", "upstream": "vllm", "wire": wire, "path": PATHS[wire],
        "stream": streams, "n": 1, "status": 200, "added": list(added), "refused": REFUSED,
        "headers": False, "opted_in": False, "retried": False, "asked": f"asked.{kind}",
        "plain": f"plain.{kind}", "shows": shows,
    }  # fmt: skip


def main():
    folder, url, *names = sys.argv[1:]
    path = HERE / folder / "index.json"
    index = {e["name"]: e for e in json.loads(path.read_text())} if path.exists() else {}
    for name in names or CASES:
        entry = record(folder, url, name)
        index[entry["name"]] = entry
    order = [f"{folder}/{name}" for name in CASES]
    lines = ",\n".join(json.dumps(index[name]) for name in order if name in index)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
