"""Calls that go on from what was recorded: what many of them read back at once stays within the
memory of all calls, and none of them waits without an end."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import control
import harness
import hostile
import lines
import pytest
from costs import Cost
from test_memory import Open, call
from test_readers import MIB, noise

CALLS = 32
CEILING_MIB = 128
OPTIONS = ("--dialect", "vllm", "--memory-max", f"{CEILING_MIB}MiB")
RESPONSES = "/v1/responses"
NUMBERS = itertools.count()

pytestmark = pytest.mark.timeout(240)


def ask(proxy, text, before=None, episode="a"):
    """Asks for a response that goes on from `before`."""
    body = {"model": "m", "input": text}
    body |= {"previous_response_id": before} if before else {}
    return hostile.post(proxy, f"/e/{episode}{RESPONSES}", body, timeout=120)


def told(reply):
    """The `type` of an error."""
    return json.loads(reply.body)["error"]["type"]


def is_empty(proxy):
    """Whether no call holds memory any more. What is known of recordings remains."""
    return lines.metric(proxy, "rolltape_memory_bytes") < MIB


class Gate:
    """An upstream's answer that waits while the gate is closed."""

    def __init__(self):
        self.is_open = threading.Event()
        self.is_open.set()

    def __call__(self, request):
        assert self.is_open.wait(200)
        # A conversation is a chain of ids: one that is given twice would name itself.
        return hostile.reply(hostile.REPLY | {"id": f"chatcmpl-{next(NUMBERS)}"})


@pytest.fixture(scope="module")
def chained(tmp_path_factory):
    """A proxy whose agent went on from response to response, 5 MiB in all, the last id, its
    upstream's gate, and what starts another proxy on the same store."""
    with hostile.Stage(tmp_path_factory.mktemp("chained")) as stage:
        gate = Gate()
        start = lambda: stage(*OPTIONS, answer=gate)  # noqa: E731
        proxy, last = start(), None
        for turn in range(4):
            reply = ask(proxy, noise(5 * MIB // 4, turn), last)
            assert reply.status == 200, reply.body
            last = json.loads(reply.body)["id"]
        yield proxy, last, gate, start


def is_held(proxy, last, gate):
    """Checks that of many calls at once that go on from one conversation those are answered that
    there is memory for, and the others are told to come back."""
    answered = []

    def go_on(_):
        answered.append(ask(proxy, "more", last))
        return answered[-1]

    def is_settled():
        return len(proxy.upstream.calls()) - before + len(answered) >= CALLS

    before = len(proxy.upstream.calls())
    gate.is_open.clear()
    with Cost(proxy) as cost, ThreadPoolExecutor(CALLS) as threads:
        asked = [threads.submit(go_on, number) for number in range(CALLS)]
        try:
            harness.until("the upstream or a refusal, for each call", is_settled, wait_s=100)
        finally:
            gate.is_open.set()
        replies = [call.result() for call in asked]
    statuses = sorted(reply.status for reply in replies)
    # Each takes 20 MiB: they wait for each other, and some of them too long.
    assert statuses[0] == 200 and set(statuses) == {200, 503}, statuses
    for refused in (reply for reply in replies if reply.status == 503):
        assert refused.header("retry-after") == "1" and told(refused) == "overloaded_error"
    assert cost.mib < CEILING_MIB, cost
    harness.until("memory", lambda: is_empty(proxy))
    assert ask(proxy, "more", last).status == 200


def test_conversations_that_go_on_by_id_at_once_stay_below_the_ceiling(chained):
    proxy, last, gate, _ = chained
    is_held(proxy, last, gate)


def test_a_conversation_that_many_read_back_stays_below_the_ceiling(chained):
    proxy, last, gate, start = chained
    proxy.process.stop()
    is_held(start(), last, gate)


def test_replies_that_are_given_again_and_not_read_stay_below_the_ceiling(serve):
    mib, agents, ceiling = 8, 40, 256
    document = hostile.REPLY | {"x": noise(mib * MIB, 1)}
    options = ("--dialect", "vllm", "--memory-max", f"{ceiling}MiB")
    proxy = serve(*options, answer=lambda request: hostile.reply(document))
    asked = ("/e/a" + hostile.CHAT, hostile.BODY)
    recorded = hostile.post(proxy, *asked, timeout=60)
    assert recorded.status == 200
    control.close(proxy, "a")
    for agent in range(agents):
        again = {"episode_id": f"r{agent}", "replay": {"episode_id": "a"}}
        assert control.post(proxy, "/episodes", again)[0] == 200

    query = "SELECT status FROM calls WHERE outcome IS NOT NULL"
    ended = lambda: hostile.rows(proxy, query)  # noqa: E731
    with Cost(proxy) as cost:
        path = lambda agent: f"/e/r{agent}" + hostile.CHAT  # noqa: E731
        stalled = [Open(proxy, call(path(agent), hostile.BODY)) for agent in range(agents)]
        harness.until("the end of all calls", lambda: len(ended()) == agents + 1, wait_s=120)
    statuses = [row["status"] for row in ended()]
    assert statuses.count(200) > 1 and set(statuses) == {200, 503}, statuses
    assert cost.mib < ceiling, cost
    for reader in stalled:
        reader.close()

    # What was refused for want of memory was not given, and is given once there is some.
    harness.until("memory", lambda: is_empty(proxy))
    refused = hostile.rows(proxy, "SELECT episode_id FROM calls WHERE status = 503")[0]
    reply = hostile.post(proxy, f"/e/{refused['episode_id']}{hostile.CHAT}", timeout=60)
    assert reply.status == 200 and reply.body == recorded.body
