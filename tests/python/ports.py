"""Ports of this machine for servers that must be told where to listen.

A port that the kernel picked is, once let go, as good as any for the next connection of any
process. Those of this module are below `ip_local_port_range`, so no connection gets one by itself.
"""

import itertools
import os
import socket

FIRST = 12000
SPAN, SPANS = 2000, 8
"""Each process of pytest-xdist counts through ports of its own."""
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_numbers = itertools.count(os.getpid())


def free(count=1):
    """So many ports that nobody has; none of them is given again soon."""
    found = filter(_is_free, map(_port, itertools.islice(_numbers, SPAN)))
    ports = list(itertools.islice(found, count))
    assert len(ports) == count, "no port is free"
    return ports


def _port(number):
    return FIRST + WORKER % SPANS * SPAN + number % SPAN


def _is_free(port):
    """Whether the port can be bound. It is asked for more strictly than servers do: they also take
    one whose last connections are not forgotten yet."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
