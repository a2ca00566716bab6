"""The control listener: who may ask, by which name, from which page, with which method."""

import json
import os
import re
import stat
import time
from contextlib import ExitStack, contextmanager

import pytest

import costs
import harness
import hostile
import http1
import lines
from knocking import JSON, bearer, bytes_of, http2, knock

REWARD = {"value": 1.0}
NAMED = "rolltape.example"
LATE_S = 0.9
CROWD = 300
DESCRIPTORS_MIN = 8 * 2 * (CROWD + 20)
"""The control listener has half of an eighth of the file descriptors."""
TRIES_MAX = 10
FREE = {"--listen": "127.0.0.1:0", "--control": "127.0.0.1:0"}
NOWHERE = ("--upstream", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A proxy with one episode, `a`, which every attack wants to reward."""
    with hostile.Stage(tmp_path_factory.mktemp("control")) as stage:
        proxy = stage("--control-host", NAMED)
        assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
        yield proxy


@pytest.fixture
def unharmed(proxy):
    """The upstream hears nothing on a control route, and nothing is rewarded or leased."""
    proxy.upstream.heard.clear()
    yield proxy
    heard = [request.path for request in proxy.upstream.heard]
    assert [path for path in heard if path not in ("/v1/models", hostile.CHAT)] == []
    assert hostile.rows(proxy, "SELECT * FROM rewards") == []
    assert hostile.rows(proxy, "SELECT * FROM consumer") == []


def reward(proxy, headers=(JSON,), body=REWARD, **options):
    """Tries to reward; gives the status."""
    return knock(proxy, "POST", "/episodes/a/rewards", body, headers, **options).status


def refused(reason):
    """The metric of refused requests."""
    return f'rolltape_control_refused_total{{reason="{reason}"}}'


# The token


def test_a_process_without_the_token_cannot_reward(unharmed):
    assert reward(unharmed, token=None) == 401


@pytest.mark.parametrize("action", ["key", "close", "rewards"])
def test_a_process_without_the_token_can_do_nothing_to_an_episode(unharmed, action):
    assert knock(unharmed, "POST", f"/episodes/a/{action}", {}, [JSON], token=None).status == 401


def test_no_route_but_health_answers_without_the_token(unharmed):
    document = json.loads(knock(unharmed, "GET", "/openapi.json").body)
    asked = 0
    for path, methods in document["paths"].items():
        for method in methods:
            path = re.sub(r"\{\w+\}", "a", path)
            status = knock(unharmed, method.upper(), path, token=None).status
            assert status == (200 if path == "/health" else 401), (method, path)
            asked += 1
    assert asked > 60


def test_the_read_token_opens_what_only_reads_and_nothing_else(unharmed):
    told = knock(unharmed, "GET", "/read-token").body
    token = json.loads(told)["read_token"]
    assert token not in unharmed.process.stderr and token != unharmed.token
    document = json.loads(knock(unharmed, "GET", "/openapi.json", token=token).body)
    refused = set()
    for path, methods in document["paths"].items():
        for method in methods:
            name = f"{method.upper()} {path}"
            path_of_a = re.sub(r"\{\w+\}", "a", path)
            if path == "/events":
                continue
            headers = [JSON] if method == "post" else []
            status = knock(unharmed, method.upper(), path_of_a, {}, headers, token=token).status
            assert status == 403 or method == "get", name
            if status == 403:
                refused.add(name)
    assert {"GET /ready", "GET /upstreams", "GET /v1/models", "GET /server_info"} <= refused
    assert not refused & {"GET /episodes", "GET /calls/{id}/request", "GET /metrics", "GET /search"}
    spelled = ("/%70ause", "//pause", "/v1/../pause", "/episodes/a/close/", "//feed")
    assert {knock(unharmed, "POST", path, {}, [JSON], token=token).status for path in spelled} == {403}


def test_a_new_token_ends_the_read_token_of_the_old_one(tmp_path):
    tokens = []
    for _ in range(2):
        with harness.serve(tmp_path, *NOWHERE) as proxy:
            tokens.append(json.loads(knock(proxy, "GET", "/read-token").body)["read_token"])
            old = knock(proxy, "GET", "/episodes", token=tokens[0]).status
            assert old == (200 if len(tokens) == 1 else 401)
        harness.token_file(proxy.store).unlink()
    assert tokens[0] != tokens[1]


def test_paths_and_methods_are_not_told_without_the_token(unharmed):
    for method, path in [("GET", "/nothing"), ("GET", "/episodes"), ("PUT", "/pause")]:
        assert knock(unharmed, method, path, token=None).status == 401


@pytest.mark.parametrize("how", ["query", "cookie", "x-api-key", "api-key", "proxy-authorization"])
def test_the_token_counts_in_its_own_header_only(unharmed, how):
    path = "/versions" + (f"?token={unharmed.token}" if how == "query" else "")
    value = f"Bearer {unharmed.token}" if how == "proxy-authorization" else unharmed.token
    headers = [] if how == "query" else [(how, value)]
    assert knock(unharmed, "GET", path, headers=headers, token=None).status == 401


def test_what_is_nearly_the_token_is_not_it(unharmed):
    token = unharmed.token
    near = [token[:-1], token + "x", token.swapcase(), token[::-1], f"{token} {token}", "", "*"]
    spelled = [bearer(one)[1] for one in near] + [token, f"Basic {token}", f"Bearer\t{token}x"]

    def ask(number):
        headers = [("authorization", spelled[number])]
        return knock(unharmed, "GET", "/versions", headers=headers, token=None).status

    assert set(costs.at_once(len(spelled), ask)) == {401}


def test_the_token_is_asked_for_over_http2_as_well(unharmed):
    told = http2(unharmed, "GET", "/versions")
    assert told["error"]["code"] == 401
    headers = [JSON, ("content-length", "12")]
    told = http2(unharmed, "POST", "/episodes/a/rewards", headers, body=b'{"value":1 }')
    assert told["error"]["code"] == 401
    assert "versions" in http2(unharmed, "GET", "/versions", [bearer(unharmed.token)])


def test_a_wrong_token_is_answered_late_counted_and_logged(serve):
    proxy = serve()
    began = time.monotonic()
    assert knock(proxy, "GET", "/versions", token="a-guess-of-some-length").status == 401
    assert time.monotonic() - began > LATE_S
    assert lines.metric(proxy, refused("wrong_token")) == 1
    logged = 'refused at the control listener reason="wrong_token" refused=1'
    harness.until("the log", lambda: logged in proxy.process.stderr)


def test_a_missing_token_is_counted(proxy):
    before = lines.metric(proxy, refused("no_token"))
    assert knock(proxy, "GET", "/versions", token=None).status == 401
    assert lines.metric(proxy, refused("no_token")) == before + 1


def test_a_crowd_that_guesses_holds_up_neither_a_trainer_nor_health(serve):
    proxy = serve()
    # A machine may be too slow to do it all before the first guess is answered.
    assert any(is_served_beside_guesses(proxy) for _ in range(TRIES_MAX))


def is_served_beside_guesses(proxy):
    """Whether a trainer and health were answered after a crowd of guesses, and it was not yet."""
    guess = [("host", "localhost"), bearer("a-guess-of-some-length"), JSON]
    sent = bytes_of("POST", "/episodes/a/rewards", guess, b"{}")
    all_guesses = lines.metric(proxy, refused("wrong_token")) + CROWD
    with crowd(proxy, sent) as held:
        harness.until("all", lambda: lines.metric(proxy, refused("wrong_token")) == all_guesses)
        assert knock(proxy, "GET", "/health", token=None).status == 200
        is_served = not any(map(lines.is_answered, held))
        # The next try must not meet what is left of this one.
        return is_served or not all(map(lines.to_end, held))


@contextmanager
def crowd(proxy, sent):
    """Many connections to the control listener that say the same at the same time."""
    assert harness.raise_descriptors() >= DESCRIPTORS_MIN, "`ulimit -Hn` is too low"
    with ExitStack() as held:
        several = [held.enter_context(lines.connect(proxy.control)) for _ in range(CROWD)]
        for line in several:
            line.sendall(sent)
        yield several


@pytest.mark.parametrize("has_token", [False, True])
def test_a_crowd_of_unfinished_bodies_holds_up_nobody(serve, has_token):
    proxy = serve()
    headers = [("host", "localhost"), JSON, ("content-length", "100"), ("expect", "100-continue")]
    headers += [bearer(proxy.token)] if has_token else []
    said = b" 100 Continue" if has_token else b" 401 Unauthorized"
    with crowd(proxy, bytes_of("POST", "/episodes", headers) + b"{") as held:
        # Who has the token is told that its body is read.
        assert all(said in line.recv(1 << 16) for line in held)
        assert knock(proxy, "GET", "/versions").status == 200
        assert knock(proxy, "POST", "/episodes", {"episode_id": "b"}, [JSON]).status == 200
        assert knock(proxy, "GET", "/health", token=None).status == 200
        assert not (has_token and any(map(lines.is_answered, held)))


def test_the_token_goes_no_further_than_this_listener(proxy):
    proxy.upstream.heard.clear()
    assert knock(proxy, "POST", "/pause?mode=keep").status == 200
    (request,) = [one for one in proxy.upstream.heard if one.path.startswith("/pause")]
    assert proxy.token not in str(request.headers)


# Its file


def test_the_token_lies_beside_the_store_and_only_its_owner_can_read_it(proxy):
    about = os.lstat(harness.token_file(proxy.store))
    assert stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) == 0o600
    assert about.st_uid == os.geteuid()
    assert len(proxy.token) == 43 and len(set(proxy.token)) > 16


def test_two_servers_have_different_tokens_and_each_takes_its_own_only(serve, proxy):
    other = serve()
    assert other.token != proxy.token
    assert knock(other, "GET", "/versions", token=proxy.token).status == 401


def test_the_mode_of_the_token_file_does_not_depend_on_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with harness.serve(tmp_path, *NOWHERE) as proxy:
            mode = os.stat(harness.token_file(proxy.store)).st_mode
    finally:
        os.umask(before)
    assert stat.S_IMODE(mode) == 0o600


def test_the_token_is_kept_over_a_restart(tmp_path):
    tokens = set()
    for _ in range(2):
        with harness.serve(tmp_path, *NOWHERE) as proxy:
            tokens.add(proxy.token)
            assert knock(proxy, "GET", "/versions").status == 200
    assert len(tokens) == 1


def start(folder, *options, **environment):
    """Starts a server that must not start; gives what it says."""
    free = [word for pair in FREE.items() if pair[0] not in options for word in pair]
    env = harness.environment(**environment)
    words = ("serve", *NOWHERE, *free, "--store", "a.db", *options)
    ended = harness.command(*words, folder=folder, env=env)
    assert ended.returncode == 1, "it started, or its options are unknown"
    assert "listening on" not in ended.stderr
    return ended.stderr


def test_a_link_in_the_place_of_the_token_file_is_not_followed(tmp_path):
    target = tmp_path / "target"
    (tmp_path / "a.db-token").symlink_to(target)
    assert "is a link" in start(tmp_path)
    assert not target.exists()
    target.write_text("chosen-by-somebody-else\n")
    target.chmod(0o600)
    assert "is a link" in start(tmp_path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o606])
def test_a_token_file_that_others_could_read_or_write_is_refused(tmp_path, mode):
    file = tmp_path / "a.db-token"
    file.write_text("chosen-by-somebody-else\n")
    file.chmod(mode)
    assert "others can read or write it" in start(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_file_of_another_user_is_refused(tmp_path):
    file = tmp_path / "a.db-token"
    file.write_text("chosen-by-somebody-else\n")
    file.chmod(0o600)
    os.chown(file, 4711, 4711)
    assert "belongs to another user" in start(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "empty", "short"])
def test_what_is_no_token_file_is_refused(tmp_path, kind):
    file = tmp_path / "a.db-token"
    if kind == "pipe":
        os.mkfifo(file, 0o600)
    elif kind == "folder":
        file.mkdir(0o700)
    else:
        file.touch(0o600)
        file.write_text("" if kind == "empty" else "guessed\n")
    assert "a.db-token" in start(tmp_path)


GUESSABLE = ["", " ", " " * 20, "short", "fifteen-letters", "two words of it "]


@pytest.mark.parametrize("token", GUESSABLE)
def test_a_token_that_can_be_guessed_is_refused(tmp_path, token):
    said = start(tmp_path, "--control-token-env", "MINE", MINE=token)
    assert "`MINE`" in said and "token" in said
    said = start(tmp_path, ROLLTAPE_CONTROL_TOKEN=token)
    assert "`ROLLTAPE_CONTROL_TOKEN`" in said and "token" in said
    assert not (tmp_path / "a.db").exists(), "nothing is touched before"


def test_the_token_is_in_no_log_no_record_and_no_command_line(serve):
    proxy = serve(env=harness.environment(ROLLTAPE_LOG="trace"))
    assert knock(proxy, "POST", "/episodes", {"episode_id": "a"}, [JSON]).status == 200
    assert knock(proxy, "POST", "/pause").status == 200
    assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
    token = proxy.token.encode()
    assert token not in proxy.process.stderr.encode()
    for file in proxy.folder.glob("recorded.db*"):
        assert file == harness.token_file(proxy.store) or token not in file.read_bytes()
    with open(f"/proc/{proxy.process.child.pid}/cmdline", "rb") as line:
        assert token not in line.read()


# Names and pages

FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8081",
    "localhost.evil.example",
    f"{NAMED}.evil.example",
    f"x.{NAMED}",
    "127.0.0.1.evil.example",
    "evil.example@127.0.0.1",
    "127.0.0.1@evil.example",
    "192.0.2.1",
    "0.0.0.0",
    "2130706433",
    "127.1",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_name_that_was_rebound_to_loopback_is_refused(unharmed, host):
    assert reward(unharmed, host=host) == 403
    assert knock(unharmed, "POST", "/feed?consumer=x", host=host).status == 403


def test_a_second_name_a_target_s_name_and_no_name_count_as_well(unharmed):
    path = "/episodes/a/rewards"
    evil, own = ("host", "evil.example"), ("host", "127.0.0.1")
    headers = [bearer(unharmed.token), JSON]

    def ask(target, names, version="1.1"):
        sent = bytes_of("POST", target, [*names, *headers], b'{"value":1}', version)
        return http1.exchange(unharmed.control, sent).status

    assert ask(path, [own, evil]) == 403
    assert ask(path, [evil, own]) == 403
    assert ask(f"http://evil.example{path}", [own]) == 403
    assert ask(f"http://127.0.0.1{path}", [evil]) == 403
    assert ask(path, [], "1.0") == 403
    told = http2(unharmed, "GET", "/versions", [bearer(unharmed.token)], "evil.example")
    assert told["error"]["code"] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:1", "[::1]:80", NAMED])
def test_own_names_with_any_port_open_the_listener(proxy, host):
    assert knock(proxy, "GET", "/versions", host=host).status == 200


FOREIGN_ORIGINS = [
    "http://evil.example",
    "https://evil.example",
    "null",
    "http://127.0.0.1",
    "http://127.0.0.1:3000",
    "http://localhost:8081",
    "http://127.0.0.1:8081.evil.example",
    "file://",
    "chrome-extension://abc",
]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_of_another_origin_cannot_reward_even_with_the_token(unharmed, origin):
    headers = [JSON, ("origin", origin)]
    assert reward(unharmed, headers, host="127.0.0.1:8081") == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "unheard-of"])
def test_an_image_of_another_site_asks_for_nothing(unharmed, site):
    for method, path in [("GET", "/feed?consumer=x"), ("GET", "/versions"), ("POST", "/pause")]:
        headers = [("sec-fetch-site", site), ("sec-fetch-dest", "image")]
        assert knock(unharmed, method, path, headers=headers).status == 403


def test_a_page_of_the_listener_s_own_origin_may_ask(proxy):
    headers = [("origin", "http://127.0.0.1:8081"), ("sec-fetch-site", "same-origin")]
    reply = knock(proxy, "GET", "/versions", headers=headers, host="127.0.0.1:8081")
    assert reply.status == 200


def test_no_other_origin_is_ever_allowed_to_read_a_reply(unharmed):
    for origin in ("http://evil.example", "null"):
        for method in ("OPTIONS", "GET"):
            headers = [("origin", origin), ("access-control-request-method", "POST")]
            for path in ("/episodes/a/rewards", "/pause", "/metrics", "/health"):
                reply = knock(unharmed, method, path, headers=headers)
                assert reply.header("access-control-allow-origin") is None


SIMPLE_TYPES = [
    None,
    "text/plain",
    "text/plain;charset=UTF-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/json",
    "application/jsonx",
    "text/plain; application/json",
    "",
]


@pytest.mark.parametrize("kind", SIMPLE_TYPES)
def test_a_body_that_a_page_can_send_unasked_is_not_read_as_json(unharmed, kind):
    assert reward(unharmed, [] if kind is None else [("content-type", kind)]) == 415


def test_two_content_types_are_not_json(unharmed):
    assert reward(unharmed, [JSON, ("content-type", "text/plain")]) == 415


def test_json_may_name_its_charset_and_an_empty_body_needs_no_type(proxy):
    headers = [("content-type", "application/json; charset=utf-8")]
    told = {"episode_id": "typed"}
    assert knock(proxy, "POST", "/episodes", told, headers).status == 200
    assert knock(proxy, "POST", "/episodes/typed/close").status == 200


# Methods


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "post"])
def test_the_feed_leases_by_post_only(unharmed, method):
    reply = knock(unharmed, method, "/feed?consumer=x&lease_s=86400")
    assert reply.status == 405 and reply.header("allow") == "POST"


def test_the_feed_does_lease_by_post(serve):
    proxy = serve()
    assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
    assert knock(proxy, "POST", "/episodes/a/close").status == 200
    assert knock(proxy, "POST", "/feed?consumer=x", {"limit": 1}, [JSON]).status == 400
    assert knock(proxy, "POST", "/feed?consumer=x&wait_s=5").status in (200, 204)
    assert hostile.rows(proxy, "SELECT * FROM consumer") != []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH"])
def test_a_get_changes_nothing_at_the_upstream(unharmed, method):
    for path in (
        "/flush_cache",
        "/release_memory_occupation",
        "/start_profile",
        "/pause?mode=keep",
        "/v1/load_lora_adapter",
        "//flush_cache/",
        "/x/../flush_cache",
        "/%66lush_cache",
        "/inference/v1/sleep",
        "/areal_update_weights",
    ):
        reply = knock(unharmed, method, path)
        assert reply.status == 405 and reply.header("allow") == "POST", path


def test_a_method_header_does_not_stand_for_a_method(unharmed):
    for name in ("x-http-method-override", "x-method-override", "x-http-method"):
        assert knock(unharmed, "GET", "/flush_cache", headers=[(name, "POST")]).status == 405


# Values that others read

SPLIT = "\r\nx-split: 1\r\n\r\nsplit"
ESCAPED = "%0d%0ax-split:%201%0d%0a%0d%0asplit"
SPLITTING = {
    "a version": ("/version", {"version": f"v1{SPLIT}"}, 200),
    "a checksum": ("/version", {"version": "v1", "checksum": SPLIT}, 200),
    "an id": ("/episodes", {"episode_id": f"b{SPLIT}"}, 400),
    "a group": ("/episodes", {"episode_id": "b", "group_id": f"g{SPLIT}"}, 400),
    "the name of a label": ("/episodes", {"episode_id": "b", "labels": {SPLIT: "1"}}, 200),
    "a label": ("/episodes", {"episode_id": "b", "labels": {"a": SPLIT}}, 200),
    "a sampling parameter": ("/episodes", {"episode_id": "b", "force_sampling": SPLIT}, 400),
    "a consumer": (f"/feed?consumer=c{ESCAPED}", b"", 400),
    "a lease": (f"/feed/leases/a{ESCAPED}/ack", b"", 409),
    "an episode": (f"/episodes/a{ESCAPED}/key", b"", 400),
    "a query for the upstream": (f"/pause?mode=keep{ESCAPED}", b"", 200),
    "a path for the upstream": (f"/areal_x{ESCAPED}", b"", 200),
    "a raw query": (f"/pause?mode=keep{SPLIT}", b"", 400),
    "a raw query with line feeds": ("/pause?mode=keep\nx-split: 1\n\n", b"", 400),
    "a raw consumer": (f"/feed?consumer=c{SPLIT}", b"", 400),
}


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A proxy with one closed episode, `a`."""
    with hostile.Stage(tmp_path_factory.mktemp("closed")) as stage:
        proxy = stage()
        assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
        assert knock(proxy, "POST", "/episodes/a/close").status == 200
        yield proxy


def is_split(message):
    """Whether a value became a header of its own, or the end of the headers."""
    return message.header("x-split") is not None or message.body.startswith(b"split")


@pytest.mark.parametrize("name", SPLITTING)
def test_no_value_becomes_a_header_of_a_reply_or_of_a_request_to_the_upstream(closed, name):
    path, body, status = SPLITTING[name]
    before = len(closed.upstream.heard)
    reply = knock(closed, "POST", path, body, [JSON] if body else [])
    assert reply.status == status and not is_split(reply), reply
    heard = closed.upstream.heard[before:]
    assert [request.path for request in heard] == ([path] if "upstream" in name else [])
    assert not any(is_split(request) for request in heard)
    rows = knock(closed, "POST", "/feed?wait_s=5")
    pages = [knock(closed, "GET", page) for page in ("/versions", "/metrics", "/episodes/a")]
    assert rows.status == 200 and not any(is_split(page) for page in [rows, *pages])
    assert b"\nx-split" not in b"".join(page.body for page in pages), "no page has such a line"


def forged(lease):
    """What somebody who does not know a lease could send for one."""
    near = format(int(lease, 16) ^ 1, "032x")
    spelled = ["0" * 32, near, lease.upper(), lease[:-1], lease + "0", "t", "a", "1", "null"]
    return [*spelled, "%25", "*", "_" * 32, "..%2f" + lease, "'%20or%20'1'='1", lease + "%00"]


@pytest.mark.parametrize("action", ["ack", "nack", "renew"])
def test_a_lease_that_is_not_known_is_not_ended_by_a_guess(serve, action):
    proxy = serve()
    assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
    assert knock(proxy, "POST", "/episodes/a/close").status == 200
    lease = knock(proxy, "POST", "/feed?consumer=t&wait_s=5").header("x-rolltape-lease")
    before = hostile.rows(proxy, "SELECT * FROM delivery")
    for guess in forged(lease):
        for body in (b"", {"episodes": [{"episode_id": "a"}]}):
            told = knock(proxy, "POST", f"/feed/leases/{guess}/{action}", body, [JSON])
            assert told.status in (400, 404, 409), guess
    assert hostile.rows(proxy, "SELECT * FROM delivery") == before
    assert knock(proxy, "POST", "/feed?consumer=t").status == 204, "it is still handed out"
    assert knock(proxy, "POST", f"/feed/leases/{lease}/{action}").status == 200
    assert hostile.rows(proxy, "SELECT * FROM delivery") != before


# The start


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:127.0.0.1]:0"])
def test_an_open_control_listener_stays_on_loopback(tmp_path, address):
    said = start(tmp_path, "--control", address, "--control-open")
    assert "beyond loopback" in said and "--control-open" in said


