"""JSON and event text in the spellings of the servers."""

import json
from decimal import Decimal

CREATED = 1763700000
LOGPROBS = "message.output_text.logprobs"


def ryu(x):
    """A float as serde_json, and so pydantic's model_dump_json, msgspec and orjson spell it."""
    if x == 0:
        return repr(x)
    sign, digits, exponent = Decimal(repr(x)).normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if 0 <= exponent and point <= 16:
        body = text + "0" * exponent + ".0"
    elif 0 < point <= 16:
        body = f"{text[:point]}.{text[point:]}"
    elif -5 < point <= 0:
        body = "0." + "0" * -point + text
    else:
        body = f"{text[0]}{'.' + text[1:] if text[1:] else ''}e{point - 1}"
    return ("-" if sign else "") + body


def write(value, spell=repr, seps=(",", ":"), ascii=False, indent=None, level=0):
    """JSON text. `repr` spells floats as Python's json and nlohmann do, `ryu` as serde_json."""
    inner = dict(spell=spell, seps=seps, ascii=ascii, indent=indent, level=level + 1)
    if isinstance(value, float):
        return spell(value)
    if not value or not isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=ascii)
    if isinstance(value, dict):
        parts = [
            json.dumps(k, ensure_ascii=ascii) + seps[1] + write(v, **inner)
            for k, v in value.items()
        ]
        ends = "{}"
    else:
        parts, ends = [write(v, **inner) for v in value], "[]"
    if indent is None:
        return ends[0] + seps[0].join(parts) + ends[1]
    pad = "\n" + " " * indent * (level + 1)
    return ends[0] + pad + ("," + pad).join(parts) + pad[: len(pad) - indent] + ends[1]


def pydantic(value):
    return write(value, ryu)


def starlette(value):
    return write(value, repr)


def nlohmann(value):
    return write(value, repr)


def dumps(value):
    """Python's json.dumps with its defaults."""
    return write(value, repr, (", ", ": "), ascii=True)


def pretty(value):
    return write(value, repr, (",", ": "), ascii=True, indent=2) + "\n"


def data(text, event=None):
    return (f"event: {event}\n" if event else "") + f"data: {text}\n\n"


DONE = data("[DONE]")
