"""What the command of `rolltape run` finds of rolltape's own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import harness
import hostile

SHOW = [
    sys.executable,
    "-c",
    "import json, os; print(json.dumps([dict(os.environ), os.listdir('/proc/self/fd')]))",
]
CALL = [
    sys.executable,
    "-c",
    "import os, urllib.request as u, json\n"
    "url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
    "body = json.dumps({'model': 'm', 'messages': []}).encode()\n"
    "u.urlopen(u.Request(url, body, {'content-type': 'application/json'})).read()\n",
]
NOBODY = 65534
"""A user without rights."""
SECRET = "s3cret-of-the-operator"


@pytest.fixture
def upstream():
    """A server that answers every call."""
    server = hostile.Upstream()
    yield server
    server.stop()


@pytest.fixture
def run(tmp_path, upstream):
    """Runs a command as an episode, with these variables beside the usual ones."""

    def run(*options, child=SHOW, **variables):
        where = ("--upstream", upstream.url, "--store", tmp_path / "run.db")
        env = harness.environment(**variables)
        return harness.command("run", *where, *options, "--", *child, folder=tmp_path, env=env)

    return run


def shown(ended):
    """The environment that a child has shown."""
    assert "called no model" in ended.stderr, ended.stderr
    return json.loads(ended.stdout)[0]


def test_the_address_of_a_store_and_its_password_are_not_passed(run):
    env = shown(
        run(
            ROLLTAPE_STORE=f"postgres://me:{SECRET}@127.0.0.1/runs",
            PGPASSWORD=SECRET,
            PGPASSFILE=f"/{SECRET}",
            PGSERVICEFILE=f"/{SECRET}",
            DATABASE_URL=f"postgres://me:{SECRET}@127.0.0.1/runs",
        )
    )
    assert SECRET not in json.dumps(env)
    assert not [name for name in env if name.startswith("PG") or name == "ROLLTAPE_STORE"]


def test_the_keys_of_object_stores_are_not_passed(run):
    names = [
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_SECRET",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ]
    assert SECRET not in json.dumps(shown(run(**dict.fromkeys(names, SECRET))))


def test_no_variable_of_rolltape_is_passed_but_the_tag(run):
    names = ["ROLLTAPE_CONTROL_URL", "ROLLTAPE_PROXY", "ROLLTAPE_LOG", "ROLLTAPE_OF_TOMORROW"]
    env = shown(run(**dict.fromkeys(names, "http://127.0.0.1:9") | {"ROLLTAPE_LOG": "warn"}))
    ours = {name for name in env if name.startswith("ROLLTAPE_")}
    assert ours == {"ROLLTAPE_EPISODE", "ROLLTAPE_ATTEMPT"}


def test_an_agent_s_own_variables_are_passed(run):
    own = {
        "OPENAI_API_KEY": "mine",
        "AZURE_OPENAI_API_KEY": "mine",
        "GOOGLE_API_KEY": "mine",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "MY_AGENT_SETTING": "mine",
    }
    env = shown(run(**own))
    assert {name: env.get(name) for name in own} == own
    assert env["PATH"] and env["HOME"]


def test_a_variable_that_is_named_is_passed(run):
    env = shown(run("--pass-env", "PGPASSWORD", PGPASSWORD="mine", PGUSER="not mine"))
    assert env["PGPASSWORD"] == "mine" and "PGUSER" not in env


def test_the_variables_of_the_token_and_of_the_key_are_not_passed_even_by_name(run):
    for option in ("--control-token-env", "--upstream-key-env"):
        ended = run(option, "MINE", "--pass-env", "MINE", MINE=SECRET)
        assert ended.returncode == 1 and ended.stdout == "", ended
        assert "`MINE` holds a secret" in ended.stderr and SECRET not in ended.stderr


def test_a_clean_environment_holds_what_is_named_and_nothing_else(run):
    options = ("--clean-env", "--pass-env", "MINE")
    env = shown(run(*options, MINE="yes", OTHER=SECRET, LC_ALL="C.UTF-8"))
    assert env["MINE"] == "yes" and env["LC_ALL"] == "C.UTF-8" and env["OPENAI_BASE_URL"]
    assert "OTHER" not in env and SECRET not in json.dumps(env)


def test_the_upstream_s_key_can_stand_in_a_file_that_no_environment_names(run, upstream, tmp_path):
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "key").chmod(0o600)
    options = ("--upstream-key-file", tmp_path / "key")
    env = shown(run(*options, ROLLTAPE_UPSTREAM_KEY_FILE=str(tmp_path / "key")))
    assert SECRET not in json.dumps(env) and str(tmp_path / "key") not in env.values()
    ended = run(*options, "--episode", "b", child=CALL)
    assert ended.returncode == 0 and "can read" not in ended.stderr, ended.stderr
    (call,) = upstream.calls()
    assert dict(call.headers)["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("content", ["", "\n", "two\nlines", "\x1b[2Jkey"])
def test_a_file_that_holds_no_key_is_refused_and_not_shown(run, tmp_path, content):
    (tmp_path / "key").write_text(content)
    ended = run("--upstream-key-file", tmp_path / "key")
    assert ended.returncode == 1 and "does not hold a key" in ended.stderr
    assert "two" not in ended.stderr and "\x1b" not in ended.stderr


def test_a_key_that_others_can_read_is_warned_of(run, tmp_path):
    (tmp_path / "key").write_text(SECRET)
    (tmp_path / "key").chmod(0o644)
    ended = run("--upstream-key-file", tmp_path / "key")
    assert "called no model" in ended.stderr and "others can read the key" in ended.stderr
    assert SECRET not in ended.stderr


def test_the_command_inherits_no_descriptor(run):
    ended = run()
    descriptors = {int(name) for name in json.loads(ended.stdout)[1]}
    # The last one is that of the listing itself.
    assert len(descriptors) == 4 and {0, 1, 2} < descriptors


@pytest.fixture
def unprivileged(upstream):
    """Runs a shell command as an episode, as a user who is not an administrator."""
    folder = Path(tempfile.mkdtemp(prefix="rolltape-attack-"))
    folder.chmod(0o777)
    program = Path(harness.binary())
    as_nobody = []
    if os.geteuid() == 0:
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        tried = subprocess.run([*as_nobody, program, "--version"], capture_output=True)
        if tried.returncode != 0:
            program = Path(shutil.copy(program, folder / "rolltape"))
            program.chmod(0o755)

    def run(script, **variables):
        words = ["run", "--upstream", upstream.url, "--store", folder / "run.db", "--"]
        return subprocess.run(
            [*as_nobody, program, *words, "/bin/sh", "-c", script],
            env=harness.environment(HOME=str(folder), **variables),
            cwd=folder,
            capture_output=True,
            timeout=harness.COMMAND_WAIT_S,
        )

    yield run
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", ["environ", "mem", "maps", "fd/0"])
def test_the_command_cannot_read_what_its_parent_has_in_memory(unprivileged, page):
    script = f"id -u; dd if=/proc/$PPID/{page} bs=16 count=1 of=/dev/null || echo closed"
    ended = unprivileged(script, ROLLTAPE_UPSTREAM_KEY_ENV="THEIR_KEY", THEIR_KEY=SECRET)
    said = ended.stdout.decode().split()
    assert said[0] != "0" and said[1:] == ["closed"], ended
    assert SECRET.encode() not in ended.stdout + ended.stderr


def test_a_command_of_another_user_can_read_neither_store_nor_parent(upstream):
    """What docs/security.md advises: the command changes its user before the agent starts."""
    if os.geteuid() != 0:
        pytest.skip("only an administrator may become another user")
    with tempfile.TemporaryDirectory(prefix="rolltape-attack-") as folder:
        Path(folder).chmod(0o755)
        ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        script = 'id -u; for file in run.db* /proc/$PPID/environ; do cat "$file" || echo closed; done'
        where = ("--upstream", upstream.url, "--store", f"{folder}/run.db")
        child = ["setpriv", *ids, "/bin/sh", "-c", script]
        env = harness.environment(MINE=SECRET)
        ended = harness.command("run", *where, "--", *child, folder=folder, env=env)
    assert "called no model" in ended.stderr, ended.stderr
    assert ended.stdout.split() == [str(NOBODY), *["closed"] * 6], ended
    assert ended.stderr.count("Permission denied") == 6, ended.stderr


@pytest.mark.parametrize("name", ["cline", "opencode"])
def test_an_agent_that_is_known_by_name_gets_no_key_that_is_hidden(run, tmp_path, name):
    agent = tmp_path / name
    agent.write_text('#!/bin/sh\nenv\ncat "$2"/settings/providers.json 2>/dev/null || true\n')
    agent.chmod(0o755)
    for options in (("--upstream-key-env", "OPENAI_API_KEY"), ("--clean-env",)):
        ended = run(*options, child=[agent, "x"], OPENAI_API_KEY=SECRET)
        assert "/e/" in ended.stdout and SECRET not in ended.stdout, ended
