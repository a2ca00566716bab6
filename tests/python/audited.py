"""A server between rolltape and an engine that does one thing wrong, and folders of weights."""

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy

CHAT = "/v1/chat/completions"


class Fault:
    """Nothing wrong. A fault changes what the engine is asked, or what it answers."""

    def asked(self, body, turn):
        """Changes a chat request of an episode's turn, and gives the engine to ask."""
        return 0

    def answered(self, body, reply, turn):
        """Changes the reply."""


@contextmanager
def between(engines, fault):
    """Serves what the engines serve, wrongly; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.relay(None)

        def do_POST(self):
            self.relay(self.rfile.read(int(self.headers["content-length"])))

        def relay(self, body):
            engine, change = engines[0], lambda reply: reply
            if self.path == CHAT:
                asked = json.loads(body)
                turn = sum(message["role"] == "assistant" for message in asked["messages"])
                engine = engines[fault.asked(asked, turn)]
                body = json.dumps(asked).encode()

                def change(reply):
                    reply = json.loads(reply)
                    fault.answered(asked, reply, turn)
                    return json.dumps(reply).encode()

            status, reply = ask(engine + self.path, body)
            reply = change(reply) if status == 200 else reply
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def ask(url, body=None):
    """The status and the body of a reply."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=100) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def other_weights(model, folder, seed=1):
    """A copy of a model folder whose weights in bfloat16 differ in up to four of their last bits."""
    folder.mkdir(parents=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = bytearray((model / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(weights[:8], "little")
    values = numpy.frombuffer(weights, dtype=numpy.uint16, offset=start)
    changes = numpy.random.default_rng(seed).integers(0, 16, len(values), dtype=numpy.uint16)
    values ^= changes
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def other_template(model, folder):
    """The model with other words in its template."""
    folder.mkdir(parents=True)
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    name = "tokenizer_config.json"
    text = (model / name).read_text()
    changed = text.replace("You are a helpful AI assistant", "You are a grumpy old pirate")
    assert changed != text
    (folder / name).unlink()
    (folder / name).write_text(changed)
    return folder


def adapter(model, folder, rank=4, seed=2):
    """A LoRA adapter for a model of Llama's shape, of random numbers."""
    config = json.loads((model / "config.json").read_text())
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    rng = numpy.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        tensors[f"{name}A.weight"] = rng.normal(0, 0.3, (rank, width)).astype(numpy.float32)
        tensors[f"{name}B.weight"] = rng.normal(0, 0.3, (width, rank)).astype(numpy.float32)
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    return folder


def safetensors(tensors):
    """The bytes of a file with tensors of 32-bit floats."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        end = len(data) + tensor.nbytes
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), end],
        }
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
