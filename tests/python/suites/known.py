"""What of the suites fails, by reason. A run holds each entry in both directions."""

from collections import Counter
from typing import NamedTuple

ENTRYPOINTS = "tests/entrypoints/"
VLLM = [
    ENTRYPOINTS + file
    for file in """
        anthropic/test_messages.py
        generate/generative_scoring/test_generative_scoring_e2e.py
        openai/chat_completion/test_batched_chat_completions.py
        openai/chat_completion/test_chat.py
        openai/chat_completion/test_chat_completion.py
        openai/chat_completion/test_chat_echo.py
        openai/chat_completion/test_chat_logit_bias_validation.py
        openai/chat_completion/test_completion_with_function_calling.py
        openai/chat_completion/test_enable_force_include_usage.py
        openai/chat_completion/test_include_reasoning.py
        openai/chat_completion/test_logprob_token_ids.py
        openai/chat_completion/test_root_path.py
        openai/chat_completion/test_thinking_token_budget.py
        openai/completion/test_completion.py
        openai/completion/test_prompt_validation.py
        openai/completion/test_token_in_token_out.py
        openai/models/test_models.py
        openai/responses/test_basic.py
        openai/responses/test_function_call.py
        openai/responses/test_simple.py
        openai/responses/test_stateful.py
        openai/responses/test_structured_output.py
        openai/test_chunked_prompt.py
        openai/test_return_token_ids.py
        openai/test_return_tokens_as_ids.py
        rl/state_transitions/test_pause_resume.py
        rl/state_transitions/test_sleep.py
        rl/state_transitions/test_weight_checker.py
        scale_out/render/test_launch_render.py
        scale_out/token_in_token_out/test_serving_tokens.py
        serve/dev/rpc/test_collective_rpc.py
        serve/instrumentator/test_basic.py
        serve/instrumentator/test_metrics.py
        serve/instrumentator/test_orca_metrics.py
        serve/lora/test_lora_adapters.py
        serve/tokenize/test_tokenization.py
    """.split()
]
LLAMA = [
    "unit/test_basic.py",
    "unit/test_chat_completion.py",
    "unit/test_compat_anthropic.py",
    "unit/test_compat_oai_responses.py",
    "unit/test_security.py",
    "unit/test_tool_call.py",
]
FILES = {"vllm": VLLM, "llamacpp": LLAMA, "sglang": ["sglang_suite.py"], "sdk": ["sdk_suite.py"]}
"""The files of each suite."""
QUICK = dict(FILES)
"""The files that run in CI."""

TITLES = {
    "vllm": "vLLM 0.33.0, end-to-end tests of its entrypoints",
    "llamacpp": "llama.cpp, server tests: OpenAI's and Anthropic's APIs, security",
    "sglang": "SGLang 0.5.23, kits of server tests",
    "sdk": "helpers of OpenAI's and Anthropic's Python packages",
    "templates": "chat templates that llama.cpp and vLLM publish, 36 conversations each",
    "schemas": "JSON Schema Test Suite, drafts 7 and 2020-12",
}


class Reason(NamedTuple):
    """Why a test fails: the column of the table, and a sentence."""

    kind: str
    text: str


def absent(text):
    """A feature that the engine does not have."""
    return Reason("absent", text)


def model(text):
    """The test needs a model that knows something."""
    return Reason("model", text)


def words(text):
    """The engine says the same in other words, or refuses in another form."""
    return Reason("words", text)


OWN_ROUTES = absent(
    "llama.cpp's own routes and fields: `/props`, `/slots`, `/apply-template`, `/completion`, "
    "`/tokenize` with `content`, `/v1/chat/completions/input_tokens`, `timings`, `__verbose`, "
    "`return_progress`, its pages"
)
PICTURES = absent("pictures, sounds and videos in messages")
NAMES = absent("several names or addresses of one server")
LOCAL = absent("`localhost` as a pattern of origins (origins are named, or all are let in)")
SGLANG_STOPS = absent("`stop_regex`")
EMPTY = words("the first delta of a stream has an empty text, as vLLM's, in place of null")
CORS = words("CORS allows all origins by `*` and the headers that were asked for")
ERRORS = words("errors have the types of vLLM in place of llama.cpp's")
FINGERPRINT = words("`system_fingerprint` names rolltape")
MATCHED = words("SGLang's field `matched_stop` is vLLM's `stop_reason`")
CHECKED = words("a conversation without messages is refused, and any order of turns is taken")
SAYS = model("what the model says, and the number of its tokens")
LONG = model("the tiny model fills the room of its reply")

