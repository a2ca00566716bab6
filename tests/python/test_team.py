"""One recorder for several people: links that only read, TLS of the control listener, prefixes."""

import re
import subprocess
from contextlib import contextmanager

import pytest

import harness
import package  # noqa: F401 - names the binary for the package
import rolltape
from test_show import talk

LINK = re.compile(r"(https?://[\d.:]+)/#token=(read-[\w-]{43})(?:&to=(\S+))?\n")
SUBJECT = ("-subj", "/CN=rolltape test")
AGENT = "import os, urllib.request as r; r.urlopen(os.environ['OPENAI_BASE_URL'] + '/models')"
NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A folder of states of its own."""
    return tmp_path_factory.mktemp("states")


@contextmanager
def served(folder, states, *arguments):
    """A recorder that others find."""
    env = harness.environment(XDG_STATE_HOME=str(states))
    with harness.serve(folder, "--model", harness.MODEL, *arguments, env=env) as proxy:
        harness.until("the addresses", lambda: "listening on" in proxy.process.stderr)
        yield proxy


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, states):
    """A recorder with an episode."""
    with served(tmp_path_factory.mktemp("team"), states) as proxy:
        talk(proxy, "claude-otter", ["A"])
        yield proxy


@pytest.fixture
def told(states, tmp_path):
    """Runs a command of another folder."""
    env = harness.environment(XDG_STATE_HOME=str(states))
    return lambda *words: harness.command(*words, folder=tmp_path, env=env)


def reads(client):
    """What a client with a token reads, and the status of what it tries to change."""
    with pytest.raises(rolltape.RolltapeError) as refused:
        client.reward("claude-otter", 1.0)
    return client.recording.tree("claude-otter")["verdict"], refused.value.status


# Links


def test_view_links_to_the_server_that_runs_here(proxy, told):
    at = f"http://{harness.text(proxy.control)}"
    for words in (["view"], ["view", "--control", at, "--store", proxy.store]):
        linked = told(*words)
        assert linked.returncode == 0, linked.stderr
        base, token, place = LINK.fullmatch(linked.stdout).groups()
        assert (base, place) == (at, None)
        assert reads(rolltape.Client(base, token=token)) == ("exact", 403)
        assert proxy.token not in linked.stdout + linked.stderr


def test_a_link_leads_to_the_episode(proxy, told):
    linked = told("view", "claude-ot")
    assert LINK.fullmatch(linked.stdout)[3] == "/e/claude-otter/0/read"
    missing = told("view", "nothing")
    assert missing.returncode == 1 and "no episode" in missing.stderr


def test_who_has_only_the_read_token_can_hand_it_on(proxy, told, tmp_path):
    token = told("control", "GET", "/read-token").stdout
    reader = tmp_path / "reader"
    reader.touch(0o600)
    reader.write_text(re.search(r"read-[\w-]+", token)[0])
    at = f"http://{harness.text(proxy.control)}"
    asked = ("--control", at, "--control-token-file", reader)
    assert LINK.fullmatch(told("view", *asked).stdout)[2] == reader.read_text()
    assert "claude-otter" in told("episodes", "--json", *asked).stdout
    refused = told("control", "POST", "/episodes/claude-otter/close", *asked)
    assert refused.returncode == 1 and "the read token does not open" in refused.stderr
    assert "--control must name" not in refused.stderr


def test_a_store_that_is_named_has_a_page_of_its_own(proxy, told, states, tmp_path):
    env = harness.environment(XDG_STATE_HOME=str(states))
    words = ["view", "--tokenizer", harness.MODEL, "--store", proxy.store]
    process = harness.Process(*words, folder=tmp_path, env=env, stdout=subprocess.PIPE)
    link = process.child.stdout.readline().decode()
    base, token = re.match(r"(http://[\d.:]+)/#token=(\S+)", link).groups()
    assert base != f"http://{harness.text(proxy.control)}"
    client = rolltape.Client(base, token=token)
    assert client.recording.tree("claude-otter")["verdict"] == "exact"
    # The page exchanges the token.
    assert rolltape.Client(base, token=client.read_token()).recording.tree("claude-otter")
    process.end_well()


def test_an_open_server_has_a_link_without_a_token(tmp_path, told):
    with served(tmp_path, tmp_path / "states", "--control-open") as proxy:
        at = f"http://{harness.text(proxy.control)}"
        linked = told("view", "--control", at, "--store", proxy.store)
        assert linked.stdout == f"{at}/#\n", linked.stderr


def test_a_socket_of_the_file_system_has_no_link(proxy, told):
    refused = told("view", "--control", "unix:/nowhere.sock", "--store", proxy.store)
    assert refused.returncode == 1 and "--store" in refused.stderr


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder with an authority, and a certificate of loopback that it signed."""
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *SUBJECT)
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", NAMES)
    openssl("req", "-x509", *curve, *signed, "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", "key.pem", "-out", "cert.pem")
    return folder


