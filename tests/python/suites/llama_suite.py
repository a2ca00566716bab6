"""llama.cpp's server tests against rolltape's engine: a plugin for pytest.

Their `utils.ServerProcess` starts `llama-server`; ours starts the engine. Their presets name small
models to download; here each is the tiny model.
"""

import os
import sys

import openai
from requests.structures import CaseInsensitiveDict

import standins
from engine import SOURCES, TEMPLATES, Engine, free_port

standins.install()
TESTS = SOURCES / "llama-cpp-python" / "vendor/llama.cpp/tools/server/tests"
sys.path.insert(0, str(TESTS))
os.environ.setdefault("LLAMA_CACHE", "unused")
import utils  # noqa: E402

LEAST_CONTEXT = 4096
"""The tiny model's tokens are shorter than those of the models that the tests name."""
CONTEXT_LIMITS = ("context", "ctx", "exceed", "truncat")
"""Tests whose names say that they are about the length itself keep it."""
served = "tiny"
"""The name of the model of the server that started last."""


def start(server, timeout_seconds=None):
    """`ServerProcess.start`, of the engine."""
    del timeout_seconds
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    options = ["--seed", str(server.seed)]
    if server.n_ctx:
        context = server.n_ctx // (server.n_slots or 1)
        if not any(word in test for word in CONTEXT_LIMITS):
            context = max(context, LEAST_CONTEXT)
        options += ["--max-model-len", str(context)]
    if server.api_key:
        options += ["--api-key", server.api_key]
    global served
    served = (server.model_alias or "tiny").split(",")[0]
    # Theirs is the same for all tests, of which two run at a time.
    server.server_port = free_port()
    template = server.chat_template_file
    template = TEMPLATES / os.path.basename(template) if template else None
    if server.cors_origins:
        options += ["--allow-origin", server.cors_origins]
    where = {"port": server.server_port, "key": server.api_key, "template": template}
    server.engine = Engine("tiny", options, name=served, **where)
    server.process = server.engine.processes[0]
    utils.server_instances.add(server)


def stop(server):
    """`ServerProcess.stop`, of the engine."""
    utils.server_instances.discard(server)
    if server.process:
        server.engine.stop()
        server.process = None


def renamed(path, data):
    """A call with the path of OpenAI's API and the one model that is served, as llama.cpp has it."""
    if path in ("/chat/completions", "/completions", "/models"):
        path = "/v1" + path
    if isinstance(data, dict) and path.startswith("/v1/"):
        data = {**data, "model": served}
    return path, data


def asking(method):
    """A method of `ServerProcess` that sends a call, as `renamed` has it."""

    def sent(server, verb, path, data=None, *rest, **more):
        path, data = renamed(path, data)
        reply = method(server, verb, path, data, *rest, **more)
        if isinstance(reply, utils.ServerResponse):
            # Names of headers have no case, and theirs are looked up as `llama-server` spells them.
            reply.headers = CaseInsensitiveDict(reply.headers)
        return reply

    return sent


class Client(openai.OpenAI):
    """OpenAI's client, which names any model and may leave `/v1` out."""

    def __init__(self, *, base_url, **options):
        super().__init__(base_url=base_url.removesuffix("/v1") + "/v1", max_retries=0, **options)

    def post(self, path, *, body=None, **options):
        return super().post(path, body={**body, "model": served}, **options)


openai.OpenAI = Client
for name in ("make_request", "make_stream_request", "make_any_request"):
    setattr(utils.ServerProcess, name, asking(getattr(utils.ServerProcess, name)))
utils.ServerProcess.start = start
utils.ServerProcess.stop = stop
utils.ServerPreset.load_all = staticmethod(lambda: None)
