"""Starts a binary as systemd would, and hears its start and its stop.

python3 packaging/check_notify.py BINARY FOLDER
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

WAIT_S = 30
WHERE = ("--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")


def main(binary, folder):
    at = Path(folder) / "notify"
    words = [binary, "serve", *WHERE, "--store", Path(folder) / "notify.db"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(at))
        heard.settimeout(WAIT_S)
        env = os.environ | {"NOTIFY_SOCKET": str(at)}
        child = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
        try:
            assert heard.recv(100).startswith(b"READY=1")
            child.send_signal(signal.SIGTERM)
            assert heard.recv(100).startswith(b"STOPPING=1")
            assert child.wait(WAIT_S) == 0
        finally:
            child.kill()
    print("READY=1 and STOPPING=1 were sent")


main(*sys.argv[1:])
