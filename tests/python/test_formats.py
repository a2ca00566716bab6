"""Every format in every encoding is read by those who read such files, and bad input is told."""

import json
import signal
import subprocess

import datasets
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import harness

FORMATS = """trajectories calls turns sft preference kto trl trl-async verl prime-rl skyrl slime
areal art tinker atif openai""".split()
ENCODINGS = ("parquet", "jsonl", "arrow")


@pytest.fixture(scope="module")
def store(played):
    return played.world.proxy.store


def export(store, *arguments, folder):
    """An export that must succeed, and its report."""
    words = ("export", "--store", store, "--json", *arguments)
    return json.loads(harness.done(*words, folder=folder))


def refused(store, *arguments, folder):
    """An export that must fail with one sentence; gives its code and what it said."""
    ended = harness.command("export", "--store", store, *arguments, folder=folder)
    assert ended.returncode != 0, ended.stdout
    assert "panicked" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("format", FORMATS)
def test_datasets_reads_every_encoding_alike(format, store, tmp_path):
    found = {}
    for encoding in ENCODINGS:
        report = export(
            store, "--format", format, "--encoding", encoding, "--out", "out", folder=tmp_path
        )
        path = tmp_path / "out" / f"{format}.{encoding}"
        assert report["rows"] > 0 and report["files"][0] == f"out/{path.name}"
        loader = "json" if encoding == "jsonl" else encoding
        options = {"split": "train", "cache_dir": str(tmp_path / "cache" / encoding)}
        found[encoding] = datasets.load_dataset(loader, data_files=str(path), **options)
        assert len(found[encoding]) == report["rows"]
    assert found["parquet"].column_names == found["arrow"].column_names
    for parquet, arrow in zip(found["parquet"], found["arrow"]):
        for name, value in parquet.items():
            if isinstance(found["arrow"].features[name], datasets.Value):
                assert value == arrow[name] or json.dumps(value), name


def test_lines_are_the_rows_of_the_parquet_file(store, tmp_path):
    for name in ("rows.parquet", "rows.jsonl"):
        export(store, "--out", name, folder=tmp_path)
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == len(rows)
    for row, line in zip(rows, map(json.loads, lines)):
        assert list(row) == list(line)
        for name in ("trajectory_id", "input_ids", "loss_mask", "versions", "reward", "prompt_len"):
            assert row[name] == line[name], name
        assert json.loads(row["metadata"]) == line["metadata"]
        assert row["logprobs"] == pytest.approx(line["logprobs"], rel=1e-6)


