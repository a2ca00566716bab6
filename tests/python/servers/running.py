"""Real servers as processes: which there are, how each is started, what it says of itself.

ROLLTAPE_SERVERS names those that tests must run, `llamacpp vllm vllm-rust sglang`; without it
llama.cpp is run where `install.sh` has been run.
"""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import harness

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("ROLLTAPE_SERVERS_HOME") or HERE / ".venvs")
NAMED = os.environ.get("ROLLTAPE_SERVERS")
CHOSEN = NAMED.split() if NAMED is not None else ["llamacpp"]
NAME = "tiny"
CONTEXT = 1024
READY_WAIT_S = 480
STOP_WAIT_S = 30
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Kind:
    """A server that can be started, and what it can do."""

    name: str
    venv: str
    dialect: str
    environment: dict = field(default_factory=dict)
    versions: tuple = ()
    """The modes, whole and streamed, in which it tells policy versions."""
    told: tuple = ()
    """What rolltape must be told, because the server does not say it of itself."""

    @property
    def python(self):
        """Its interpreter."""
        return HOME / self.venv / "bin" / "python"

    @property
    def why_not(self):
        """Why it cannot be started; None where it can."""
        if self.python.exists():
            return None
        skipped = HOME / f"{self.venv}.skipped"
        told = skipped.read_text().strip() if skipped.exists() else "it is not installed"
        return f"{self.name}: {told}"


VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
}
BOTH = ("whole", "streamed")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("llamacpp", "llamacpp", "llamacpp"),
        Kind("vllm", "vllm", "vllm", VLLM, versions=BOTH),
        Kind(
            "vllm-rust",
            "vllm",
            "vllm",
            VLLM | {"VLLM_USE_RUST_FRONTEND": "1"},
            told=("--logprobs-mode", "processed_logprobs"),
        ),
        Kind(
            "sglang",
            "sglang",
            "sglang",
            {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(HERE / "stubs")},
            versions=("whole",),
        ),
    )
}


@dataclass(frozen=True)
class Server:
    """A running server."""

    kind: Kind
    address: tuple[str, int]
    model: Path

    @property
    def url(self):
        """Where rolltape, or a client, finds it."""
        return f"http://{harness.text(self.address)}"

    def get(self, path):
        """The JSON at a path."""
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return json.load(reply)

    def post(self, path, body=None):
        """Posts JSON and gives the JSON that comes back, None where nothing does.

        Raises AssertionError with the reply where it is refused.
        """
        headers = {"content-type": "application/json"}
        data = json.dumps(body).encode() if body is not None else b""
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                said = reply.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read()[:2000]}") from error
        return json.loads(said) if said else None

    def version(self):
        """The release that answers."""
        if self.kind.name == "llamacpp":
            return version_of(self.kind, "xllamacpp")
        if self.kind.name == "sglang":
            return self.get("/server_info")["version"]
        return self.get("/version")["version"]


def version_of(kind, package):
    """The release of a package in a server's environment."""
    asked = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run([kind.python, "-c", asked], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def command(kind, model, port, folder):
    """The command line that serves a model folder."""
    if kind.name == "llamacpp":
        file = folder / f"{model.name}.gguf"
        subprocess.run([kind.python, HERE / "make_gguf.py", model, file], check=True)
        return [kind.python, HERE / "llama_server.py", file, port]
    where = ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", port]
    where += ["--dtype", "float32", "--tool-call-parser", "hermes"]
    return [kind.python, *(of_sglang(model) if kind.name == "sglang" else of_vllm(model)), *where]


def of_vllm(model):
    """vLLM's options. Its logprobs are of what was sampled; it takes no defaults of a model's."""
    return [
        *("-m", "vllm.entrypoints.cli.main", "serve", model),
        *("--max-model-len", CONTEXT, "--max-num-seqs", 8, "--enforce-eager"),
        *("--enable-auto-tool-choice", "--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
    ]


def of_sglang(model):
    """SGLang's options, on torch's own operators."""
    return [
        *("-m", "sglang.launch_server", "--model-path", model, "--device", "cpu"),
        *("--context-length", CONTEXT, "--max-total-tokens", 8192, "--max-running-requests", 8),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--disable-overlap-schedule", "--disable-cuda-graph", "--skip-server-warmup"),
        *("--sampling-defaults", "openai"),
    ]


@contextmanager
def running(kind, folder, model=harness.MODEL, options=()):
    """A server in front of a model folder until the block ends; `options` come last.

    What it says is in `folder`. Raises RuntimeError with the end of that where it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (address,) = harness.free_addresses(1)
    line = [str(word) for word in (*command(kind, model, address[1], folder), *options)]
    log = folder / f"{kind.name}.log"
    with log.open("wb") as said:
        child = subprocess.Popen(
            line,
            cwd=HERE,  # `/server_info` of vLLM fails in a folder that was tidied away
            env=harness.environment(**QUIET, **kind.environment),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        server = Server(kind, address, model)
        await_health(server, child, log)
        yield server
    finally:
        stop(child)


def await_health(server, child, log):
    """Waits until the server answers."""
    until = time.monotonic() + READY_WAIT_S
    while child.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    told = log.read_text(errors="replace")[-4000:]
    raise RuntimeError(f"{server.kind.name} did not start ({child.poll()}):\n{told}")


def stop(child):
    """Ends the server and the processes that it started, which are of its session."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
