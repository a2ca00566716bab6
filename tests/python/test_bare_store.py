"""The store of bare episodes of the benches, and what is read of a large one."""

import json
import subprocess
import sys

import harness

sys.path.insert(0, str(harness.ROOT / "benches"))

import bare_store  # noqa: E402

EPISODES = 1003


def asked(*arguments):
    """The lines of a command's output, as JSON."""
    command = [harness.binary(), *arguments]
    done = subprocess.run(command, env=harness.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_bare_store_is_sound_and_its_pages_are_whole(tmp_path):
    store = tmp_path / "bare.db"
    bare_store.make(store, EPISODES, calls=2, binary=harness.binary())
    checked = subprocess.run([harness.binary(), "verify", "--store", store], capture_output=True)
    assert checked.returncode == 0, checked.stdout

    listed = asked("episodes", "--limit", "0", "--json", "--store", store)
    names = [episode["episode_id"] for episode in listed]
    assert names == [f"bare-{number:08}" for number in reversed(range(EPISODES))]
    assert {episode["calls"] for episode in listed} == {2}

    one = asked("episodes", "--episode", names[500], "--json", "--store", store)
    assert [episode["episode_id"] for episode in one] == [names[500]]
    by_reward = asked("episodes", "--sort", "-reward", "--limit", "9", "--json", "--store", store)
    rewards = [episode["reward"] for episode in by_reward]
    assert rewards == sorted((episode["reward"] for episode in listed), reverse=True)[:9]
