"""Finished episodes leave a store for segments, and every reader gives what it gave before."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import buckets
import control
import harness
from harness import done
from test_show import talk

GROUPS, MEMBERS = 8, 2
KILLS = 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store with groups of finished episodes, and one that is open."""
    folder = tmp_path_factory.mktemp("recorded")
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        for group in range(GROUPS):
            for member in range(MEMBERS):
                name = f"g{group}-{member}"
                announce(proxy, name, f"g{group}")
                talk(proxy, name, [f"Begin {name}. " + "Say it. " * 30, "Go on."])
                proxy.command("reward", name, member)
                proxy.command("close", name)
        talk(proxy, "open", ["Still here."])
        store = proxy.store
    return store


def announce(proxy, name, group):
    body = {"episode_id": name, "group_id": group, "group_size": MEMBERS}
    status, reply = control.post(proxy, "/episodes", body)
    assert status == 200, reply


@pytest.fixture
def store(recorded, tmp_path):
    """A copy of that store."""
    copy = tmp_path / "rolltape.db"
    shutil.copy(recorded, copy)
    return copy


def seal(store, *arguments):
    words = ("seal", "--segments", store.parent / "segments", "--finished-for", "0s")
    return json.loads(done(*words, "--json", *arguments, "--store", store, folder=store.parent))


def export(out, *arguments):
    done("export", "--out", out, *arguments, folder=out.parent)
    return out


