"""What OpenAI publishes of a line in a file for fine-tuning, as a JSON Schema.

After `FineTuneChatRequestInput` and `FineTunePreferenceRequestInput` of OpenAI's API description
(github.com/openai/openai-openapi, version 2.3.0, April 2025, the last that has them). Stricter in one
way: a key that it does not name is an error. And the two sides of a preference have the names of the
guide to preference optimization, `preferred_output` and `non_preferred_output`, which are what the
API takes; the description calls them `preferred_completion` and `non_preferred_completion`.
"""

TEXT = {"type": "string"}
WEIGHT = {"enum": [0, 1]}
CALL = {
    "type": "object",
    "required": ["id", "type", "function"],
    "additionalProperties": False,
    "properties": {
        "id": TEXT,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "properties": {"name": TEXT, "arguments": TEXT},
        },
    },
}


def part(word, **fields):
    """A part of a content that is in parts."""
    return {
        "type": "object",
        "required": ["type", *fields],
        "additionalProperties": False,
        "properties": {"type": {"const": word}, **fields},
    }


IMAGE = {
    "type": "object",
    "required": ["url"],
    "properties": {"url": TEXT, "detail": {"enum": ["auto", "low", "high"]}},
}
TEXT_PART, IMAGE_PART = part("text", text=TEXT), part("image_url", image_url=IMAGE)


def content(*parts):
    """A text, or parts of these kinds."""
    return {"oneOf": [TEXT, {"type": "array", "minItems": 1, "items": {"oneOf": [*parts]}}]}


def message(role, required=(), **fields):
    """A message of one role."""
    return {
        "type": "object",
        "required": ["role", *required],
        "additionalProperties": False,
        "properties": {"role": {"const": role}, **fields},
    }


def assistant(**more):
    said = {"oneOf": [content(TEXT_PART, part("refusal", refusal=TEXT)), {"type": "null"}]}
    calls = {"type": "array", "items": CALL}
    return message("assistant", content=said, name=TEXT, tool_calls=calls, **more)


MESSAGE = {
    "oneOf": [
        message("system", ["content"], content=content(TEXT_PART), name=TEXT),
        message("user", ["content"], content=content(TEXT_PART, IMAGE_PART), name=TEXT),
        assistant(weight=WEIGHT),
        message(
            "tool",
            ["content", "tool_call_id"],
            content=content(TEXT_PART),
            tool_call_id=TEXT,
        ),
    ]
}
FUNCTION = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "parameters": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
TOOL = {
    "type": "object",
    "required": ["type", "function"],
    "additionalProperties": False,
    "properties": {"type": {"const": "function"}, "function": FUNCTION},
}
ASKED = {
    "messages": {"type": "array", "minItems": 1, "items": MESSAGE},
    "tools": {"type": "array", "items": TOOL},
    "parallel_tool_calls": {"type": "boolean"},
}
LINE = {
    "type": "object",
    "required": ["messages"],
    "additionalProperties": False,
    "properties": ASKED,
}
SIDE = {"type": "array", "minItems": 1, "maxItems": 1, "items": assistant()}
PREFERENCE = {
    "type": "object",
    "required": ["input", "preferred_output", "non_preferred_output"],
    "additionalProperties": False,
    "properties": {
        "input": {**LINE},
        "preferred_output": SIDE,
        "non_preferred_output": SIDE,
    },
}
