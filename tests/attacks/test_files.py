"""Files: who may read what was recorded, and what a link in their place leads to."""

import json
import os
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest

import harness
import hostile

OTHERS = 0o077
DEAD = "http://127.0.0.1:9"
"""A control listener that is not there."""
VICTIM = "not yours"


@pytest.fixture(autouse=True)
def open_umask():
    """The umask of a careless operator: nothing is taken from a mode."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with two episodes in two groups."""
    folder = tmp_path_factory.mktemp("made")
    with hostile.Stage(folder) as stage:
        proxy = stage()
        for name in ("a", "b"):
            tags = [("x-episode-id", name), ("x-group-id", f"g-{name}")]
            assert hostile.post(proxy, headers=tags).status == 200
    return folder / "recorded.db"


@pytest.fixture
def store(made, tmp_path):
    """A copy of that store, in a folder of its own."""
    return Path(shutil.copy(made, tmp_path / "recorded.db"))


@pytest.fixture
def victim(tmp_path):
    """A file of the operator's that no attack may change."""
    path = tmp_path / "victim"
    path.write_text(VICTIM)
    path.chmod(0o600)
    return path


def mode(path):
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder):
    """The files and folders below one that others may use, but for those of the harness."""
    return [
        (str(path.relative_to(folder)), oct(mode(path)))
        for path in folder.rglob("*")
        if mode(path) & OTHERS and path.suffix != ".stderr"
    ]


def writes(store):
    """Runs a command that takes the lock of a store and writes to it."""
    return harness.command("prune", "--episode", "a", "--store", store, folder=store.parent)


def records(store, *options):
    """Runs a command as an episode that is recorded into a store; it makes no call."""
    upstream = hostile.Upstream()
    try:
        options = ("--upstream", upstream.url, "--store", store, *options)
        return harness.command("run", *options, "--", "true", folder=store.parent)
    finally:
        upstream.stop()


def export(store, out, *options):
    """Exports a store."""
    where = ("--store", store, "--out", out)
    return harness.command("export", *where, *options, folder=store.parent)


def test_a_store_and_the_files_beside_it_are_their_owner_s_alone(serve):
    proxy = serve()
    assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
    names = {path.name for path in proxy.folder.glob("recorded.db*")}
    assert {"recorded.db", "recorded.db-wal", "recorded.db-shm", "recorded.db-writer"} <= names
    assert open_to_others(proxy.folder) == []


def test_a_store_of_run_is_its_owner_s_alone(tmp_path):
    assert "recorded true-" in records(tmp_path / "run.db").stderr
    assert mode(tmp_path / "run.db") == 0o600
    assert open_to_others(tmp_path) == []


def test_an_empty_file_that_others_may_read_becomes_no_store_that_they_may_read(tmp_path):
    store = tmp_path / "run.db"
    store.touch(0o666)
    assert "recorded true-" in records(store).stderr
    assert open_to_others(tmp_path) == []


def test_a_store_that_others_could_read_is_taken_from_them_and_the_log_says_so(store):
    store.chmod(0o664)
    ended = writes(store)
    assert ended.returncode == 0, ended.stderr
    assert mode(store) == 0o600
    assert "664" in ended.stderr and str(store) in ended.stderr


def test_a_reward_on_the_command_line_takes_the_store_from_others_too(store):
    store.chmod(0o644)
    harness.done("reward", "a", "1", "--store", store, folder=store.parent)
    assert open_to_others(store.parent) == []


def test_a_backup_is_its_owner_s_alone_even_where_the_store_was_not(store, tmp_path):
    store.chmod(0o644)
    harness.done("backup", "--to", tmp_path / "copy.db", "--store", store, folder=tmp_path)
    assert mode(tmp_path / "copy.db") == 0o600


@pytest.mark.parametrize("options", [(), ("--format", "calls"), ("--partition-by", "group")])
def test_an_export_and_its_folders_are_their_owner_s_alone(store, tmp_path, options):
    ended = export(store, tmp_path / "new" / "out", *options)
    assert ended.returncode == 0, ended.stderr
    assert len(list((tmp_path / "new").rglob("*"))) > 2
    assert open_to_others(tmp_path) == []


def test_an_export_is_shared_only_where_the_mode_says_so(store, tmp_path):
    ended = export(store, tmp_path / "out", "--mode", "640")
    assert ended.returncode == 0, ended.stderr
    files = {mode(path) for path in (tmp_path / "out").iterdir()}
    assert files == {0o640} and mode(tmp_path / "out") == 0o750
    for wrong in ("777", "400", "rw"):
        assert export(store, tmp_path / "wrong", "--mode", wrong).returncode == 2


