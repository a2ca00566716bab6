"""API keys: who gets in without one, where they go, and how they end."""

import base64
import os
import sqlite3
import stat

import pytest

import control
import harness
import hostile
import http1
import keyed
import lines
import relay

SESSIONS = [
    ("x-episode-id", "{}"),
    ("x-session-id", "{}"),
    ("x-claude-code-session-id", "{}"),
    ("session-id", "{}"),
    ("session_id", "{}"),
    ("x-codex-turn-metadata", '{{"session_id":"{}"}}'),
    ("x-session-affinity", "{}"),
    ("x-litellm-session-id", "{}"),
    ("x-litellm-trace-id", "{}"),
]
FREE = ("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
CLIENTS = {"session-id": "codex_exec", "session_id": "codex_exec", "x-codex-turn-metadata": "codex"}
BODIES = [
    {"session_id": "{}"},
    {"litellm_session_id": "{}"},
    {"metadata": {"session_id": "{}"}},
    {"metadata": {"user_id": "user_1_account__session_{}"}},
]


@pytest.fixture(scope="module")
def open_(tmp_path_factory):
    """A server that takes calls without keys."""
    with hostile.Stage(tmp_path_factory.mktemp("open")) as stage:
        yield stage()


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A server that takes calls with keys only."""
    with hostile.Stage(tmp_path_factory.mktemp("locked")) as stage:
        yield stage("--require-key")


def filled(value, name):
    """A body with the name in its place."""
    if isinstance(value, dict):
        return {key: filled(held, name) for key, held in value.items()}
    return value.format(name)


# Writing into another's episode.


def test_a_path_does_not_open_an_episode_that_has_a_key(open_):
    key, _ = keyed.mint(open_, "path")
    before = len(open_.upstream.calls())
    refused = keyed.call(open_, "path")
    assert refused.status == 401 and "carry its API key" in keyed.message(refused)
    assert len(open_.upstream.calls()) == before, "a refused call costs the upstream nothing"
    assert keyed.call(open_, key=key).status == 200
    assert keyed.call(open_, "path", key=key).status == 200
    assert len(keyed.recorded(open_, "path")) == 2, "a refused call leaves no trace"


@pytest.mark.parametrize("name, value", SESSIONS, ids=[name for name, _ in SESSIONS])
def test_a_session_header_does_not_open_an_episode_that_has_a_key(open_, name, value):
    episode = f"by-{name.replace('_', '.')}"
    keyed.mint(open_, episode)
    headers = [(name, value.format(episode)), ("originator", CLIENTS.get(name, "a"))]
    keyed.call(open_, headers=[*headers, keyed.bearer("sk-mine")])
    assert keyed.recorded(open_, episode) == []


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(BODIES.index(body)))
def test_a_field_of_the_body_does_not_open_an_episode_that_has_a_key(open_, body):
    episode = f"body-{BODIES.index(body)}"
    keyed.mint(open_, episode)
    is_claude = "user_id" in body.get("metadata", ())
    headers = [("user-agent", "claude-cli/2.0"), ("x-app", "cli")] if is_claude else []
    for path in (hostile.CHAT, "/v1/messages"):
        hostile.post(open_, path, hostile.BODY | filled(body, episode), headers=headers)
    assert keyed.recorded(open_, episode) == []


def test_another_attempt_of_an_episode_that_has_a_key_needs_one_too(open_):
    key, _ = keyed.mint(open_, "attempts", attempt=1)
    assert keyed.call(open_, "attempts", attempt=0).status == 401
    assert keyed.call(open_, "attempts", attempt=7).status == 401
    assert keyed.call(open_, "attempts", key=key, attempt=7).status == 400
    assert keyed.call(open_, key=key).status == 200
    attempts = {attempt for name, attempt in keyed.episodes(open_) if name == "attempts"}
    assert attempts == {1}, "no attempt was made by the others"


def test_a_key_locks_an_episode_whose_calls_are_under_way(open_):
    assert keyed.call(open_, "late").status == 200
    assert keyed.call(open_, "late").status == 200
    key, _ = keyed.mint(open_, "late")
    before = len(open_.upstream.calls())
    assert keyed.call(open_, "late").status == 401
    assert len(open_.upstream.calls()) == before
    assert keyed.call(open_, "late", key=key).status == 200


def test_a_key_of_one_episode_does_not_open_another(open_):
    keyed.mint(open_, "victim")
    key, _ = keyed.mint(open_, "attacker")
    assert keyed.call(open_, "victim", key=key).status == 400
    assert keyed.call(open_, key=key, headers=[("x-episode-id", "victim")]).status == 400
    assert keyed.recorded(open_, "victim") == []


def test_an_announced_episode_without_a_key_stays_open_by_its_tag(open_):
    assert keyed.announce(open_, "tagged", group_id="tagged-group") == 200
    assert keyed.call(open_, "tagged").status == 200
    assert len(keyed.recorded(open_, "tagged")) == 1


def test_a_conversation_that_is_repeated_under_a_key_joins_no_other_episode(open_):
    key, _ = keyed.mint(open_, "conversation")
    keyed.call(open_, key=key)
    said = [*hostile.BODY["messages"], hostile.REPLY["choices"][0]["message"]]
    body = hostile.BODY | {"messages": [*said, {"role": "user", "content": "more"}]}
    assert keyed.call(open_, body=body, headers=[keyed.bearer("rolltape")]).status == 200
    assert len(keyed.recorded(open_, "conversation")) == 1


# A server that requires keys.


@pytest.mark.parametrize(
    "path", [hostile.CHAT, "/v1/messages", "/v1/models", "/health", "/e/run/v1/models", "/metrics"]
)
def test_nothing_opens_without_a_key_where_keys_are_required(locked, path):
    before, known = len(locked.upstream.heard), keyed.episodes(locked)
    for headers in ([], [keyed.bearer("sk-mine")], [("x-session-id", "run")]):
        for send in (hostile.post, hostile.get):
            refused = send(locked, path, headers=headers)
            assert refused.status == 401, f"{path}: {refused.first_line}"
            assert "API key" in keyed.message(refused)
        assert len(locked.upstream.heard) == before
    assert keyed.episodes(locked) == known


def test_a_key_opens_a_server_that_requires_one(locked):
    key, _ = keyed.mint(locked, "mine")
    assert keyed.call(locked, key=key).status == 200
    assert hostile.get(locked, "/v1/models", [keyed.bearer(key)]).status == 200


def test_a_call_without_a_key_is_refused_before_its_body_is_sent(locked):
    head = http1.request("POST", hostile.CHAT, b"", [("content-length", "100000000")])
    assert http1.exchange(locked.data, head, timeout=10).status == 401


def test_a_forged_key_opens_nothing(locked):
    key, _ = keyed.mint(locked, "forged")
    claim, signature = key[3:].split(".")
    other = base64.urlsafe_b64encode(b"other 0 9999999999999999").decode().rstrip("=")
    forged = [f"rt-{other}.{signature}", f"rt-{claim}.{signature[:-2]}", f"rt-{claim}.", "rt-."]
    for bad in forged:
        assert keyed.call(locked, key=bad).status == 401, bad
    assert keyed.call(locked, "forged").status == 401


# Where a key goes.

PLACES = {
    "Bearer": lambda key: [("authorization", f"Bearer {key}")],
    "Bearer with a tab": lambda key: [("authorization", f"Bearer\t{key}")],
    "another scheme": lambda key: [("authorization", f"Token {key}")],
    "Basic": lambda key: [("authorization", "Basic " + keyed.spellings(key)[3])],
    "x-api-key": lambda key: [("x-api-key", key)],
    "api-key": lambda key: [("api-key", key)],
    "x-goog-api-key": lambda key: [("x-goog-api-key", key)],
    "a subprotocol": lambda key: [
        ("sec-websocket-protocol", f"realtime, openai-insecure-api-key.{key}, openai-beta.v1")
    ],
}


@pytest.mark.parametrize("place", PLACES)
def test_a_key_in_a_place_for_keys_names_its_episode_and_goes_no_further(open_, place):
    episode = "in-" + place.replace(" ", "-")
    key, _ = keyed.mint(open_, episode)
    assert keyed.call(open_, headers=PLACES[place](key)).status == 200
    assert len(keyed.recorded(open_, episode)) == 1
    keyed.assert_unseen(open_, key)


def test_a_subprotocol_that_is_no_key_goes_on(open_):
    key, _ = keyed.mint(open_, "protocols")
    offered = f"realtime, openai-insecure-api-key.{key}, openai-beta.v1"
    assert keyed.call(open_, headers=[("sec-websocket-protocol", offered)]).status == 200
    sent = open_.upstream.calls()[-1].header("sec-websocket-protocol")
    assert sent == "realtime, openai-beta.v1"


@pytest.mark.parametrize("name", ["api_key", "key", "api-key", "access_token", "KEY"])
def test_a_key_in_the_query_names_its_episode_and_goes_no_further(open_, name):
    key, _ = keyed.mint(open_, f"query-{name}")
    assert hostile.post(open_, f"{hostile.CHAT}?a=1&{name}={key}&b").status == 200
    (call,) = keyed.recorded(open_, f"query-{name}")
    assert call["path"] == f"{hostile.CHAT}?a=1&b"
    keyed.assert_unseen(open_, key)


def test_a_key_in_a_cookie_never_reaches_the_upstream(open_):
    key, _ = keyed.mint(open_, "cookie")
    cookies = f"a=1; token={key}; b=2"
    assert keyed.call(open_, "of-cookie", headers=[("cookie", cookies)]).status == 200
    assert open_.upstream.calls()[-1].header("cookie") == "a=1; b=2"
    keyed.assert_unseen(open_, key)


@pytest.mark.parametrize(
    "name, value",
    [
        ("x-forwarded-authorization", "Bearer {}"),
        ("referer", "http://h/?token={}"),
        ("user-agent", "agent ({})"),
        ("x-session-id", "{}"),
        ("openai-organization", "{}"),
        ("openai-organization", "org.x{}y"),
    ],
)
def test_a_key_in_any_other_header_never_reaches_the_upstream_nor_the_store(open_, name, value):
    key, _ = keyed.mint(open_, "other-header")
    for spelled in keyed.spellings(key)[:3]:
        assert keyed.call(open_, "of-header", headers=[(name, value.format(spelled))]).status == 200
    keyed.assert_unseen(open_, key)


def test_a_key_in_the_path_is_refused_and_not_stored(open_):
    key, _ = keyed.mint(open_, "in-path")
    for spelled in keyed.spellings(key)[:3]:
        for before in ("", "x", "a.", "rt-"):
            assert hostile.get(open_, f"/v1/models/{before}{spelled}").status in (400, 403)
        assert hostile.get(open_, f"/elsewhere/x{spelled}").status in (400, 403)
    keyed.assert_unseen(open_, key)
    assert key not in open_.process.stderr


def test_what_is_no_key_passes(open_):
    headers = [
        ("authorization", "Bearer sk-proj-start-1"),
        ("x-jwt", f"eyJhbGciOi.eyJzdWIrt-{'a' * 20}.{'b' * 43}"),
        ("cookie", "rt-a=1; b=rt-2"),
    ]
    keyed.call(open_, "no-key", headers=headers)
    sent = open_.upstream.calls()[-1]
    assert [sent.header(name) for name, _ in headers] == [value for _, value in headers]


# How a key ends.


def test_a_revoked_key_opens_nothing(open_):
    key, key_id = keyed.mint(open_, "revoked")
    other, _ = keyed.mint(open_, "revoked", ttl_s=3600)
    assert keyed.call(open_, key=key).status == 200
    revoke = control.post(open_, "/episodes/revoked/keys/revoke", {"key_id": key_id})
    assert revoke[0] == 200
    before = len(open_.upstream.calls())
    refused = keyed.call(open_, key=key)
    assert refused.status == 401 and "revoked" in keyed.message(refused)
    assert len(open_.upstream.calls()) == before
    assert keyed.call(open_, key=other).status == 200, "other keys of the episode hold"


def test_all_keys_of_an_attempt_are_revoked_at_once_and_it_stays_locked(open_):
    keys = [keyed.mint(open_, "all", ttl_s=ttl)[0] for ttl in (60, 3600)]
    assert control.post(open_, "/episodes/all/keys/revoke", {})[0] == 200
    assert [keyed.call(open_, key=key).status for key in keys] == [401, 401]
    assert keyed.call(open_, "all").status == 401
    fresh, _ = keyed.mint(open_, "all")
    assert keyed.call(open_, key=fresh).status == 200


def test_a_key_that_does_not_exist_cannot_be_revoked(open_):
    keyed.mint(open_, "known")
    assert control.post(open_, "/episodes/known/keys/revoke", {"key_id": "f" * 16})[0] == 404
    assert control.post(open_, "/episodes/unknown/keys/revoke", {})[0] == 404


def test_an_agent_reaches_no_route_for_keys(open_):
    keyed.mint(open_, "routes")
    for path in ("/episodes/routes/key", "/episodes/routes/keys/revoke", "/keys/rotate"):
        assert b"api_key" not in hostile.post(open_, path, {}).body
    keys = "SELECT revoked_at FROM api_key JOIN episode USING (episode_key) WHERE episode_id = ?"
    assert hostile.rows(open_, keys, "routes") == [{"revoked_at": None}]


def test_keys_of_an_earlier_secret_end_at_a_rotation(serve):
    proxy = serve()
    old, _ = keyed.mint(proxy, "old")
    kept, _ = keyed.mint(proxy, "kept")
    assert control.post(proxy, "/keys/rotate", {"old_keys_s": 3600})[0] == 200
    assert keyed.call(proxy, key=kept).status == 200, "they hold for the time given"
    assert control.post(proxy, "/keys/rotate", {})[0] == 200
    assert keyed.call(proxy, key=old).status == 401
    new, _ = keyed.mint(proxy, "old")
    assert keyed.call(proxy, key=new).status == 200


# Where the secret is.


def test_the_secret_that_signs_keys_is_in_no_file_of_the_store(serve, tmp_path):
    proxy = serve()
    key, _ = keyed.mint(proxy, "a")
    assert keyed.call(proxy, key=key).status == 200
    secrets = tmp_path / "recorded.db-keys"
    assert stat.S_IMODE(os.stat(secrets).st_mode) == 0o600
    text = secrets.read_text().split()[0]
    secret = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for name, held in keyed.kept(proxy).items():
        if name != secrets.name:
            assert secret not in held and text.encode() not in held, name
    rows = hostile.rows(proxy, "SELECT name FROM setting WHERE name = 'key'")
    assert rows == []


def test_a_copy_of_the_store_does_not_contain_the_secret(serve, tmp_path):
    proxy = serve()
    keyed.mint(proxy, "a")
    copy = tmp_path / "copy.db"
    proxy.command("backup", "--to", copy)
    text = (tmp_path / "recorded.db-keys").read_text().split()[0]
    assert base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) not in copy.read_bytes()
    assert not (tmp_path / "copy.db-keys").exists()


def test_the_secret_of_an_older_store_is_moved_out_and_its_keys_hold(serve, tmp_path):
    first = serve()
    key, _ = keyed.mint(first, "before")
    assert keyed.call(first, key=key).status == 200
    first.process.stop()
    text = (tmp_path / "recorded.db-keys").read_text().split()[0]
    secret = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    (tmp_path / "recorded.db-keys").unlink()
    with sqlite3.connect(tmp_path / "recorded.db") as store:
        store.execute("INSERT INTO setting (name, value) VALUES ('key', ?)", (secret,))
    store.close()
    assert secret in (tmp_path / "recorded.db").read_bytes()

    with harness.serve(tmp_path, "--upstream", first.upstream.url) as second:
        assert keyed.call(second, key=key).status == 200
        assert hostile.rows(second, "SELECT 1 FROM setting WHERE name = 'key'") == []
    for file in tmp_path.glob("recorded.db*"):
        assert secret not in file.read_bytes(), file.name
    assert (tmp_path / "recorded.db-keys").read_text().split()[0] == text


def test_a_file_of_secrets_that_others_can_read_is_not_used(serve, tmp_path):
    secrets = tmp_path / "shared"
    secrets.write_text(base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=") + "\n")
    secrets.chmod(0o644)
    where = ("--upstream", "http://127.0.0.1:9", "--store", tmp_path / "a.db")
    ended = harness.command(
        "serve", *where, *FREE, "--signing-key-file", secrets, folder=tmp_path
    )
    assert ended.returncode == 1 and "0644" in ended.stderr, ended.stderr


def test_a_link_in_place_of_the_secrets_is_neither_followed_nor_replaced(tmp_path):
    target = tmp_path / "target"
    (tmp_path / "a.db-keys").symlink_to(target)
    where = ("--upstream", "http://127.0.0.1:9", "--store", tmp_path / "a.db")
    ended = harness.command("serve", *where, *FREE, folder=tmp_path)
    assert ended.returncode == 1 and "link" in ended.stderr, ended.stderr
    assert not target.exists()


def test_servers_of_one_database_that_share_a_file_take_each_others_keys(tmp_path):
    options = ("--control-open", "--signing-key-file", tmp_path / "shared-keys")
    with relay.postgres() as address:
        url = relay.new_database(address)
        with (
            relay.recording(tmp_path, url, *options) as first,
            relay.recording(tmp_path, url, *options, "--require-key") as second,
        ):
            key, _ = keyed.mint(first, "a")
            assert keyed.call(second, key=key).status == 200
            assert control.post(first, "/keys/rotate", {})[0] == 200
            harness.until("the key ends there", lambda: keyed.call(second, key=key).status == 401)


def test_a_key_of_another_store_opens_nothing(serve, tmp_path):
    shared = ("--signing-key-file", tmp_path / "shared-keys")
    first = serve(*shared)
    other = tmp_path / "other"
    other.mkdir()
    with harness.serve(other, "--upstream", first.upstream.url, *shared) as second:
        key, _ = keyed.mint(first, "a")
        refused = keyed.call(second, key=key)
        assert (refused.status, "revoked" in keyed.message(refused)) == (401, True)
