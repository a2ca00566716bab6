"""Each server and wire with its imitation: a body, a script and headers to a kind and a text."""

from maker.llamacpp import llama_chat, llama_completions
from maker.openai import openai_chat
from maker.sglang import sglang_chat, sglang_completions, sglang_messages
from maker.vllm import vllm_chat, vllm_completions
from maker.vllm_messages import vllm_messages
from maker.vllm_responses import vllm_responses

SERVERS = {
    ("vllm", "chat"): lambda b, s, h: vllm_chat(b, s),
    ("vllm", "completions"): lambda b, s, h: vllm_completions(b, s),
    ("vllm", "responses"): lambda b, s, h: vllm_responses(b, s),
    ("vllm", "messages"): lambda b, s, h: vllm_messages(b, s),
    ("sglang", "chat"): sglang_chat,
    ("sglang", "completions"): sglang_completions,
    ("sglang", "messages"): sglang_messages,
    ("llamacpp", "chat"): llama_chat,
    ("llamacpp", "completions"): llama_completions,
    ("openai", "chat"): openai_chat,
}
