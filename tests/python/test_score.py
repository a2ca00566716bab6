"""Recorded ids are scored under another model, and the scores are joined with exported rows."""

import json
import math
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.parquet as pq
import pytest

import harness

TOP = 3
ERROR_MAX = 1e-5


def score(played, server, folder, *arguments):
    words = ("score", "--with", server, "--as", "big", "--out", folder, "--json", *arguments)
    return json.loads(played.world.proxy.command(*words))


def export(played, out, *arguments):
    report = json.loads(played.world.proxy.command("export", "--out", out, "--json", *arguments))
    return pq.read_table(report["files"][0]).to_pylist(), report


def asked(url, path, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


@contextmanager
def between(url, change=lambda path, reply: reply, wait_s=0.0):
    """A server in front of another one, which may change its replies or be slow; and the paths that
    were asked for."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.hand_on(None)

        def do_POST(self):
            self.hand_on(self.rfile.read(int(self.headers["content-length"])))

        def hand_on(self, body):
            paths.append(self.path)
            time.sleep(wait_s if self.path in ("/v1/completions", "/generate") else 0)
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(url + self.path, body, headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    status, told = reply.status, reply.read()
            except urllib.error.HTTPError as refused:
                status, told = refused.code, refused.read()
            told = change(self.path, told)
            self.send_response(status)
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with harness.engine(tmp_path_factory.mktemp("teacher")) as address:
        yield f"http://{harness.text(address)}"


@pytest.fixture(scope="module")
def scored(played, engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    report = score(played, engine, folder / "scores", "--top", TOP)
    rows, exported = export(played, folder / "out", "--scores", folder / "scores")
    return folder / "scores", report, rows, exported


def test_scores_are_those_of_a_request_for_the_row(scored, engine):
    _, report, rows, exported = scored
    with_ids = [row for row in rows if row["input_ids"]]
    assert report["rows"] == exported["scores"]["big"]["rows"] == len(with_ids) > 20
    assert report["tokens"] == sum(len(row["input_ids"]) for row in with_ids)
    assert 0 < report["shared"] < report["tokens"]
    # All that may begin as another row does, and some others.
    for row in with_ids[::7] + [row for row in with_ids if row["trajectory_index"]]:
        body = {"prompt": row["input_ids"], "max_tokens": 1, "prompt_logprobs": TOP}
        body |= {"model": asked_model(engine), "temperature": 1}
        told = asked(engine, "/v1/completions", body)["choices"][0]["prompt_logprobs"]
        for at, (id, entry) in enumerate(zip(row["input_ids"], told)):
            ids, logprobs = row["score_big_top_ids"][at], row["score_big_top_logprobs"][at]
            assert len(ids) == len(logprobs) == TOP + 1
            here = {i: lp for i, lp in zip(ids, logprobs) if i != -1}
            assert all(lp == -math.inf for i, lp in zip(ids, logprobs) if i == -1)
            if entry is None:
                assert at == 0 and not here and row["score_big_logprobs"][0] == 0.0
                continue
            expected = {int(i): one["logprob"] for i, one in entry.items()}
            assert here == pytest.approx(expected, abs=ERROR_MAX) and id in here
            assert row["score_big_logprobs"][at] == pytest.approx(expected[id], abs=ERROR_MAX)
            assert list(here.values()) == sorted(here.values(), reverse=True)


def asked_model(engine):
    with urllib.request.urlopen(engine + "/v1/models", timeout=10) as reply:
        return json.load(reply)["data"][0]["id"]


def test_a_model_folder_scores_as_its_server_does(scored, played, tmp_path):
    _, _, rows, _ = scored
    report = score(played, harness.MODEL, tmp_path / "scores", "--group", "games")
    assert report["rows"] == len([row for row in rows if row["group_id"] == "games"])
    here, exported = export(played, tmp_path / "out", "--scores", tmp_path / "scores")
    assert exported["scores"]["big"]["without"] == len(rows) - report["rows"]
    for row, other in zip(here, rows):
        expected = other["score_big_logprobs"] if other["group_id"] == "games" else None
        assert row["score_big_logprobs"] == pytest.approx(expected, abs=ERROR_MAX)
        assert row["score_big_top_ids"] is None


def test_what_is_scored_is_not_asked_for_again(scored, played, engine):
    folder, report, rows, _ = scored
    with between(engine) as (url, paths):
        again = score(played, url, folder, "--top", TOP)
        assert (again["rows"], again["held"]) == (0, report["rows"])
        # That the server takes as many ids.
        assert paths.count("/v1/completions") == 1
    words = ("score", "--with", engine, "--as", "big", "--out", folder, "--top", "1")
    refused = harness.command(*words, "--store", played.world.proxy.store, folder=folder)
    assert refused.returncode == 1 and "with --top 3, not of" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_goes_on_where_it_was(number, scored, played, engine, tmp_path):
    _, report, rows, _ = scored
    folder = tmp_path / "scores"
    words = ("score", "--with", "URL", "--as", "big", "--out", folder, "--at-once", "1")
    words = (*words, "--top", TOP, "--store", played.world.proxy.store)
    with between(engine, wait_s=0.05) as (url, paths):
        words = [url if word == "URL" else str(word) for word in words]
        running = subprocess.Popen(
            [harness.binary(), *words],
            cwd=tmp_path,
            env=harness.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        harness.until("ten rows", lambda: paths.count("/v1/completions") > 10)
        running.send_signal(number)
        assert "goes on where" in running.communicate(timeout=10)[1]
        assert running.returncode == 1
    assert all(path.name.startswith("scores") for path in folder.iterdir())
    again = score(played, engine, folder, "--top", TOP)
    assert again["held"] >= 8 and again["held"] + again["rows"] == report["rows"]
    here, _ = export(played, tmp_path / "out", "--scores", folder)
    assert [row["score_big_logprobs"] for row in here] == [
        row["score_big_logprobs"] for row in rows
    ]


def test_another_tokenizer_is_refused(played, engine, tmp_path):
    def change(path, reply):
        return b'{"prompt": "other words"}' if path == "/detokenize" else reply

    with between(engine, change) as (url, paths):
        words = ("score", "--with", url, "--as", "big", "--out", tmp_path / "scores")
        words = (*words, "--store", played.world.proxy.store)
        refused = harness.command(*words, folder=tmp_path)
        assert refused.returncode == 1
        assert "another text by the server's tokenizer" in refused.stderr
        assert paths.count("/v1/completions") < 20, "it ends early"
    assert not list((tmp_path / "scores").glob("*.parquet"))


def test_a_server_that_tells_fewer_ids_is_refused_at_once(played, engine, tmp_path):
    words = ("score", "--with", engine, "--as", "big", "--out", tmp_path, "--top", "100000")
    refused = harness.command(*words, "--store", played.world.proxy.store, folder=tmp_path)
    assert refused.returncode == 1 and "the server scores nothing" in refused.stderr
    assert not list(tmp_path.glob("*.parquet"))


def test_a_row_that_went_on_since_gets_no_scores(played, scored, tmp_path):
    """Its ids are others under the same name."""
    folder, _, rows, _ = scored
    changed = tmp_path / "scores"
    changed.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".parquet":
            (changed / path.name).write_bytes(path.read_bytes())
            continue
        table = pq.read_table(path)
        hashes = ["0" * 32, *table["ids_hash"].to_pylist()[1:]]
        at = table.schema.get_field_index("ids_hash")
        table = table.set_column(at, table.schema.field(at), [hashes])
        pq.write_table(table, changed / path.name, compression="zstd")
    here, exported = export(played, tmp_path / "out", "--scores", changed)
    assert exported["scores"]["big"]["other_ids"] == 1
    lost = [row for row, other in zip(here, rows) if row != other]
    assert len(lost) == 1 and lost[0]["score_big_logprobs"] is None
