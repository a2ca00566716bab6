"""OpenEnv's capture routes over HTTP, in front of the control listener.

    python -m rolltape.sessions [--listen HOST:PORT] [--control URL] [--data URL]

- `POST /sessions {"metadata"?, "session_id"?, "sampling"?}`: a session. Its `api_key`, which is
  signed and names it alone, and its `base_url` are what the agent gets.
- `GET /sessions/{id}`: the counts of what was recorded.
- `GET /sessions/{id}/rollout`: sequences with ids, masks and logprobs, once it is closed.
- `GET /sessions/{id}/trace_entries`: an entry for each call, from which OpenEnv makes its
  `TrainingTrace`.
- `DELETE /sessions/{id}`: closes it.

For a trainer on the same machine: it has no password, and listens on loopback by default.
"""

from __future__ import annotations

import argparse
import json
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from rolltape.http import RolltapeError
from rolltape.client import Client
from rolltape.feed import rows_of
from rolltape.openenv import forced, rollout_document, trace_entries

BODY_BYTES_MAX = 1 << 20
WAIT_S = 2.0

Answer = tuple[int, dict[str, Any]]


def create(client: Client, asked: dict[str, Any]) -> Answer:
    """Announces an episode and mints its key."""
    name = asked.get("session_id") or f"session-{uuid.uuid4().hex}"
    metadata = asked.get("metadata") or {}
    sampling = asked.get("sampling") or {}
    labels = {key: str(value) for key, value in metadata.items()}
    client.announce(name, labels=labels, force_sampling=forced(sampling))
    key = client.mint_key(name)
    told = {"session_id": name, "api_key": key.api_key, "base_url": client.base_url()}
    return 200, told | {"capture_level": "tokens", "rollout_type": "train", "max_model_calls": 0}


def answer(client: Client, method: str, path: str, asked: dict[str, Any]) -> Answer:
    """The answer to a request."""
    match method, [unquote(part) for part in path.strip("/").split("/")]:
        case "GET", ["health"]:
            return 200, {"status": "ok"}
        case "POST", ["sessions"]:
            return create(client, asked)
        case "GET", ["sessions", name]:
            return 200, {"session_id": name, **client.show(name)}
        case "GET", ["sessions", name, "rollout"]:
            client.show(name)
            return 200, rollout_document(name, rows_of(client, episodes=[name], wait_s=WAIT_S))
        case "GET", ["sessions", name, "trace_entries"]:
            client.show(name)
            rows = rows_of(client, episodes=[name], wait_s=WAIT_S)
            return 200, {"session_id": name, "entries": trace_entries(rows)}
        case "DELETE", ["sessions", name]:
            client.close(name)
            return 200, {"session_id": name, "deleted": True}
    return 404, {"error": "no such page"}


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out."""

    protocol_version = "HTTP/1.1"
    client: Client

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the recorder has the log."""

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            return self._send(413, {"error": "the body is longer than 1 MiB"})
        try:
            asked = json.loads(self.rfile.read(length) or b"{}")
            if not isinstance(asked, dict):
                raise ValueError("the body is not a JSON object")
            status, told = answer(self.client, self.command, urlsplit(self.path).path, asked)
        except ValueError as error:
            status, told = 400, {"error": str(error)}
        except RolltapeError as error:
            status, told = error.status or 502, {"error": str(error)}
        self._send(status, told)

    def _send(self, status: int, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _answer


def server(client: Client, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server of the routes; `serve_forever()` runs it."""
    handler = type("SessionsHandler", (Handler,), {"client": client})
    return ThreadingHTTPServer((host, port), handler)


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description="OpenEnv's capture routes")
    parser.add_argument("--listen", default="127.0.0.1:8082")
    parser.add_argument("--control")
    parser.add_argument("--data")
    parser.add_argument("--token-file", help="the file of the control listener's token")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    client = Client(options.control, options.data, token_file=options.token_file)
    server(client, host, int(port)).serve_forever()


if __name__ == "__main__":
    main()
