"""What an upstream says: numbers that cannot be are kept, marked and never trained."""

import json

import pyarrow.parquet
import pytest

import hostile

IDS, LOGPROBS, PROMPT = [11, 12, 13], [-0.5, -0.25, -1.0], [1, 2, 3, 4]
ABSURD_COUNT = 2**64 - 1
LABELS = 50_000
SPANS_MAX = 1024
VOCABULARY = 1000


def spans(*spans):
    return [{"version": label, "start": start, "end": end} for label, start, end in spans]


def said(ids=IDS, logprobs=LOGPROBS, prompt=PROMPT, versions=None, usage=None, **more):
    """A reply as vLLM gives it, with what a test puts in its place."""
    tokens = [{"token": "x", "logprob": p, "bytes": [120], "top_logprobs": []} for p in logprobs]
    choice = hostile.REPLY["choices"][0] | {"logprobs": {"content": tokens}, "token_ids": ids}
    if versions is not None:
        choice["weight_versions"] = versions
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    return hostile.REPLY | {"choices": [choice], "prompt_token_ids": prompt} | {
        "usage": counts | (usage or {})
    } | more


def streamed(document):
    """The same as events: one with everything, one with the usage, and the end."""
    (choice,) = document["choices"]
    chunk = choice | {"delta": choice["message"], "finish_reason": "stop"}
    del chunk["message"]
    first = document | {"object": "chat.completion.chunk", "choices": [chunk], "usage": None}
    last = document | {"object": "chat.completion.chunk", "choices": []}
    del last["prompt_token_ids"]
    events = [json.dumps(first), json.dumps(last), "[DONE]"]
    body = "".join(f"data: {event}\n\n" for event in events)
    return hostile.reply(body.encode(), content_type="text/event-stream")


class Liar:
    """An upstream whose next words a test sets, behind one server that all tests share."""

    def __init__(self, stage):
        self.words = b""
        options = ("--dialect", "vllm", "--logprobs-mode", "processed_logprobs")
        self.proxy = stage(*options, answer=lambda request: self.words)
        self._calls = 0

    def rows(self, *replies):
        """Records a call for each of (words, whether they are a stream), and gives the rows that
        a trainer would read."""
        episodes = [self._record(*reply) for reply in replies]
        out = self.proxy.folder / f"rows-{self._calls}.parquet"
        self.proxy.command("export", "--out", out)
        rows = {row["episode_id"]: row for row in pyarrow.parquet.read_table(out).to_pylist()}
        return [rows[episode] for episode in episodes]

    def _record(self, words, stream):
        self._calls += 1
        self.words = words
        episode = f"e{self._calls}"
        body = hostile.BODY | ({"stream": True} if stream else {})
        reply = hostile.post(self.proxy, f"/e/{episode}{hostile.CHAT}", body)
        assert reply.status == 200, reply
        return episode


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    with hostile.Stage(tmp_path_factory.mktemp("liar")) as stage:
        yield Liar(stage)


def is_untrained(row):
    return 1 not in row["loss_mask"] and row["verdict"] == "unusable"


def both(words):
    """The reply whole and as a stream, with whether it streams."""
    return [(hostile.reply(words), False), (streamed(words), True)]


def test_an_honest_reply_is_trained(liar):
    rows = liar.rows(*both(said()))
    assert [row["verdict"] for row in rows] == ["exact", "exact"], rows
    assert all(row["loss_mask"] == [0] * 4 + [1] * 3 for row in rows)


IMPOSSIBLE = {
    "a logprob above zero": said(logprobs=[-0.5, 7.5, -1.0]),
    "a logprob just above zero": said(logprobs=[-0.5, -0.25, 0.01]),
    "a logprob beyond 32 bits": said(logprobs=[-0.5, 1e300, -1.0]),
    "a usage of 2^64-1": said(usage={"prompt_tokens": ABSURD_COUNT}),
    "a completion of 2^64-1": said(usage={"completion_tokens": ABSURD_COUNT}),
    "a completion of 2^63": said(usage={"completion_tokens": 2**63}),
    "a completion of a million billions": said(usage={"completion_tokens": 10**15}),
    "a span that runs backwards": said(versions=spans(("a", 3, 0))),
    "spans that overlap": said(versions=spans(("a", 0, 3), ("b", 1, 2))),
    "an id of a billion": said(ids=[11, 10**9, 13]),
    "the largest id": said(ids=[11, 2**32 - 1, 13]),
    "a prompt of impossible ids": said(prompt=[1, 2**31, 3, 4]),
}
"""Replies that are read, and that say what cannot be."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_marked_and_never_trained(liar, name):
    rows = liar.rows(*both(IMPOSSIBLE[name]))
    assert all(is_untrained(row) and "impossible_values" in row["reasons"] for row in rows), rows


UNREADABLE = {
    "a negative id": said(ids=[11, -1, 13]),
    "an id beyond 32 bits": said(ids=[11, 2**32 + 5, 13]),
    "a fraction as an id": said(ids=[11, 12.5, 13]),
    "fewer logprobs than ids": said(logprobs=[-0.5, -1.0]),
    "more logprobs than ids": said(logprobs=[-0.5, -0.5, -0.5, -1.0]),
}
"""Replies whose ids cannot be read, or are not those of the logprobs."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_never_trained(liar, name):
    assert all(map(is_untrained, liar.rows(*both(UNREADABLE[name]))))