def test_stdout_is_a_stream_of_arrow_or_lines(store, tmp_path):
    command = [harness.binary(), "export", "--store", str(store), "--out", "-"]
    ended = subprocess.run(command, capture_output=True, timeout=30, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    table = pa.ipc.open_stream(ended.stdout).read_all()
    assert f"{table.num_rows} rows" in ended.stderr.decode()
    lines = subprocess.run(
        [*command, "--encoding", "jsonl"], capture_output=True, timeout=30, cwd=tmp_path
    ).stdout.splitlines()
    ids = [json.loads(line)["trajectory_id"] for line in lines]
    assert ids == table["trajectory_id"].to_pylist()
    assert list(tmp_path.iterdir()) == []


def test_row_groups_can_be_chosen_by_what_they_say(store, tmp_path):
    export(store, "--out", "out", folder=tmp_path)
    path = tmp_path / "out" / "trajectories.parquet"
    file = pq.ParquetFile(path)
    group = file.metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    weights = next(column for column in columns if column.path_in_schema == "row_weight")
    assert weights.statistics.has_min_max and 0 <= weights.statistics.min <= 1
    names = [columns[by.column_index].path_in_schema for by in group.sorting_columns]
    assert names == ["group_id", "episode_id", "attempt", "trajectory_index"]
    ids = pq.read_table(path)["episode_id"].to_pylist()
    named = json.loads(file.metadata.metadata[b"rolltape_row_groups"])
    assert named == [{"rows": len(ids), "episodes": list(dict.fromkeys(ids))}]


@pytest.mark.parametrize("key", ["group", "task", "episode-hash:4"])
def test_a_partitioned_export_is_one_data_set(key, store, tmp_path):
    whole = export(store, "--out", "whole", folder=tmp_path)
    parts = export(store, "--out", "parts", "--partition-by", key, folder=tmp_path)
    assert parts["rows"] == whole["rows"] and len(parts["files"]) > 2
    found = pyarrow.dataset.dataset(
        tmp_path / "parts", partitioning="hive", exclude_invalid_files=True
    ).to_table()
    rows = pq.read_table(tmp_path / "whole" / "trajectories.parquet")
    name = "trajectory_id"
    assert sorted(found[name].to_pylist()) == sorted(rows[name].to_pylist())
    assert key.split(":")[0].replace("episode-hash", "bucket") in found.column_names


def test_shards_make_up_the_whole(store, tmp_path):
    whole = export(store, "--out", "whole", folder=tmp_path)
    parts = [
        export(store, "--out", "shards", "--shard", f"{index}/3", folder=tmp_path)
        for index in range(3)
    ]
    assert sum(part["rows"] for part in parts) == whole["rows"]
    tables = sorted((tmp_path / "shards").glob("trajectories-*.parquet"))
    assert len(tables) == 3
    found = pa.concat_tables(map(pq.read_table, tables))
    rows = pq.read_table(tmp_path / "whole" / "trajectories.parquet")
    ids = [sorted(table["trajectory_id"].to_pylist()) for table in (found, rows)]
    assert ids[0] == ids[1]


def test_what_is_new_is_added_once(store, tmp_path):
    first = export(store, "--out", "out", "--new", folder=tmp_path)
    assert first["rows"] > 0
    again = export(store, "--out", "out", "--new", folder=tmp_path)
    assert (again["rows"], again["files"]) == (0, [])
    assert again["left_out"]["episodes_exported_before"] == first["episodes"]


def test_bad_input_is_told_in_a_sentence(store, tmp_path):
    cases = [
        (("--out", "out", "--format", "json"), 2, "possible values"),
        (("--out", "out", "--shard", "3/3"), 2, "such as 0/16"),
        (("--out", "out", "--partition-by", "model"), 2, "the keys are group"),
        (("--out", "out", "--since", "yesterday"), 2, "--since"),
        (("--out", "out", "--episode", "nobody"), 1, "nothing to export"),
        (("--out", "out", "--min-reward", "1e9"), 1, "below min reward"),
        (("--out", "a.jsonl", "--encoding", "parquet"), 1, "not a name for parquet"),
        (("--out", "a.parquet", "--partition-by", "group"), 1, "takes a folder"),
        (("--out", "/proc/none/here"), 1, "cannot write `/proc/none/here`"),
    ]
    for arguments, code, words in cases:
        assert refused(store, *arguments, folder=tmp_path)[0] == code, arguments
        assert words in refused(store, *arguments, folder=tmp_path)[1], arguments
    code, said = refused(tmp_path / "none.db", "--out", "out", folder=tmp_path)
    assert code == 1 and "none.db" in said and "--store" in said
    # Looking at a target may make its folder, and nothing in it.
    assert all(path.is_dir() and not list(path.iterdir()) for path in tmp_path.iterdir())


def test_what_others_wrote_is_left_alone(store, tmp_path):
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "sft.parquet"
    mine.write_text("mine")
    code, said = refused(store, "--out", "out", "--format", "sft", folder=tmp_path)
    assert code == 1 and "--overwrite" in said
    assert mine.read_text() == "mine"
    export(store, "--out", "out", "--format", "sft", "--overwrite", folder=tmp_path)
    assert pq.read_table(mine).num_rows > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_export_that_is_ended_shows_no_file(number, store, tmp_path):
    """Whenever it is ended, the files that are seen are whole."""
    export(store, "--out", "out", folder=tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for wait_s in (0.0, 0.005, 0.02):
        child = subprocess.Popen(
            [harness.binary(), "export", "--store", str(store), "--out", "out"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            child.wait(wait_s)
        except subprocess.TimeoutExpired:
            child.send_signal(number)
        child.wait(10)
        left = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        # Hidden files are of runs that did not end.
        ended = (".export-", ".manifest.json.begun")
        shown = {name: value for name, value in left.items() if not name.startswith(ended)}
        assert shown == before, "the same store gives the same bytes"
