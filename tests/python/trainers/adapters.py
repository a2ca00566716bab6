"""TRL's AsyncGRPOTrainer with its own worker and its own LoRA sync: `adapters.py BASE_URL OUT`.

Of TRL only the attention is replaced, whose kernel needs a GPU, and the question which GPU there
is. Prints one JSON object: what each step logged, what the server was called for, and how far the
engine's logprobs are from those of PEFT with the adapters that the trainer wrote.
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
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "python")]

from client import name_vllm  # noqa: E402

MODEL = HERE.parents[2] / "engine" / "models" / "tiny"
QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
STEPS = 3
PROMPT = list(range(5, 45))
SAMPLED = 24


def variety(completion_ids, **_):
    """A reward that differs within a group: how many different tokens a completion has."""
    return [len(set(ids)) / 16 for ids in completion_ids]


def sampled(url, model):
    """Tokens that the engine samples with a model, and their logprobs."""
    import requests

    body = {"model": model, "prompt": PROMPT, "max_tokens": SAMPLED, "temperature": 1.0, "seed": 3}
    body |= {"logprobs": 0, "return_token_ids": True, "ignore_eos": True}
    body |= {"return_weight_versions": True}
    reply = requests.post(f"{url}/v1/completions", json=body, timeout=60)
    reply.raise_for_status()
    choice = reply.json()["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["weight_versions"]


def difference(url, name, folder):
    """The largest |engine's logprob - PEFT's| under an adapter, and how far it is from the model."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ids, theirs, versions = sampled(url, name)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, folder).eval()
    inputs = torch.tensor([PROMPT + ids])
    at = range(len(PROMPT) - 1, len(PROMPT) + len(ids) - 1)

    def logprobs():
        with torch.no_grad():
            rows = adapted(inputs).logits[0].log_softmax(-1)
        return [float(rows[i, inputs[0, i + 1]]) for i in at]

    ours = logprobs()
    with adapted.disable_adapter():
        plain = logprobs()
    return {
        "difference": max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
        "moved": max(abs(a - b) for a, b in zip(ours, plain, strict=True)),
        "versions": versions,
    }


def calls_seen():
    """A list that every call of `requests` in this process is added to."""
    import requests

    seen, send = [], requests.Session.send

    def noted(session, request, **options):
        seen.append(f"{request.method} {request.path_url}")
        return send(session, request, **options)

    requests.Session.send = noted
    return seen


def trained(url, out):
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from rolltape.trl import use_cpu

    use_cpu()
    prompt = [{"role": "user", "content": QUESTION}]
    return AsyncGRPOTrainer(
        model=str(MODEL),
        reward_funcs=variety,
        args=AsyncGRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_steps=STEPS,
            learning_rate=1e-2,
            max_completion_length=16,
            max_staleness=4,
            token_budget=0,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
            vllm_server_base_url=url,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt}] * 64),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        peft_config=LoraConfig(
            r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
        ),
    )


def main():
    import torch

    torch.set_num_threads(1)
    url, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        name_vllm(folder)
        # The worker is another process.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        seen = calls_seen()
        trainer = trained(url, out)
        trainer.train()
        last = f"trl-policy-v{trainer.model_version}"
        found = {
            "steps": [entry for entry in trainer.state.log_history if "reward" in entry],
            "calls": seen,
            "last": last,
            "policy": difference(url, last, f"{out}/.vllm_lora/{last}"),
        }
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
