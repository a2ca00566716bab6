"""Write two adapters for the tiny model, as PEFT saves them, and the logits that PEFT computes.

    lora/every    rank 4 on every matrix of a layer, rank-stabilized, bf16
    lora/some     rank 3 on the queries and values, f32
    lora.json     float64 logits of the model with each adapter

Needs numpy, torch, transformers and peft.

    python make_lora.py
"""

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "engine" / "models" / "tiny"
TAPES = ROOT / "tests" / "tapes" / "engine"

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "every": ({"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": EVERY}, torch.bfloat16),
    "some": ({"r": 3, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}, torch.float32),
}
IDS = [5, 31, 107, 12, 12, 250, 391, 88, 3, 64, 199, 7, 300, 41, 2, 155, 18, 350]
POSITIONS = [0, len(IDS) - 1]
DEVIATION = 0.1  # of the numbers of an adapter: large enough to change every logit
DIGITS = 9


def write(name, settings, dtype):
    """Saves an adapter of random numbers."""
    torch.manual_seed(len(name))
    base = transformers.AutoModelForCausalLM.from_pretrained(TINY)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
    for key, values in model.named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(values, std=DEVIATION)
            values.data = values.data.to(dtype)
    model.peft_config["default"].base_model_name_or_path = "tiny"
    model.save_pretrained(TAPES / "lora" / name)
    (TAPES / "lora" / name / "README.md").unlink(missing_ok=True)
    path = TAPES / "lora" / name / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()  # PEFT writes a set
    path.write_text(json.dumps(config, indent=2) + "\n")


def logits(name):
    """What PEFT computes with an adapter, in float64."""
    base = transformers.AutoModelForCausalLM.from_pretrained(TINY)
    model = PeftModel.from_pretrained(base, TAPES / "lora" / name).double().eval()
    with torch.no_grad():
        rows = model(torch.tensor([IDS])).logits[0]
    return [[float(f"{x:.{DIGITS}g}") for x in rows[position].tolist()] for position in POSITIONS]


def main():
    for name, (settings, dtype) in ADAPTERS.items():
        write(name, settings, dtype)
    goldens = {"ids": IDS, "positions": POSITIONS, "logits": {name: logits(name) for name in ADAPTERS}}
    (TAPES / "lora.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