def test_a_token_and_an_open_listener_contradict_each_other(tmp_path):
    said = start(tmp_path, "--control-open", "--control-token-env", "MINE", MINE="x" * 20)
    assert "--control-open" in said


def test_an_open_listener_still_asks_for_its_name_and_its_own_pages(serve):
    proxy = serve("--control-open")
    assert not harness.token_file(proxy.store).exists()
    assert knock(proxy, "GET", "/versions").status == 200
    assert knock(proxy, "GET", "/versions", host="evil.example").status == 403
    origin = [("origin", "http://evil.example")]
    assert knock(proxy, "GET", "/versions", headers=origin).status == 403
    assert "--control-open" in proxy.process.stderr


def test_beyond_loopback_the_token_and_the_name_are_asked_for(tmp_path):
    ((_, port),) = harness.free_addresses(1)
    store = tmp_path / "a.db"
    where = ("--listen", "127.0.0.1:0", "--control", f"0.0.0.0:{port}", "--store", store)
    process = harness.Process("serve", *NOWHERE, *where, folder=tmp_path)
    try:
        process.await_answer(f"http://127.0.0.1:{port}/health")
        at = harness.Proxy(None, ("127.0.0.1", port), store, tmp_path, process)
        own = harness.token_file(store).read_text().strip()
        assert knock(at, "GET", "/versions", token=None).status == 401
        assert knock(at, "GET", "/versions", token=own).status == 200
        assert knock(at, "GET", "/versions", token=own, host="evil.example").status == 403
        process.end_well()
    finally:
        process.kill()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