LLAMA_CPP = {
    "unit/test_basic.py::test_load_split_model": OWN_ROUTES,
    "unit/test_basic.py::test_no_ui": OWN_ROUTES,
    "unit/test_basic.py::test_server_model_aliases_and_tags": NAMES,
    "unit/test_basic.py::test_server_multiple_addresses": NAMES,
    "unit/test_basic.py::test_server_props": OWN_ROUTES,
    "unit/test_basic.py::test_server_slots": OWN_ROUTES,
    "unit/test_chat_completion.py::test_apply_chat_template": OWN_ROUTES,
    "unit/test_chat_completion.py::test_chat_completion[None-Book-*": SAYS,
    "unit/test_chat_completion.py::test_chat_completion[codellama70b-*": SAYS,
    "unit/test_chat_completion.py::test_chat_completion_cached_tokens": SAYS,
    "unit/test_chat_completion.py::test_chat_completion_stream[*": EMPTY,
    "unit/test_chat_completion.py::test_chat_completion_with_openai_library": FINGERPRINT,
    "unit/test_chat_completion.py::test_chat_completion_with_timings_per_token": OWN_ROUTES,
    "unit/test_chat_completion.py::test_chat_completions_multiple_choices": LONG,
    "unit/test_chat_completion.py::test_chat_completions_token_count": OWN_ROUTES,
    "unit/test_chat_completion.py::test_chat_template": OWN_ROUTES,
    "unit/test_chat_completion.py::test_chat_template_assistant_prefill[*": OWN_ROUTES,
    "unit/test_chat_completion.py::test_chat_template_continue_final_message_vllm_compat": OWN_ROUTES,
    "unit/test_chat_completion.py::test_context_size_exceeded": ERRORS,
    "unit/test_chat_completion.py::test_context_size_exceeded_stream": ERRORS,
    "unit/test_chat_completion.py::test_invalid_chat_completion_req[messages7]": CHECKED,
    "unit/test_chat_completion.py::test_logit_bias": OWN_ROUTES,
    "unit/test_chat_completion.py::test_logprobs_stream": EMPTY,
    "unit/test_chat_completion.py::test_return_progress[64-2-True]": OWN_ROUTES,
    "unit/test_chat_completion.py::test_return_progress[64-4-False]": OWN_ROUTES,
    "unit/test_chat_completion.py::test_verbose_debug": OWN_ROUTES,
    "unit/test_compat_anthropic.py::test_anthropic_empty_messages": CHECKED,
    "unit/test_compat_anthropic.py::test_anthropic_thinking_history_in_template": OWN_ROUTES,
    "unit/test_compat_anthropic.py::test_anthropic_tool_result_with_image": PICTURES,
    "unit/test_compat_anthropic.py::test_anthropic_vision_*": PICTURES,
    "unit/test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": OWN_ROUTES,
    "unit/test_compat_oai_responses.py::test_responses_with_openai_library": SAYS,
    "unit/test_security.py::test_access_static_assets_without_api_key": OWN_ROUTES,
    "unit/test_security.py::test_correct_api_key": OWN_ROUTES,
    "unit/test_security.py::test_correct_api_key_anthropic_header": OWN_ROUTES,
    "unit/test_security.py::test_cors_options[*": CORS,
    "unit/test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled": LOCAL,
    "unit/test_security.py::test_cors_origins_localhost_*": LOCAL,
    "unit/test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers": OWN_ROUTES,
    "unit/test_security.py::test_incorrect_api_key[*": ERRORS,
    "unit/test_security.py::test_local_media_file[*": PICTURES,
    "unit/test_tool_call.py::test_completion_without_tool_call_fast[*STREAMED]": EMPTY,
}
KITS = {
    "sglang_suite.py::TestDecode::*": SAYS,
    "sglang_suite.py::TestEbnf::test_ebnf_generate_complex_json": LONG,
    "sglang_suite.py::TestJson::test_json_generate": LONG,
    "sglang_suite.py::TestJson::test_json_openai": LONG,
    "sglang_suite.py::TestJson::test_mix_json_and_other": LONG,
    "sglang_suite.py::TestMessages::test_tool_result_image_content_conversion": PICTURES,
    "sglang_suite.py::TestRegex::test_regex_generate_complex_json": LONG,
    "sglang_suite.py::TestStops::test_finish_length": MATCHED,
    "sglang_suite.py::TestStops::test_finish_stop_eos": LONG,
    "sglang_suite.py::TestStops::test_finish_stop_regex_str": SGLANG_STOPS,
    "sglang_suite.py::TestStops::test_finish_stop_str": LONG,
}
VLLM_FAILURES = {}

FAILURES = {"vllm": VLLM_FAILURES, "llamacpp": LLAMA_CPP, "sglang": KITS, "sdk": {}}
"""By suite, and by the name of a test, where a `*` stands for any text."""
ENDLESS = {
    "vllm": {
        "tests/entrypoints/serve/lora/test_lora_adapters.py"
        "::test_loading_invalid_adapters_does_not_break_others": words(
            "a folder that is no adapter is a 400 and not a 500"
        ),
    }
}
"""Failures that leave a task behind which never ends, so that these tests are not run."""
PROXY = {}
"""What fails through the recording proxy alone."""
REFUSED_SCHEMAS = Counter()
"""Schemas that are refused, by the keyword that the refusal names."""
