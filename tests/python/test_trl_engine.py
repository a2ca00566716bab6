"""TRL's own trainers against the engine alone: server mode, and AsyncGRPO with adapters.

They are in an environment of their own; see `test_trainers.py`.
"""

import pytest

import harness
import test_trainers

pytestmark = test_trainers.pytestmark

LOGPROB_ERROR_MAX = 1e-4
STEPS = 3


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
    assert "POST /v1/unload_lora_adapter" not in paths, "none is older than four versions"
    assert not any("weight_update" in path for path in paths), "no base weight moves"


def test_steps_train_on_what_adapters_sampled(adapted):
    assert len(adapted["steps"]) == STEPS
    # Later ones are trained on what the loader had fetched before the adapter moved.
    assert adapted["steps"][0]["ratio"] == pytest.approx(1.0, abs=LOGPROB_ERROR_MAX)
    assert abs(adapted["steps"][0]["kl"]) <= LOGPROB_ERROR_MAX
    for step in adapted["steps"]:
        assert step["grad_norm"] > 0


def test_the_engine_computes_the_trainer_s_last_adapter_as_peft_does(adapted):
    policy = adapted["policy"]
    assert policy["difference"] <= LOGPROB_ERROR_MAX
    assert policy["moved"] > 100 * LOGPROB_ERROR_MAX, "the adapter changes the model"
    assert adapted["last"] == f"trl-policy-v{STEPS + 1}"
    (span,) = policy["versions"]
    assert (span["version"], span["base_version"]) == (adapted["last"], "default")
