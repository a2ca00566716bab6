"""TRL's AsyncGRPOTrainer with its own worker and its own LoRA sync: `adapters.py BASE_URL OUT`.

Of TRL only the attention is replaced, whose kernel needs a GPU, and the question which GPU there
is. Prints one JSON object: what each step logged, what the server was called for, and how far the
engine's logprobs are from those of PEFT with the adapters that the trainer wrote: of each row that
was trained, under every one of them.
"""

import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from urllib.parse import urlsplit

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / "python")]

from client import name_vllm  # noqa: E402
from tap import Tap  # noqa: E402

MODEL = HERE.parents[2] / "engine" / "models" / "tiny"
QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
STEPS = 5
MAX_STALENESS = 2
BATCH = 8
POLICY = "trl-policy-v"
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


class Adapters:
    """The adapters that the trainer wrote, as PEFT computes them."""

    def __init__(self, kept, versions):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        first, *others = versions
        self._model = PeftModel.from_pretrained(base, kept / str(first), adapter_name=str(first))
        for version in others:
            self._model.load_adapter(kept / str(version), adapter_name=str(version))
        self._model.eval()
        self.versions = versions

    def logprobs(self, version, ids, start):
        """Of the tokens from `start` on, under an adapter; under none if `version` is None."""
        if version is None:
            with self._model.disable_adapter():
                return self._logprobs(ids, start)
        self._model.set_adapter(str(version))
        return self._logprobs(ids, start)

    def _logprobs(self, ids, start):
        import torch

        with torch.no_grad():
            rows = self._model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(rows[at - 1, ids[at]]) for at in range(start, len(ids))]


def apart(these, those):
    """The largest difference of two lists of numbers."""
    return max(abs(a - b) for a, b in zip(these, those, strict=True))


def difference(url, adapters):
    """|engine's logprob - PEFT's| under the last adapter, and how far it is from the model."""
    version, start = adapters.versions[-1], len(PROMPT)
    ids, theirs, spans = sampled(url, f"{POLICY}{version}")
    ours = adapters.logprobs(version, PROMPT + ids, start)
    plain = adapters.logprobs(None, PROMPT + ids, start)
    return {"difference": apart(ours, theirs), "moved": apart(ours, plain), "versions": spans}


def watch(trainer, out, kept):
    """Notes the samples that a trainer takes, and its version at each step's beginning.

    Batches are as long as the configuration says and are trained in the order of their samples.
    Adapters are copied to `kept`, because the trainer takes old ones away.
    """
    from transformers import TrainerCallback

    taken, versions = [], []
    buffer = trainer.rollout_worker.rollout_buffer
    get = buffer.get

    def noted(*arguments, **options):
        sample = get(*arguments, **options)
        if trainer.model_version - sample.model_version <= MAX_STALENESS:  # else it drops it
            taken.append((sample, trainer.model_version))
        return sample

    def keep():
        version = trainer.model_version
        shutil.copytree(f"{out}/.vllm_lora/{POLICY}{version}", kept / str(version))

    class Steps(TrainerCallback):
        def on_step_begin(self, *_, **__):
            versions.append(trainer.model_version)
            keep()

        def on_train_end(self, *_, **__):
            keep()

    buffer.get = noted
    trainer.add_callback(Steps())
    return taken, versions


def answers(tap):
    """The versions that the engine was asked for, by prompt, ids and logprobs of its answer."""
    found = {}
    for exchange in tap.generations():
        asked, reply = json.loads(exchange.request.body), json.loads(exchange.reply.body)
        (choice,) = reply["choices"]
        key = named(asked["prompt"], choice["token_ids"], choice["logprobs"]["token_logprobs"])
        found.setdefault(key, set()).add(int(asked["model"].removeprefix(POLICY)))
    return found


def named(prompt, ids, logprobs):
    """An answer as it can be looked for: logprobs as the trainer holds them."""
    import numpy as np

    return tuple(prompt), tuple(ids), np.asarray(logprobs, np.float32).tobytes()


def turns(mask):
    """The spans [start, end) of trained tokens: what the model said between what tools said."""
    around = [0, *mask, 0]
    edges = [at for at in range(len(mask) + 1) if around[at] != around[at + 1]]
    return list(zip(edges[::2], edges[1::2]))


def rows_trained(tap, adapters, taken, versions):
    """Of each step its rows, and the ratio that PEFT's logprobs give under what was trained."""
    import numpy as np

    asked, steps = answers(tap), []
    for step, trained_at in enumerate(versions):
        rows, ratios = [], []
        for sample, taken_at in taken[step * BATCH : (step + 1) * BATCH]:
            ids, recorded = sample.input_ids.tolist(), sample.old_log_probs.tolist()
            ours = {v: [0.0, *adapters.logprobs(v, ids, 1)] for v in adapters.versions}
            row = {"stamp": sample.model_version, "taken_at": taken_at, "turns": []}
            for start, end in turns(sample.completion_mask.tolist()):
                (version,) = asked[named(ids[:start], ids[start:end], recorded[start:end])]
                gaps = {v: apart(ours[v][start:end], recorded[start:end]) for v in ours}
                row["turns"].append({"asked": version, "gaps": gaps})
                ratios += np.exp(np.subtract(ours[trained_at], recorded))[start:end].tolist()
            rows.append(row)
        steps.append({"trained_at": trained_at, "ratio": float(np.mean(ratios)), "rows": rows})
    return steps


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
            per_device_train_batch_size=BATCH,
            num_generations=4,
            max_steps=STEPS,
            learning_rate=1e-2,
            max_completion_length=16,
            # A model that learns to call no tool that there is talks on until its context is full:
            # the engine refuses that, and the worker asks for it again for minutes.
            max_tool_calling_iterations=3,
            max_staleness=MAX_STALENESS,
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
    tap = Tap((urlsplit(url).hostname, urlsplit(url).port))
    with tempfile.TemporaryDirectory() as folder:
        name_vllm(folder)
        # The worker is another process.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        seen = calls_seen()
        trainer = trained(tap.url, out)
        kept = Path(out, "kept")
        taken, versions = watch(trainer, out, kept)
        trainer.train()
        adapters = Adapters(kept, list(range(1, trainer.model_version + 1)))
        found = {
            "steps": [entry for entry in trainer.state.log_history if "reward" in entry],
            "calls": seen,
            "last": f"{POLICY}{trainer.model_version}",
            "policy": difference(url, adapters),
            "trained": rows_trained(tap, adapters, taken, versions),
        }
    tap.stop()
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
