"""The texts and the chats that the engine and transformers are both asked about."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALLS = [
    "You can call tools. Answer with one line:"
    ' <tool_call>{"name": NAME, "arguments": {...}}</tool_call>\nTools: weather(city), calc(text)',
    '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
    '<tool_response>{"temperature": -3.5}</tool_response>',
]

TEXTS = [
    "Hello, world!",
    "In 2026, 1,234,567 people paid 3.14159 each, on 10/30.",
    "don't  stop\n\n\n\tnow ",
    "   leading, trailing   ",
    "def f(x):\n    return x**2 + 1  # ok\n\n\nclass A:\n\tpass\n",
    "SELECT a.id, COUNT(*) FROM b WHERE c <> 'd' GROUP BY 1;",
    "naïve café — “quoted” … über Straße",
    "日本語のテキストと中文字符。 한국어도.",
    "Здравствуйте! Γειά σου. שלום. مرحبا",
    "🏴\u200d☠️ 👩\u200d👩\u200d👧 🇳🇴 e\u0301 ﬁ",
    "a\u0000b\u0007c\u00a0d\u2028e\ufeffz",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start|> <|im_end|>x<|im_end |><|IM_END|>",
    "<think>\nhm\n</think>\n\n<tool_call>{}</tool_call>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0000000000000000",
    "CamelCaseName snake_case_name kebab-case-name HTTPServer2Go",
    "",
]


def _user(text):
    return {"role": "user", "content": text}


def _says(text):
    return {"role": "assistant", "content": text}


def _system(text):
    return {"role": "system", "content": text}


CHATS = {
    "question": {"messages": [_user("What is the capital of France?")]},
    "system": {"messages": [_system("You are a pirate."), _user("Why is the sky blue?")]},
    "code": {"messages": [_user("Write a Python function that reverses a string.")]},
    "turns": {
        "messages": [
            _user("Name three colors."),
            _says("Red, green and blue."),
            _user("Now say it in one sentence, with   spaces."),
        ]
    },
    "tools": {
        "messages": [_system(CALLS[0]), _user("Weather?"), _says(CALLS[1]), _user(CALLS[2])]
    },
    "given tools": {"messages": [_user("What is the weather in Oslo?")], "tools": [WEATHER]},
    "tool turn": {
        "messages": [_user("Weather?"), _says(CALLS[1]), {"role": "tool", "content": "-3.5"}]
    },
    "thoughts": {
        "messages": [
            _system("Think between <think> and </think>, then answer."),
            _user("What is 2+2?"),
            _says("<think>\nTwo and two.\n</think>\n\n4"),
            _user("And 3+3?"),
        ]
    },
    "closed": {"messages": [_user("Hi"), _says("Hello!")], "add_generation_prompt": False},
    "continued": {
        "messages": [_user("Count to five."), _says("1, 2, 3,")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "continued thought": {
        "messages": [_user("What is 7*8?"), _says("<think>\nSeven times eight is")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
}
"""What a request has, without the names of models and the bounds of a reply."""

GREEDY = ("question", "system", "code", "turns", "tools", "continued", "continued thought")
"""Chats whose reply is sampled at temperature 0."""
REPLY_TOKENS = 24

SCORED = [
    "The quick brown fox jumps over the lazy dog. In 1984, 2,500 of them did so twice.",
    "import json\n\n\ndef load(path):\n"
    "    with open(path) as file:\n        return json.load(file)\n",
    "Der Zug fährt um 9:15 Uhr ab. 日本の首都は東京です。 🏴\u200d☠️",
]
"""Texts of which every token has a logprob."""
