"""A vLLM of one template family, whose model says random things in torn tokens.

    python server.py FAMILY LOG [sglang]

prints its port. It renders with the family's chat template and encodes with its tokenizer. What it
samples depends on the request's `seed`, and on how often it has seen it. Where a chat request has
`kv_transfer_params.prompt_token_ids`, those are the prompt. A line of the log for each chat call
has the canonical ids, those that were used, and what was sampled. With a third word it answers as
SGLang does (`sglang_form.py`).
"""

import importlib
import itertools
import json
import sys
import threading
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import habits
from forms import Reply, dumps
from known import FAMILIES
from model import Model

CONTEXT = 131_072


class Refused(Exception):
    """A request that vLLM answers with a 400."""


class Server(ThreadingHTTPServer):
    """One family, and the log."""

    daemon_threads = True
    request_queue_size = 128
    form = Reply
    owner = "vllm"
    version = "/version", {"version": "0.33.0"}

    def __init__(self, family, log):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = Model(FAMILIES[family])
        self._log = log.open("a")
        self._lock = threading.Lock()
        self._seen = Counter()
        self._numbers = itertools.count()

    def models(self):
        """The list of models."""
        name = self.model.family.name
        card = {"id": name, "object": "model", "created": 1, "owned_by": self.owner, "root": name}
        return {"object": "list", "data": [card | {"max_model_len": CONTEXT}]}

    def tokenize(self, body):
        """Ids of a conversation, or of a text."""
        spelling = self.model.spelling
        ids = spelling.canonical(body["prompt"] if "prompt" in body else self._rendered(body))
        names = [spelling.name(i) for i in ids] if body.get("return_token_strs") else None
        return {"count": len(ids), "max_model_len": CONTEXT, "tokens": ids, "token_strs": names}

    def detokenize(self, body):
        """The text of ids."""
        return {"prompt": self.model.spelling.bytes(body["tokens"]).decode(errors="replace")}

    def _rendered(self, body):
        try:
            return self.model.rendered(body)
        except Exception as why:  # a template may trip over anything
            raise Refused(f"the template says: {why}") from why

    def shown(self, body):
        """A chat as the template is given it."""
        return body

    def encoded(self, body):
        """The text and the ids of a chat."""
        prompt = self._rendered(body)
        return prompt, self.model.spelling.canonical(prompt)

    def given(self, body):
        """The prompt of a chat as ids, if it has one."""
        return (body.get("kv_transfer_params") or {}).get("prompt_token_ids")

    def chat(self, body, headers):
        """The reply to a chat call."""
        shown = self.shown(body)
        prompt, canonical = self.encoded(shown)
        given = self.given(body)
        used = canonical if given is None else self._checked(given)
        seed, name = body.get("seed") or 0, self.model.family.name
        with self._lock:
            self._seen[seed] += 1
            nth, number = self._seen[seed], next(self._numbers)
        said = [
            self.model.say(shown, prompt, habits.chance_of(name, seed, nth, index))
            for index in range(body.get("n") or 1)
        ]
        conversation, call = divmod(seed, habits.CALLS)
        self._note(
            conversation=conversation,
            call=call,
            nth=nth,
            canonical=canonical,
            given=given,
            said=[{"ids": one.ids, "finish": one.finish, "stop": one.stop} for one in said],
        )
        return self.form(number, body, self.model, used, said, headers)

    def _checked(self, given):
        if not isinstance(given, list) or not given:
            raise Refused("kv_transfer_params.prompt_token_ids is no list of ids")
        for token in given:
            if type(token) is not int or not 0 <= token < self.model.spelling.size:
                raise Refused(f"kv_transfer_params.prompt_token_ids: {token} is out of vocabulary")
        return given

    def _note(self, **entry):
        with self._lock:
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version, sys_version = "uvicorn", ""

    def log_message(self, *_):
        """The log is elsewhere."""

    def do_GET(self):
        """Lists and versions."""
        known = {
            "/v1/models": self.server.models,
            self.server.version[0]: lambda: self.server.version[1],
            "/health": dict,
        }
        answer = known.get(self.path.partition("?")[0])
        self._document(answer() if answer else {"detail": "Not Found"}, 200 if answer else 404)

    def do_POST(self):
        """Chat, ids of texts, texts of ids."""
        routes = {
            "/v1/chat/completions": partial(self.server.chat, headers=self.headers),
            "/tokenize": self.server.tokenize,
            "/detokenize": self.server.detokenize,
        }
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = routes.get(self.path.partition("?")[0])
        if answer is None:
            return self._document({"detail": "Not Found"}, 404)
        try:
            reply = answer(body)
        except Refused as why:
            error = {"message": str(why), "type": "BadRequestError", "param": None, "code": 400}
            return self._document({"error": error}, 400)
        if not isinstance(reply, Reply):
            return self._document(reply)
        return self._stream(reply) if body.get("stream") else self._document(reply.whole())

    def _document(self, value, status=200):
        data = dumps(value)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, reply):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in reply.frames():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


def main():
    """Serves until it is stopped."""
    kind = Server if sys.argv[3:] != ["sglang"] else importlib.import_module("sglang_form").Server
    with kind(sys.argv[1], Path(sys.argv[2])) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