UNREADABLE_ALONE = {
    "a negative usage": (said(usage={"prompt_tokens": -5}), [1, 1, 1]),
    "a negative span": (said(versions=spans(("a", -1, 3))), [1, 1, 1]),
    "a text as a logprob": (said(logprobs=[-0.5, "high", -1.0]), [1, 0, 1]),
    "a NaN as a logprob": (said(logprobs=[-0.5, float("nan"), -1.0]), [1, 0, 1]),
    "an infinite logprob": (said(logprobs=[-0.5, float("inf"), -1.0]), [1, 0, 1]),
}
"""Replies of which something beside the ids cannot be read, and what is trained."""


@pytest.mark.parametrize("name", UNREADABLE_ALONE)
def test_what_cannot_be_read_costs_only_itself(liar, name):
    words, trained = UNREADABLE_ALONE[name]
    for row in liar.rows(*both(words)):
        assert row["loss_mask"] == [0] * 4 + trained, row
        assert not any(row["logprobs"][at] for at, mask in enumerate(row["loss_mask"]) if not mask)
        assert set(row["versions"]) == {-1}, "no version is made up"


def test_a_flood_of_labels_is_cut_and_never_trained(liar):
    flood = spans(*((f"label-{at}", min(at, 2), min(at + 1, 3)) for at in range(LABELS)))
    (row,) = liar.rows((hostile.reply(said(versions=flood)), False))
    assert is_untrained(row) and "capped" in row["reasons"]
    (stored,) = hostile.rows(
        liar.proxy, "SELECT versions FROM choice ORDER BY choice_key DESC LIMIT 1"
    )
    assert len(json.loads(stored["versions"] or "[]")) <= SPANS_MAX


def test_labels_that_can_be_are_trained(liar):
    (row,) = liar.rows((hostile.reply(said(versions=spans(("7", 0, 3)))), False))
    assert row["verdict"] == "exact" and row["policy_version_max"] == 7


def test_the_bytes_of_a_lie_are_kept_as_they_came(liar):
    document = said(logprobs=[-0.5, 7.5, -1.0], usage={"prompt_tokens": ABSURD_COUNT})
    liar.words = hostile.reply(document)
    asked = hostile.BODY | {"logprobs": True, "return_token_ids": True}
    reply = hostile.post(liar.proxy, f"/e/kept{hostile.CHAT}", asked)
    assert json.loads(reply.body) == document


def test_counts_beyond_all_bounds_do_not_break_the_sums_of_an_episode(liar):
    words = hostile.reply(said(usage={"prompt_tokens": 2**63 - 1, "completion_tokens": 2**63 - 1}))
    for _ in range(3):
        liar.words = words
        assert hostile.post(liar.proxy, f"/e/sums{hostile.CHAT}").status == 200
    (total,) = hostile.rows(
        liar.proxy, "SELECT sum(prompt_tokens) AS n FROM calls WHERE episode_id = 'sums'"
    )
    assert 0 < total["n"] < 2**53
    assert "sums" in liar.proxy.command("episodes")


def test_ids_beyond_the_tokenizer_are_no_ids(serve, tmp_path):
    tokenizer = tmp_path / "tokenizer.json"
    words = {f"w{at}": at for at in range(VOCABULARY)}
    far = said(ids=[11, 100 * VOCABULARY, 13])
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    tokenizer.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    stage = lambda *options, answer: serve("--tokenizer", tokenizer, *options, answer=answer)
    rows = Liar(stage).rows((hostile.reply(said()), False), (hostile.reply(far), False))
    assert [row["verdict"] for row in rows] == ["exact", "unusable"]
    assert "no_token_ids" in rows[1]["reasons"]


def test_no_lie_is_damage(liar):
    """Last: by now the store has recorded all of them."""
    assert hostile.is_clean(liar.proxy) and hostile.is_alive(liar.proxy)
