"""Real servers with and without the recorder: agents see no difference, and what is recorded is true.

ROLLTAPE_SERVERS names the servers that must run, `llamacpp vllm vllm-rust sglang`; without it
llama.cpp is tried where `servers/install.sh` has been run. Each is started once and gets every case
of `servers/cases.py`.
"""

import os
from contextlib import contextmanager

import pytest

from servers import cases, known, measured, running, table, truth

NAMED = os.environ.get("ROLLTAPE_SERVERS")
CHOSEN = NAMED.split() if NAMED is not None else ["llamacpp"]
MEASURE_WAIT_S = 900
SCORE_ERROR_MAX = 2e-3
"""Between a logprob and the same asked for again: other batches, other sums in 32-bit floats."""

pytestmark = pytest.mark.timeout(MEASURE_WAIT_S)
every_case = pytest.mark.parametrize("case", cases.every(), ids=lambda case: case.name)


@pytest.fixture(scope="module", params=CHOSEN)
def found(request, tmp_path_factory):
    """What came of all cases on one server, which still runs."""
    kind = running.KINDS[request.param]
    if kind.why_not and NAMED is None:
        pytest.skip(kind.why_not)
    assert not kind.why_not, kind.why_not
    folder = tmp_path_factory.mktemp(kind.name)
    with running.running(kind, folder) as server:
        with contextmanager(measured.measure)(server, folder) as seen:
            yield seen


@every_case
def test_agents_see_no_difference(found, case):
    """Byte by byte, but for ids and times; a translated reply as a client reads it."""
    outcome = found.outcomes[case.name]
    differs = known.of(known.DIFFERENCES, found.server.kind.name, case.name)
    if outcome.hidden is None:
        assert outcome.through.status in (200, 400, 404), "rolltape serves the route in its place"
    else:
        told = (outcome.direct.body[-3000:], outcome.through.body[-3000:])
        assert outcome.hidden == (differs is None), told


@every_case
def test_what_is_sampled_is_recorded_exactly(found, case):
    """One row a choice, with the verdict `exact` or what is known of the server."""
    outcome = found.outcomes[case.name]
    if not outcome.samples:
        pytest.skip("the server refuses it")
    expected = known.of(known.VERDICTS, found.server.kind.name, case.name) or ("exact",)
    assert outcome.verdicts == [expected]
    assert len(outcome.rows) == case.choices or expected[0] == "unusable"


@every_case
def test_recorded_tokens_are_those_that_the_server_sent(found, case):
    """Ids, and logprobs bit by bit, read here from the bytes that went over the line."""
    outcome = found.outcomes[case.name]
    told = [choice for reply in outcome.answers for choice in truth.of_reply(reply)]
    told = [choice for choice in told if choice["logprobs"]]
    if not told or not outcome.rows:
        pytest.skip("the server told nothing of its tokens")
    recorded = sorted(spans(outcome, "input_ids", "logprobs"))
    assert len(recorded) == len(told)
    for choice, (ids, logprobs) in zip(sorted(told, key=by_tokens), recorded):
        count = len(choice["logprobs"])
        assert choice["ids"] in ([], ids[: len(choice["ids"])])
        assert truth.bits(choice["logprobs"]) == truth.bits(logprobs[:count])
        assert len(ids) - count in (0, 1), "llama.cpp's stream leaves the end of a turn out"


def by_tokens(choice):
    """The order of `spans`."""
    return choice["ids"], choice["logprobs"]


def spans(outcome, *columns):
    """The columns over each sampled span of a case."""
    turns = [(row, turn) for row in outcome.rows for turn in row["turns"]]
    return [tuple(row[name][t["start"] : t["end"]] for name in columns) for row, t in turns]


@every_case
def test_recorded_logprobs_are_the_server_s_own_of_the_recorded_prompt(found, case):
    """The recorded ids are given to the server, which says how likely each was."""
    outcome = found.outcomes[case.name]
    exact = [row for row in outcome.rows if row["verdict"] == "exact"]
    if not exact:
        pytest.skip("nothing exact was recorded")
    for row in exact:
        ids, start = row["input_ids"], row["prompt_len"]
        own = truth.score(found.server, ids, start)
        for at, logprob in enumerate(own, start):
            if logprob is not None:
                assert row["logprobs"][at] == pytest.approx(logprob, abs=SCORE_ERROR_MAX), at


@every_case
def test_policy_versions_are_recorded_where_the_server_tells_them(found, case):
    outcome = found.outcomes[case.name]
    if not outcome.rows or outcome.rows[0]["verdict"] == "unusable":
        pytest.skip("nothing was recorded of its tokens")
    assert outcome.versions == (case.mode in found.server.kind.versions)


def test_every_wire_and_mode_was_served(found):
    """Or else most of what is above has skipped itself."""
    served = {(o.case.wire, o.case.mode) for o in found.outcomes.values() if o.samples}
    assert served == {(wire, mode) for wire in cases.WIRES for mode in cases.MODES}
    assert sum(outcome.samples for outcome in found.outcomes.values()) >= 100


def test_the_page_of_servers_says_what_was_measured(found):
    table.hold(found)
