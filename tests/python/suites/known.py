"""What of the suites fails, by reason."""

ENTRYPOINTS = "tests/entrypoints/"
VLLM_FILES = [
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
LLAMA_FILES = [
    "unit/test_basic.py",
    "unit/test_chat_completion.py",
    "unit/test_compat_anthropic.py",
    "unit/test_compat_oai_responses.py",
    "unit/test_security.py",
    "unit/test_tool_call.py",
]
LEFT_OUT = {}
FAILURES = {"vllm": {}, "llamacpp": {}, "sglang": {}}
PROXY = {}
