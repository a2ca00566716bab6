"""What an attack costs the server: memory above what it had resident, and processor time."""

import time
from concurrent.futures import ThreadPoolExecutor

import hostile
import http1
import pyarrow

NOTHING = hostile.reply({}, headers=[("connection", "close")])
"""A reply without content that is the last of its connection."""
READINGS = 3
CODED = (("br", "brotli"), ("gzip", "gzip"), ("zstd", "zstd"))


class Cost:
    """The cost of what is done inside the `with`, known after it."""

    def __init__(self, proxy):
        self._proxy = proxy

    def __enter__(self):
        # Resets the peak of the resident memory to what is resident now.
        with open(f"/proc/{self._proxy.process.child.pid}/clear_refs", "w") as refs:
            refs.write("5")
        self._peak_before = hostile.peak_mib(self._proxy)
        self._cpu_before, self._at = hostile.cpu_s(self._proxy), time.monotonic()
        return self

    def __exit__(self, *raised):
        self.mib = hostile.peak_mib(self._proxy) - self._peak_before
        self.cpu_s = hostile.cpu_s(self._proxy) - self._cpu_before
        self.wall_s = time.monotonic() - self._at

    def __repr__(self):
        return f"{self.mib:.1f} MiB, {self.cpu_s:.2f} CPU s, {self.wall_s:.2f} s"


def coded(codec, plain):
    """`plain` in a content coding."""
    return pyarrow.compress(plain, codec=codec, asbytes=True)


def stream(*events, headers=()):
    """The bytes of a streamed reply whose body ends with the connection."""
    lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + http1.HEAD_END + b"".join(events)


def closing(*pieces):
    """An answer of these pieces to a call, after which the upstream closes."""

    def answer(request):
        # What rolltape itself asks the upstream gets no answer of use. It says that the connection
        # ends with it: a call that is sent on one that closes unannounced is lost by right.
        yield from pieces if request.method == "POST" else [NOTHING]
        raise ConnectionError

    return answer


def at_once(count, act):
    """Does `act(number)` in as many threads; gives the results, or raises what one has raised."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(act, range(count)))


def health_s(proxy):
    """How long the control listener takes to answer, in seconds: the best of some times, as other
    programs may have the machine meanwhile."""

    def answered():
        at = time.monotonic()
        assert hostile.is_alive(proxy)
        return time.monotonic() - at

    return min(answered() for _ in range(READINGS))
