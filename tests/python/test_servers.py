"""Real servers with and without the recorder: agents see no difference; what is recorded is true.

Which servers: `servers/running.py` says it. Each gets every case of `servers/cases.py`.
"""

from contextlib import contextmanager

import pytest

from servers import cases, known, measured, same, table, truth

MEASURE_WAIT_S = 900
SHARE_OF_EQUAL_STREAMS = 0.8
SCORE_ERROR_MAX = 1e-2
"""Between a logprob and the same asked for again: other batches, other sums, and
llama.cpp keeps what it computed in 16-bit floats."""

pytestmark = pytest.mark.timeout(MEASURE_WAIT_S)


@pytest.fixture(scope="module")
def found(real, tmp_path_factory):
    """What came of all cases on one server, which still runs."""
    with contextmanager(measured.measure)(real, tmp_path_factory.mktemp("cases")) as seen:
        yield seen


def wrong(found, judge):
    """What `judge` holds against each outcome, by the name of the case."""
    told = {name: judge(outcome) for name, outcome in found.outcomes.items()}
    return {name: why for name, why in told.items() if why}


def test_agents_see_no_difference(found):
    """Byte by byte, but for ids and times; a translated reply as a client reads it."""

    def judge(outcome):
        if outcome.hidden is None:  # rolltape serves the route in the server's place
            return outcome.through.status >= 500 and outcome.through.body
        known_of = known.of(known.DIFFERENCES, found.server.kind.name, outcome.case.name)
        if outcome.hidden == (known_of is None):
            return None
        if outcome.hidden:
            return "it does not differ any more"
        return outcome.direct.body[-1500:], outcome.through.body[-1500:]

    assert wrong(found, judge) == {}


def test_streams_are_cut_where_the_server_cuts_them(found):
    """Nearly all are equal byte by byte; how many tokens an event has hangs on the moment."""
    streams = [o for o in found.outcomes.values() if o.case.streams and not o.translated]
    exactly = [o for o in streams if same.equal(o.direct, o.through)]
    assert len(exactly) >= SHARE_OF_EQUAL_STREAMS * len(streams)


def test_what_is_sampled_is_recorded_exactly(found):
    """One row a choice, with the verdict `exact` or what is known of the server."""

    def judge(outcome):
        expected = known.of(known.VERDICTS, found.server.kind.name, outcome.case.name)
        expected = expected or ("exact",)
        expected = [expected] if isinstance(expected[0], str) else list(expected)
        whole = len(outcome.rows) == outcome.case.choices or "unusable" in expected[0]
        if not outcome.samples or (outcome.verdicts == expected and whole):
            return None
        return outcome.verdicts, len(outcome.rows)

    assert wrong(found, judge) == {}


def test_recorded_tokens_are_those_that_the_server_sent(found):
    """Ids, and logprobs bit by bit, read here from the bytes that went over the line."""

    def judge(outcome):
        told = [choice for reply in outcome.answers for choice in truth.of_reply(reply)]
        told = [(choice["ids"], choice["logprobs"]) for choice in told if choice["logprobs"]]
        rows = [row for row in outcome.rows if row["verdict"] != "unusable"]
        recorded = spans(rows, "input_ids", "logprobs") if told else []
        if len(recorded) > len(told):
            return len(told), len(recorded)
        for span in recorded:
            sent = next((one for one in told if sent_and_recorded_agree(*one, *span)), None)
            if sent is None:
                return span, told
            told.remove(sent)
        return told if len(rows) == len(outcome.rows) else None

    assert wrong(found, judge) == {}
    compared = [o for o in found.outcomes.values() if o.answers and o.rows]
    assert len(compared) >= 90


def sent_and_recorded_agree(sent_ids, sent_logprobs, ids, logprobs):
    """Whether a recorded span is what was sent; the end of a turn may not have been sent."""
    count = len(sent_logprobs)
    same_ids = not sent_ids or sent_ids == ids[: len(sent_ids)]
    same_logprobs = truth.bits(sent_logprobs) == truth.bits(logprobs[:count])
    return same_ids and same_logprobs and len(ids) - count in (0, 1)


def spans(rows, *columns):
    """The columns over each sampled span."""
    turns = [(row, turn) for row in rows for turn in row["turns"]]
    return [tuple(row[name][t["start"] : t["end"]] for name in columns) for row, t in turns]


def test_recorded_logprobs_are_the_server_s_own_of_the_recorded_prompt(found):
    """The recorded ids are given to the server, which says how likely each was."""
    scored = []

    def judge(outcome):
        rows = [] if outcome.case.masked else outcome.rows
        for row in (row for row in rows if row["verdict"] == "exact"):
            start = row["prompt_len"]
            own = truth.score(found.server, row["input_ids"], start)
            scored.extend(known for known in own if known is not None)
            for at, logprob in enumerate(own, start):
                if logprob is not None and abs(row["logprobs"][at] - logprob) > SCORE_ERROR_MAX:
                    return at, row["logprobs"][at], logprob
        return None

    assert wrong(found, judge) == {}
    assert len(scored) >= 300


def test_policy_versions_are_recorded_where_the_server_tells_them(found):
    def judge(outcome):
        usable = outcome.rows and outcome.rows[0]["verdict"] != "unusable"
        expected = outcome.case.mode in found.server.kind.versions
        return usable and outcome.versions != expected and outcome.rows[0]["versions"]

    assert wrong(found, judge) == {}


def test_every_wire_and_mode_was_served(found):
    """Or else most of what is above has skipped itself."""
    served = {(o.case.wire, o.case.mode) for o in found.outcomes.values() if o.samples}
    assert served == {(wire, mode) for wire in cases.WIRES for mode in cases.MODES}
    assert sum(outcome.samples for outcome in found.outcomes.values()) >= 100


def test_the_page_of_servers_says_what_was_measured(found):
    table.hold(found)