def test_the_rows_of_the_feed_are_their_owner_s_alone(tmp_path):
    out = tmp_path / "rows.jsonl"
    harness.command("feed", "--control", DEAD, "--out", out, folder=tmp_path)
    assert mode(out) == 0o600


def test_the_demo_s_folder_is_its_owner_s_alone(tmp_path):
    out = tmp_path / "demo"
    harness.done("demo", "--groups", 1, "--episodes", 1, "--out", out, folder=tmp_path)
    assert mode(out) == 0o700
    assert open_to_others(tmp_path) == []


def test_a_link_in_the_place_of_the_lock_is_not_followed(store, victim):
    lock = Path(f"{store}-writer")
    lock.symlink_to(victim)
    ended = writes(store)
    assert ended.returncode == 1 and f"{store}-writer" in ended.stderr, ended.stderr
    assert victim.read_text() == VICTIM
    lock.unlink()
    assert writes(store).returncode == 0, "the way out works"


def test_a_dangling_link_in_the_place_of_the_lock_makes_no_file(store, tmp_path):
    Path(f"{store}-writer").symlink_to(tmp_path / "elsewhere")
    assert writes(store).returncode == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_second_name_of_a_file_in_the_place_of_the_lock_is_not_emptied(store, victim):
    os.link(victim, f"{store}-writer")
    writes(store)
    assert victim.read_text() == VICTIM


def test_a_pipe_in_the_place_of_the_lock_keeps_nobody_waiting(store):
    os.mkfifo(f"{store}-writer")
    ended = writes(store)
    assert ended.returncode == 1 and "it is not a file" in ended.stderr, ended.stderr


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_link_in_the_place_of_a_file_of_the_database_is_not_followed(store, victim, suffix):
    Path(f"{store}{suffix}").symlink_to(victim)
    writes(store)
    assert victim.read_text() == VICTIM


def test_a_dangling_link_in_the_place_of_a_store_makes_no_store(tmp_path):
    store = tmp_path / "run.db"
    store.symlink_to(tmp_path / "elsewhere.db")
    ended = records(store)
    assert ended.returncode == 1 and "is a link" in ended.stderr, ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]


def test_a_link_to_an_empty_file_does_not_make_a_store_of_it(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "run.db").symlink_to(tmp_path / "empty")
    assert "recorded true-" not in records(tmp_path / "run.db").stderr
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_link_to_a_file_that_is_no_store_changes_nothing(tmp_path, victim):
    (tmp_path / "run.db").symlink_to(victim)
    assert "recorded true-" not in records(tmp_path / "run.db").stderr
    assert victim.read_text() == VICTIM


def test_a_link_to_a_store_leads_to_it_and_to_its_lock(store, tmp_path):
    other = tmp_path / "links"
    other.mkdir()
    (other / "run.db").symlink_to(store)
    assert "recorded true-" in records(other / "run.db").stderr
    assert [path.name for path in other.iterdir()] == ["run.db"]
    assert Path(f"{store}-writer").exists()


def test_the_output_of_the_feed_does_not_follow_a_link_to_a_file(tmp_path, victim):
    (tmp_path / "rows").symlink_to(victim)
    (tmp_path / "new").symlink_to(tmp_path / "elsewhere")
    for name in ("rows", "new"):
        ended = harness.command(
            "feed", "--control", DEAD, "--out", tmp_path / name, folder=tmp_path
        )
        assert "it is a link" in ended.stderr
    assert victim.read_text() == VICTIM and not (tmp_path / "elsewhere").exists()


def test_the_output_of_the_feed_follows_the_link_of_a_shell_to_its_pipe(tmp_path):
    reading, writing = os.pipe()
    words = [harness.binary(), "feed", "--control", DEAD, "--out", f"/dev/fd/{writing}"]
    ended = subprocess.run(words, pass_fds=[writing], capture_output=True, cwd=tmp_path)
    os.close(reading)
    os.close(writing)
    assert b"cannot write" not in ended.stderr and b"127.0.0.1:9" in ended.stderr


@pytest.mark.parametrize("name", ["trajectories.parquet", "manifest.json", "README.md"])
def test_an_export_does_not_write_through_a_link_in_its_folder(store, tmp_path, victim, name):
    out = tmp_path / "out"
    out.mkdir(0o700)
    (out / name).symlink_to(victim)
    export(store, out, "--overwrite")
    assert victim.read_text() == VICTIM


