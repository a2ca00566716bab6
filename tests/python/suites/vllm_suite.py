"""vLLM's end-to-end tests against rolltape's engine: a plugin for pytest.

Their own `tests/utils.py` and `tests/conftest.py` start `vllm serve`; ours start the engine.
"""

import contextlib
import inspect
import json
import os
import re
import sys
import types
from pathlib import Path

import anthropic
import openai
import pytest
import requests

import standins
from engine import ADAPTERS, SOURCES, Engine, free_port

standins.install()
TIMEOUT_SECONDS = 60
KEY = "token-abc123"

TAKEN = {
    "--max-num-seqs": "--max-num-seqs",
    "--max-logprobs": "--max-logprobs",
    "--logprobs-mode": "--logprobs-mode",
    "--max-lora-rank": "--max-lora-rank",
    "--max-loras": "--max-loras",
    "--api-key": "--api-key",
    "--seed": "--seed",
}
"""Options of `vllm serve` that the engine has."""
CONTEXT = 4096
"""Tokens of a prompt and its reply where a test names none: the tiny model seldom ends a reply by
itself, and its tokens are shorter than those of the models that the tests name."""
MOST_CONTEXT = 16384
"""A test that names more gets `CONTEXT`, for the same reason."""
STREAM_TOKENS = 3500
"""Of a stream that must still run when it is paused. It fits into `CONTEXT`."""
TRIED_AGAIN = ("test_stream_delivers_abort_finish_chunk",)
"""Tests that stop a stream of a given length, which the tiny model may have ended by then."""
TRIES = 5
KEY_VARIABLE = "VLLM_API_KEY"


def options_of(arguments):
    """The engine's options for those of `vllm serve`, and what else is in them."""
    options, others = [], {"adapters": [], "name": None, "thinks": False}
    context, chunked = CONTEXT, False
    it = iter(arguments)
    for argument in it:
        flag, equals, value = argument.partition("=")
        if flag in TAKEN:
            value = value if equals else next(it)
            options += [TAKEN[flag], value]
        elif flag == "--max-model-len":
            given = int(value if equals else next(it))
            context = max(given, CONTEXT) if given <= MOST_CONTEXT else CONTEXT
        elif flag == "--enable-chunked-prefill":
            # Its tests have prompts as long as the model allows.
            chunked = True
        elif flag == "--reasoning-parser":
            others["thinks"] = True
        elif flag == "--served-model-name":
            others["name"] = value if equals else next(it)
        elif flag == "--lora-modules":
            for module in it:
                if module.startswith("--"):
                    it = iter([module, *it])
                    break
                name = json.loads(module)["name"] if module[0] == "{" else module.partition("=")[0]
                others["adapters"].append((name, ADAPTERS / "every"))
    # vLLM looks for reasoning only where it is told how.
    options += ["--max-model-len", str(MOST_CONTEXT if chunked else context)]
    options += [] if others["thinks"] else ["--reasoning-parser", "none"]
    return options, others


