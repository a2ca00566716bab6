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
SGLANG_STOPS = absent("`stop_regex`")
EMPTY = words("the first delta of a stream has an empty text, as vLLM's, in place of null")
CORS = words("CORS: `*` for all origins, the headers that were asked for, 405 for other pages")
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
    "unit/test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled": OWN_ROUTES,
    "unit/test_security.py::test_cors_origins_localhost_rejects[*": CORS,
    "unit/test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers": OWN_ROUTES,
    "unit/test_security.py::test_incorrect_api_key[*": ERRORS,
    "unit/test_security.py::test_local_media_file[*-True]": PICTURES,
    "unit/test_tool_call.py::test_completion_without_tool_call_fast[*STREAMED]": EMPTY,
}
KITS = {
    "sglang_suite.py::TestDecode::test_basic_math": SAYS,
    "sglang_suite.py::TestDecode::test_capital_france": SAYS,
    "sglang_suite.py::TestDecode::test_color_completion": SAYS,
    "sglang_suite.py::TestDecode::test_no_repetition_blowup": SAYS,
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
SCORES = absent("scores, embeddings and classes: `/generative_scoring`, `/pooling` and their like")
INVOCATIONS = absent("`/invocations` (its requests mean two things by one field)")
RPC = absent("`/collective_rpc` and what else calls a worker's own methods")
BEAM = absent("beam search: `use_beam_search`, `best_of`")
MEASURES = absent(
    "vLLM's `metrics` and `endpoint-load-metrics` in replies, and eight of its metrics: "
    "`num_requests_waiting_by_reason`, `admission_rejections`, `iteration_tokens`, "
    "`cache_config_info`, `request_params_n`, `request_params_max_tokens`, "
    "`request_inference_time_seconds`, `request_num_preemptions`"
)
SPLIT = absent(
    "calls that several servers share: derender, `output_mode: derender`, `--tokens-only`, "
    "and in `/v1/chat/completions/render` a form after reasoning"
)
PROMPT_LOGPROBS = absent("`prompt_logprob_token_ids`, and sampling masks in replies")
FLAGS = absent(
    "flags that set a field of all requests: `--enable-force-include-usage`, "
    "`--return-tokens-as-token-ids`, `--enable-response-messages`; `--root-path`"
)
STATUS = words("an adapter that cannot be used is a 400 and not a 500")
SENTENCES = words("refusals have other sentences, and name the first wrong value only")
CACHE_COUNTS = words("`message_start` counts cached tokens apart, as Anthropic's own does")
VERSION = words("`/version` is rolltape's")
QUICK_MODEL = model("the tiny model is done before the test looks")
CALLS = model("the tiny model calls no tool that it was not trained with, or not to the end")
DETAILS = words("`usage` has details of the cache")

CHAT = ENTRYPOINTS + "openai/chat_completion/"
COMPLETION = ENTRYPOINTS + "openai/completion/"
RESPONSES = ENTRYPOINTS + "openai/responses/"
SERVE = ENTRYPOINTS + "serve/"
PAUSES = ENTRYPOINTS + (
    "rl/state_transitions/test_pause_resume.py::TestPauseResume::test_mode_request_lifecycle"
)
TOKENS = ENTRYPOINTS + "scale_out/token_in_token_out/test_serving_tokens.py::"
VLLM_FAILURES = {
    ENTRYPOINTS + "anthropic/test_messages.py::test_anthropic_streaming": CACHE_COUNTS,
    ENTRYPOINTS + "anthropic/test_messages.py::test_anthropic_streaming_cache_usage": SAYS,
    ENTRYPOINTS + "anthropic/test_messages.py::test_anthropic_structured_output": LONG,
    ENTRYPOINTS + "anthropic/test_messages.py::test_anthropic_tool_call": CALLS,
    ENTRYPOINTS + "generate/generative_scoring/*": SCORES,
    CHAT + "test_batched_chat_completions.py::test_batched_chat_completions_with_json_schema[*": LONG,
    CHAT + "test_chat.py::test_chat_streaming[HuggingFaceH4/zephyr-7b-beta]": SAYS,
    CHAT + "test_chat.py::test_complex_message_content": SAYS,
    CHAT + "test_chat.py::test_invocations": INVOCATIONS,
    CHAT + "test_chat.py::test_long_seed": SENTENCES,
    CHAT + "test_chat.py::test_more_than_one_prompt_logprobs_chat[*": SAYS,
    CHAT + "test_chat.py::test_response_format_json_*": SAYS,
    CHAT + "test_chat.py::test_single_chat_session[*": SAYS,
    CHAT + "test_chat.py::test_structured_outputs_json_chat": LONG,
    CHAT + "test_chat_completion.py::test_per_request_metrics_*": MEASURES,
    CHAT + "test_chat_logit_bias_validation.py::test_chat_logit_bias_multiple_*": SENTENCES,
    CHAT + "test_completion_with_function_calling.py::*-auto-True-Qwen/Qwen3-0.6B]": CALLS,
    CHAT + "test_completion_with_function_calling.py::*-True-auto-False-Qwen/Qwen3-0.6B]": CALLS,
    CHAT + "test_completion_with_function_calling.py::test_named_tool_use": LONG,
    CHAT + "test_enable_force_include_usage.py::*": FLAGS,
    CHAT + "test_root_path.py::test_chat_session_root_path_with_api_key[test_case3]": FLAGS,
    COMPLETION + "test_completion.py::test_batch_completions[*": BEAM,
    COMPLETION + "test_completion.py::test_single_completion[*": SAYS,
    COMPLETION + "test_prompt_validation.py::test_empty_prompt": SENTENCES,
    COMPLETION + "test_prompt_validation.py::test_out_of_vocab_token_ids": SENTENCES,
    RESPONSES + "test_basic.py::test_chat": SAYS,
    RESPONSES + "test_basic.py::test_instructions": SAYS,
    RESPONSES + "test_basic.py::test_simple_input": SAYS,
    RESPONSES + "test_function_call.py::*_with_streaming_expected_*": CALLS,
    RESPONSES + "test_function_call.py::*_with_streaming_forced_*": CALLS,
    RESPONSES + "test_function_call.py::*_with_streaming_types[*-required-*": CALLS,
    RESPONSES + "test_function_call.py::*_with_streaming_types[*-tool_choice2-*": CALLS,
    RESPONSES + "test_function_call.py::test_named_tool_use": LONG,
    RESPONSES + "test_simple.py::test_enable_response_messages[*": FLAGS,
    RESPONSES + "test_simple.py::test_max_tokens[*": SAYS,
    RESPONSES + "test_stateful.py::test_background_error": SENTENCES,
    RESPONSES + "test_stateful.py::test_previous_response_id": SAYS,
    RESPONSES + "test_stateful.py::test_two_responses_with_same_prev_id": SAYS,
    RESPONSES + "test_structured_output.py::*": LONG,
    ENTRYPOINTS + "openai/test_return_token_ids.py::test_chat_completion_with_tool_use": CALLS,
    ENTRYPOINTS + "openai/test_return_tokens_as_ids.py::*[True]": FLAGS,
    ENTRYPOINTS + "rl/*::test_invalid_mode_preserves_state[*": SENTENCES,
    ENTRYPOINTS + "rl/*::test_reset_changes_weights_and_reload_restores_them": RPC,
    TOKENS + "test_abort_requests_is_served_without_tokens_only": SPLIT,
    TOKENS + "test_derender_mode_*": SPLIT,
    TOKENS + "test_generate_prompt_token_id_logprobs": PROMPT_LOGPROBS,
    TOKENS + "test_generate_sampling_mask[*": PROMPT_LOGPROBS,
    TOKENS + "test_render_then_generate_forwards_reasoning_*": SPLIT,
    TOKENS + "test_stop_string_workflow": SAYS,
    TOKENS + "test_stop_strings_rejected_when_tokens_only[*": SPLIT,
    TOKENS + "test_text_mode_invalid_requests_return_400[derender-stream]": SPLIT,
    TOKENS + "test_text_mode_rejected_when_tokens_only[*": SPLIT,
    SERVE + "dev/rpc/test_collective_rpc.py::*": RPC,
    SERVE + "instrumentator/test_basic.py::test_show_version": VERSION,
    SERVE + "instrumentator/test_metrics.py::test_metrics_counts[*-text]": MEASURES,
    SERVE + "instrumentator/test_metrics.py::test_metrics_exist[*-text]": MEASURES,
    SERVE + "instrumentator/test_metrics.py::test_metrics_exist[*-multimodal]": PICTURES,
    SERVE + "instrumentator/test_orca_metrics.py::test_*_with_orca_header[True]": MEASURES,
    SERVE + "instrumentator/test_orca_metrics.py::test_single_completion[True]": SAYS,
    SERVE + "lora/test_lora_adapters.py::test_beam_search_with_lora_adapters[*": BEAM,
    SERVE + "lora/test_lora_adapters.py::test_dynamic_lora_badrequests[*": STATUS,
    SERVE + "lora/test_lora_adapters.py::test_dynamic_lora_invalid_files[*": STATUS,
    SERVE + "lora/test_lora_adapters.py::test_load_lora_adapter_with_same_name_*": SAYS,
}

FAILURES = {"vllm": VLLM_FAILURES, "llamacpp": LLAMA_CPP, "sglang": KITS, "sdk": {}}
"""By suite, and by the name of a test, where a `*` stands for any text."""
NOT_RUN = {
    "vllm": {
        # It leaves a task behind that never ends.
        SERVE
        + "lora/test_lora_adapters.py::test_loading_invalid_adapters_does_not_break_others": STATUS,
        # These depend on how busy the machine is.
        RESPONSES + "test_stateful.py::test_background_cancel": QUICK_MODEL,
        PAUSES + "[MRV1-keep]": QUICK_MODEL,
        PAUSES + "[MRV2-keep]": QUICK_MODEL,
        SERVE
        + "instrumentator/test_basic.py::test_server_load[enable-server-load-tracking]": QUICK_MODEL,
        SERVE + "instrumentator/test_metrics.py::test_abort_metrics_reset": QUICK_MODEL,
    },
    # It is skipped where there is no IPv6.
    "llamacpp": {"unit/test_basic.py::test_server_multiple_addresses": NAMES},
}
"""Tests that are not run, because they do not end or depend on time or the machine."""
CLOSED = Reason("closed", "the proxy keeps control routes, and what it cannot record, from agents")
PROXY = {
    "vllm": [
        CHAT + "test_batched_chat_completions.py::test_batched_chat_completions[*",
        CHAT + "test_batched_chat_completions.py::*_logprob*",
        CHAT + "test_batched_chat_completions.py::*_return_tokens_as_token_ids[*",
        CHAT + "test_root_path.py::test_chat_session_root_path_with_api_key[test_case1]",
        RESPONSES + "test_stateful.py::test_background",
        RESPONSES + "test_stateful.py::test_cancel_completed",
        RESPONSES + "test_stateful.py::test_store",
        ENTRYPOINTS + "rl/*::test_clear_cache_*",
        ENTRYPOINTS + "rl/*::test_mode_request_lifecycle[*",
        ENTRYPOINTS + "rl/*::test_state_and_idempotency_*",
        ENTRYPOINTS + "rl/*::test_sleep_mode",
        ENTRYPOINTS + "rl/*::test_checksum_is_stable_*",
        ENTRYPOINTS + "rl/*::test_invalid_request_returns_400[*",
        ENTRYPOINTS + "scale_out/render/test_launch_render.py::*render_*",
        TOKENS + "test_generate_*",
        TOKENS + "test_same_response_as_chat_completions",
        TOKENS + "test_stream_delivers_abort_finish_chunk[*",
        TOKENS + "test_text_mode_*",
        SERVE + "lora/test_lora_adapters.py::test_dynamic_lora_lineage[*",
        SERVE + "lora/test_lora_adapters.py::test_dynamic_lora_not_found[*",
        SERVE + "lora/test_lora_adapters.py::test_load_lora_adapter_with_load_inplace_false_*",
        SERVE + "lora/test_lora_adapters.py::test_multiple_lora_adapters[*",
    ],
    "sglang": [
        "sglang_suite.py::TestAbort::test_abort_all",
        "sglang_suite.py::TestContract::test_get_model_info",
        "sglang_suite.py::TestContract::test_get_server_info",
        "sglang_suite.py::TestContract::test_health_generate",
        "sglang_suite.py::TestPause::test_pause_resume_in_place",
    ],
    "sdk": [
        "sdk_suite.py::test_openai_responses_continue_each_other",
        "sdk_suite.py::test_openai_responses_in_the_background_are_polled",
    ],
}
"""What fails through the recording proxy alone, all of it for the reason `CLOSED`."""
REFUSED_SCHEMAS = Counter(
    {
        "`$ref` to another document or anchor": 82,
        "`unevaluatedProperties`, `unevaluatedItems`": 43,
        "`contains`": 24,
        "schemas that nothing fits": 12,
        "`oneOf` whose schemas overlap": 8,
        "`not`": 7,
        "`patternProperties` that overlap": 6,
        "`propertyNames`": 6,
        "`uniqueItems`": 6,
        "`$dynamicRef`, `$dynamicAnchor`": 5,
        "`if`": 5,
        "`multipleOf` of many digits": 2,
    }
)
"""Schemas of the JSON Schema Test Suite that are refused, by what the refusals name."""
