"""Stand-ins for what a suite imports and does not need to talk to a server.

vLLM's tests import vLLM, which takes 6 GB and half a minute; the tests that ask a server over HTTP
use little of it. Everything below the packages of `ABSENT` is a mock, but for what is given here.
"""

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from unittest.mock import MagicMock

from engine import ADAPTERS, VOCABULARY, folder_of

ABSENT = ("vllm", "torch", "torchvision", "PIL", "fastapi", "starlette", "rapidfuzz", "tblib")
ABSENT += ("lm_eval", "schemathesis", "hypothesis", "openai_harmony", "wget", "sglang.srt", "mcp")
ABSENT += ("tests.entrypoints.openai.chat_completion.test_serving_chat",)
ABSENT += ("uvloop", "mteb", "librosa", "soundfile", "websockets", "jiwer", "datasets", "torchcodec")


class Mocked(types.ModuleType):
    """A module of which every name is a mock."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are mocked."""

    def find_spec(self, name, path=None, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Mocked(spec.name)

    def exec_module(self, module):
        given = GIVEN.get(module.__name__, {})
        for name, value in given.items():
            setattr(module, name, value)


def tokenizer_of(name=None, *_args, tokenizer_name=None, **_options):
    """The tiny model's tokenizer, under the template of the model that is named."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder_of(str(name or tokenizer_name)))


class Hub:
    """The hub's client: an adapter's folder is one of ours."""

    def snapshot_download(self, *_args, **_options):
        return str(ADAPTERS / "every")


class Platform:
    """No accelerator."""

    def __getattr__(self, name):
        if name.startswith("is_"):
            return lambda *_args: name == "is_cpu"
        return MagicMock()


class Vocabulary:
    """vLLM's configuration of a model, as far as tests ask for it."""

    def __init__(self, *_args, **_options):
        pass

    def get_vocab_size(self):
        return VOCABULARY


GIVEN = {
    "vllm.config": {"ModelConfig": Vocabulary},
    "vllm.model_executor.model_loader.weight_utils": {
        "download_weights_from_hf": lambda name, **_options: name
    },
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.tokenizers": {"get_tokenizer": tokenizer_of},
    "vllm.transformers_utils.repo_utils": {"hf_api": Hub},
    "vllm.utils": {"random_uuid": lambda: "suite"},
    "vllm.envs": {"VLLM_USE_RUST_FRONTEND": False},
    "vllm.version": {"__version__": "0.33.0", "_prev_minor_version": lambda: "0.32"},
    "vllm": {"__version__": "0.33.0"},
    "torch": {
        "long": None,
        "iinfo": lambda _kind: types.SimpleNamespace(min=-(2**63), max=2**63 - 1),
        "cuda": types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0),
    },
}


def install():
    """Puts the stand-ins where imports find them."""
    sys.meta_path.insert(0, Finder())
    import transformers

    transformers.AutoTokenizer.from_pretrained = tokenizer_of
    with contextlib.suppress(ImportError):
        import huggingface_hub

        huggingface_hub.snapshot_download = Hub().snapshot_download
