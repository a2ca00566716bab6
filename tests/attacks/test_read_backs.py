"""Calls that go on from what was recorded: what many of them read back at once stays within the
memory of all calls, and none of them waits without an end."""

import json

import control
import costs
import harness
import hostile
import lines
import pytest
from costs import Cost
from test_memory import Open, call
from test_readers import MIB, noise

CALLS = 24
CEILING_MIB = 512
OPTIONS = ("--dialect", "vllm", "--memory-max", f"{CEILING_MIB}MiB")
RESPONSES = "/v1/responses"

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
    """Whether no call holds memory any more."""
    return lines.metric(proxy, "rolltape_memory_bytes") == 0


@pytest.fixture(scope="module")
def chained(tmp_path_factory):
    """A proxy whose agent went on from response to response, 20 MiB in all, the last id, and what
    starts another proxy on the same store."""
    with hostile.Stage(tmp_path_factory.mktemp("chained")) as stage:
        proxy, last = stage(*OPTIONS), None
        for turn in range(4):
            reply = ask(proxy, noise(5 * MIB, turn), last)
            assert reply.status == 200, reply.body
            last = json.loads(reply.body)["id"]
        yield proxy, last, lambda: stage(*OPTIONS)


def is_held(proxy, last):
    """Checks that many calls at once go on from one conversation, or are told to come back."""
    with Cost(proxy) as cost:
        replies = costs.at_once(CALLS, lambda _: ask(proxy, "more", last))
    statuses = sorted(reply.status for reply in replies)
    # Each takes 80 MiB: they wait for each other, and some of them too long.
    assert 200 in statuses and set(statuses) <= {200, 503}, statuses
    for refused in (reply for reply in replies if reply.status == 503):
        assert refused.header("retry-after") == "1" and told(refused) == "overloaded_error"
    assert cost.mib < CEILING_MIB, cost
    harness.until("memory", lambda: is_empty(proxy))
    assert ask(proxy, "more", last).status == 200


def test_conversations_that_go_on_by_id_at_once_stay_below_the_ceiling(chained):
    proxy, last, _ = chained
    is_held(proxy, last)


def test_a_conversation_that_many_read_back_stays_below_the_ceiling(chained):
    proxy, last, start = chained
    proxy.process.stop()
    is_held(start(), last)


def test_replies_that_are_given_again_and_not_read_stay_below_the_ceiling(serve):
    mib, agents = 12, 50
    document = hostile.REPLY | {"x": noise(mib * MIB, 1)}
    proxy = serve(*OPTIONS, answer=lambda request: hostile.reply(document))
    asked = ("/e/a" + hostile.CHAT, hostile.BODY)
    assert hostile.post(proxy, *asked, timeout=60).status == 200
    control.close(proxy, "a")
    for agent in range(agents):
        again = {"episode_id": f"r{agent}", "replay": {"episode_id": "a"}}
        assert control.post(proxy, "/episodes", again)[0] == 200

    ended = lambda: hostile.rows(proxy, "SELECT status FROM calls WHERE outcome IS NOT NULL")  # noqa: E731
    with Cost(proxy) as cost:
        path = lambda agent: f"/e/r{agent}" + hostile.CHAT  # noqa: E731
        stalled = [Open(proxy, call(path(agent), hostile.BODY)) for agent in range(agents)]
        harness.until("the end of all calls", lambda: len(ended()) == agents + 1, wait_s=120)
    statuses = [row["status"] for row in ended()]
    assert statuses.count(200) > 1 and set(statuses) == {200, 503}, statuses
    assert cost.mib < CEILING_MIB, cost
    for reader in stalled:
        reader.close()

    # What was refused for want of memory was not given, and is given once there is some.
    harness.until("memory", lambda: is_empty(proxy))
    refused = hostile.rows(proxy, "SELECT episode_id FROM calls WHERE status = 503")[0]
    reply = hostile.post(proxy, f"/e/{refused['episode_id']}{hostile.CHAT}", timeout=60)
    assert reply.status == 200 and len(reply.body) > mib * MIB
