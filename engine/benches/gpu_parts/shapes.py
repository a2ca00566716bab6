"""The benchmarked shapes: configurations, prompts, and the bytes that a step must move."""

COMMON = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151_936,
    "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960, "hidden_act": "silu", "attention_bias": False,
    "torch_dtype": "bfloat16", "eos_token_id": 0, "bos_token_id": 0,
}
# What Qwen3-30B-A3B is but for its layers.
MIXTURE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
           "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
           "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
           "moe_intermediate_size": 768, "norm_topk_prob": True, "tie_word_embeddings": False}
OWN = {
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                   "num_attention_heads": 16, "tie_word_embeddings": True},
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "tie_word_embeddings": False},
    "qwen3-32b": {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
                  "num_attention_heads": 64, "tie_word_embeddings": False},
    "llama-3.2-1b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                     "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
                     "num_hidden_layers": 16, "num_attention_heads": 32, "head_dim": 64,
                     "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    # A quarter of the layers of Qwen3-30B-A3B: 128 experts, of which a row chooses 8.
    "qwen3-moe": MIXTURE | {"num_hidden_layers": 12},
    "qwen3-30b-a3b": MIXTURE | {"num_hidden_layers": 48},
    "tiny-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                 "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                 "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                 "norm_topk_prob": True, "vocab_size": 512, "tie_word_embeddings": True,
                 "max_position_embeddings": 4096},
    # Qwen3.5-0.8B: of four layers, three have a gated delta rule in the place of attention.
    "qwen3.5-0.8b": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
                     "vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584,
                     "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
                     "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                     "linear_num_key_heads": 16, "linear_num_value_heads": 16,
                     "linear_value_head_dim": 128, "tie_word_embeddings": True},
    "tiny-hybrid": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
                    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
                    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 16, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
                    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                    "linear_value_head_dim": 16, "tie_word_embeddings": True,
                    "max_position_embeddings": 4096},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
             "tie_word_embeddings": True, "max_position_embeddings": 4096},
}
# The target share of the floor, by shape and batch.
GOALS = {("qwen3-0.6b", 1): 0.4, ("qwen3-0.6b", 32): 0.6, ("qwen3-0.6b", 256): 0.8,
         ("qwen3-8b", 1): 0.7, ("qwen3-8b", 32): 0.7, ("qwen3-8b", 256): 0.75}
# The most that penalties may cost: the time of a step with them, as a multiple of one without.
PENALTIES_GOAL = 1.1
# The least that keys and values in FP8 are to gain: the time of a step with bf16, as a multiple of
# one with FP8, by batch.
FP8_GOALS = {32: 1.3, 256: 1.5}
HALF, SINGLE = 2, 4  # bytes
# A key of our own in a configuration, for floors: the engine does not get it.
FP8_CACHE = "fp8_cache"
INTERVAL = 4  # of so many layers of a hybrid, one has attention


def config_of(name):
    """The `config.json` of a shape."""
    return COMMON | OWN[name]


def prompts_of(config, count, length):
    """Returns prompts without a common beginning, so that none uses another's pages; nor do those
    of another length."""
    vocab = config["vocab_size"] - 2
    return [[(7919 * (n + 1) + (104_729 + length) * i + i * i * n) % vocab + 1
             for i in range(length)] for n in range(count)]


def feed_forward(config, batch):
    """Returns the weights of the feed-forward part of a layer that a step of `batch` sequences
    reads: of a mixture, the router and as many experts as rows that choose at random use on
    average. All of them for a batch of zero."""
    hidden, experts = config["hidden_size"], config.get("num_experts")
    if not experts:
        return 3 * hidden * config["intermediate_size"]
    unused = (1 - config["num_experts_per_tok"] / experts) ** batch if batch else 0
    used = experts * (1 - unused)
    return hidden * experts + used * 3 * hidden * config["moe_intermediate_size"]


def is_hybrid(config):
    """Returns whether some layers have a gated delta rule in the place of attention."""
    return "linear_num_value_heads" in config


def attention_layers(config):
    """Returns the number of layers with attention."""
    layers = config["num_hidden_layers"]
    return layers // INTERVAL if is_hybrid(config) else layers


def delta_rule(config):
    """Returns the weights of a gated delta rule, and the bytes of its state of one sequence; zeros
    without one."""
    if not is_hybrid(config):
        return 0, 0
    heads, dim = config["linear_num_value_heads"], config["linear_key_head_dim"]
    keys, values = config["linear_num_key_heads"] * dim, heads * config["linear_value_head_dim"]
    channels = 2 * keys + values
    weights = config["hidden_size"] * (channels + 2 * values + 2 * heads)
    inputs = channels * (config["linear_conv_kernel_dim"] - 1)
    return weights, SINGLE * values * dim + HALF * inputs


def step_bytes(config, batch, context):
    """Returns the bytes that a decode step of `batch` sequences of `context` tokens must move: all
    weights that it uses but the embedding read once, keys and values read once, states read and
    written, logits written and read."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    layers, vocab = config["num_hidden_layers"], config["vocab_size"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    attended = attention_layers(config)
    # A hybrid has a gate for each number that attention gives.
    attention = hidden * ((3 if is_hybrid(config) else 2) * query + 2 * kv)
    rule, state = delta_rule(config)
    mixing = attended * attention + (layers - attended) * rule
    weights = HALF * (mixing + layers * feed_forward(config, batch) + vocab * hidden)
    states = batch * (layers - attended) * state * 2
    return weights + states + cache_bytes(config, batch * context) + batch * vocab * SINGLE * 2


def cache_bytes(config, tokens):
    """Returns the bytes of the keys and values of `tokens` tokens: bf16, or FP8 with a byte for
    each head as the scale, where the configuration has `FP8_CACHE`."""
    heads, dim = config["num_key_value_heads"], config["head_dim"]
    row = dim + 1 if config.get(FP8_CACHE) else dim * HALF
    return tokens * attention_layers(config) * 2 * heads * row
