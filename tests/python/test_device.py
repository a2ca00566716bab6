"""Where a start runs: on the CPU with one line that says why, or on a GPU.

The GPU is emulated by libraries in the place of the CUDA libraries (kernels/emulator), which are built here and put
into the loader's path of the real binary.
"""

import ctypes
import json
import os
import subprocess
import urllib.request

import pytest

import harness

ROOT = harness.ROOT
HEAD_DIM = json.loads((harness.MODEL / "config.json").read_text())["head_dim"]
# A shape with heads of a size that kernels are built in for.
BUILT_IN = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 400, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 512, "eos_token_id": 0,
    "tie_word_embeddings": True,
}
PROMPT = "Find the secret number"
# What bf16 may do to a logprob of such a small model.
NEAR = 0.1
# The first test builds the emulated libraries, too.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def emulated():
    """The folder of the emulated libraries, built."""
    folder = ROOT / "target" / "cuda-emulated"
    folder.parent.mkdir(exist_ok=True)
    script = ROOT / "kernels/emulator/build.sh"
    subprocess.run([script, folder, str(HEAD_DIM), str(BUILT_IN["head_dim"])], check=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def only_emulated():
    """A real driver would be found first where a test wants none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    pytest.skip("this machine has a CUDA driver")


def environment(*folders, **changes):
    """Libraries come from `folders` alone: with no Python in the path, none of its packages."""
    path = os.pathsep.join(map(str, folders))
    return harness.environment(LD_LIBRARY_PATH=path, PATH="/nowhere", **changes)


class Started:
    """An engine with a device of its own choice, asked once."""

    def __init__(self, folder, env, *arguments, source=("--model", harness.MODEL)):
        (address,) = harness.free_addresses(1)
        self.url = f"http://{harness.text(address)}"
        where = (*source, "--listen", harness.text(address))
        own = ("--kernel-cache", folder / "kernels", *arguments)
        self.process = harness.Process("engine", *where, *own, folder=folder, env=env)

    def __enter__(self):
        self.process.await_answer(f"{self.url}/health")
        return self

    def __exit__(self, *_):
        self.process.kill()

    def line(self):
        """The one line that says where it runs."""
        (line,) = [x for x in self.process.stderr.splitlines() if x.startswith("running on ")]
        return line

    def ask(self, **fields):
        """A greedy reply: ids and logprobs."""
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 0,
                "return_token_ids": True, "ignore_eos": True} | fields
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", data, kind)
        with urllib.request.urlopen(request, timeout=120) as answer:
            (choice,) = json.load(answer)["choices"]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory):
    """What the CPU answers."""
    folder = tmp_path_factory.mktemp("cpu")
    with Started(folder, environment(), "--device", "cpu") as started:
        assert started.line().endswith(": as requested")
        return started.ask()


REASONS = {
    "no driver": ((), {}, "no CUDA driver was found (libcuda.so.1)"),
    "no NVRTC": (
        (".",), {}, f"heads of {HEAD_DIM} is not built in, and libnvrtc.so.13, which would compile "
        "it, was not found"),
    "a driver that is older than NVRTC": (
        (".", "nvrtc"), {"DRIVER": "12080"}, "libnvrtc.so.12, which would compile it, was not"),
    "an old driver": ((".", "nvrtc"), {"DRIVER": "11080"}, "supports CUDA 11.8 at most"),
    "an old device": ((".", "nvrtc"), {"CAPABILITY": "75"}, "has compute capability 7.5"),
    "no device": ((".", "nvrtc"), {"DEVICES": "0"}, "lists 0 devices"),
    "kernels that do not compile": (
        (".", "nvrtc"), {"FAIL_COMPILE": "1"}, "could not be compiled for sm_90a"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_missing_is_said_and_the_cpu_answers(name, emulated, on_the_cpu, tmp_path):
    folders, faults, reason = REASONS[name]
    changes = {f"ROLLTAPE_EMULATED_{key}": value for key, value in faults.items()}
    env = environment(*(emulated / folder for folder in folders), **changes)
    with Started(tmp_path, env) as started:
        line = started.line()
        assert line.startswith("running on the CPU with ") and reason in line
        assert started.ask() == on_the_cpu
    refused = Started(tmp_path, env, "--device", "cuda")
    try:
        assert refused.process.child.wait(60) != 0
        assert reason in refused.process.stderr and "running on" not in refused.process.stderr
    finally:
        refused.process.kill()


def test_a_gpu_is_found_and_answers(emulated, on_the_cpu, tmp_path):
    env = environment(emulated, emulated / "nvrtc")
    for compiled in (True, False):
        with Started(tmp_path, env) as started:
            line = started.line()
            assert line.startswith("running on the GPU Emulated GPU") and "sm_90a" in line
            # The second start takes the kernels that the first one kept.
            assert (" 0 files of kernels" in line) != compiled, line
            ids, logprobs = started.ask()
    assert ids[:1] == on_the_cpu[0][:1]
    assert abs(logprobs[0] - on_the_cpu[1][0]) < NEAR


def test_a_driver_of_cuda_12_takes_the_libraries_of_cuda_12(emulated, on_the_cpu, tmp_path):
    alone = tmp_path / "driver"
    alone.mkdir()
    # Of the loader's path, products of CUDA 13 are not in it.
    for name in ("libcuda.so.1", "libemulate.so", "kernels"):
        (alone / name).symlink_to(emulated / name)
    env = environment(alone, emulated / "cuda12", ROLLTAPE_EMULATED_DRIVER="12080")
    with Started(tmp_path, env, "--device", "cuda") as started:
        line = started.line()
        assert "4 files of kernels compiled" in line and "(12 built in, 0 kept)" in line
        assert line.endswith("cuBLASLt the system's")
        ids, logprobs = started.ask()
    assert ids[:1] == on_the_cpu[0][:1]
    assert abs(logprobs[0] - on_the_cpu[1][0]) < NEAR


@pytest.mark.parametrize("driver", ["13000", "12000"])
def test_without_nvrtc_usual_heads_are_served_by_built_in_kernels(driver, emulated, tmp_path):
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(BUILT_IN))
    env = environment(emulated, ROLLTAPE_EMULATED_DRIVER=driver)
    source = ("--random-weights", shape)
    with Started(tmp_path, env, "--device", "cuda", source=source) as started:
        line = started.line()
        assert " 0 files of kernels compiled" in line, line
        assert "(16 built in, 0 kept), without NVRTC" in line, line
        ids, logprobs = started.ask()
    assert len(ids) == 8 and all(number < 0 for number in logprobs)


def test_texts_of_kernels_are_an_option_that_help_does_not_show(emulated, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    text = (ROOT / "kernels/cuda/elementwise.cu").read_text()
    (texts / "elementwise.cu").write_text(text + "\n// a variant\n")
    env = environment(emulated, emulated / "nvrtc")
    with Started(tmp_path, env, "--kernel-texts", texts) as started:
        assert "5 files of kernels compiled" in started.line()
    shown = subprocess.run([harness.binary(), "engine", "--help"], capture_output=True, text=True)
    assert "--kernel-cache" in shown.stdout and "--kernel-texts" not in shown.stdout


def test_recorded_steps_are_those_asked_for_one_by_one(emulated, tmp_path):
    env = environment(emulated, emulated / "nvrtc", ROLLTAPE_EMULATED_ORDER="random",
                      ROLLTAPE_EMULATED_SEED="7")
    with Started(tmp_path, env) as recorded, Started(tmp_path, env, "--enforce-eager") as eager:
        for fields in ({}, {"temperature": 1.0, "seed": 5, "top_p": 0.9}):
            assert recorded.ask(**fields) == eager.ask(**fields)


def test_the_binary_links_nothing_of_cuda():
    linked = subprocess.run(["ldd", harness.binary()], capture_output=True, text=True).stdout
    assert "libc.so" in linked
    assert not [name for name in ("libcuda", "nvrtc", "cublas", "nvidia") if name in linked]
