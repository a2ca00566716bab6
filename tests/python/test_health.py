"""`rolltape health`: verdicts on a run, its exit codes and its thresholds."""

import json
import sqlite3

import openai
import pytest

import harness


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store of four episodes of one group, which say the same."""
    folder = tmp_path_factory.mktemp("health")
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        for number in range(4):
            options = {"api_key": "k", "max_retries": 0}
            options["default_headers"] = {"x-group-id": "g"}
            agent = openai.OpenAI(base_url=proxy.base_url(f"e{number}"), **options)
            messages = [{"role": "user", "content": "Go."}]
            agent.chat.completions.create(
                model="tiny", messages=messages, max_tokens=80, temperature=0
            )
    return proxy.store


def health(store, *words):
    """The exit code, and the report."""
    ended = harness.command("health", "--json", "--store", store, *words, folder=store.parent)
    report = json.loads(ended.stdout)
    return ended.returncode, report, {check["check"]: check for check in report["checks"]}


def test_equal_rollouts_are_a_finding_with_a_place(recorded, tmp_path):
    short = tmp_path / "short.json"
    short.write_text(json.dumps({"tokens_min": 4}))
    code, report, checks = health(recorded, "--thresholds", short)
    assert code == 1 and report["verdict"] == "finding"
    assert (report["attempts"], report["calls"], len(checks)) == (4, 4, 30)
    same = checks["duplicate_rollouts"]
    assert same["verdict"] == "finding" and same["looked_at"] == 3
    assert same["examples"][0]["episode_id"] == "e1"
    assert same["examples"][0]["note"] == "as e0/0"
    assert checks["hollow_episodes"]["verdict"] == "no evidence", "no episode is closed"
    assert report["checks"][0]["verdict"] == "finding"

    words = ("health", "--thresholds", short, "--store", recorded)
    shown = harness.command(*words, folder=tmp_path)
    assert shown.returncode == 1 and "e1/0: as e0/0" in shown.stdout
    assert "without evidence, of 30 checks" in shown.stdout


def test_thresholds_and_selection_decide(recorded, tmp_path):
    file = tmp_path / "thresholds.json"
    file.write_text(json.dumps({"tokens_min": 4, "shares": {"duplicate_rollouts": 1.0}}))
    code, report, checks = health(recorded, "--thresholds", file)
    assert code == 0 and report["verdict"] == "fine" and len(checks) == 30
    assert checks["duplicate_rollouts"]["verdict"] == "fine"
    file.write_text(json.dumps({"tokens_min": 4, "off": ["duplicate_rollouts"]}))
    code, report, checks = health(recorded, "--thresholds", file)
    assert code == 0 and "duplicate_rollouts" not in checks
    code, report, _ = health(recorded, "--episode", "nobody")
    assert (code, report["verdict"], report["attempts"]) == (0, "no evidence", 0)
    assert health(recorded, "--since", "2036-01-01T00:00:00Z")[1]["attempts"] == 0

    file.write_text(json.dumps({"off": ["loop"]}))
    words = ("health", "--store", recorded, "--thresholds", file)
    refused = harness.command(*words, folder=tmp_path)
    assert refused.returncode == 1 and "there is no check `loop`" in refused.stderr
    assert harness.command("health", "--nothing", folder=tmp_path).returncode == 2


def test_what_cannot_be_read_is_a_finding(recorded, tmp_path):
    copy = tmp_path / "copy.db"
    harness.done("backup", "--store", recorded, "--to", copy, folder=tmp_path)
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE body SET hash = zeroblob(16) WHERE body_key = 2")
    code, report, checks = health(copy)
    unreadable = checks["unreadable_attempts"]
    assert code == 1 and unreadable["verdict"] == "finding"
    assert unreadable["sentence"].startswith("1 of 4 attempts cannot be read back")
    assert report["attempts"] == 4 and report["calls"] == 3


def test_each_question_shows_rows_or_none(recorded):
    questions = [check["sql"] for check in health(recorded)[1]["checks"] if check["sql"]]
    assert len(questions) == 22
    for question in questions:
        harness.done("sql", question, "--store", recorded, folder=recorded.parent)
