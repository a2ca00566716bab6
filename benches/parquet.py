"""Parquet of an export beside pyarrow's: `parquet.py [--groups 6] [--size 8] [--turns 16]`.

Agents are recorded that attempt each task several times, so that attempts share what tools say, as
attempts do. The export's own file is then read and written again by pyarrow in several ways. One
line for each writer: MB, bytes a token, and the processor seconds that writing took; for rolltape
these are what an export to Parquet takes more than one to Arrow.
"""

import argparse
import http.client
import http.server
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import harness  # noqa: E402

AT_ONCE = 4
TURN, END, FIRST = 1, 2, 10
TOOL_BYTES = 3000
PIECE = re.compile(r"\w+|\s+|[^\w\s]")
PAGE = 8 << 20
IDS = "input_ids.list.element"


class Vocabulary(dict):
    """Ids of pieces of text, in the order in which they are met."""

    def __missing__(self, piece):
        return self.setdefault(piece, FIRST + len(self))


KNOWN = Vocabulary()


def encoded(text):
    return [KNOWN[piece] for piece in PIECE.findall(text)]


class Server(http.server.BaseHTTPRequestHandler):
    """A vLLM that says words of the library."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"data": [{"id": "m", "owned_by": "vllm"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "messages" not in request:
            self.send_error(404)
            return
        prompt = [id for m in request["messages"] for id in (TURN, *encoded(m["content"]), END)]
        rng = random.Random(len(prompt) * 1_000_003 + request.get("seed", 0))
        start = rng.randrange(len(LIBRARY) - 2000)
        said = LIBRARY[start : start + rng.randrange(200, 900)].strip() or "so"
        ids = [*encoded(said), END]
        entries = [{"token": "t", "logprob": -rng.expovariate(2.0), "bytes": []} for _ in ids]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": said},
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": {"content": entries},
        }
        self.answer({"model": "m", "prompt_token_ids": [*prompt, TURN], "choices": [choice]})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def play(proxy, group, attempt, turns):
    """One attempt at a task: it reads the files of the task, most of them as the others do."""
    rng = random.Random(group * 1000 + attempt)
    files = random.Random(group)
    starts = [files.randrange(len(LIBRARY) - TOOL_BYTES) for _ in range(turns)]
    connection = http.client.HTTPConnection(*proxy.data, timeout=300)
    messages = [{"role": "system", "content": LIBRARY[:8000]}]
    for start in starts:
        if rng.random() < 0.2:
            start = rng.randrange(len(LIBRARY) - TOOL_BYTES)
        messages.append({"role": "user", "content": LIBRARY[start : start + TOOL_BYTES]})
        body = json.dumps({"messages": messages, "seed": rng.randrange(1 << 30)})
        path = f"/e/g{group:03}-{attempt}/v1/chat/completions"
        headers = {"content-type": "application/json", "x-group-id": f"g{group:03}"}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        messages.append(json.load(answer)["choices"][0]["message"])
    connection.close()


def export(binary, store, out, *options):
    """Processor seconds and peak MB of an export."""
    command = [binary, "export", "--store", store, "--out", out, "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def line(writer, path, tokens, seconds, **more):
    """Prints what a writer made."""
    columns = {"ids_mb": ("input_ids",), "content_mb": ("prompt", "completion")}
    metadata = pq.ParquetFile(path).metadata
    parts = dict.fromkeys(columns, 0.0)
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            for name, roots in columns.items():
                if chunk.path_in_schema.split(".")[0] in roots:
                    parts[name] += chunk.total_compressed_size / 1e6
    size = os.path.getsize(path)
    found = {"writer": writer, "mb": round(size / 1e6, 2), "token_bytes": round(size / tokens, 3)}
    found |= {"write_cpu_s": round(seconds, 2)} | {k: round(v, 2) for k, v in parts.items()}
    print(json.dumps(found | more), flush=True)


def pyarrow_writers(table):
    """Ways to write the same rows, by name."""
    names = [column.path for column in pq_columns(table)]
    plain = {"compression": "zstd", "compression_level": 3}
    other = [name for name in names if name != IDS]
    return {
        "pyarrow": {},
        "pyarrow zstd 3": plain,
        "pyarrow zstd 3, ids plain": plain | {"use_dictionary": other},
        "pyarrow zstd 3, ids plain, pages of 8 MB": plain
        | {"use_dictionary": other, "data_page_size": PAGE},
        "pyarrow zstd 3, no dictionary, pages of 8 MB": plain
        | {"use_dictionary": False, "data_page_size": PAGE},
        "pyarrow zstd 3, ids plain, pages and dictionaries of 8 MB": plain
        | {"use_dictionary": other, "data_page_size": PAGE, "dictionary_pagesize_limit": PAGE},
    }


def pq_columns(table):
    """The leaf columns of a table in Parquet."""
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(table.slice(0, 1), file.name)
        schema = pq.ParquetFile(file.name).schema
        return [schema.column(at) for at in range(len(schema))]


def compare(binary, store, folder):
    own = folder / "own"
    arrow_s, _ = export(binary, store, folder / "rows.arrow")
    parquet_s, peak_mb = export(binary, store, own)
    path = own / "trajectories.parquet"
    table = pq.read_table(path)
    tokens = pc.sum(pc.list_value_length(table["input_ids"])).as_py()
    print(json.dumps({"rows": table.num_rows, "tokens": tokens}), flush=True)
    whole = {"export_cpu_s": round(parquet_s, 2), "export_peak_mb": round(peak_mb)}
    line("rolltape", path, tokens, parquet_s - arrow_s, **whole)

    rows = [pq.ParquetFile(path).metadata.row_group(0).num_rows]
    for writer, options in pyarrow_writers(table).items():
        written = folder / "other.parquet"
        before = time.process_time()
        pq.write_table(table, written, row_group_size=rows[0], **options)
        line(writer, written, tokens, time.process_time() - before)


def library(size):
    """Text of Python's library."""
    texts = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="ignore"))
        if sum(map(len, texts)) > size:
            break
    return "".join(texts)


LIBRARY = library(3_000_000)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--store", type=Path, help="a store that is there, in place of a new one")
    parser.add_argument("--keep", type=Path, help="folder in which the store is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        store = options.store
        if store is None:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            upstream = f"http://127.0.0.1:{server.server_address[1]}"
            serve = ("--upstream", upstream, "--dialect", "vllm", "--durability", "process", "-q")
            with harness.serve(options.keep or folder, *serve) as proxy:
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    work = [(g, a) for g in range(options.groups) for a in range(options.size)]
                    list(pool.map(lambda of: play(proxy, *of, options.turns), work))
                store = proxy.store
        compare(harness.binary(), store, folder)
