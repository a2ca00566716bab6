"""JSON over HTTP with the standard library alone: kept connections, one for each thread."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from rolltape._token import Token, UnusableToken

Json = Any
Query = Mapping[str, str | int | float | bool | None]

RETRY_WAIT_S = 0.1
MESSAGE_CHARS_MAX = 500
GONE = (http.client.HTTPException, ConnectionError)


class RolltapeError(Exception):
    """A refusal of a server, or a server that cannot be reached.

    `status` is that of HTTP, or None where no answer came; `body` is the answer as it was read.
    """

    def __init__(self, message: str, status: int | None = None, body: Json = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class BrokenOff(RolltapeError):
    """An answer that broke off; `headers` are its headers."""

    def __init__(self, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.headers = headers


def segment(text: str) -> str:
    """`text` as one part of a path."""
    return quote(text, safe="")


class Http:
    """A client of one server. Safe to use from many threads, and after a fork.

    `ca_file` holds certificates, in PEM, that are trusted beside the system's.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        timeout_s: float = 60.0,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an address of HTTP: {url}")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._parts = parts
        self._token = token
        self._timeout_s = timeout_s
        self._ca_file = None if ca_file is None else os.path.abspath(ca_file)
        self._tls = _trust(self._ca_file) if parts.scheme == "https" else None
        self._kept = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "token": self._token,
            "timeout_s": self._timeout_s,
            "ca_file": self._ca_file,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Http.__init__(self, **state)

    @property
    def token(self) -> str | None:
        """The token that is sent, if there is one."""
        if self._token is None:
            return None
        try:
            return self._token.read()
        except UnusableToken as error:
            raise RolltapeError(str(error)) from error

    def get(self, path: str, query: Query | None = None, **options: Any) -> Json:
        """GETs a page as JSON."""
        return self.call("GET", path, query=query, **options)

    def post(
        self, path: str, body: Json = None, query: Query | None = None, **options: Any
    ) -> Json:
        """POSTs JSON; returns the answer as JSON."""
        return self.call("POST", path, body=body, query=query, **options)

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Json = None,
        query: Query | None = None,
        timeout_s: float | None = None,
    ) -> Json:
        """One request; its answer read as JSON, or None if there is none.

        Raises RolltapeError if the server refuses. A kept connection that has gone is opened again
        once; 502, 503 and 504 are not repeated here, see `patiently`.
        """
        status, data, _ = self.raw(method, path, body=body, query=query, timeout_s=timeout_s)
        if status >= 400:
            raise self.refused(f"{method} {path}", status, data)
        return _parsed(data)

    def refused(self, what: str, status: int, data: bytes) -> RolltapeError:
        """The error for a refusal, with what to do about it."""
        answer = _parsed(data)
        said = f"{what}: {status}: {_said(answer)}"
        if status == 401 and self._token is not None:
            said += f"; {self._token.why_refused()}"
        return RolltapeError(said, status, answer)

    def raw(
        self,
        method: str,
        path: str,
        *,
        body: Json = None,
        query: Query | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, bytes, dict[str, str]]:
        """One request; status, bytes and headers of its answer, names in small letters.

        Raises BrokenOff where the answer breaks off: what it was asked for may have been done, so
        nothing is asked again here.
        """
        headers = {"accept": "application/json"}
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["content-type"] = "application/json"
        elif body is not None:
            headers["content-type"] = "application/octet-stream"
        token = self.token
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        target = self._parts.path.rstrip("/") + path + _query(query)
        for fresh in (False, True):
            connection, kept = self._connection(fresh, timeout_s or self._timeout_s)
            try:
                connection.request(method, target, data, headers)
                return _whole(connection.getresponse(), f"{method} {self.url}{path}")
            except BrokenOff:
                connection.close()
                raise
            except GONE as gone:
                connection.close()
                if not kept:
                    raise RolltapeError(f"{method} {self.url}{path}: {gone!r}") from gone
            except OSError as gone:
                connection.close()
                raise RolltapeError(f"{method} {self.url}{path}: {_why(gone)}") from gone
        raise AssertionError("a fresh connection answers or raises")

    def begin(
        self, method: str, path: str, query: Query | None = None, *, timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """One request on a connection of its own, whose answer is still to be read.

        Raises RolltapeError if the server refuses. The caller closes the connection.
        """
        line = self._line(timeout_s)
        token = self.token
        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        try:
            line.request(method, self._parts.path.rstrip("/") + path + _query(query), None, headers)
            reply = line.getresponse()
            if reply.status >= 400:
                raise self.refused(f"{method} {path}", reply.status, reply.read())
        except (http.client.HTTPException, OSError) as gone:
            line.close()
            raise RolltapeError(f"{method} {self.url}{path}: {_why(gone)}") from gone
        except RolltapeError:
            line.close()
            raise
        return line, reply

    def close(self) -> None:
        """Closes this thread's connection."""
        connection = getattr(self._kept, "connection", None)
        if connection is not None:
            connection.close()

    def _line(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)

    def _connection(self, fresh: bool, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        """This thread's connection, and True if it may have been used before."""
        held = getattr(self._kept, "connection", None)
        if held is None or self._kept.process != os.getpid():
            held = self._line(timeout_s)
            self._kept.connection, self._kept.process = held, os.getpid()
        if fresh:
            held.close()
        kept = held.sock is not None
        held.timeout = timeout_s
        if kept:
            held.sock.settimeout(timeout_s)
        return held, kept


def _why(gone: Exception) -> str:
    """An error, with the way out of the usual mistakes with TLS."""
    if isinstance(gone, ssl.SSLCertVerificationError):
        return f"{gone!r}; name the authority of its certificate with ca_file="
    if isinstance(gone, ssl.SSLError) and gone.reason == "WRONG_VERSION_NUMBER":
        return f"{gone!r}; it speaks plain HTTP: use http://"
    return repr(gone)


def _trust(ca_file: str | None) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    if ca_file is not None:
        trust.load_verify_locations(ca_file)
    return trust


def _whole(reply: http.client.HTTPResponse, what: str) -> tuple[int, bytes, dict[str, str]]:
    told = {name.lower(): value for name, value in reply.getheaders()}
    try:
        return reply.status, reply.read(), told
    except (http.client.HTTPException, OSError) as gone:
        raise BrokenOff(f"{what}: {gone!r}", told) from gone


def patiently(call: Any, *, until_s: float = 30.0) -> Json:
    """Repeats `call` while the server answers 502, 503 or 504, or cannot be reached.

    For what may be repeated without harm. Gives up `until_s` seconds after the first failure,
    however long that took to come.
    """
    end = None
    wait_s = RETRY_WAIT_S
    while True:
        try:
            return call()
        except RolltapeError as error:
            now = time.monotonic()
            end = now + until_s if end is None else end
            if error.status not in (None, 502, 503, 504) or now + wait_s > end:
                raise
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, 2.0)


def _query(query: Query | None) -> str:
    given = {name: _word(value) for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _word(value: str | int | float | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _parsed(data: bytes) -> Json:
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _said(answer: Json) -> str:
    """The message of an error in OpenAI's form, or else the whole text."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return str(error.get("message", error))[:MESSAGE_CHARS_MAX]
    return str(error or answer)[:MESSAGE_CHARS_MAX]
