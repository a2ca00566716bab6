"""Chat through `--continue exact`, with the chat templates and the tokenizers of eight families.

Agents have random conversations with a scripted vLLM, whose model samples in torn tokens. An oracle
says for each call which ids the server should have been given. `families/install.sh` fetches
templates and tokenizers (80 MB); without it the tests are skipped, unless
ROLLTAPE_FAMILIES_FETCHED=required. ROLLTAPE_FAMILIES=1000 has so many conversations with each
family, and ROLLTAPE_FAMILIES_REPORT=FILE writes what was counted.
"""

import json
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "families"
sys.path.append(str(FOLDER))

import measured  # noqa: E402
from known import FAMILIES  # noqa: E402

CONVERSATIONS = int(os.environ.get("ROLLTAPE_FAMILIES", "30"))
REPORT = os.environ.get("ROLLTAPE_FAMILIES_REPORT")
SECONDS_EACH = 2
EXACT = ("--continue", "exact")

pytestmark = [
    pytest.mark.timeout(120 + SECONDS_EACH * CONVERSATIONS),
    pytest.mark.skipif(
        not (measured.HOME / ".installed").exists()
        and os.environ.get("ROLLTAPE_FAMILIES_FETCHED") != "required",
        reason="families/install.sh has not been run",
    ),
]


def report(outcome, kind=""):
    """Adds what was counted to the report that was asked for."""
    if REPORT:
        file = Path(REPORT)
        told = json.loads(file.read_text()) if file.exists() else {}
        told[kind + outcome.family] = outcome.line
        file.write_text(json.dumps(told, indent=1) + "\n")


def hold(outcome):
    """Every prompt is what the oracle says, and so is the record."""
    assert outcome.wrong == outcome.other_text == 0, outcome.line
    assert outcome.short == outcome.told_wrong == 0, outcome.line
    assert outcome.unexplained == outcome.misnamed == 0, outcome.line
    assert outcome.appended_rows == outcome.appended > 0, outcome.line
    assert outcome.rows == outcome.expected_rows, outcome.line


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_have_the_sampled_ids(family, tmp_path):
    outcome = measured.measured(tmp_path, family, range(CONVERSATIONS), *EXACT)
    report(outcome)
    hold(outcome)
    assert outcome.torn > outcome.conversations, "there was little to do"


@pytest.mark.parametrize("family", FAMILIES)
def test_sglang_is_given_the_sampled_ids(family, tmp_path):
    numbers = range(CONVERSATIONS // 2)
    outcome = measured.measured(tmp_path, family, numbers, *EXACT, kind=("sglang",))
    report(outcome, "sglang ")
    hold(outcome)
    assert outcome.torn > 0, "there was little to do"


def test_a_restart_forgets_no_sampled_ids(tmp_path):
    outcome = measured.measured(tmp_path, "qwen3-coder", range(20), *EXACT, parts=3)
    hold(outcome)


def test_the_oracle_sees_prompts_that_are_torn(tmp_path):
    outcome = measured.measured(tmp_path, "qwen3-coder", range(20))
    assert outcome.other_text == outcome.continued == 0, outcome.line
    assert outcome.short == outcome.torn > outcome.conversations, outcome.line
    assert outcome.wrong == 0, outcome.line
    assert outcome.appended_rows > 2 * outcome.appended > 0, outcome.line
    assert outcome.rows == outcome.expected_rows, outcome.line
