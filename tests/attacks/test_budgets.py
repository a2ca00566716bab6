"""Budgets: calls, sampled tokens and seconds of an attempt and of a key."""

import json
import threading
import time

import pytest

import harness
import hostile
import keyed
import lines


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A server without budgets of its own."""
    with hostile.Stage(tmp_path_factory.mktemp("budgets")) as stage:
        yield stage()


def spend(proxy, episode, calls, key=None):
    """The statuses of so many calls, one after the other."""
    tag = None if key else episode
    return [keyed.call(proxy, tag, key=key).status for _ in range(calls)]


def test_calls_beyond_the_budget_of_an_attempt_are_refused(proxy):
    assert keyed.announce(proxy, "calls", calls_max=2) == 200
    before = len(proxy.upstream.calls())
    assert spend(proxy, "calls", 4) == [200, 200, 429, 429]
    assert len(proxy.upstream.calls()) == before + 2, "a refused call costs the upstream nothing"
    refused = keyed.call(proxy, "calls")
    assert refused.header("retry-after") is None
    assert refused.header("x-should-retry") == "false"
    assert "budget of 2 calls" in keyed.message(refused)
    assert len(keyed.recorded(proxy, "calls")) == 2


def test_calls_at_once_do_not_pass_the_budget(proxy):
    assert keyed.announce(proxy, "at-once", calls_max=3) == 200
    before = len(proxy.upstream.calls())
    statuses = []
    threads = [
        threading.Thread(target=lambda: statuses.extend(spend(proxy, "at-once", 1)))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * 3 + [429] * 9
    assert len(proxy.upstream.calls()) == before + 3


def test_tokens_beyond_the_budget_of_an_attempt_are_refused(proxy):
    assert keyed.announce(proxy, "tokens", tokens_max=3) == 200
    assert spend(proxy, "tokens", 5) == [200, 200, 200, 429, 429]
    assert "3 sampled tokens" in keyed.message(keyed.call(proxy, "tokens"))


WORDS = 40


def words(request):
    """A stream of words that nobody counts, until its usage, which comes late."""
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"w%d "}}]}\n\n'
    return lines.stream([*(delta % number for number in range(WORDS)), lambda: time.sleep(30)])


def leave_early(proxy, episode):
    """Makes a streamed call and leaves it after its last word; gives the status."""
    with lines.connect(proxy.data) as line:
        line.sendall(lines.chat(f"/e/{episode}{hostile.CHAT}", stream=True))
        said = b""
        while b"w39" not in said and b" 429 " not in said:
            piece = line.recv(1 << 16)
            assert piece, said
            said += piece
    calls = lambda: keyed.recorded(proxy, episode)
    harness.until("the calls end", lambda: all(call["outcome"] for call in calls()))
    return int(said.split(b" ")[1])


def test_who_leaves_before_the_tokens_are_counted_pays_for_what_was_seen(serve):
    proxy = serve("--dialect", "openai", answer=words)
    assert keyed.announce(proxy, "leaves", tokens_max=2 * WORDS) == 200
    assert [leave_early(proxy, "leaves") for _ in range(4)] == [200, 200, 429, 429]
    assert [call["completion_tokens"] for call in keyed.recorded(proxy, "leaves")] == [WORDS] * 2


def test_a_budget_of_no_tokens_takes_no_call(proxy):
    assert keyed.announce(proxy, "none", tokens_max=0) == 200
    assert spend(proxy, "none", 1) == [429]


def test_calls_after_the_time_of_an_attempt_are_refused(proxy):
    assert keyed.announce(proxy, "seconds", seconds_max=3) == 200
    assert spend(proxy, "seconds", 1) == [200]
    harness.until("the time ends", lambda: spend(proxy, "seconds", 1) == [429])


def test_each_key_has_a_budget_of_its_own(proxy):
    small, _ = keyed.mint(proxy, "keys", calls_max=1)
    large, _ = keyed.mint(proxy, "keys", calls_max=2, ttl_s=60)
    assert spend(proxy, "keys", 2, small) == [200, 429]
    assert spend(proxy, "keys", 3, large) == [200, 200, 429]


def test_the_tokens_of_a_key_are_counted(proxy):
    key, _ = keyed.mint(proxy, "key-tokens", tokens_max=2)
    assert spend(proxy, "key-tokens", 3, key) == [200, 200, 429]


def test_another_attempt_has_a_budget_of_its_own_and_an_agent_cannot_raise_one(proxy):
    assert keyed.announce(proxy, "raise", calls_max=1) == 200
    assert spend(proxy, "raise", 2) == [200, 429]
    hostile.post(proxy, "/episodes", {"episode_id": "raise", "calls_max": 100})
    assert spend(proxy, "raise", 1) == [429]
    assert keyed.announce(proxy, "raise", calls_max=2) == 200
    assert spend(proxy, "raise", 2) == [200, 429], "control can"


def test_a_budget_is_kept_over_a_restart(serve, tmp_path):
    first = serve()
    assert keyed.announce(first, "run", calls_max=2) == 200
    key, _ = keyed.mint(first, "keyed", tokens_max=2)
    assert spend(first, "run", 1) + spend(first, "keyed", 1, key) == [200, 200]
    first.process.stop()
    with harness.serve(tmp_path, "--upstream", first.upstream.url) as second:
        assert spend(second, "run", 2) == [200, 429]
        assert spend(second, "keyed", 2, key) == [200, 429]


def test_options_give_every_attempt_a_budget(serve):
    proxy = serve("--episode-calls", "2")
    assert keyed.announce(proxy, "more", calls_max=3) == 200
    assert spend(proxy, "more", 4) == [200, 200, 200, 429]
    assert spend(proxy, "plain", 3) == [200, 200, 429]
    assert spend(proxy, "plain-too", 1) == [200]


def test_a_refused_call_of_another_spends_nothing(proxy):
    key, _ = keyed.mint(proxy, "spent-by", calls_max=1)
    assert keyed.announce(proxy, "spent-by", calls_max=1) == 200
    assert [keyed.call(proxy, "spent-by").status for _ in range(3)] == [401, 401, 401]
    assert spend(proxy, "spent-by", 2, key) == [200, 429]
