"""rolltape's engine in the place of the server that a suite expects."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import requests

# Last, so that it hides no module of a suite.
sys.path.append(str(Path(__file__).parents[1]))
import ports  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
HOME = Path(os.environ.get("ROLLTAPE_SUITES_HOME", Path(__file__).parent / ".suites"))
SOURCES = HOME / "sources"
TINY = ROOT / "engine/models/tiny"
ADAPTERS = ROOT / "tests/tapes/engine/lora"
BINARY = os.environ.get("ROLLTAPE_BIN", str(ROOT / "target/release/rolltape"))
THROUGH = os.environ.get("ROLLTAPE_SUITES_THROUGH", "engine")
"""`engine`, or `proxy`: the suite's requests go through a recording proxy."""

CONTEXT = 32768
"""Tokens that the tiny model may take here: suites were written for tokenizers of larger words."""
START_SECONDS = 30
TEMPLATES = SOURCES / "llama-cpp-python/vendor/llama.cpp/models/templates"
VOCABULARY = 6144
"""Ids of the model as it is served here, as suites name ids that 393 tokens do not have."""
UNLIKELY = 388
"""The token, never sampled, whose row of the embedding the added ids have, twice as long."""
CLOSING = "}}"
"""A token that the tiny model likes to sample. Where it thinks, `</think>` takes its place."""
THINKS = """{%- if add_generation_prompt and (enable_thinking is not defined or enable_thinking) -%}
{{- '<think>' -}}{%- endif -%}"""
"""The tiny model never starts to think by itself, so that the prompt does it, as QwQ's does."""
_folders = {}


def template_of(model):
    """The published template of a model that a suite names, if it thinks; else the tiny model's."""
    name = model.lower()
    if "qwen3" in name:
        return TEMPLATES / "Qwen-Qwen3-0.6B.jinja"
    if "r1-distill" in name:
        return TEMPLATES / "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"
    return None


def folder_of(model, template=None, thinks=False):
    """A folder with the tiny model under the template of the model that a suite names."""
    template = Path(template) if template else template_of(model)
    # Tests of the budget of thoughts have a model that never ends them.
    ends = thinks and "budget" not in os.environ.get("PYTEST_CURRENT_TEST", "")
    key = (model, str(template), thinks, ends)
    if key not in _folders:
        folder = Path(tempfile.mkdtemp(prefix="rolltape-suite-")) / model
        folder.mkdir(parents=True)
        for file in TINY.iterdir():
            if file.suffix not in (".py", ".md"):
                shutil.copy(file, folder)
        config = json.loads((folder / "config.json").read_text())
        config["max_position_embeddings"] = CONTEXT
        config["vocab_size"] = VOCABULARY
        (folder / "config.json").write_text(json.dumps(config))
        liked, closing = add_tags(folder)
        widen(folder, {closing: liked} if ends else {})
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["model_max_length"] = CONTEXT
        if template:
            text = template.read_text() + (THINKS if thinks and "Qwen3-0.6B" in template.name else "")
            (folder / "chat_template.jinja").write_text(text)
            settings.pop("chat_template", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        _folders[key] = folder
    return _folders[key]


def free_port():
    (port,) = ports.free()
    return port


def widen(folder, likes):
    """Gives the model ids after those of its tokenizer; those of `likes` are sampled where the
    model would sample another token."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    rows = header["model.embed_tokens.weight"]
    start, end = rows["data_offsets"]
    table = np.frombuffer(body[start:end], np.float32).reshape(rows["shape"])
    added = np.repeat(2 * table[UNLIKELY][None], VOCABULARY - len(table), axis=0)
    for number, liked in likes.items():
        added[number - len(table)] = 1.1 * table[liked]
    rows["shape"][0] = VOCABULARY
    rows["data_offsets"] = [len(body), len(body) + 4 * VOCABULARY * table.shape[1]]
    # The old rows stay where they were, so that nothing else moves.
    header["unused"] = {"dtype": "F32", "shape": list(table.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    table = np.concatenate([table, added]).astype(np.float32)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body + table.tobytes())


def add_tags(folder):
    """Makes the tags of reasoning tokens, as Qwen3 has them. Returns the ids of `CLOSING` and of
    the closing tag."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    last = max(token["id"] for token in tokenizer["added_tokens"])
    for number, tag in enumerate(("<think>", "</think>"), 1):
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        tokenizer["added_tokens"].append({"id": last + number, "content": tag, **plain})
    path.write_text(json.dumps(tokenizer))
    return tokenizer["model"]["vocab"][CLOSING], last + 2


class Engine:
    """A running engine, with the recording proxy in front of it if the suite goes through one."""

    def __init__(self, model, options=(), name=None, port=None, adapters=(), key=None, **folder):
        self.processes = []
        own = THROUGH == "engine"
        self.port = port or free_port()
        self.engine_port = self.port if own else free_port()
        # Servers name the model as it was given to them: a repository, which is a folder here.
        self.folder = str(folder_of(model, **folder)).removesuffix("/" + model)
        command = [BINARY, "engine", "--model", model, "--served-model-name", name or model]
        command += ["--listen", f"127.0.0.1:{self.engine_port}", "--kv-cache-memory", "128MiB"]
        command += ["--device", "cpu", *options]
        command += [] if "--allow-origin" in options else ["--allow-origin", "*"]
        self.start(command, self.engine_port)
        for adapter, path in adapters:
            body = {"lora_name": adapter, "lora_path": str(path)}
            headers = {"authorization": f"Bearer {key}"} if key else {}
            address = f"http://127.0.0.1:{self.engine_port}/v1/load_lora_adapter"
            requests.post(address, json=body, headers=headers, timeout=30).raise_for_status()
        if not own:
            self.start_proxy(key)

    def start_proxy(self, key):
        store = Path(tempfile.mkdtemp(prefix="rolltape-suite-")) / "suite.db"
        command = [BINARY, "serve", "--upstream", f"http://127.0.0.1:{self.engine_port}"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--control", "127.0.0.1:0"]
        command += ["--store", str(store)]
        for path in ("POST /tokenize", "POST /detokenize", "GET /tokenizer_info", "GET /load"):
            command += ["--allow-path", path]
        self.start(command, self.port)

    def start(self, command, port):
        process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.processes.append(process)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(process.stderr.read().decode()[-2000:])
            try:
                if requests.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    return
            except requests.RequestException:
                time.sleep(0.05)
        raise RuntimeError(f"{command[1]} did not answer within {START_SECONDS} s")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            process.stderr.close()
        self.processes = []
