"""TRL's own trainers against the engine alone: server mode, and AsyncGRPO with adapters.

They are in an environment of their own; see `test_trainers.py`.
"""

import pytest

import harness
import test_trainers

pytestmark = test_trainers.pytestmark

LOGPROB_ERROR_MAX = 1e-4
STEPS = 5
MAX_STALENESS = 2


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """An engine of its own."""
    with harness.engine(tmp_path_factory.mktemp("trl")) as address:
        yield f"http://{harness.text(address)}"


@pytest.fixture(scope="module")
def served(url, tmp_path_factory):
    """What `trainers/served.py` found."""
    folder = tmp_path_factory.mktemp("served")
    return test_trainers.run("served.py", url, folder / "out", folder=folder)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """What `trainers/adapters.py` found, with an engine that nobody else updates."""
    folder = tmp_path_factory.mktemp("adapters")
    with harness.engine(folder) as address:
        url = f"http://{harness.text(address)}"
        return test_trainers.run("adapters.py", url, folder / "out", folder=folder)


def test_server_mode_finds_what_it_asks_for_in_its_order(served):
    paths = [call.split("?")[0] for call in served["calls"]]
    beginning = ["/health", "/v1/models", "/server_info", "/get_world_size"]
    assert [path.split()[1] for path in paths[:4]] == beginning
    sync = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    syncs = [i for i, path in enumerate(paths) if path == f"POST {sync[0]}"]
    assert len(syncs) >= STEPS
    for start in syncs:
        assert paths[start : start + 4] == [f"POST {path}" for path in sync]
        assert paths[start + 4] == "POST /v1/completions"


def test_server_mode_samples_with_the_weights_that_were_pushed(served):
    assert len(served["steps"]) == STEPS
    for step in served["steps"]:
        assert step["sampling/sampling_logp_difference/max"] <= LOGPROB_ERROR_MAX
    assert any(step["grad_norm"] > 0 for step in served["steps"])


def test_adapters_are_synced_by_trl_s_own_calls(adapted):
    paths = [call.split("?")[0] for call in adapted["calls"]]
    sync = ["POST /pause", "POST /v1/load_lora_adapter", "POST /resume"]
    syncs = [i for i, path in enumerate(paths) if path == sync[0]]
    assert len(syncs) == STEPS + 1, "one before the first step, one after each"
    for start in syncs:
        assert paths[start : start + 3] == sync
    kept = MAX_STALENESS + 1
    assert paths.count("POST /v1/unload_lora_adapter") == STEPS + 1 - kept, "what is too old"
    assert not any("weight_update" in path for path in paths), "no base weight moves"


def test_every_turn_that_is_trained_has_the_logprobs_of_the_adapter_that_it_asked_for(adapted):
    turns = [
        (row["stamp"], turn)
        for step in adapted["trained"]
        for row in step["rows"]
        for turn in row["turns"]
    ]
    apart = {}
    for stamp, turn in turns:
        asked = turn["asked"]
        assert stamp <= asked, "TRL stamps a group when it begins, and asks for the newest"
        assert turn["gaps"].pop(str(asked)) <= LOGPROB_ERROR_MAX
        for other, gap in turn["gaps"].items():
            apart[asked, other] = max(gap, apart.get((asked, other), 0))
    assert len({asked for asked, _ in apart}) > 1, "the last rows are not of the first adapter"
    # A step whose rewards are all equal learns nothing: the adapter behind it is the one before it.
    may_be_same = any(step["grad_norm"] == 0 for step in adapted["steps"])
    others = [gap for gap in apart.values() if not (may_be_same and gap <= LOGPROB_ERROR_MAX)]
    assert others and all(gap > 100 * LOGPROB_ERROR_MAX for gap in others), "no other would do"


def test_the_ratio_that_trl_logs_is_that_of_the_adapter_a_batch_later(adapted):
    """It fetches a batch before it trains the one before: staleness is told a version too low."""
    assert len(adapted["steps"]) == len(adapted["trained"]) == STEPS
    for number, (logged, step) in enumerate(zip(adapted["steps"], adapted["trained"])):
        assert step["trained_at"] == number + 1
        assert {row["taken_at"] for row in step["rows"]} == {max(1, number)}
        assert len(step["rows"]) == 8
        assert logged["ratio"] == pytest.approx(step["ratio"], rel=LOGPROB_ERROR_MAX)
    # Groups of later steps may have one reward each, and teach nothing.
    assert adapted["steps"][0]["grad_norm"] > 0
    assert adapted["steps"][0]["ratio"] == pytest.approx(1.0, abs=LOGPROB_ERROR_MAX)
    assert abs(adapted["steps"][0]["kl"]) <= LOGPROB_ERROR_MAX


def test_the_engine_computes_the_trainer_s_last_adapter_as_peft_does(adapted):
    policy = adapted["policy"]
    assert policy["difference"] <= LOGPROB_ERROR_MAX
    assert policy["moved"] > 100 * LOGPROB_ERROR_MAX, "the adapter changes the model"
    assert adapted["last"] == f"trl-policy-v{STEPS + 1}"
    (span,) = policy["versions"]
    assert (span["version"], span["base_version"]) == (adapted["last"], "default")