@pytest.fixture(scope="module")
def tls(tmp_path_factory, authority):
    """The address of a control listener with TLS, and its recorder's folder of states."""
    folder = tmp_path_factory.mktemp("tls")
    data, control = harness.free_addresses(2)
    store = folder / "recorded.db"
    process = harness.Process(
        "serve", "--model", harness.MODEL, "--store", store, "--listen", harness.text(data),
        "--control", f"0.0.0.0:{control[1]}", "--control-tls-cert", authority / "cert.pem",
        "--control-tls-key", authority / "key.pem", folder=folder,
        env=harness.environment(XDG_STATE_HOME=str(folder / "states")),
    )
    try:
        harness.until("the addresses", lambda: "listening on" in process.stderr)
        assert f"control on https://0.0.0.0:{control[1]}" in process.stderr
        assert "not encrypted" not in process.stderr
        yield f"https://{harness.text(control)}", folder / "states"
        process.end_well()
    finally:
        process.kill()


def test_the_control_listener_speaks_tls(tls, authority, tmp_path):
    at, states = tls
    env = harness.environment(XDG_STATE_HOME=str(states), ROLLTAPE_CONTROL_CA=str(authority / "ca.pem"))
    told = lambda *words: harness.command(*words, folder=tmp_path, env=env)  # noqa: E731
    # The address is found, too.
    assert told("control", "GET", "/ready").returncode == 0
    ran = told("run", "--episode", "over-tls", "--", "python3", "-c", AGENT)
    assert ran.returncode == 0, ran.stderr
    assert f"{at}/#/e/over-tls/0/read" in ran.stderr
    base, token, _ = LINK.fullmatch(told("view", "over-tls").stdout).groups()
    assert base == at
    client = rolltape.Client(at, token=token, ca_file=authority / "ca.pem")
    assert client.recording.tree("over-tls")["episode"]["calls"] == 1
    assert "over-tls" in told("episodes", "--json", "--control", at).stdout
    page = rolltape.http.Http(at, ca_file=authority / "ca.pem").raw("GET", "/")
    assert page[0] == 200 and b"<html" in page[1]


def test_an_unknown_authority_is_refused_with_the_way_out(tls, tmp_path):
    at, states = tls
    env = harness.environment(XDG_STATE_HOME=str(states))
    refused = harness.command("control", "/ready", folder=tmp_path, env=env)
    assert refused.returncode == 1 and "--control-ca" in refused.stderr, refused.stderr
    with pytest.raises(rolltape.RolltapeError, match="with ca_file="):
        rolltape.Client(at, token="a" * 16).health()
    plain = at.replace("https", "http")
    closed = harness.command("control", "/health", "--control", plain, folder=tmp_path, env=env)
    assert closed.returncode == 1 and "https://" in closed.stderr, closed.stderr


def test_plain_http_is_told_from_tls(proxy, told):
    at = f"https://{harness.text(proxy.control)}"
    refused = told("control", "/ready", "--control", at)
    assert refused.returncode == 1 and "use http://" in refused.stderr, refused.stderr
    with pytest.raises(rolltape.RolltapeError, match="use http://"):
        rolltape.Client(at, token=proxy.token).health()


def test_a_plain_listener_beyond_loopback_is_warned_of(tmp_path, states):
    with served(tmp_path, states) as proxy:
        assert "not encrypted" not in proxy.process.stderr
    _, control = harness.free_addresses(2)
    process = harness.Process(
        "serve", "--model", harness.MODEL, "--store", tmp_path / "b.db", "--listen",
        "127.0.0.1:0", "--control", f"0.0.0.0:{control[1]}", folder=tmp_path,
        env=harness.environment(XDG_STATE_HOME=str(states)),
    )
    harness.until("the addresses", lambda: "listening on" in process.stderr)
    assert "not encrypted: give it TLS with --control-tls-cert" in process.stderr
    process.end_well()


# Prefixes


def test_a_prefix_stands_before_the_names_of_clients(tmp_path, states):
    with served(tmp_path, states, "--episode-prefix", "ann.") as proxy:
        client = rolltape.Client(f"http://{harness.text(proxy.control)}", token=proxy.token)
        client.announce("run-1", group_id="g")
        talk(proxy, "run-1", ["A"])
        talk(proxy, "ann.run-1", ["A"])
        client.reward("run-1", 0.5)
        client.close("run-1")
        shown = client.recording.tree("ann.run-1")["episode"]
        assert (shown["calls"], shown["reward"], shown["group_id"]) == (2, 0.5, "g")
        assert [one["episode_id"] for one in client.recording.episodes()] == ["ann.run-1"]

        data = f"http://{harness.text(proxy.data)}"
        at = ("--proxy", data, "--control", client.http.url, "--store", proxy.store)
        run = ("run", "--episode", "run-2", *at, "--", "python3", "-c", AGENT)
        assert "recorded ann.run-2: 1 call" in harness.command(*run, folder=tmp_path).stderr
        names = {one["episode_id"] for one in client.recording.episodes()}
        assert names == {"ann.run-1", "ann.run-2"}


def test_a_run_has_a_prefix_of_its_own(proxy, told):
    ran = told("run", "--episode-prefix", "bob.", "--episode", "x", "--", "python3", "-c", AGENT)
    assert "recorded bob.x: 1 call" in ran.stderr, ran.stderr
    bad = told("run", "--episode-prefix", "bob/", "--", "true")
    assert bad.returncode == 2 and "is not an id; an id has 1 to 200 characters" in bad.stderr
