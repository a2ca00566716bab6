"""The share of prompt tokens that engines find among their prefixes, with and without affinity.

Sessions of many turns talk to engines of the tiny model in three ways, each with fresh engines:
through rolltape, which keeps a thread on its engine; through nginx, which gives each call to the
next engine; and through rolltape in front of that nginx. Prints a table for docs/benchmarks.md.

    just fleet-cache --engines 4
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "engine/models/tiny"
READY_WAIT_S = 60
FIRST_PORT, PORTS = 28000, 2000
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engines {{ {servers} keepalive 32; }}
  server {{
    listen {listen};
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
}}
"""
numbers = itertools.count(os.getpid())


def free_address():
    """An address of this machine that nobody has, and that no connection gets by itself."""
    for number in itertools.islice(numbers, PORTS):
        port = FIRST_PORT + number % PORTS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    raise SystemExit("no port is free")


@contextlib.contextmanager
def running(*command, ready):
    """A process, once a URL answers at all."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.time() + READY_WAIT_S
        while not answers(ready):
            if child.poll() is not None or time.time() > deadline:
                raise SystemExit(f"{command[0]} did not start: {' '.join(map(str, command))}")
            time.sleep(0.05)
        yield
    finally:
        child.terminate()
        child.wait()


def answers(url):
    """True if something answers there."""
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def session(base, number, turns, failures):
    """One session: each turn sends the whole history, as agents do."""
    messages = [{"role": "system", "content": f"You are agent {number}. " + "Be brief. " * 8}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Turn {turn} of session {number}: " +
                         " ".join(str(number * turn + word) for word in range(6))})
        body = {"model": "tiny", "messages": messages, "max_tokens": 8}
        request = urllib.request.Request(
            f"{base.format(number)}/v1/chat/completions", data=json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": "Bearer -"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                said = json.load(reply)["choices"][0]["message"]["content"]
        except (OSError, KeyError) as error:
            failures.append(error)
            return
        messages.append({"role": "assistant", "content": said or "-"})


def counters(engines):
    """Tokens of prompts that were looked up among prefixes, and those that were found."""
    sums = dict.fromkeys(("queries", "hits"), 0.0)
    for engine in engines:
        page = urllib.request.urlopen(f"http://{engine}/metrics").read().decode()
        for name in sums:
            found = re.search(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", page, re.MULTILINE)
            sums[name] += float(found[1])
    return sums["queries"], sums["hits"]


def measure(way, options, binary):
    """Plays all sessions one way; returns queries, hits and seconds."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        engines = [free_address() for _ in range(options.engines)]
        for engine in engines:
            held.enter_context(running(
                binary, "engine", "--model", MODEL, "--listen", engine, "--threads", "1",
                ready=f"http://{engine}/health"))
        upstreams = [f"http://{engine} name=engine-{at} dialect=rolltape"
                     for at, engine in enumerate(engines)]
        if "nginx" in way:
            balancer = free_address()
            conf = Path(folder, "nginx.conf")
            servers = " ".join(f"server {engine};" for engine in engines)
            conf.write_text(NGINX.format(folder=folder, servers=servers, listen=balancer))
            held.enter_context(running(
                "nginx", "-c", conf, "-p", folder, ready=f"http://{balancer}/health"))
            upstreams, base = [f"http://{balancer}"], f"http://{balancer}"
        if "rolltape" in way:
            data, control = free_address(), free_address()
            named = [word for one in upstreams for word in ("--upstream", one)]
            held.enter_context(running(
                binary, "serve", *named, "--store", Path(folder, "a.db"), "--listen", data,
                "--control", control, "--quiet", ready=f"http://{control}/health"))
            base = f"http://{data}/e/s{{}}"

        failures, began_at = [], time.time()
        threads = [threading.Thread(target=session, args=(base, at, options.turns, failures))
                   for at in range(options.sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise SystemExit(f"{len(failures)} sessions failed, the first with: {failures[0]}")
        return *counters(engines), time.time() - began_at


def main():
    """Measures each way and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    binary = os.environ.get("ROLLTAPE_BIN", str(ROOT / "target/release/rolltape"))

    ways = ["rolltape", "nginx, in rotation", "rolltape in front of nginx"]
    if shutil.which("nginx") is None:
        ways = ways[:1]
        print("nginx is not installed: without it there is nothing to compare with")
    print(f"{options.engines} engines, {options.sessions} sessions of {options.turns} turns\n")
    print("| way | tokens of prompts | found among prefixes | share | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for way in ways:
        queries, hits, seconds = measure(way, options, binary)
        print(f"| {way} | {queries:,.0f} | {hits:,.0f} | {100 * hits / queries:.1f} % "
              f"| {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
