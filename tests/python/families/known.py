"""The template families: which chat template, which tokenizer, and what their replies can hold.

| family | template | tokenizer |
| --- | --- | --- |
| qwen3 | Qwen3-0.6B | its own |
| qwen3.5 | Qwen3.5-4B | its own, of 248,077 tokens |
| qwen3-coder | Qwen3-Coder | Qwen3's, which is its own too |
| llama3 | Llama-3.1-8B-Instruct | its own |
| hermes | Hermes-3-Llama-3.1-8B, with tools | Llama 3.1's, with names for free places |
| mistral | Mistral-Small-3.2-24B | Tekken of 131,072 tokens, with newer names |
| glm | GLM-4.6 | Llama 3.1's words, and GLM's added tokens |
| deepseek | DeepSeek-V3.1 | DeepSeek V4's, which has the added tokens of V3.1 |

All templates are as published, and all tokenizers are byte-level. No registry has GLM's own; it
splits texts as Llama's does.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One family of chat templates."""

    name: str
    template: str
    """The file in the source package of llama.cpp."""
    tokenizer: str
    bos: str = ""
    end: str = "<|im_end|>"
    """What ends a turn, in the template and among the sampled tokens."""
    call_end: str | None = None
    """What is sampled at the end of a turn that calls tools, where that is another token."""
    thinks: bool = False
    close: str = "</think>"
    calls_max: int = 3
    is_call_alone: bool = False
    """Whether the template shows no text beside a call."""
    call_id_chars: int | None = None
    """The length of the ids of calls, where the template names them."""


FAMILIES = {
    family.name: family
    for family in (
        Family("qwen3", "Qwen-Qwen3-0.6B", "qwen3", thinks=True),
        Family("qwen3.5", "Qwen3.5-4B", "qwen3_5", thinks=True),
        Family("qwen3-coder", "Qwen3-Coder", "qwen3"),
        Family(
            "llama3",
            "meta-llama-Llama-3.1-8B-Instruct",
            "llama3",
            bos="<|begin_of_text|>",
            end="<|eot_id|>",
            calls_max=1,
            is_call_alone=True,
        ),
        Family(
            "hermes",
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
            "hermes",
            bos="<|begin_of_text|>",
            is_call_alone=True,
        ),
        Family(
            "mistral",
            "Mistral-Small-3.2-24B-Instruct-2506",
            "mistral",
            bos="<s>",
            end="</s>",
            is_call_alone=True,
            call_id_chars=9,
        ),
        Family("glm", "GLM-4.6", "glm", end="<|user|>", call_end="<|observation|>", thinks=True),
        Family(
            "deepseek",
            "deepseek-ai-DeepSeek-V3.1",
            "deepseek",
            bos="<｜begin▁of▁sentence｜>",
            end="<｜end▁of▁sentence｜>",
            thinks=True,
        ),
    )
}

HERMES_ADDED = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
GLM_ADDED = (
    *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
)
MISTRAL_ADDED = {
    **{0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]"},
    **{6: "[/AVAILABLE_TOOLS]", 7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]"},
    **{10: "[IMG]", 11: "<pad>", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]"},
    **{19: "[TOOL_CONTENT]", 32: "[ARGS]", 33: "[CALL_ID]"},
}
