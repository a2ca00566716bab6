"""Random texts and arguments: what people and models write, and what tokenizers trip over."""

PIECES = (
    "the",
    "Hello",
    "world",
    "naïve",
    "Straße",
    "don't",
    "they'll",
    "HTTPServer",
    "snake_case_name",
    "日本語のテキスト",
    "你好，世界",
    "한국어",
    "Привет",
    "مرحبا",
    "नमस्ते",
    "😀",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "12345678",
    "3.14159",
    "1e-7",
    "0xFF",
    "...",
    "—",
    "“quoted”",
    "'single'",
    "(parens)",
    "https://example.org/a?b=c&d=%20",
    "def f(x):\n    return x ** 2\n",
    "for (int i = 0; i < n; i++) {\n\t\tsum += a[i];\n\t}",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "```python\nprint('hi')\n```",
    '{"key": [1, 2.5, null]}',
    "<b>bold</b>",
    "$x^2 + y^2 = z^2$",
    "\\n\\t\\\\",
    "a" * 9,
    "==========",
)
GAPS = (" ", " ", " ", " ", " ", "\n", "\n\n", "  ", "    ", "\t", "", " \n ", "\r\n", "\u00a0")
TRAILS = (" ", "\n", "\n\n", "\t", "  \n")
COMBINING = ("e\u0301", "n\u0303", "A\u030a")
NAMES = ("search", "read_file", "run_code", "get_weather", "add")
FIELDS = {
    "query": {"type": "string", "description": "What to look for"},
    "count": {"type": "integer", "description": "How many"},
    "ratio": {"type": "number", "description": "How much"},
    "deep": {"type": "boolean", "description": "Whether to go on"},
    "tags": {"type": "array", "items": {"type": "string"}, "description": "Names"},
    "options": {"type": "object", "description": "More of it"},
}


def text(chance, most=24):
    """A text that starts and ends with no white space."""
    count = chance.randint(1, most)
    made = "".join(chance.choice(PIECES) + chance.choice(GAPS) for _ in range(count))
    return made.strip()


def line(chance):
    """A short text."""
    return text(chance, 4).replace("\r", "")


def value(chance, kind):
    """A value of a type of JSON's schema."""
    made = {
        "string": lambda: chance.choice(("", line(chance), chance.choice(PIECES), "a b")),
        "integer": lambda: chance.choice((0, -1, 7, 123456789)),
        "number": lambda: chance.choice((0.5, -2.25, 1e-7, 3.0, 1e22)),
        "boolean": lambda: chance.random() < 0.5,
        "array": lambda: [chance.choice(PIECES) for _ in range(chance.randint(0, 3))],
        "object": lambda: {"é": None, "n": [1, {"x": line(chance)}], "q": 'say "hi"'},
    }
    return made[kind]()


def call(chance):
    """The name and the arguments of a tool call."""
    names = chance.sample(list(FIELDS), chance.randint(0, 4))
    return chance.choice(NAMES), {name: value(chance, FIELDS[name]["type"]) for name in names}


def tools():
    """The tools that agents offer."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Does {name}.",
                "parameters": {"type": "object", "properties": FIELDS, "required": ["query"]},
            },
        }
        for name in NAMES
    ]
