"""TRL's own trainers in the loop: rollouts from the feed, weights to the engine, and back again.

They are in an environment of their own; see `test_trainers.py`.
"""

import math

import pytest

import test_trainers
from harness import binary

pytestmark = test_trainers.pytestmark

LOGPROB_ERROR_MAX = 1e-4
FLOAT_ERROR_MAX = 1e-6


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """What `trainers/loop.py` found."""
    folder = tmp_path_factory.mktemp("loop")
    return test_trainers.run("loop.py", folder, "async", "sync", folder=folder, binary=binary())


def test_async_grpo_trains_on_the_feed(loop):
    found = loop["async"]
    assert len(found["steps"]) == 3
    first = found["steps"][0]
    assert first["ratio"] == pytest.approx(1.0, abs=1e-4), "recorded under the weights as they are"
    assert abs(first["kl"]) < 1e-6 and all(s["grad_norm"] > 0 for s in found["steps"])
    assert all(s["sample/staleness_max"] <= 4 for s in found["steps"])


def test_each_sync_is_a_version_that_samples(loop):
    found = loop["async"]
    assert found["labels"] == ["default", "1", "2", "3", "4"]
    assert found["weights"]["weight_version"] == "4", "one before the first step, one after each"
    assert found["kept"] == ["v3", "v4"]
    seen = {version for group in found["versions"] for version in group}
    assert seen and seen <= {1, 2, 3, 4}


def test_the_engine_samples_with_the_trainer_s_weights(loop):
    assert loop["async"]["difference"] < LOGPROB_ERROR_MAX


def test_what_was_trained_is_acked_and_the_rest_given_back(loop):
    standing = loop["async"]["standing"]
    assert standing["acked"] >= 2 * 8 and standing["leased"] == 0
    assert set(standing["dropped"]) <= {"no_signal"}


def test_grpo_with_a_rollout_func_finds_the_recorded_logprobs_its_own(loop):
    logged = loop["sync"]["steps"]
    assert len(logged) == 3
    for step in logged:
        assert step["sampling/sampling_logp_difference/max"] < LOGPROB_ERROR_MAX
        assert not math.isnan(step["reward"])
    assert any(step["grad_norm"] > 0 for step in logged)


@pytest.mark.parametrize(("way", "more"), [("async", ["loss_weights"]), ("sync", [])])
def test_what_the_trainer_computed_is_beside_the_tokens(loop, way, more):
    found = loop[way]["annotated"]
    assert found["sent"] >= 3 and found["lost"] == 0
    assert found["names"] == sorted(["advantages", "entropies", "trainer_logprobs", *more])
    assert found["tokens"] > 100 and found["gap"] < LOGPROB_ERROR_MAX


@pytest.fixture(scope="module")
def harnessed(tmp_path_factory):
    """What TRL's worker for OpenEnv sessions took from rolltape."""
    folder = tmp_path_factory.mktemp("harness")
    return test_trainers.run("loop.py", folder, "harness", folder=folder, binary=binary())[
        "harness"
    ]


def test_trl_s_harness_worker_reads_openenv_traces_from_rolltape(harnessed):
    assert len(harnessed["samples"]) == 12 <= harnessed["rows"]
    for sample in harnessed["samples"]:
        assert sample["trained"] > 0
        assert sample["gap"] is not None, "the same ids and mask as the row"
        assert sample["gap"] < FLOAT_ERROR_MAX
