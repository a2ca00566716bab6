"""All cases, in the order of the index."""

from maker.cases_llamacpp import llama_all
from maker.cases_openai import openai_all
from maker.cases_sglang import sglang_all
from maker.cases_vllm import vllm_chat, vllm_completions
from maker.cases_vllm_wires import vllm_messages, vllm_responses


def all():
    for group in (
        vllm_chat,
        vllm_completions,
        vllm_responses,
        vllm_messages,
        sglang_all,
        llama_all,
        openai_all,
    ):
        yield from group()
