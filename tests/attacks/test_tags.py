"""Tags: headers that say two things, and floods of words."""

import json

import pytest

import harness
import hostile
import keyed

LABELS_MAX = 100


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A server that takes calls without keys."""
    with hostile.Stage(tmp_path_factory.mktemp("tags")) as stage:
        yield stage()


@pytest.mark.parametrize("name", ["x-episode-id", "x-attempt", "x-group-id", "x-task-id"])
def test_a_header_of_ours_that_says_two_things_is_refused(proxy, name):
    before = len(proxy.upstream.calls())
    tag = () if name == "x-episode-id" else (("x-episode-id", "two"),)
    for headers in ([(name, "1"), (name, "2")], [(name, "1"), (name, "1"), (name, "3")]):
        assert keyed.call(proxy, headers=[*tag, *headers]).status == 400
    assert keyed.call(proxy, headers=[*tag, (name, "1, 2")]).status == 400, "nor as a list"
    assert len(proxy.upstream.calls()) == before
    assert keyed.call(proxy, headers=[*tag, (name, "1"), (name, "1")]).status == 200


@pytest.mark.parametrize("name", ["x-episode-id", "x-attempt", "x-group-id", "x-task-id"])
def test_a_tag_that_is_named_in_connection_counts_all_the_same(proxy, name):
    words = {"x-episode-id": f"of-{name}", "x-attempt": "3", "x-group-id": "g", "x-task-id": "t"}
    headers = [*words.items(), ("connection", name)]
    assert keyed.call(proxy, headers=headers).status == 200
    row = keyed.episodes(proxy)[f"of-{name}", 3]
    assert (row["group_id"], row["task_id"]) == ("g", "t")
    assert not any(word in dict(proxy.upstream.heard[-1].headers) for word in words)


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_key_that_is_named_in_connection_counts_and_goes_no_further(proxy, header):
    episode = f"key-{header}"
    key, _ = keyed.mint(proxy, episode)
    value = f"Bearer {key}" if header == "authorization" else key
    assert keyed.call(proxy, episode, headers=[("connection", header)]).status == 401
    headers = [(header, value), ("connection", header)]
    assert keyed.call(proxy, headers=headers).status == 200
    assert len(keyed.recorded(proxy, episode)) == 1
    keyed.assert_unseen(proxy, key)


@pytest.mark.parametrize("name", ["content-length", "host", "content-type", "content-encoding"])
def test_connection_takes_no_framing_from_a_request(proxy, name):
    before = len(proxy.upstream.calls())
    body = hostile.BODY | {"user": f"GET /smuggled HTTP/1.1\r\n\r\n{name}"}
    assert keyed.call(proxy, "framed", headers=[("connection", name)], body=body).status == 200
    (call,) = proxy.upstream.calls()[before:]
    assert json.loads(call.body) == body and call.whole
    assert call.header("host") == harness.text(proxy.upstream.address)
    assert not any("smuggled" in request.path for request in proxy.upstream.heard)


def test_a_label_with_two_values_is_refused(proxy):
    headers = [("x-episode-tag", "split=train"), ("x-episode-tag", "split=test")]
    assert keyed.call(proxy, "labels", headers=headers).status == 400
    assert keyed.call(proxy, "labels", headers=[headers[0], headers[0]]).status == 200


def test_two_sessions_in_one_call_are_refused(proxy):
    headers = [("x-session-id", "one"), ("x-session-id", "two")]
    assert keyed.call(proxy, headers=headers).status == 400
    assert keyed.call(proxy, "of-path", headers=headers).status == 200, "a path overrides them"


def test_a_call_has_few_labels(proxy):
    many = [("x-episode-tag", f"n{n}=1") for n in range(33)]
    assert keyed.call(proxy, "many", headers=many).status == 400
    assert keyed.call(proxy, "many", headers=many[1:]).status == 200


def test_labels_of_many_calls_do_not_pile_up(proxy):
    statuses = [
        keyed.call(
            proxy, "pile", headers=[("x-episode-tag", f"n{n}.{m}=1") for m in range(32)]
        ).status
        for n in range(5)
    ]
    assert statuses == [200, 200, 200, 400, 400]
    assert len(keyed.labels(proxy, "pile")) <= LABELS_MAX


def test_a_label_is_short(proxy):
    for headers in ([("x-episode-tag", "a" * 201 + "=1")], [("x-episode-tag", "a=" + "v" * 2049)]):
        assert keyed.call(proxy, "long", headers=headers).status == 400
    assert keyed.call(proxy, "long", headers=[("x-episode-tag", "a=" + "v" * 2048)]).status == 200


@pytest.mark.parametrize("body", [b"", b"{}", b'{"messages":[]}', b"[1]", b"nonsense"])
def test_an_empty_probe_makes_no_episode_of_its_own(proxy, body):
    before = set(keyed.episodes(proxy))
    headers = () if body else [("content-length", "0")]
    for _ in range(3):
        hostile.post(proxy, hostile.CHAT, body, headers=headers)
    assert set(keyed.episodes(proxy)) - before <= {("untagged", 0)}


def test_a_call_that_says_something_still_gets_an_episode_of_its_own(proxy):
    before = set(keyed.episodes(proxy))
    hostile.post(proxy)
    (made,) = set(keyed.episodes(proxy)) - before
    assert made[0].startswith("auto-")


def test_no_episode_goes_on_from_a_response_of_another(serve):
    proxy = serve("--translate", "always")
    path = "/e/{}/v1/responses"
    first = hostile.post(proxy, path.format("a"), {"model": "m", "input": "the secret of a"})
    assert first.status == 200, first.body
    goes_on = {"model": "m", "input": "more", "previous_response_id": json.loads(first.body)["id"]}
    hostile.post(proxy, path.format("b"), goes_on)
    assert not any(b"the secret of a" in request.body for request in proxy.upstream.calls()[1:])
    before = len(proxy.upstream.calls())
    assert hostile.post(proxy, path.format("a"), goes_on).status == 200
    assert b"the secret of a" in proxy.upstream.calls()[before].body, "its own does"


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key", "x-goog-api-key"])
def test_two_keys_of_an_agent_in_one_header_are_a_400(proxy, name):
    before = len(proxy.upstream.calls())
    two = hostile.post(proxy, headers=[(name, "Bearer a"), (name, "Bearer b")])
    assert two.status == 400 and len(proxy.upstream.calls()) == before
    assert hostile.post(proxy, headers=[(name, "Bearer a"), (name, "Bearer a")]).status == 200