class RemoteServer:
    """`RemoteOpenAIServer` of vLLM's tests, with the engine behind it."""

    DUMMY_API_KEY = KEY
    show_hidden_metrics = False
    uds = None

    def __init__(self, model, vllm_serve_args, *, env_dict=None, seed=0, **_others):
        arguments = list(vllm_serve_args)
        if KEY_VARIABLE in (env_dict or {}):
            arguments += ["--api-key", env_dict[KEY_VARIABLE]]
        if "--port" in arguments:
            at = arguments.index("--port")
            self.port = int(arguments[at + 1])
            del arguments[at : at + 2]
        else:
            self.port = free_port()
        self.host = "127.0.0.1"
        options, others = options_of(arguments)
        key = options[options.index("--api-key") + 1] if "--api-key" in options else None
        if "--seed" not in options:
            options += ["--seed", str(seed or 0)]
        self.engine = Engine(model, options, port=self.port, key=key, **others)
        self.proc = self.engine.processes[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.stop()

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(part.strip("/") for part in parts if part)

    def _client(self, kind, address, options):
        options.setdefault("timeout", TIMEOUT_SECONDS)
        return kind(base_url=address, api_key=KEY, max_retries=0, **options)

    def get_client(self, **options):
        return self._client(openai.OpenAI, self.url_for("v1"), options)

    def get_async_client(self, **options):
        return self._client(openai.AsyncOpenAI, self.url_for("v1"), options)

    def get_client_anthropic(self, **options):
        return self._client(anthropic.Anthropic, self.url_for(), options)

    def get_async_client_anthropic(self, **options):
        return self._client(anthropic.AsyncAnthropic, self.url_for(), options)


def skip(**_options):
    return pytest.mark.skip(reason="needs GPUs")


utils = types.ModuleType("tests.utils")
utils.RemoteVLLMServer = utils.RemoteOpenAIServer = utils.RemoteLaunchRenderServer = RemoteServer
utils.VLLM_PATH = SOURCES / "vllm"
utils.ROCM_EXTRA_ARGS, utils.ROCM_ENGINE_KWARGS = [], {}
utils.multi_gpu_test = utils.multi_gpu_marks = utils.large_gpu_mark = utils.large_gpu_test = skip
utils.multi_gpu_only = lambda **_options: pytest.mark.skip(reason="needs GPUs")
utils.requires_fp8 = pytest.mark.skip(reason="needs a GPU")
utils.create_new_process_for_each_test = lambda *_args: lambda function: function

conftest = types.ModuleType("tests.conftest")
conftest.HfRunner = conftest.LocalAssetServer = conftest.VllmRunner = object

sys.path.insert(0, str(SOURCES / "vllm"))
sys.modules["tests.utils"] = utils
sys.modules["tests.conftest"] = conftest
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture
def local_asset_server():
    """Serves pictures, which the engine does not take."""
    return None


def replace_rl_server(module):
    """The RL tests start their server by a function of their own."""

    @contextlib.contextmanager
    def server(extra_args=None, port=None, timeout=None, dummy_weights=False):
        del timeout, dummy_weights, port
        with RemoteServer("Qwen/Qwen3-0.6B", ["--served-model-name", "m", *(extra_args or [])]) as s:
            yield s.url_root

    module.server = server
    replace_streams(module)


def replace_streams(module):
    """Their streams are long for a large model: ours samples one before they look at it again. So
    it is longer here, and is read to its end before they look whether it has ended."""
    start, pause = module.start_stream, module.pause
    running = []

    def start_stream(url, max_tokens):
        del max_tokens
        result, thread = start(url, STREAM_TOKENS)
        running[:] = [result]
        return result, thread

    def pause_and_hear(url, mode="abort", **options):
        status = pause(url, mode=mode, **options)
        if status == 200 and mode != "keep" and running:
            before = sampled(url)
            running[0].done.wait(TIMEOUT_SECONDS)
            assert sampled(url) == before, "it pauses when the stream has ended"
        return status

    module.start_stream, module.pause = start_stream, pause_and_hear


def sampled(url):
    """How many tokens a server has sampled."""
    page = requests.get(f"{url}/metrics", timeout=TIMEOUT_SECONDS).text
    return re.search(r"^vllm:generation_tokens_total\S* (\S+)$", page, re.MULTILINE)[1]


def starts_a_server(item, manager):
    """A test that asks a server, by itself or by one of its fixtures; the others test vLLM's code."""
    sources = [item.function]
    for name in item.fixturenames:
        sources += [fixture.func for fixture in manager.getfixturedefs(name, item) or ()]
    return any("Remote" in (text := inspect.getsource(f)) or "server(" in text for f in sources)


def try_again(item):
    """Runs a test up to `TRIES` times, until it passes."""
    once = item.runtest

    def runtest():
        for _ in range(TRIES - 1):
            with contextlib.suppress(AssertionError):
                return once()
        return once()

    item.runtest = runtest


def pytest_configure(config):
    import importlib

    if any("/rl/" in str(arg) or arg.endswith("rl") for arg in config.args):
        replace_rl_server(importlib.import_module("tests.entrypoints.rl.conftest"))


def pytest_collection_modifyitems(session, config, items):
    manager = session._fixturemanager
    kept = [item for item in items if starts_a_server(item, manager)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in kept:
        if item.originalname in TRIED_AGAIN:
            try_again(item)
