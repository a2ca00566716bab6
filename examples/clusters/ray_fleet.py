"""rolltape in front of engines that are Ray actors: docs/clusters.md.

    ray job submit --working-dir . -- python ray_fleet.py --engines 8 --gpus 1

Each engine is an actor that runs a server as a process, and Ray starts it again, on any node, when
it dies. One actor runs rolltape. Another address of an engine is told to rolltape by its control
listener; rolltape gives an engine no calls while it is away, nor while its weights are old.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import ray

import rolltape

VLLM = "vllm serve Qwen/Qwen3-0.6B --host 0.0.0.0 --port {port}"
LOOK_S = 2.0
"""Pause between two looks at the engines."""


def free_port():
    """A port of this machine that nobody listens on."""
    with socket.create_server(("", 0)) as held:
        return held.getsockname()[1]


@ray.remote(max_restarts=-1)
class Engine:
    """An inference server on a node of Ray's choice."""

    def __init__(self, command, host=None):
        port = free_port()
        self.url = f"http://{host or ray.util.get_node_ip_address()}:{port}"
        self.child = subprocess.Popen(shlex.split(command.format(port=port)))

    def address(self):
        """The engine's address. Ends the actor if its server has ended: Ray starts another one."""
        if self.child.poll() is not None:
            os._exit(1)
        return self.url

    def is_ready(self):
        """True if the server answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def end(self):
        """Ends the server; for tests, as a crash would."""
        self.child.kill()
        self.child.wait()


@ray.remote
class Recorder:
    """rolltape in front of the engines. Not restarted elsewhere: its store is on this node."""

    def __init__(self, upstreams, store, drain_wait_s):
        self.folder = Path(tempfile.mkdtemp(prefix="rolltape-"))
        self.store = Path(store) if store else self.folder / "rolltape.db"
        data, control = free_port(), free_port()
        self.host = ray.util.get_node_ip_address()
        named = [word for name, url in upstreams for word in ("--upstream", f"{url} name={name}")]
        self.child = subprocess.Popen(
            [rolltape.binary(), "serve", *named, "--store", self.store,
             "--listen", f"0.0.0.0:{data}", "--control", f"127.0.0.1:{control}",
             "--drain-wait-s", str(drain_wait_s)])
        self.data = f"http://{self.host}:{data}"
        self.client = rolltape.Client(f"http://127.0.0.1:{control}", store=self.store)

    def address(self):
        """The base URL of agents, once calls can be recorded."""
        while True:
            try:
                self.client.ready()
                return self.data
            except rolltape.RolltapeError:
                if self.child.poll() is not None:
                    raise RuntimeError("rolltape has ended; its output says why") from None
                time.sleep(0.2)

    def move(self, name, url):
        """Tells rolltape another address of an engine."""
        self.client.http.post("/upstreams", {"name": name, "url": url})

    def upstreams(self):
        """The engines as rolltape sees them."""
        return self.client.http.get("/upstreams")["upstreams"]

    def stop(self):
        """Lets calls in flight end, and says where the recording is."""
        self.child.send_signal(signal.SIGTERM)
        self.child.wait()
        return str(self.store)


class Fleet:
    """Engines with rolltape in front. `host` is theirs, in place of the address of each node."""

    def __init__(self, engines, command=VLLM, gpus=1.0, store=None, drain_wait_s=300, host=None):
        sized = Engine.options(num_gpus=gpus, num_cpus=0.5)
        self.engines = {f"engine-{at}": sized.remote(command, host) for at in range(engines)}
        self.urls = {name: ray.get(one.address.remote()) for name, one in self.engines.items()}
        self.recorder = Recorder.options(num_cpus=0.5).remote(
            list(self.urls.items()), store, drain_wait_s)
        while not all(ray.get([one.is_ready.remote() for one in self.engines.values()])):
            time.sleep(0.5)
        self.data = ray.get(self.recorder.address.remote())

    def look(self):
        """Tells rolltape of engines that Ray has started again. Call it now and then."""
        for name, engine in self.engines.items():
            try:
                url = ray.get(engine.address.remote(), timeout=30)
            except ray.exceptions.RayActorError:
                # It is being started; the next look finds it.
                continue
            if url != self.urls[name]:
                ray.get(self.recorder.move.remote(name, url))
                self.urls[name] = url

    def stop(self):
        """Drains rolltape, then ends the engines. Returns the path of the recording."""
        store = ray.get(self.recorder.stop.remote())
        for engine in self.engines.values():
            ray.get(engine.end.remote())
            ray.kill(engine)
        return store


def main():
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=1.0, help="GPUs of each engine")
    parser.add_argument("--command", default=VLLM, help="an engine's command, with {port} in it")
    parser.add_argument("--store", help="path of the recording on the recorder's node")
    parser.add_argument("--drain-wait-s", type=int, default=300)
    args = parser.parse_args()

    ray.init()
    fleet = Fleet(args.engines, args.command, args.gpus, args.store, args.drain_wait_s)
    print(f"agents: OPENAI_BASE_URL={fleet.data}/v1", flush=True)
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    try:
        while not stopping:
            fleet.look()
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        pass
    print(f"recorded in {fleet.stop()}")


if __name__ == "__main__":
    main()
