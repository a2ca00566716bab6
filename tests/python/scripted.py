"""An inference server that says what a script tells it to, as vLLM 0.33 would say it.

    python scripted.py --script FILE --log FILE [--port N]

prints its port. The script is JSON: a list of turns, or an object with

- `turns`: each `{"text", "reasoning", "tool_calls": [{"name", "arguments": {...}}], "search"}`.
  The turn is chosen by the number of assistant messages in the history, the last turn being said
  again. A string `$FIELD` of its arguments stands for that field of the last tool result, a JSON
  object;
- `by`: `requests` to choose it by the number of generating requests so far instead;
- `skip`: how many assistant messages every history starts with that no model said;
- `aside`: `[{"match", "text", "search"}]`, replies to side calls, known by words in their first or
  last message.

What a hosted server does by itself has the forms of OpenAI and Anthropic: a turn's `search`,
`{"query", "results": [{"title", "url"}]}`, is made before it speaks, and a history is folded on
request, into the text of an aside to `compaction_trigger`.

A turn that calls a tool is said in plain words where the request offers none. Each request is one
JSON line of the log, with what was sampled for it.
"""

import argparse
import base64
import hashlib
import itertools
import json
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import scripted_forms as forms
import scripted_messages as message_forms
import scripted_responses as response_forms
import scripted_template as template

NO_TOOLS = "Understood — no tools. ✓"
SECRET = ("authorization", "x-api-key")


class Script:
    """What is said when."""

    def __init__(self, given):
        given = {"turns": given} if isinstance(given, list) else given
        self._turns = given["turns"]
        self._by_requests = given.get("by") == "requests"
        self._skip = given.get("skip", 0)
        self._asides = given.get("aside", [])
        self._asked = itertools.count()

    def reply(self, messages, tools):
        """The reply to a conversation."""
        ends = [template.plain(message.get("content")) for message in messages[:1] + messages[-1:]]
        for aside in self._asides:
            if any(aside["match"] in end for end in ends):
                return template.Reply.of(aside)
        said = sum(message["role"] == "assistant" for message in messages) - self._skip
        at = next(self._asked) if self._by_requests else said
        turn = self._turns[min(max(at, 0), len(self._turns) - 1)]
        reply = template.Reply.of(filled(turn, messages))
        if reply.calls and not tools:
            return template.Reply(NO_TOOLS)
        return reply


def filled(value, messages):
    """A turn in which each `$FIELD` is what the last tool said of it."""
    if isinstance(value, str) and value.startswith("$"):
        results = [template.plain(m["content"]) for m in messages if m["role"] == "tool"]
        return json.loads(results[-1])[value[1:]]
    if isinstance(value, list):
        return [filled(one, messages) for one in value]
    if isinstance(value, dict):
        return {key: filled(one, messages) for key, one in value.items()}
    return value


def understood(path, body, script):
    """The conversation and the reply of a generating request."""
    if path == "/v1/completions":
        given = body["prompt"]
        prompt = template.ids_of(given) if isinstance(given, str) else list(given)
        return prompt, script.reply([], [])
    if path == "/v1/responses":
        messages, tools = template.chat_of_responses(body)
    elif path == "/v1/messages":
        messages, tools = template.chat_of_messages(body)
    else:
        messages, tools = body["messages"], body.get("tools")
    given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    return given or template.prompt_ids(messages, tools), script.reply(messages, tools)


ROUTES = {
    "/v1/chat/completions": (forms.chat, forms.chat_stream),
    "/v1/completions": (forms.completion, forms.completion_stream),
    "/v1/messages": (message_forms.message, message_forms.message_stream),
    "/v1/responses": (response_forms.response, response_forms.stream),
}


def reports(path, body):
    """Whether the reply to a request holds the sampled ids."""
    if path == "/v1/messages":
        return False
    asked = "enable_response_messages" if path == "/v1/responses" else "return_token_ids"
    return body.get(asked) is True