def rows(*folders):
    """Rows of exports by their names, without their numbers in the export."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.parquet"))]
    tables = (pq.read_table(file) for file in files if not file.name.startswith("_"))
    return by_name(row for table in tables for row in table.to_pylist())


def by_name(rows):
    """Rows by their names, each of them once, without their numbers in the export."""
    numbers = ("group_index", "trajectory_index", "rollout_index", "row_index")
    found = {}
    for row in rows:
        assert row["trajectory_id"] not in found
        told = {key: value for key, value in row.items() if key not in numbers}
        found[row["trajectory_id"]] = told
    return found


def read(store, *words):
    return done(*words, "--store", store, folder=Path("."))


def files(folder):
    """The hashes of an export's files, by their names."""
    paths = (path for path in folder.rglob("*.parquet"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_readers_give_what_they_gave_before(store, tmp_path):
    words = [
        ("show", "g0-0", "--full"),
        ("show", "g3-1", "--json"),
        ("episodes", "--json"),
        ("diff", "g0-0", "g0-1"),
        ("sql", "SELECT episode_id, calls, completion_tokens, reward FROM episodes ORDER BY 1"),
    ]
    before = [read(store, *line) for line in words]
    whole = export(tmp_path / "before", "--store", store)
    report = seal(store, "--segment-size", "1")
    assert report["episodes"] == GROUPS * MEMBERS and len(report["entries"]) == GROUPS
    assert report["file_bytes_after"] < report["file_bytes_before"]

    assert [read(store, *line) for line in words] == before
    assert files(export(tmp_path / "after", "--store", store)) == files(whole)
    assert "nothing is broken" in read(store, "verify")


def test_a_folder_of_segments_is_a_store(store, tmp_path):
    shown = read(store, "show", "g1-1", "--full")
    whole = export(tmp_path / "before", "--store", store)
    seal(store, "--segment-size", "1")
    folder = tmp_path / "segments"
    assert read(folder, "show", "g1-1", "--full") == shown
    assert "nothing is broken" in read(folder, "verify")
    listed = read(folder, "episodes", "--json").splitlines()
    assert len(listed) == GROUPS * MEMBERS

    alone = rows(export(tmp_path / "alone", "--segments", folder))
    everything = rows(whole)
    assert {row for row in everything if not row.startswith("open/")} == set(alone)
    assert all(everything[row] == told for row, told in alone.items())
    refused = harness.command("reward", "g1-1", 1, "--store", folder, folder=tmp_path)
    assert refused.returncode == 1 and "segments" in refused.stderr


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_workers_share_segments(store, tmp_path, workers):
    whole = rows(export(tmp_path / "before", "--store", store, "--group", "g5"))
    seal(store, "--segment-size", "1")
    folder = tmp_path / "segments"
    everything = rows(export(tmp_path / "one", "--segments", folder))
    parts = []
    for index in range(workers):
        part = tmp_path / f"part-{index}"
        words = ("--segments", folder, "--shard", f"{index}/{workers}")
        if index % 3 == 0:
            kill_one("export", "--out", part, *words, folder=tmp_path, seed=index)
        parts.append(export(part, *words))
    assert rows(*parts) == everything
    assert all(everything[row] == told for row, told in whole.items())
    if workers <= GROUPS:
        counts = [len(rows(part)) for part in parts]
        assert max(counts) == min(counts)


def kill_one(*words, folder, seed):
    """Starts a command, and kills it at some moment if it has not ended."""
    process = subprocess.Popen(
        [harness.binary(), *map(str, words)],
        cwd=folder,
        env=harness.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(random.Random(seed).uniform(0.0, 0.25))
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_sealing_that_is_killed_loses_nothing(store, tmp_path):
    whole = export(tmp_path / "before", "--store", store)
    folder = tmp_path / "segments"
    words = ("seal", "--segments", folder, "--finished-for", "0s", "--segment-size", "1")
    for seed in range(KILLS):
        kill_one(*words, "--store", store, folder=tmp_path, seed=seed)
        assert "nothing is broken" in read(store, "verify")
    assert files(export(tmp_path / "between", "--store", store)) == files(whole)
    seal(store, "--segment-size", "1")
    assert files(export(tmp_path / "after", "--store", store)) == files(whole)
    everything = rows(whole)
    alone = rows(export(tmp_path / "alone", "--segments", folder))
    assert {row for row in everything if not row.startswith("open/")} == set(alone)


def test_a_late_reward_counts_with_and_without_the_store(store, tmp_path):
    seal(store, "--segment-size", "1")
    done("reward", "g2-0", 0.75, "--store", store, folder=tmp_path)
    report = seal(store)
    assert [entry["kind"] for entry in report["entries"]] == ["rewards"]
    everything = rows(export(tmp_path / "all", "--store", store, "--group", "g2"))
    alone = rows(export(tmp_path / "alone", "--segments", tmp_path / "segments", "--group", "g2"))
    assert alone == everything
    assert {row["reward"] for row in alone.values()} == {0.75, 1.0}


def test_what_is_said_late_of_a_call_counts_with_and_without_the_store(recorded, tmp_path):
    store = tmp_path / "recorded.db"
    shutil.copy(recorded, store)
    before = rows(export(tmp_path / "before", "--store", store, "--group", "g2"))
    seal(store, "--segment-size", "1")
    row = before["g2-0/0/0"]
    first, last = (row["turns"][at]["call_id"] for at in (0, -1))
    numbers = [position / 4 for position in range(len(row["input_ids"]))]
    with harness.serve(tmp_path, "--model", harness.MODEL) as proxy:
        control.reward(proxy, "g2-0", 0.5, call_id=first, name="step")
        said = {
            "trajectory_id": row["trajectory_id"],
            "version": 7,
            "token_ids": row["input_ids"],
            "streams": {"trainer_logprobs": numbers},
        }
        status, reply = control.post(proxy, "/annotations", {"annotations": [said]})
        assert status == 200 and reply["kept"] > 0, reply
        other = before["g2-1/0/0"]["turns"][0]["call_id"]
        body = {"value": 1, "call_id": other}
        status, reply = control.post(proxy, "/episodes/g2-0/rewards", body)
        assert status == 404, reply
    words = ("--call", last, "--name", "step", "--store", store)
    done("reward", "g2-0", 0.25, *words, folder=tmp_path)

    shown = read(store, "show", "g2-0")
    assert "step" in shown and "0.25" in shown
    everything = rows(export(tmp_path / "all", "--store", store, "--group", "g2"))
    told = everything["g2-0/0/0"]
    assert told["annotations"] and told != row
    kinds = [(entry["kind"], entry["attempts"]) for entry in seal(store)["entries"]]
    assert kinds[0] == ("rewards", 2) and kinds[1][0] == "annotations"
    folder = tmp_path / "segments"
    assert rows(export(tmp_path / "alone", "--segments", folder, "--group", "g2")) == everything
    assert read(folder, "show", "g2-0") == shown
    for at in (store, folder):
        assert "nothing is broken" in read(at, "verify")


def held(folder):
    """The episodes that are in a folder of segments."""
    listed = read(folder, "episodes", "--json").splitlines()
    return {json.loads(line)["episode_id"] for line in listed}


def live_files(folder):
    """The files that entries of the catalog name and no other entry replaces."""
    entries = [json.loads(path.read_text()) for path in (folder / "catalog").glob("*.json")]
    replaced = {entry["replaces"] for entry in entries if "replaces" in entry}
    left = (entry for entry in entries if entry["number"] not in replaced)
    return {entry["file"] for entry in left if entry["file"]}


def test_an_episode_is_removed_from_a_store_and_its_segments(store, tmp_path):
    whole = rows(export(tmp_path / "before", "--store", store))
    seal(store)
    done("reward", "g2-0", 0.75, "--store", store, folder=tmp_path)
    done("reward", "g2-1", 0.75, "--store", store, folder=tmp_path)
    seal(store)
    folder = tmp_path / "segments"
    planned = json.loads(read(store, "prune", "--episode", "g2-0", "--dry-run", "--json"))
    assert planned["episodes"] == 1 and "g2-0" in held(folder)
    pruned = json.loads(read(store, "prune", "--episode", "g2-0", "--json"))
    assert (pruned["segments_replaced"], pruned["segments_left"]) == (2, None)

    for at in (store, folder):
        assert "g2-0" not in held(at) and "g2-1" in held(at)
        told = read(at, "verify")
        assert "nothing is broken" in told and "removed from segments: 1 episode" in told
    assert {path.name for path in folder.iterdir() if path.is_file()} == live_files(folder)
    assert not any(b'"g2-0"' in path.read_bytes() for path in folder.glob("*.jsonl"))
    alone = rows(export(tmp_path / "alone", "--segments", folder))
    left = {row for row in whole if not row.startswith(("g2-0/", "open/"))}
    assert set(alone) == left
    assert all(alone[row] == whole[row] for row in left if not row.startswith("g2-"))


def test_an_episode_is_removed_from_a_folder_of_segments(store, tmp_path, bucket):
    whole = rows(export(tmp_path / "before", "--store", store))
    seal(store, "--segment-size", "1")
    folder = tmp_path / "segments"
    shards = []
    for number in range(3):
        words = ("--segments", folder, "--shard", f"{number}/3")
        shards.append(rows(export(tmp_path / f"old-{number}", *words)))
    told = read(folder, "prune", "--episode", "g5-1")
    assert "gone: 1 episode" in told and "1 file written anew" in told
    again = harness.command("prune", "--episode", "g5-1", "--store", folder, folder=tmp_path)
    assert again.returncode == 0 and "holds no such attempt" in again.stderr
    assert "g5-1" not in held(folder) and len(held(folder)) == GROUPS * MEMBERS - 1
    # No segment moved to another shard, in the folder or in a bucket.
    buckets.upload(bucket, folder, "lab/removed")
    for number, before in enumerate(shards):
        for place in (folder, "s3://runs/lab/removed"):
            words = ("--segments", place, "--shard", f"{number}/3")
            name = f"new-{number}-{'s3' in str(place)}"
            after = rows(export(tmp_path / name, *words))
            assert set(after) == {row for row in before if not row.startswith("g5-1/")}

    refused = harness.command("show", "g5-1", "--store", store, folder=tmp_path)
    assert refused.returncode == 1 and "was removed from its segment" in refused.stderr
    assert "of which the store still has a line" in read(store, "verify")
    seal(store)
    assert "g5-1" not in read(store, "episodes")
    everything = rows(export(tmp_path / "all", "--store", store))
    assert set(everything) == {row for row in whole if not row.startswith("g5-1/")}
    read(folder, "prune", "--older-than", "0s")
    assert held(folder) == set() and live_files(folder) == set()
    assert not list(folder.glob("*.db"))


@pytest.mark.parametrize("of_store", [True, False])
def test_a_removal_that_is_killed_leaves_the_old_or_the_new(store, tmp_path, of_store):
    whole = rows(export(tmp_path / "before", "--store", store))
    seal(store)
    folder = tmp_path / "segments"
    place = store if of_store else folder
    names = [f"g{group}-{member}" for group in range(4) for member in range(MEMBERS)]
    for seed, name in enumerate(names):
        kill_one("prune", "--episode", name, "--store", place, folder=tmp_path, seed=seed)
        alone = rows(export(tmp_path / f"alone-{seed}", "--segments", folder))
        kept = {row for row in whole if row.split("/")[0] not in {"open", *names[: seed + 1]}}
        assert kept <= set(alone)
        for at in (store, folder):
            assert "nothing is broken" in read(at, "verify")
    for name in names:
        done("prune", "--episode", name, "--store", place, folder=tmp_path)
    # A file that a kill left without an entry goes once it is an hour old.
    for path in folder.glob("*.db"):
        os.utime(path, (0, 0))
    seal(store)
    assert held(folder) == {row.split("/")[0] for row in whole} - {"open", *names}
    everything = rows(export(tmp_path / "after", "--store", store))
    assert {row.split("/")[0] for row in everything} == held(folder) | {"open"}
    assert {path.name for path in folder.iterdir() if path.suffix == ".db"} == live_files(folder)


def test_segments_of_a_bucket_are_read_without_a_store(store, tmp_path, bucket):
    seal(store, "--segment-size", "1")
    folder = tmp_path / "segments"
    everything = rows(export(tmp_path / "one", "--segments", folder))
    buckets.upload(bucket, folder, "lab/segments")

    parts, cache = [], tmp_path / "cache"
    for index in range(2):
        words = ("--segments", "s3://runs/lab/segments", "--segments-cache", cache)
        parts.append(export(tmp_path / f"part-{index}", *words, "--shard", f"{index}/2"))
    assert rows(*parts) == everything
    assert len(list(cache.glob("*.db"))) == GROUPS

    damaged = next(cache.glob("*.db"))
    damaged.unlink()
    bucket.put_object(Bucket="runs", Key=f"lab/segments/{damaged.name}", Body=b"x" * 100)
    out = ("export", "--out", tmp_path / "no", "--segments", "s3://runs/lab/segments")
    refused = harness.command(*out, "--segments-cache", cache, folder=tmp_path)
    assert refused.returncode == 1 and damaged.name in refused.stderr
    nothing = ("export", "--out", tmp_path / "no", "--segments", "s3://runs/other")
    refused = harness.command(*nothing, folder=tmp_path)
    assert refused.returncode == 1 and "holds no segments" in refused.stderr


def in_bucket(bucket, prefix):
    """The names and lengths of the objects below a prefix."""
    found = bucket.list_objects_v2(Bucket="runs", Prefix=f"{prefix}/").get("Contents", [])
    return {one["Key"].removeprefix(f"{prefix}/"): one["Size"] for one in found}


def in_folder(folder):
    """The same of a folder."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_bucket_gets_what_is_sealed_and_loses_what_is_removed(store, tmp_path, bucket):
    folder, url = tmp_path / "segments", "s3://runs/lab/sealed"
    to = ("--segments-bucket", url)
    told = seal(store, "--segment-size", "1", *to)
    assert told["bucket"]["files"] == GROUPS and told["bucket"]["entries"] == GROUPS
    assert in_bucket(bucket, "lab/sealed") == in_folder(folder)
    nothing = seal(store, *to)["bucket"]
    assert nothing == {"files": 0, "bytes": 0, "entries": 0, "deleted": 0, "left": 0}

    # What a kill left: a file without its entry, and half of the files.
    names = sorted(in_bucket(bucket, "lab/sealed"))
    lost = [name for name in names if name.startswith("catalog/")][-2:]
    lost.append(next(name for name in names if name.startswith("0000000006-")))
    for name in lost:
        bucket.delete_object(Bucket="runs", Key=f"lab/sealed/{name}")
    assert seal(store, *to)["bucket"]["files"] == 1
    assert in_bucket(bucket, "lab/sealed") == in_folder(folder)

    read(store, "prune", "--episode", "g5-1")
    told = seal(store, *to)["bucket"]
    assert (told["files"], told["deleted"]) == (1, 1)
    assert in_bucket(bucket, "lab/sealed") == in_folder(folder)
    whole = rows(export(tmp_path / "folder", "--segments", folder))
    assert rows(export(tmp_path / "bucket", "--segments", url)) == whole
    assert not any(row.startswith("g5-1/") for row in whole)


def test_a_folder_keeps_what_fits_and_brings_back_what_is_read(store, tmp_path, bucket, monkeypatch):
    folder, url = tmp_path / "segments", "s3://runs/lab/away"
    everything = rows(export(tmp_path / "before", "--store", store))
    tree = read(store, "show", "g5-1")
    told = seal(store, "--segment-size", "1", "--segments-bucket", url, "--segments-keep", "0")
    assert told["bucket"]["left"] == GROUPS and not list(folder.glob("*.db"))
    assert read(store, "episodes") and not list(folder.glob("*.db"))

    # One episode brings one segment, an export all.
    assert read(store, "show", "g5-1") == tree and len(list(folder.glob("*.db"))) == 1
    assert rows(export(tmp_path / "after", "--store", store)) == everything
    size = sum(file.stat().st_size for file in folder.glob("*.db"))
    keep = ("--segments-bucket", url, "--segments-keep", str(size // 2))
    assert 0 < seal(store, *keep)["bucket"]["left"] < GROUPS
    assert sum(file.stat().st_size for file in folder.glob("*.db")) <= size // 2
    read(store, "prune", "--episode", "g5-1")
    assert seal(store, *keep)["bucket"]["deleted"] == 1
    assert "nothing is broken" in read(store, "verify")
    left = {row for row in everything if not row.startswith(("g5-1/", "open/"))}
    assert set(rows(export(tmp_path / "folder", "--segments", folder))) == left

    # A folder that was lost is its catalog and the name of its bucket.
    shutil.rmtree(folder)
    (folder / "catalog").mkdir(parents=True)
    for name in in_bucket(bucket, "lab/away"):
        if name.startswith("catalog/"):
            bucket.download_file("runs", f"lab/away/{name}", str(folder / name))
    (folder / "bucket.json").write_text(json.dumps({"url": url}))
    assert read(store, "show", "g4-1") and len(list(folder.glob("*.db"))) == 1
    assert set(rows(export(tmp_path / "again", "--segments", folder))) == left

    # Another bucket gets what only the first one has.
    seal(store, "--segments-bucket", url, "--segments-keep", "0")
    other = "s3://runs/lab/elsewhere"
    assert seal(store, "--segments-bucket", other)["bucket"]["files"] == GROUPS
    assert in_bucket(bucket, "lab/elsewhere").items() <= in_folder(folder).items()

    seal(store, "--segments-bucket", other, "--segments-keep", "0")
    for name in in_bucket(bucket, "lab/elsewhere"):
        if name.endswith(".db"):
            bucket.delete_object(Bucket="runs", Key=f"lab/elsewhere/{name}")
    refused = harness.command("show", "g4-1", "--store", store, folder=tmp_path)
    assert refused.returncode == 1 and other in refused.stderr, refused.stderr
    assert "could not be brought back" in refused.stderr


def test_a_bucket_is_whole_after_each_kill(store, tmp_path, bucket):
    folder, prefix = tmp_path / "segments", "lab/killed"
    seal(store, "--segment-size", "1")
    words = ("seal", "--segments", folder, "--segments-bucket", f"s3://runs/{prefix}")
    for seed in range(KILLS):
        kill_one(*words, "--store", store, folder=tmp_path, seed=seed)
        there = in_bucket(bucket, prefix)
        for name in (name for name in there if name.startswith("catalog/")):
            entry = json.loads((folder / name).read_text())
            assert there[entry["file"]] == entry["bytes"], name
    seal(store, "--segments-bucket", f"s3://runs/{prefix}")
    assert in_bucket(bucket, prefix) == in_folder(folder)


def test_a_bucket_takes_neither_damage_nor_another_folder(store, tmp_path, bucket):
    folder, url = tmp_path / "segments", "s3://runs/lab/kept"
    words = ("seal", "--store", store, "--segments", folder, "--segments-bucket", "lab/kept")
    refused = harness.command(*words, folder=tmp_path)
    assert refused.returncode == 2 and "s3://lab/segments" in refused.stderr, refused.stderr
    seal(store, "--segment-size", "1")
    damaged = next(folder.glob("0000000003-*.db"))
    kept = damaged.read_bytes()
    damaged.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    words = ("seal", "--store", store, "--segments", folder, "--segments-bucket", url)
    refused = harness.command(*words, folder=tmp_path)
    assert refused.returncode == 1 and damaged.name in refused.stderr, refused.stderr
    assert not any(name.startswith("catalog") for name in in_bucket(bucket, "lab/kept"))
    damaged.write_bytes(kept)
    done(*words, folder=tmp_path)
    assert in_bucket(bucket, "lab/kept") == in_folder(folder)

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    entry = max((other / "catalog").iterdir())
    entry.write_text(entry.read_text().replace('"store":"', '"store":"other-'))
    words = ("seal", "--store", store, "--segments", other, "--segments-bucket", url)
    refused = harness.command(*words, folder=tmp_path)
    assert refused.returncode == 1 and "of another folder" in refused.stderr, refused.stderr
    assert in_bucket(bucket, "lab/kept") == in_folder(folder)


def test_what_is_finished_leaves_the_store_while_it_records(tmp_path, bucket):
    folder = tmp_path / "segments"
    options = ("--model", harness.MODEL, "--segments", folder, "--seal-after", "1s")
    options += ("--segments-bucket", "s3://runs/served", "--segments-keep", "0")
    with harness.serve(tmp_path, *options) as proxy:
        for number in range(3):
            talk(proxy, f"early-{number}", ["Begin.", "Go on."])
            control.reward(proxy, f"early-{number}", 0.5)
            control.close(proxy, f"early-{number}")
        # Short segments wait for twelve times as long.
        until = time.monotonic() + harness.UNTIL_S
        number = 3
        while not in_bucket(bucket, "served") and time.monotonic() < until:
            talk(proxy, f"late-{number}", ["Begin.", "Go on."])
            number += 1
        control.reward(proxy, "early-1", 0.75)
        shown = proxy.command("show", "early-1")
    there = in_bucket(bucket, "served")
    assert {name for name in in_folder(folder) if name != "bucket.json"} <= set(there)
    assert list(folder.glob("*.db")) and "0.75" in shown
    listed = [json.loads(line) for line in read(proxy.store, "episodes", "--json").splitlines()]
    assert len(listed) == number and all(episode["calls"] == 2 for episode in listed)
    assert "nothing is broken" in read(proxy.store, "verify")
