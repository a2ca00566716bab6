"""A store of bare episodes: `bare_store.py PATH EPISODES [--calls 1] [--bin PATH]`.

Attempts in groups of 8, closed, finished in that order and rewarded, without calls, as many as a
month of a busy recorder has: 2.3 s apart, which is 38,000 a day. Written by SQL into a file that
the recorder made, so that 400,000 take seconds. With calls, each has the same small bodies and no
tokens, and is complete. The same arguments make the same rows.
"""

import argparse
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

GROUP = 8
START_US = 1_764_547_200_000_000  # 2025-12-01
APART_US = 2_270_000
TOOK_US = 60_000_000
REQUEST, REPLY = b'{"messages":[]}', b'{"choices":[]}'

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count) "
OPENED = ":start + i * :apart"
CLOSED = ":start + i * :apart + :took"

EPISODES = f"""
INSERT INTO episode (episode_key, episode_id, attempt, group_id, task_id, source, opened_at,
  closed_at, status)
{NUMBERS} SELECT :base + i + 1, printf('bare-%08d', :base + i), 0,
  printf('g-%07d', (:base + i) / :group), printf('t-%07d', (:base + i) / :group), 'path', {OPENED},
  {CLOSED}, 'completed' FROM n
"""
FINISHED = f"""
INSERT INTO finished (episode_key, finished_at) {NUMBERS} SELECT :base + i + 1, {CLOSED} FROM n
"""
# Of each group some are right: a number of the attempt's own decides.
REWARDS = f"""
INSERT INTO reward (episode_key, name, value, source, given_at, scope)
{NUMBERS} SELECT :base + i + 1, 'reward', (i * 2654435761 % 1000) / 1000.0, 'control', {CLOSED},
  'episode' FROM n
"""
SIZES = f"""
INSERT INTO group_size (group_id, size)
{NUMBERS} SELECT printf('g-%07d', :base / :group + i), :group FROM n
"""
BODIES = f"""
INSERT INTO body (body_key, encoding, length, data)
{NUMBERS} SELECT :bodies + i, 0, length(:data), :data FROM n
"""
# Bodies of requests come first, then those of replies.
CALLS = f"""
INSERT INTO call (call_id, episode_key, started_at, method, path, route, requested_model,
  request_body, ended_at, first_byte_at, status, outcome, reply_body, reply_model, prompt_tokens,
  completion_tokens, logprob_kind)
{NUMBERS} SELECT printf('00000000-0000-7000-8000-%012x', :base * :calls + i), :base + i / :calls + 1,
  :start + i / :calls * :apart + i % :calls * 1000000, 'POST', '/v1/chat/completions', 'chat',
  'bare', :bodies + i, :start + i / :calls * :apart + i % :calls * 1000000 + 900000,
  :start + i / :calls * :apart + i % :calls * 1000000 + 300000, 200, 'complete',
  :bodies + :count + i, 'bare', 1000 + i % 97, 100 + i % 31, 'raw' FROM n
"""


def command():
    """The recorder: `$ROLLTAPE_BIN`, else the release build of this tree."""
    return os.environ.get("ROLLTAPE_BIN") or ROOT / "target" / "release" / "rolltape"


def schema(path, binary):
    """A file that a recorder made, and left."""
    arguments = ["--upstream", "http://127.0.0.1:9", "--store", path]
    arguments += ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    recorder = subprocess.Popen([binary, "serve", *arguments], stderr=subprocess.PIPE, text=True)
    said = next((line for line in recorder.stderr if line.startswith("listening on")), None)
    recorder.terminate()
    recorder.communicate()
    if said is None:
        raise ChildProcessError(f"{binary} did not start")


def fill(path, episodes, calls=0):
    """Adds so many attempts to a store that nobody records to, and returns the first one's key."""
    with closing(sqlite3.connect(path)) as db:
        base = db.execute("SELECT coalesce(max(episode_key), 0) FROM episode").fetchone()[0]
        bodies = db.execute("SELECT coalesce(max(body_key), 0) FROM body").fetchone()[0] + 1
        words = {
            "count": episodes,
            "base": base,
            "start": START_US + base * APART_US,
            "apart": APART_US,
            "took": TOOK_US,
            "group": GROUP,
            "calls": calls,
            "bodies": bodies,
        }

        db.execute("PRAGMA synchronous = OFF")
        with db:
            for statement in (EPISODES, FINISHED, REWARDS):
                db.execute(statement, words)
            db.execute(SIZES, {**words, "count": -(-episodes // GROUP)})
            if calls:
                words["count"] = episodes * calls
                db.execute(BODIES, {**words, "data": REQUEST})
                db.execute(BODIES, {**words, "bodies": bodies + words["count"], "data": REPLY})
                db.execute(CALLS, words)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return base + 1


def make(path, episodes, calls=0, binary=None):
    """Makes a store of so many attempts at `path`, each with so many calls."""
    schema(path, binary or command())
    fill(path, episodes, calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("episodes", type=int)
    parser.add_argument("--calls", type=int, default=0, help="calls of each attempt")
    parser.add_argument("--bin", help="the recorder that makes the file")
    options = parser.parse_args()
    make(options.path, options.episodes, options.calls, options.bin)


if __name__ == "__main__":
    main()