def models():
    """The list of models."""
    card = {"id": "scripted", "object": "model", "created": forms.CREATED, "owned_by": "vllm"}
    more = {"root": "scripted", "parent": None, "max_model_len": 131_072, "permission": []}
    return {"object": "list", "data": [card | more]}


def embeddings(body):
    """A vector for each input, as numbers or as base64."""
    given = body["input"] if isinstance(body["input"], list) else [body["input"]]
    made = []
    for index, text in enumerate(given):
        vector = [len(text) / 64, 0.5, -0.25, index / 64]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack("<4f", *vector)).decode()
        made.append({"index": index, "object": "embedding", "embedding": vector})
    usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0}
    head = {"id": "embd-0", "object": "list", "created": forms.CREATED}
    return head | {"model": body.get("model"), "data": made, "usage": usage}


def error(status, kind, message):
    """A refusal in vLLM's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Server(ThreadingHTTPServer):
    """The server, its script and its log."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port, script, log):
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script
        self._log = log.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._calls = itertools.count()

    def call(self, path, body):
        """A generating request, with a number of its own and its reply."""
        with self._lock:
            prompt, reply = understood(path, body, self.script)
            return forms.Call(body, prompt, reply, next(self._calls), reply.sampled())

    def note(self, entry):
        """Writes a line of the log."""
        with self._lock:
            self._log.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._log.flush()

    def handle_error(self, request, client_address):
        """A client that leaves is no fault; anything else is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version, sys_version = "uvicorn", ""

    def log_message(self, *_):
        """The log is elsewhere."""

    def version_string(self):
        """The name in the header `server`."""
        return "uvicorn"

    def do_GET(self):
        """Lists and versions."""
        self._heard(b"")
        path = self.path.partition("?")[0]
        if self.headers.get("upgrade"):
            # What uvicorn answers where an application has no such WebSocket.
            self.close_connection = True
            self._send(403, b"", "text/plain")
        elif path == "/v1/models":
            self._document(models())
        elif path == "/version":
            self._document({"version": "0.33.0"})
        elif path in ("/health", "/ping"):
            self._send(200, b"", "text/plain")
        else:
            self._document(error(404, "NotFoundError", "Not Found"), 404)

    def do_HEAD(self):
        """Nothing is served under HEAD."""
        self.do_GET()

    def do_POST(self):
        """Tokens, or what can be counted without any."""
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        try:
            self._answer(path, json.loads(raw), raw)
        except (KeyError, ValueError, TypeError, AttributeError) as why:
            self._heard(raw, refused=repr(why), body=json.loads(raw))
            self._document(error(400, "BadRequestError", repr(why)), 400)

    def _answer(self, path, body, raw):
        if path in ROUTES:
            return self._generate(path, body, raw)
        self._heard(raw, body=body)
        if path == "/v1/embeddings":
            return self._document(embeddings(body))
        if path == "/v1/messages/count_tokens":
            count = len(template.prompt_ids(*template.chat_of_messages(body)))
            known = {"original_input_tokens": count}
            return self._document({"input_tokens": count, "context_management": known})
        return self._document(error(404, "NotFoundError", "Not Found"), 404)

    def _generate(self, path, body, raw):
        call = self.server.call(path, body)
        found = {
            "generates": True,
            "reports": reports(path, body),
            "prompt": call.prompt,
            "sampled": [call.sampled] * (body.get("n") or 1),
        }
        self._heard(raw, body=body, **found)
        whole, stream = ROUTES[path]
        if not body.get("stream"):
            return self._document(whole(call))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in stream(call):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def _heard(self, raw, **more):
        headers = [[k, v] for k, v in self.headers.items() if k.lower() not in SECRET]
        digest = hashlib.sha256(raw).hexdigest()
        self.server.note(
            {"method": self.command, "path": self.path, "headers": headers, "sha256": digest} | more
        )

    def _document(self, value, status=200):
        self._send(status, forms.dumps(value).encode(), "application/json")

    def _send(self, status, body, kind):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main(handler=Handler, description=__doc__):
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    script = Script(json.loads(options.script.read_text()))
    with Server(options.port, script, options.log) as server:
        server.RequestHandlerClass = handler
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
