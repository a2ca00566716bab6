"""TRL's own client against a server: `client.py BASE_URL`.

TRL asks for the package `vllm` before it talks to a server that speaks vLLM's language; here it
finds names only, made in a temporary folder. Prints one JSON object of what the client gave back.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}

NAMES = {
    "vllm/__init__.py": '__version__ = "0.31.0"\nLLM = RequestOutput = SamplingParams = None',
    "vllm/sampling_params.py": "StructuredOutputsParams = None",
    "vllm/utils/__init__.py": "",
    "vllm/utils/network_utils.py": "get_open_port = None\ndef get_ip():\n    return '127.0.0.1'",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/weight_transfer/__init__.py": "",
    "vllm/distributed/weight_transfer/nccl_common.py": "trainer_init = None",
    "vllm/distributed/weight_transfer/packed_tensor.py": "packed_nccl_broadcast_producer = None",
}
QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
INTEGER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GUESS = {"type": "function", "function": {"name": "guess", "parameters": INTEGER}}


def name_vllm(folder):
    """Puts the names where Python finds them."""
    for path, text in NAMES.items():
        file = Path(folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    sys.path.insert(0, folder)


def talk(base_url):
    """Every call that samples or scores."""
    from trl.generation.vllm_client import VLLMClient

    client = VLLMClient(base_url=base_url)
    messages = [[{"role": "user", "content": QUESTION}], [{"role": "user", "content": "Hello"}]]
    ids = client.generate(["guess 4", "guess 5"], max_tokens=1)["prompt_ids"]
    options = {"n": 3, "max_tokens": 12, "generation_kwargs": {"seed": 5}}
    found = {
        "model": client.model,
        "ids": client.generate(ids, logprobs=4, temperature=0.9, top_k=40, **options),
        "plain": client.generate(ids, **options),
        "regex": client.generate(
            ids, structured_outputs_regex="[0-9]{3}", max_tokens=8, generation_kwargs={"seed": 6}
        ),
        "chat": client.chat(messages, tools=[GUESS], logprobs=2, **options),
    }
    sequences = [ids[0] + found["plain"]["completion_ids"][0]]
    found["scored"] = client.get_sequence_logprobs(sequences, [len(ids[0])], top_logprobs=5)
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        name_vllm(folder)
        print(json.dumps(talk(sys.argv[1])))


if __name__ == "__main__":
    main()