@pytest.mark.parametrize("place", ["env", "file"])
def test_the_operator_s_key_is_not_for_everybody(tmp_path, address, place):
    file = tmp_path / "key"
    file.write_text("sk-operator")
    file.chmod(0o600)
    named = {"env": "UPSTREAM", "file": file}[place]
    key = (f"--upstream-key-{place}", named)
    said = start(tmp_path, "--listen", address, *key, UPSTREAM="sk-operator")
    assert "--require-key" in said and "--allow-open-relay" in said
    assert "sk-operator" not in said


def test_an_open_relay_is_said_by_its_name(tmp_path):
    ((_, port),) = harness.free_addresses(1)
    options = ("--listen", "0.0.0.0:0", "--upstream-key-env", "UPSTREAM", "--allow-open-relay")
    where = ("--control", f"127.0.0.1:{port}", "--store", tmp_path / "a.db")
    env = harness.environment(UPSTREAM="sk-operator")
    process = harness.Process("serve", *NOWHERE, *options, *where, folder=tmp_path, env=env)
    try:
        process.await_answer(f"http://127.0.0.1:{port}/health")
        process.end_well()
    finally:
        process.kill()


# Clients


def feed(proxy, *options, **environment):
    """`rolltape feed` in a folder where no store is, unless told."""
    folder = proxy.folder / "elsewhere"
    folder.mkdir(exist_ok=True)
    where = ("--control", harness.text(proxy.control))
    env = harness.environment(**environment)
    return harness.command("feed", *where, *options, folder=folder, env=env)


