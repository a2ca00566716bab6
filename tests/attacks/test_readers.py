"""The memory of those who read a recording: what an agent wrote must not end the recorder, nor take
from its calls, when somebody looks at it."""

import gzip
import json
import random

import costs
import hostile
import http1
import pytest
from control import close
from costs import Cost
from knocking import bearer, bytes_of, knock

MIB, KIB = 1 << 20, 1 << 10
READERS = {
    "the feed": ("POST", "/feed?consumer=t&wait_s=1"),
    "the tree": ("GET", "/episodes/a/tree"),
    "a search": ("GET", "/search?q=nowhere-to-be-found"),
}
CODED = [("content-encoding", "gzip")]


def call(proxy, messages, episode="a", coded=False):
    body = json.dumps(hostile.BODY | {"messages": messages}).encode()
    body, headers = (gzip.compress(body, 1), CODED) if coded else (body, [])
    return hostile.post(proxy, f"/e/{episode}{hostile.CHAT}", body, headers, timeout=120)


def said(text, role="user"):
    return {"role": role, "content": text}


def noise(length, seed):
    """Text of so many bytes, of which no part is said twice; it shrinks a hundredfold."""
    letters = random.Random(seed)
    block = 6400
    blocks = (f"{letters.getrandbits(128):032x}" + "a" * (block - 32) for _ in range(length // block))
    return "".join(blocks)


def asked(proxy, reader):
    """What a reader is told."""
    headers = [("host", "127.0.0.1"), bearer(proxy.token)]
    return http1.exchange(proxy.control, bytes_of(*READERS[reader], headers), timeout=120)


def read(proxy, reader):
    """What a reader is told, and what it cost."""
    with Cost(proxy) as cost:
        reply = asked(proxy, reader)
    assert hostile.is_alive(proxy)
    return reply, cost


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A proxy with an episode of 60 calls, which repeat a history that grows to 6 MiB: 180 MiB."""
    with hostile.Stage(tmp_path_factory.mktemp("grown")) as stage:
        proxy = stage()
        history = []
        for turn in range(60):
            history.append(said(noise(100 * KIB, turn)))
            assert call(proxy, history).status == 200
            history.append(said("yes", "assistant"))
        close(proxy, "a")
        yield proxy


@pytest.mark.parametrize("reader", READERS)
def test_a_history_that_is_repeated_is_not_held_as_often(grown, reader):
    reply, cost = read(grown, reader)
    assert reply.status == 200, reply.body
    # All bodies at once would be 180 MiB, and what is made of them several times as much.
    assert cost.mib < 150, cost


@pytest.fixture(scope="module")
def flooded(tmp_path_factory):
    """A proxy of 512 MiB, to which an agent sent 16 requests of 24 MiB, and their statuses."""
    with hostile.Stage(tmp_path_factory.mktemp("flooded")) as stage:
        proxy = stage("--memory-max", "512MiB")
        replies = [call(proxy, [said(noise(24 * MIB, n))], coded=True) for n in range(16)]
        assert call(proxy, [said("hi")], "other").status == 200
        close(proxy, "a")
        close(proxy, "other")
        yield proxy, replies


def test_an_attempt_holds_no_more_than_its_readers_can_take(flooded):
    _, replies = flooded
    statuses = [reply.status for reply in replies]
    assert statuses == [200] + [429] * 15
    told = json.loads(replies[-1].body)["error"]
    assert told["type"] == "attempt_full" and "--memory-max" in told["message"], told


@pytest.mark.parametrize("reader", READERS)
def test_the_largest_attempt_ends_no_reader_and_no_recorder(flooded, reader):
    proxy, _ = flooded
    reply, cost = read(proxy, reader)
    assert reply.status in (200, 507), reply.body
    assert cost.mib < 512, cost
    assert hostile.post(proxy, "/e/next" + hostile.CHAT).status == 200


def test_what_one_reader_cannot_take_is_said_and_costs_only_itself(serve):
    proxy = serve("--memory-max", "96MiB")
    assert call(proxy, [said(noise(12 * MIB, 1))], coded=True).status == 200
    assert call(proxy, [said("hi")], "other").status == 200
    close(proxy, "a")
    close(proxy, "other")

    tree, _ = read(proxy, "the tree")
    assert tree.status == 507 and b"rolltape export" in tree.body, tree.body
    found, _ = read(proxy, "a search")
    assert json.loads(found.body)["unread"] == 1
    rows, _ = read(proxy, "the feed")
    episodes = [json.loads(row)["episode_id"] for row in rows.body.splitlines()]
    assert episodes == ["other"]
    (consumer,) = json.loads(knock(proxy, "GET", "/feed/consumers").body)["consumers"]
    assert consumer["dropped"] == {"unreadable": 1}


def test_readers_wait_for_each_other(grown):
    with Cost(grown) as cost:
        replies = costs.at_once(3, lambda _: asked(grown, "the tree"))
    assert {reply.status for reply in replies} == {200}
    assert cost.mib < 600, cost


def test_readers_give_their_memory_back(grown):
    before = hostile.resident_mib(grown)
    for _ in range(4):
        costs.at_once(3, lambda _: asked(grown, "the tree"))
        asked(grown, "a search")
    # One thread's heap that kept what a reader freed was 20 to 65 MiB.
    assert hostile.resident_mib(grown) - before < 30
