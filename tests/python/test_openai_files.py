"""Files for OpenAI's fine-tuning are what OpenAI publishes of them."""

import json

import jsonschema
import pytest

import harness
import openai_schema

SCHEMAS = {"openai": openai_schema.LINE, "openai-preference": openai_schema.PREFERENCE}


@pytest.fixture(scope="module", params=SCHEMAS)
def file(request, played, tmp_path_factory):
    """The lines of an export, and the schema that each must keep."""
    folder = tmp_path_factory.mktemp("openai")
    store = ("--store", played.world.proxy.store)
    harness.done("export", *store, "--out", "out", "--format", request.param, folder=folder)
    lines = (folder / "out" / f"{request.param}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], SCHEMAS[request.param]


def test_every_line_keeps_the_schema(file):
    lines, schema = file
    assert lines
    for line in lines:
        jsonschema.validate(line, schema)


def test_the_schema_refuses_what_it_does_not_know(file):
    """The check can fail: a key too many, an unknown role, arguments that are no text."""
    (line, *_), schema = file
    asked = line.get("input", line)
    asked["messages"][0]["role"] = "developer"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(line, schema)
    asked["messages"][0]["role"] = "system"
    jsonschema.validate(line, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**line, "model": "m"}, schema)