def test_a_client_finds_the_token_where_the_server_put_it(proxy):
    file = harness.token_file(proxy.store)
    for options, environment in [
        (["--store", proxy.store], {}),
        (["--control-token-file", file], {}),
        (["--control-token-env", "MINE"], {"MINE": proxy.token}),
        ([], {"ROLLTAPE_CONTROL_TOKEN": proxy.token}),
        ([], {"ROLLTAPE_CONTROL_TOKEN_FILE": str(file)}),
        ([], {"ROLLTAPE_STORE": str(proxy.store)}),
    ]:
        ended = feed(proxy, *options, **environment)
        assert ended.returncode == 0, ended.stderr


def test_a_client_without_the_token_is_told_where_it_lies(proxy):
    ended = feed(proxy)
    assert ended.returncode == 1 and "401" in ended.stderr
    assert "--store" in ended.stderr and "--control-token-file" in ended.stderr
    missing = feed(proxy, "--control-token-file", "nowhere")
    assert missing.returncode == 1 and "nowhere" in missing.stderr


def test_a_client_takes_no_token_that_others_could_have_put_there(proxy, tmp_path):
    file = tmp_path / "planted"
    file.write_text(proxy.token)
    file.chmod(0o644)
    ended = feed(proxy, "--control-token-file", file)
    assert ended.returncode == 1 and "others can read or write it" in ended.stderr
    link = tmp_path / "link"
    link.symlink_to(harness.token_file(proxy.store))
    ended = feed(proxy, "--control-token-file", link)
    assert ended.returncode == 1 and "is a link" in ended.stderr
