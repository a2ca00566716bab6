"""Servers as the tapes imitate them, on a socket: each answers in the spelling of its kind."""

import json
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import harness

sys.path.insert(0, str(Path(__file__).parents[1] / "tapes"))

from maker.scripts import TEXT, TOOLS  # noqa: E402
from maker.servers import SERVERS  # noqa: E402

WIRES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
TYPES = {"json": "application/json", "sse": "text/event-stream"}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Nothing is logged."""

    def do_GET(self):
        """The list of models, and what the server says of itself."""
        card = {"id": "imitated", "object": "model", "owned_by": self.server.kind}
        said = {"/v1/models": {"object": "list", "data": [card]}} | self.server.says
        self._say(200 if self.path in said else 404, "json", json.dumps(said.get(self.path, {})))

    def do_POST(self):
        """A script's words, a tool's call where there is a tool."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = SERVERS.get((self.server.kind, WIRES.get(self.path)))
        if answer is None:
            return self._say(404, "json", '{"detail":"Not Found"}')
        script = replace(TOOLS if body.get("tools") else TEXT, parsers=self.server.parsers)
        headers = {name.lower(): value for name, value in self.headers.items()}
        return self._say(200, *answer(body, script, headers))

    def _say(self, status, kind, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", TYPES[kind])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def imitated(kind, says=(), parsers=True):
    """The address of a server of `kind` that says `says` of itself, by path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.kind, server.says, server.parsers = kind, dict(says), parsers
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{harness.text(server.server_address)}"
        server.shutdown()