def test_an_export_does_not_leave_its_folder_by_the_link_of_a_partition(store, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    (tmp_path / "out").mkdir(0o700)
    (tmp_path / "out" / "group=g-a").symlink_to(elsewhere)
    ended = export(store, tmp_path / "out", "--partition-by", "group")
    assert ended.returncode == 1 and "it is a link" in ended.stderr, ended.stderr
    assert list(elsewhere.iterdir()) == []


DOTS = ["...", "..:..", ".a", "-", "--out"]


@pytest.fixture(scope="module")
def dotted(tmp_path_factory):
    """A store whose ids of episodes, groups and tasks are dots and options."""
    folder = tmp_path_factory.mktemp("dotted")
    with hostile.Stage(folder) as stage:
        proxy = stage()
        for name in DOTS:
            tags = [(f"x-{kind}-id", name) for kind in ("episode", "group", "task")]
            assert hostile.post(proxy, headers=tags).status == 200
    return folder / "recorded.db"


@pytest.mark.parametrize("form", ["calls", "openai", "atif"])
@pytest.mark.parametrize("partition", [None, "group", "task", "episode-hash:2"])
def test_ids_of_dots_lead_no_export_out_of_its_folder(dotted, tmp_path, form, partition):
    out = tmp_path / "above" / "out"
    options = ["--format", form, *(["--partition-by", partition] if partition else [])]
    ended = harness.command("export", "--store", dotted, "--out", out, *options, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["above"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    if partition in ("group", "task"):
        assert folders == {f"{partition}={name.replace(':', '%3A')}" for name in DOTS}
    else:
        assert folders <= {"bucket=0", "bucket=1"}


@pytest.mark.parametrize("kind", ["episode", "group", "task"])
@pytest.mark.parametrize("name", [".", ".."])
def test_what_a_client_takes_out_of_a_path_is_no_id(serve, kind, name):
    tags = [("x-episode-id", "a"), (f"x-{kind}-id", name)]
    reply = hostile.post(serve(), headers=tags[-1:] if kind == "episode" else tags)
    assert reply.status == 400 and b"is not an id" in reply.body, reply


def test_episodes_of_dots_are_shown_and_pruned_by_their_names(dotted, tmp_path):
    store = Path(shutil.copy(dotted, tmp_path / "recorded.db"))

    def episodes():
        listed = harness.done("episodes", "--json", "--store", store, folder=tmp_path)
        return {json.loads(line)["episode_id"] for line in listed.splitlines()}

    assert episodes() == set(DOTS)
    harness.done("prune", "--episode", "...", "--store", store, folder=tmp_path)
    assert episodes() == set(DOTS) - {"..."}
    assert [path.name for path in tmp_path.glob("*.db")] == ["recorded.db"]


def test_a_backup_follows_no_link_and_replaces_no_file(store, tmp_path, victim):
    (tmp_path / "copy").symlink_to(tmp_path / "elsewhere")
    for to in (tmp_path / "copy", victim):
        ended = harness.command("backup", "--to", to, "--store", store, folder=tmp_path)
        assert ended.returncode == 1 and "exists already" in ended.stderr
    assert victim.read_text() == VICTIM and not (tmp_path / "elsewhere").exists()


def loaded(binary):
    """The parts of an ELF file that are loaded, which the tables of a debugger are not."""
    (table,) = struct.unpack_from("<Q", binary, 32)
    size, count = struct.unpack_from("<HH", binary, 54)
    for at in range(table, table + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", binary, at)
        if kind == 1:
            yield binary[offset : offset + length]


def test_a_flood_of_model_names_makes_no_flood_in_a_manifest(serve, tmp_path):
    proxy = serve()
    for number in range(110):
        body = {**hostile.BODY, "model": f"{number}{'x' * 4000}"}
        path = "/e/a/v1/chat/completions"
        reply = {**hostile.REPLY, "model": body["model"]}
        proxy.upstream.answer = lambda request, reply=reply: hostile.reply(reply)
        assert hostile.post(proxy, path, body).status == 200
    ended = export(proxy.store, tmp_path / "out", "--json")
    assert ended.returncode == 0, ended.stderr
    models = json.loads(ended.stdout)["models"]
    assert sum(models.values()) == 110 and len(models) <= 101
    assert max(map(len, models)) <= 200
    assert len(json.dumps(json.loads((tmp_path / "out" / "manifest.json").read_text()))) < 64_000


@pytest.mark.skipif("debug" in Path(harness.binary()).parts, reason="it is not what is shipped")
def test_the_binary_does_not_name_its_builder_s_folders():
    binary = Path(harness.binary()).read_bytes()
    cargo = os.environ.get("CARGO_HOME") or Path.home() / ".cargo"
    names = [f"{cargo}/".encode(), b"/.cargo/registry/"]
    found = [part.count(name) for part in loaded(binary) for name in names]
    assert b"/cargo/registry/" in binary, "dependencies have names at all"
    assert not any(found), "`cargo clean` if it was built before .cargo/rustc was there"


def test_a_manifest_says_nothing_of_where_it_was_written(store, tmp_path):
    assert export(store, tmp_path / "out").returncode == 0
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in manifest and json.loads(manifest)["files"]
