"""The schemas of the JSON Schema Test Suite as forms of replies of rolltape's engine.

Each schema is asked for as `structured_outputs`. It is refused by a sentence, or the replies that
end are valid by the `jsonschema` package. A reply that fills its room is judged by nobody.
"""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import requests

from engine import SOURCES, Engine

TESTS = SOURCES / "jsonschema/json/tests"
DRAFTS = {
    "draft7": jsonschema.Draft7Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
AT_ONCE = 8
MOST_TOKENS = 200
SEEDS = (1, 2)
TIMEOUT_SECONDS = 60


def schemas():
    """The name, the draft and the schema of each group of tests."""
    for draft in DRAFTS:
        for file in sorted((TESTS / draft).glob("*.json")):
            for group in json.loads(file.read_text()):
                yield f"{draft}/{file.stem}: {group['description']}", draft, group["schema"]


def told(name, draft, schema, url):
    """`valid`, `unfinished`, `refused` or `defect` for a schema, and why."""
    seen = "unfinished"
    for seed in SEEDS:
        body = {
            "prompt": "It is ",
            "max_tokens": MOST_TOKENS,
            "seed": seed,
            "structured_outputs": {"json": schema, "disable_any_whitespace": True},
        }
        reply = requests.post(url, json=body, timeout=TIMEOUT_SECONDS)
        if reply.status_code == 400:
            return "refused", reply.json()["error"]["message"]
        if reply.status_code != 200:
            return "defect", f"{reply.status_code}: {reply.text[:200]}"
        choice = reply.json()["choices"][0]
        if choice["finish_reason"] == "length":
            continue
        try:
            DRAFTS[draft](schema).validate(json.loads(choice["text"]))
        except (jsonschema.ValidationError, json.JSONDecodeError) as error:
            return "defect", f"{choice['text']!r}: {str(error).splitlines()[0]}"
        seen = "valid"
    return seen, ""


def outcomes():
    """What each schema came to, by name: the outcome and why."""
    engine = Engine("tiny", ["--max-model-len", "1024", "--seed", "1"])
    url = f"http://127.0.0.1:{engine.port}/v1/completions"
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            cases = list(schemas())
            found = pool.map(lambda case: told(*case, url), cases)
            return {case[0]: result for case, result in zip(cases, found)}
    finally:
        engine.stop()


REASONS = {
    "`$ref` to another document or anchor": r"`\$ref` must lead|Reference segment",
    "`unevaluatedProperties`, `unevaluatedItems`": "`unevaluated",
    "`contains`": "`contains`",
    "`uniqueItems`": "`uniqueItems`",
    "`$dynamicRef`, `$dynamicAnchor`": r"`\$dynamic",
    "`oneOf` whose schemas overlap": "`oneOf`",
    "`not`": "`not` has",
    "`if`": "`if` has",
    "`propertyNames`": "`propertyNames` may",
    "`patternProperties` that overlap": "patternProperty",
    "`multipleOf` of many digits": "`multipleOf`",
    "schemas that nothing fits": "Unsatisfiable|must have exactly one of",
}
"""What schemas are refused for, by what the refusals say."""


def reason(why):
    """What a refusal is for."""
    return next((name for name, text in REASONS.items() if re.search(text, why)), why)


def counted(found):
    """The counts of outcomes, and those of refusals by reason."""
    refusals = Counter(reason(why) for outcome, why in found.values() if outcome == "refused")
    return Counter(outcome for outcome, _ in found.values()), refusals
