"""Make the tiny hybrid beside this file, as `../tiny-moe/make.py` makes the tiny mixture.

All is as in that script but the model: a Qwen3.5 whose fourth layer has attention and whose others
have a gated delta rule.

Needs what that script needs; downloads nothing; about four minutes on one core.

    python make.py [--out DIR] [--seed N]
"""

import importlib.util
from pathlib import Path

import transformers

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "tiny-moe" / "make.py"

spec = importlib.util.spec_from_file_location("mixture", SOURCE)
mixture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mixture)


def new_model(tok):
    """Qwen3.5 with random weights: 96 wide, 4 layers, 2 key heads for 4 value heads 16 wide."""
    config = transformers.Qwen3_5TextConfig(
        vocab_size=len(tok),
        hidden_size=96,
        intermediate_size=224,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=24,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
        max_position_embeddings=1024,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
    )
    return transformers.Qwen3_5ForCausalLM(config)


mixture.tiny.HERE, mixture.tiny.new_model = HERE, new_model

if __name__ == "__main__":
    mixture.tiny.main()
