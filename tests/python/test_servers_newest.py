"""What a newer release of a server changed is told, and nothing else."""

import copy

import pytest

from servers import shapes

OLD = {
    "server": "vllm",
    "version": "1",
    "cases": {
        "chat-text": {"status": 200, "fields": shapes.fields('{"id":"a","choices":[{"x":null}]}')},
        "chat-two": {"status": 200, "fields": shapes.fields('{"id":"b","choices":[{"x":null}]}')},
    },
}


def newer(**cases):
    """The same but for some cases."""
    changed = copy.deepcopy(OLD)
    changed["cases"] |= cases
    return changed


def test_equal_recordings_differ_in_nothing():
    assert shapes.changes(OLD, newer()) == []


@pytest.mark.parametrize(
    "text, told",
    [
        ('{"id":"a","choices":[{"x":1}]}', ".choices[].x: None, now int"),
        ('{"id":"a","choices":[]}', ".choices[]: gone"),
        ('{"id":"a","choices":[{"x":null}],"new":"y"}', ".new: new, text"),
        ("no json", ".id: gone"),
    ],
)
def test_a_field_that_came_went_or_changed_is_told_with_its_case(text, told):
    case = {"status": 200, "fields": shapes.fields(text)}
    found = shapes.changes(OLD, newer(**{"chat-text": case}))
    assert (told, ["chat-text"]) in found


def test_a_request_that_is_refused_now_is_told():
    found = shapes.changes(OLD, newer(**{"chat-two": {"status": 400, "fields": {}}}))
    assert found == [("status 200, now 400", ["chat-two"])]
