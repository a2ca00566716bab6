"""What is handed on of a recording: a page in one file, a store of some episodes, names to type."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess

import pytest

import control
import harness
from harness import command, done
from test_show import talk

HOSTILE = "</script><!--<script>alert(1)</script>"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A recorder with a group of three episodes, and one beside it."""
    with harness.serve(tmp_path_factory.mktemp("share"), "--model", harness.MODEL) as proxy:
        for name in ("run-1", "run-2", "run-2b", "other"):
            talk(proxy, name, [f"Begin. {HOSTILE} " + "Say it. " * 40, "Go on."])
            proxy.command("reward", name, 0.5)
            proxy.command("close", name)
        yield proxy


def test_a_page_is_written_once_and_says_what_it_holds(proxy, tmp_path):
    words = ("view", "run-1", "--html", "page.html", "--store", proxy.store)
    written = command(*words, folder=tmp_path)
    assert written.returncode == 0 and "everything that was said" in written.stderr
    page = (tmp_path / "page.html").read_text()
    assert page.count("<script") == page.count("</script>") and "<!--" not in page
    assert "default-src 'none'" in page and proxy.token not in page and "run-2" not in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]

    again = command(*words, folder=tmp_path)
    assert again.returncode == 1 and "exists already" in again.stderr
    on_stdout = done("view", "run-1", "--html", "-", "--store", proxy.store, folder=tmp_path)
    assert on_stdout.startswith("<!doctype html>") and on_stdout.endswith("</html>\n")


def test_a_page_repeats_no_history(proxy, tmp_path):
    page = done("view", "run-1", "--html", "-", "--store", proxy.store, folder=tmp_path)
    assert page.count("Say it. " * 40) == 1
    wide = done("view", "run-1", "--html", "-", "--bodies", "--store", proxy.store, folder=tmp_path)
    assert len(wide) > len(page) and '"base64"' in wide and '"base64"' not in page


def exported(store, episode, folder):
    """The files of an export of an episode, by their names, and the hashes of their bytes."""
    done("export", "--episode", episode, "--out", folder, "--store", store, folder=folder.parent)
    files = sorted(folder.rglob("*.parquet"))
    assert files
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_backup_of_an_episode_is_a_whole_store(proxy, tmp_path):
    words = ("backup", "--episode", "run-1", "--episode", "run-2/0", "--to", "some.db", "--json")
    told = json.loads(done(*words, "--store", proxy.store, folder=tmp_path))
    copy = tmp_path / "some.db"
    assert (told["attempts"], told["calls"]) == (2, 4)
    assert told["bytes"] == copy.stat().st_size and copy.stat().st_mode & 0o777 == 0o600
    assert "nothing is broken" in done("verify", "--store", copy, folder=tmp_path)
    listed = done("episodes", "--json", "--store", copy, folder=tmp_path).splitlines()
    assert sorted(json.loads(line)["episode_id"] for line in listed) == ["run-1", "run-2"]
    for episode in ("run-1", "run-2"):
        before = exported(proxy.store, episode, tmp_path / f"{episode}-before")
        assert exported(copy, episode, tmp_path / f"{episode}-after") == before
        shown = [
            done("show", episode, "--full", "--store", store, folder=tmp_path)
            for store in (proxy.store, copy)
        ]
        assert shown[0] == shown[1]

    for name in ("nothing", "run-1/7"):
        refused = command(
            "backup", "--episode", name, "--to", "no.db", "--store", proxy.store, folder=tmp_path
        )
        assert refused.returncode == 1 and "the store has no episode" in refused.stderr
    assert not (tmp_path / "no.db").exists()


def test_a_backup_of_an_episode_has_no_keys(proxy, tmp_path):
    status, reply = control.post(proxy, "/episodes/keyed/key", {})
    assert status == 200, reply
    words = ("backup", "--episode", "keyed", "--to", "keyed.db", "--store", proxy.store)
    done(*words, folder=tmp_path)
    secret = harness.Path(f"{proxy.store}-keys").read_text().strip()
    assert secret not in (tmp_path / "keyed.db").read_bytes().decode("latin-1")
    keys = "SELECT count(*) FROM api_key"
    counts = []
    for store in (proxy.store, tmp_path / "keyed.db"):
        with sqlite3.connect(store) as connection:
            counts.append(connection.execute(keys).fetchone()[0])
    assert counts == [1, 0]


def names(proxy, *words):
    """What completes the last of these words."""
    env = harness.environment(ROLLTAPE_STORE=str(proxy.store))
    ended = command("completions", "--names", *words, folder=proxy.folder, env=env)
    assert ended.returncode == 0 and ended.stderr == ""
    return ended.stdout.split()


def test_names_are_completed_where_a_command_takes_one(proxy, tmp_path):
    assert sorted(names(proxy, "show", "run-2")) == ["run-2", "run-2b"]
    assert {"other", "run-1", "run-2b"} <= set(names(proxy, "diff", "run-1", ""))
    assert names(proxy, "export", "--episode", "ot") == ["other"]
    assert names(proxy, "show", "--store", tmp_path / "none.db", "run") == []
    assert names(proxy, "show", "--tu") == names(proxy, "export", "--out", "run") == []


SHELLS = {
    "bash": """
        source "$1"; compopt() { :; }
        COMP_WORDS=(rolltape show run-2); COMP_CWORD=2; COMP_LINE="rolltape show run-2"
        $(complete -p rolltape | sed 's/.*-F \\([^ ]*\\).*/\\1/') rolltape run-2 show
        printf '%s\\n' "${COMPREPLY[@]}"
        COMP_WORDS=(rolltape show --tu); COMPREPLY=()
        $(complete -p rolltape | sed 's/.*-F \\([^ ]*\\).*/\\1/') rolltape --tu show
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        autoload -U compinit && compinit -u -d "$1.dump"; source "$1"
        compadd() { [[ $1 == -a ]] && print -l -- ${(P)2} }
        words=(rolltape show run-2); CURRENT=3; PREFIX=run-2; _rolltape
        _rolltape_options() { print -l -- --turn }
        words=(rolltape show --tu); CURRENT=3; PREFIX=--tu; _rolltape
    """,
    "fish": """
        source $argv[1]
        complete -C 'rolltape show run-2'
        complete -C 'rolltape export --episode run-2'
        complete -C 'rolltape show --tu'
    """,
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_names_and_options(proxy, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "_rolltape"
    script.write_text(done("completions", shell, folder=tmp_path))
    (tmp_path / "rolltape").symlink_to(harness.binary())
    env = harness.environment(ROLLTAPE_STORE=str(proxy.store), HOME=str(tmp_path))
    env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    line = [shell, *quiet, "-c", SHELLS[shell]]
    line += [str(script)] if shell == "fish" else ["-", str(script)]
    ended = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    found = [word.split("\t")[0] for word in ended.stdout.split("\n") if word]
    assert {"run-2", "run-2b", "--turn"} <= set(found) and "other" not in found, ended
    assert found.count("run-2") == (2 if shell == "fish" else 1), ended
