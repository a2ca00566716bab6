"""GRPOTrainer in server mode against an engine: `served.py BASE_URL OUT`.

TRL's own client makes every call; only the two methods that need a GPU, which hand tensors to NCCL,
hand them over as a folder here. Prints one JSON object: what each step logged and which calls the
server saw.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from adapters import QUESTION, STEPS, calls_seen  # noqa: E402
from client import name_vllm  # noqa: E402

MODEL = HERE.parents[2] / "engine" / "models" / "tiny"


def by_folder(out):
    """Lets TRL's client hand weights over without a GPU, with the calls that it makes otherwise."""
    from safetensors.torch import save_file
    from trl.generation.vllm_client import VLLMClient

    def init_communicator(self, device=0):
        info = self.get_server_info()
        assert info["weight_transfer_config"] is not None
        assert self.get_world_size() == 1
        self._post(f"{self.base_url}/init_weight_transfer_engine", json={"init_info": {}})

    def update_named_params(self, metadata, named_params):
        self.updates = getattr(self, "updates", 0) + 1
        folder = Path(out, f"weights-{self.updates}")
        folder.mkdir(parents=True)
        tensors = {name: values.detach().clone().contiguous() for name, values in named_params}
        save_file(tensors, folder / "model.safetensors")
        self._post(f"{self.base_url}/start_weight_update", json={})
        update = {"update_info": {"path": str(folder)}}
        self._post(f"{self.base_url}/update_weights", json=update)
        self._post(f"{self.base_url}/finish_weight_update", json={})

    VLLMClient.init_communicator = init_communicator
    VLLMClient.update_named_params = update_named_params


def spread(completion_ids, **_):
    """A reward that differs between any two guesses; all of them have the same length."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def trained(url, out):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    by_folder(out)
    prompts = [{"prompt": [{"role": "user", "content": f"{QUESTION} {i}"}]} for i in range(16)]
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=spread,
        args=GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=STEPS,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=url,
        ),
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )


def main():
    import torch

    torch.set_num_threads(1)
    url, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        name_vllm(folder)
        seen = calls_seen()
        trainer = trained(url, out)
        trainer.train()
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(json.dumps({"steps": steps, "calls": seen}, default=str))


if __name__ == "__main__":
    main()
