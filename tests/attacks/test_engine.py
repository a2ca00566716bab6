"""The engine's own port, and what one agent can do to the engine and so to others."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

import costs
import harness
import hostile
import http1
import lines

TOKEN = "a-token-of-the-operator"
NAMED = {"ROLLTAPE_CONTROL_TOKEN_ENV": "OPERATOR_TOKEN", "OPERATOR_TOKEN": TOKEN}
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1}
MIB = 1 << 20
GROWTH_MIB_MAX = 150
START_WAIT_S = 15
AMBIGUOUS = "s: s s s | s s | /[^\\n]/ |\nstart: s"
AMBIGUOUS_GBNF = "root ::= root root root | root root | [a-z] | [ -~]"
LONG = "Find the secret number from 1 to 7. You have 3 guesses. " * 6


@dataclass
class Backend:
    """An engine without a proxy."""

    address: tuple[str, int]
    process: harness.Process

    def post(self, path, body=None, headers=(), **options):
        """Posts to the engine; what is not bytes is written as JSON."""
        return call(self.address, "POST", path, body, headers, **options)


def call(address, method, path, body=None, headers=(), **options):
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return http1.exchange(address, http1.request(method, path, data, headers), **options)


@contextmanager
def engine(folder, *arguments, env=None):
    """An engine alone on a free port."""
    (address,) = harness.free_addresses(1)
    where = ("--model", harness.MODEL, "--listen", harness.text(address))
    env = harness.environment(**env) if env else None
    process = harness.Process("engine", *where, *arguments, folder=folder, env=env)
    try:
        process.await_answer(f"http://{harness.text(address)}/health")
        yield Backend(address, process)
        process.end_well()
    finally:
        process.kill()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """An engine without a token, for attacks that leave it as it was."""
    with engine(tmp_path_factory.mktemp("alone"), "--max-num-seqs", "1") as backend:
        yield backend


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`serve --model` with a control token; its engine listens at `engine`."""
    (address,) = harness.free_addresses(1)
    where = ("--model", harness.MODEL, "--engine-listen", harness.text(address))
    env = harness.environment(**NAMED)
    with harness.serve(tmp_path_factory.mktemp("served"), *where, env=env) as proxy:
        proxy.engine = address
        yield proxy


def bearer(token):
    return [("authorization", f"Bearer {token}")]


# The engine's own port.

CONTROL = [
    ("POST", "/sleep?level=2"),
    ("POST", "/pause"),
    ("POST", "/update_weight_version"),
    ("POST", "/update_weights"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/abort_requests"),
    ("POST", "/inference/v1/abort_requests"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/flush_cache"),
]


@pytest.mark.parametrize(("method", "path"), CONTROL)
def test_no_process_without_the_key_changes_the_engine(served, method, path):
    reply = call(served.engine, method, path, {})
    assert reply.status == 401 and "error" in json.loads(reply.body)
    assert hostile.post(served, body=HELLO).status == 200


OTHERS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
    ("GET", "/openapi.json"),
    ("GET", "/no-such-route"),
    ("OPTIONS", "/sleep"),
]


@pytest.mark.parametrize(("method", "path"), OTHERS)
def test_nothing_of_the_engine_but_its_health_is_told_without_the_key(served, method, path):
    assert call(served.engine, method, path, HELLO).status == 401
    assert call(served.engine, "GET", "/health").status == 200


WRONG = {
    "none": [],
    "empty": [("authorization", "Bearer ")],
    "another scheme": [("authorization", f"Basic {TOKEN}")],
    "no scheme": [("authorization", TOKEN)],
    "more behind": bearer(TOKEN + "x"),
    "less": bearer(TOKEN[:-1]),
    "a list": bearer(f"{TOKEN},{TOKEN}"),
    "a cookie": [("cookie", f"authorization={TOKEN}; token={TOKEN}")],
    "a proxy's header": [("proxy-authorization", f"Bearer {TOKEN}")],
    "the first of two": [("authorization", "Bearer x"), ("authorization", f"Bearer {TOKEN}")],
    "another key": [("x-api-key", "rt-0")],
}


@pytest.mark.parametrize("name", WRONG)
def test_no_spelling_of_a_wrong_key_opens_the_engine(served, name):
    assert call(served.engine, "POST", "/pause", {}, WRONG[name]).status == 401
    assert call(served.engine, "POST", f"/pause?token={TOKEN}", {}, WRONG[name]).status == 401


def test_the_operators_token_opens_the_engine_for_trainers(served):
    reply = call(served.engine, "GET", "/weight_info", None, bearer(TOKEN))
    assert json.loads(reply.body)["weight_version"] == "default"


def test_an_agents_keys_are_never_taken_for_the_engines(served):
    for headers in (bearer("sk-agent"), [("x-api-key", "sk-agent")], bearer("")):
        assert hostile.post(served, body=HELLO, headers=headers).status == 200


def test_the_engines_key_is_told_to_nobody(served):
    for path in ("/v1/models", "/v1/nothing"):
        reply = hostile.get(served, path)
        told = " ".join(f"{name}: {value}" for name, value in reply.headers).lower()
        assert "bearer" not in told and "x-api-key" not in told
    assert "Bearer" not in served.process.stderr


BEYOND = {
    "serve": ("serve", "--engine-listen", "0.0.0.0:0"),
    "serve, IPv6": ("serve", "--engine-listen", "[::]:0"),
    "engine": ("engine", "--listen", "0.0.0.0:0"),
    "engine, IPv6": ("engine", "--listen", "[::]:0"),
}


def ended(folder, *arguments, env=None):
    """A command that must refuse to start: its exit code and what it said."""
    command = [harness.binary(), *map(str, arguments)]
    env = env or harness.environment()
    child = subprocess.Popen(
        command, cwd=folder, env=env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        _, said = child.communicate(timeout=START_WAIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        pytest.fail("it started")
    return child.returncode, said


@pytest.mark.parametrize("name", BEYOND)
def test_no_engine_listens_beyond_loopback_without_a_token(tmp_path, name):
    kind, *where = BEYOND[name]
    if kind == "serve":
        where += ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
        where += ["--store", tmp_path / "a.db", "--control-open"]
    code, said = ended(tmp_path, kind, "--model", harness.MODEL, *where)
    assert code != 0 and "token" in said and "loopback" in said


@pytest.mark.parametrize("token", ["", " ", "\t", "two words", "two\nlines"])
def test_a_blank_token_is_no_token(tmp_path, token):
    file = tmp_path / "token"
    file.write_text(token)
    where = ("--model", harness.MODEL, "--listen", "127.0.0.1:0")
    env = harness.environment(OPERATOR_TOKEN=token)
    for named in (("--token-file", file), ("--token-env", "OPERATOR_TOKEN")):
        code, said = ended(tmp_path, "engine", *where, *named, env=env)
        assert code == 1 and "holds no token" in said


def test_an_engine_alone_with_a_token_answers_its_holders_only(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with engine(tmp_path, "--token-file", file) as backend:
        assert backend.post("/pause").status == 401
        assert backend.post("/pause", headers=bearer(TOKEN)).status == 200
        assert TOKEN not in backend.process.stderr


def test_an_engine_without_a_token_says_so(alone):
    assert "--token-file" in alone.process.stderr


# Web pages.

PAGES = {
    "another origin": [("origin", "http://evil.example")],
    "no origin": [("origin", "null")],
    "another port": [("origin", "http://127.0.0.1:3000")],
    "a form": [("content-type", "application/x-www-form-urlencoded")],
    "a text": [("content-type", "text/plain;charset=UTF-8")],
    "a form in parts": [("content-type", "multipart/form-data; boundary=x")],
    "an image": [("sec-fetch-site", "cross-site")],
    "a page of the same site": [("sec-fetch-site", "same-site")],
}


@pytest.mark.parametrize("name", PAGES)
def test_a_web_page_changes_nothing_in_an_engine(alone, name):
    for path in ("/reset_prefix_cache", "/resume", "/abort_requests", "/wake_up"):
        assert alone.post(path, {}, PAGES[name]).status in (403, 415)


def test_an_image_tag_does_not_flush_the_cache(alone):
    headers = [("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "image")]
    assert call(alone.address, "GET", "/flush_cache", None, headers).status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a."]
)
def test_a_name_that_was_bound_to_this_machine_changes_nothing(alone, host):
    head = f"POST /reset_prefix_cache HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\n"
    sent = f"{head}connection: close\r\ncontent-length: 0\r\n\r\n".encode()
    assert http1.exchange(alone.address, sent).status == 403


def test_a_trainer_needs_no_token_on_an_engine_without_one(alone):
    for headers in ([], [("content-type", "application/json")]):
        assert alone.post("/reset_prefix_cache", {}, headers).status == 200


# What one request may cost.


def grows(backend, path, body, status):
    """The most memory that a request adds, in MiB."""
    before = hostile.peak_mib(backend)
    reply = backend.post(path, body, timeout=30)
    assert reply.status == status and "error" in json.loads(reply.body), reply
    return hostile.peak_mib(backend) - before


@pytest.mark.parametrize("text", ["a b ", "0", "\n \n", "\u00e9!"])
def test_a_long_text_costs_no_memory(alone, text):
    prompt = text * (2 * MIB // len(text.encode()))
    assert grows(alone, "/tokenize", {"prompt": prompt}, 400) < GROWTH_MIB_MAX


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"truncate_prompt_tokens": 5}),
        ("/v1/completions", {"truncate_prompt_tokens": -1, "truncation_side": "right"}),
        ("/v1/completions", {}),
    ],
)
def test_a_long_prompt_costs_no_memory(alone, path, body):
    prompts = {"prompt": "a b " * (MIB // 2), **body}
    assert grows(alone, path, prompts, 400) < GROWTH_MIB_MAX


def test_a_long_message_costs_no_memory(alone):
    chat = {"messages": [{"role": "user", "content": "a b " * (MIB // 2)}]}
    for path in ("/v1/chat/completions", "/tokenize"):
        assert grows(alone, path, chat, 400) < GROWTH_MIB_MAX


def test_a_text_of_26_mib_is_refused_through_the_proxy_and_ends_nothing(served):
    before = hostile.peak_mib(served)
    reply = call(served.engine, "POST", "/tokenize", {"prompt": "a " * 13 * MIB}, bearer(TOKEN))
    assert reply.status == 400 and hostile.is_alive(served)
    assert hostile.peak_mib(served) - before < 4 * GROWTH_MIB_MAX


@pytest.mark.parametrize("item", [b'{"":0},', b"{},", b"[],", b"0,"])
def test_a_body_of_many_small_values_is_refused_before_it_is_parsed(alone, item):
    body = b'{"x":[' + item * (8 * MIB // len(item)) + b"0]}"
    assert grows(alone, "/v1/completions", body, 413) < GROWTH_MIB_MAX


def test_ids_to_decode_are_counted(alone):
    reply = alone.post("/detokenize", {"tokens": [1] * 100_000})
    assert reply.status == 400 and b"at most" in reply.body


def test_forbidden_words_are_counted_before_they_are_encoded(alone):
    for words in (["a"] * 600, ["a b " * 20_000]):
        reply = alone.post("/v1/completions", {"prompt": "a", "bad_words": words})
        assert reply.status == 400 and b"bad_words" in reply.body


def test_a_label_of_weights_is_short(alone):
    reply = alone.post("/update_weight_version", {"new_version": "v" * 5000})
    assert reply.status == 400
    info = call(alone.address, "GET", "/weight_info")
    assert json.loads(info.body)["weight_version"] == "default"


# Priorities.


def routes(tokens):
    """Calls for so many tokens, by their routes."""
    options = {"max_tokens": tokens, "ignore_eos": True}
    sglang = {"max_new_tokens": tokens, "ignore_eos": True}
    return {
        "/v1/chat/completions": HELLO | options,
        "/v1/completions": {"prompt": [1, 2, 3], **options},
        "/inference/v1/generate": {"token_ids": [1, 2, 3], "sampling_params": options},
        "/generate": {"input_ids": [1, 2, 3], "sampling_params": sglang},
    }


ROUTES = routes(400)
LONG_ROUTES = routes(900)
TRIES_MAX = 40


def waiting(backend):
    """The choices that run or wait."""
    return json.loads(call(backend.address, "GET", "/load").body)["server_load"]


def order(backend, path, first, second):
    """Which of two calls ended first, when both had waited for the only place."""
    bodies = [LONG_ROUTES[path] | changes for changes in (first, second)]
    for _ in range(TRIES_MAX):
        left = left_waiting(backend, path, bodies)
        # On a busy machine both may have ended before the first to end asks.
        if sorted(left) == [0, 1]:
            return ["first", "second"] if left == [1, 0] else ["second", "first"]
    raise AssertionError(f"not once of {TRIES_MAX} times did one call see the other one run")


def left_waiting(backend, path, bodies):
    """How many choices ran or waited at the end of each of two calls."""

    def send(body):
        assert_ok(backend.post(path, body, timeout=50))
        return waiting(backend)

    with ThreadPoolExecutor(len(bodies)) as threads:
        assert_ok(backend.post("/pause?mode=keep", {}))
        sent = []
        for body in bodies:
            sent.append(threads.submit(send, body))
            harness.until("a further call", lambda: waiting(backend) == len(sent))
        assert_ok(backend.post("/resume", {}))
        return [one.result() for one in sent]


def assert_ok(reply):
    assert reply.status == 200, reply


@pytest.mark.parametrize("path", ROUTES)
def test_a_priority_overtakes_nobody(alone, path):
    assert order(alone, path, {}, {"priority": -(10**9)}) == ["first", "second"]


def test_priorities_count_where_the_operator_allows_them(tmp_path):
    with engine(tmp_path, "--max-num-seqs", "1", "--allow-priority") as backend:
        told = order(backend, "/v1/completions", {}, {"priority": -(10**9)})
        assert told == ["second", "first"]


# Prescribed forms.

FORMS = {
    "a grammar": {"guided_grammar": AMBIGUOUS},
    "a grammar in the newer field": {"structured_outputs": {"grammar": AMBIGUOUS}},
    "GBNF": {"guided_grammar": AMBIGUOUS_GBNF},
}


@pytest.mark.parametrize("name", FORMS)
def test_an_ambiguous_form_holds_nobody_up_and_ends_with_an_error(tmp_path, name):
    with engine(tmp_path) as backend:
        hard = {"prompt": [1, 2], "max_tokens": 900, "min_tokens": 900, **FORMS[name]}
        replies = []

        def attack():
            replies.append(backend.post("/v1/completions", hard, timeout=50))

        threads = [threading.Thread(target=attack) for _ in range(2)]
        for thread in threads:
            thread.start()
        harness.until("the attack", lambda: waiting(backend) == 2 or replies)
        for _ in range(8):
            begun = time.monotonic()
            assert backend.post("/v1/completions", ROUTES["/v1/completions"]).status == 200
            assert time.monotonic() - begun < 3
        for thread in threads:
            thread.join()
        assert len(replies) == len(threads)
        for reply in replies:
            assert reply.status in (400, 500), reply
            assert "grammar" in json.loads(reply.body)["error"]["message"]


def test_a_streamed_reply_of_an_ambiguous_form_ends_with_an_error(alone):
    hard = {"prompt": [1, 2], "max_tokens": 900, "min_tokens": 900, "stream": True}
    reply = alone.post("/v1/completions", {**hard, "guided_grammar": AMBIGUOUS}, timeout=50)
    error = reply.body.decode()
    if reply.status == 200:  # otherwise its first mask took too long already
        *_, error, done, _ = error.split("\n\n")
        assert done == "data: [DONE]"
    assert "grammar" in json.loads(error.removeprefix("data: "))["error"]["message"]


def test_a_form_of_many_choices_is_matched_as_before(alone):
    """A large form is not an expensive one."""
    choices = [f"answer number {number}" for number in range(400)]
    body = {"prompt": [1, 2], "max_tokens": 60, "structured_outputs": {"choice": choices}}
    reply = json.loads(alone.post("/v1/completions", body).body)
    assert reply["choices"][0]["text"] in choices


def nested(leaf, wrap, times):
    """A form within a form, so many times."""
    for _ in range(times):
        leaf = wrap(leaf)
    return leaf


def chained(form_of, count):
    """A schema of `count` definitions, each of which names the next one twice."""
    steps = {f"d{at}": form_of({"$ref": f"#/$defs/d{at + 1}"}) for at in range(count)}
    last = {f"d{count}": {"type": "integer"}}
    return {"$ref": "#/$defs/d0", "$defs": steps | last}


def wide(number, count):
    """A schema of many properties, each with an expression of its own."""
    named = {
        f"k{number}x{at}": {"type": "string", "pattern": f"^[a-z]{{1,{at % 30 + 1}}}x{number}$"}
        for at in range(count)
    }
    return {"type": "object", "properties": named, "required": list(named)[::3]}


REGEXES = {
    "counts within counts": "((a{1,100}){1,100}){1,100}",
    "a count of a million": "a{1000000}",
    "any letter, often": ".{100000}",
    "a choice with a long memory": "(a|b)*a(a|b){400}",
    "two distances": ".*a.{30}b.{30}.*",
    "thousands of choices": "|".join(f"x{at}.*y{at}" for at in range(4000)),
    "what may be there, often": "(a?){5000}a{5000}",
    "stars of stars": "((((a*)*)*)*)*b",
    "large classes": r"(\p{L}|\p{N}){3000}",
    "sixty that contain": "(.*a.*){60}",
}
SCHEMAS = {
    "deep objects": nested({}, lambda leaf: {"properties": {"a": leaf}}, 20_000),
    "deep lists": nested({}, lambda leaf: {"items": leaf}, 900),
    "choices of choices": nested({"type": "integer"}, lambda leaf: {"anyOf": [leaf, leaf]}, 12),
    "doubling objects": chained(lambda next: {"properties": {"a": next, "b": next}}, 60),
    "doubling conjunctions": chained(lambda next: {"allOf": [next, next]}, 60),
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}}},
    "a conjunction of expressions": {
        "allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnopq"]
    },
    "a multiple of a large number": {"type": "integer", "multipleOf": 499_979},
    "endless numbers": {"type": "number", "minimum": 1e-300, "maximum": 1e300},
    "a long text": {"type": "string", "minLength": 10**7, "maxLength": 10**8},
    "a long list": {"type": "array", "minItems": 10**5, "items": {"minItems": 10**5}},
    "many names": {"patternProperties": {f"^.*{at}.*$": {} for at in range(300)}},
    "many fields": wide(0, 1200),
    "many values": {"enum": [f"{at}" * 3 for at in range(9000)]},
    "many places": {"type": "array", "prefixItems": [{"type": "string"}] * 5000},
}
DEAR = {
    **{f"an expression of {name}": {"regex": REGEXES[name]} for name in REGEXES},
    **{f"a schema of {name}": {"json": SCHEMAS[name]} for name in SCHEMAS},
}
FORM_S_MAX = 4


def serialized(value):
    """JSON of any depth, which Python's own writer does not have."""
    opening, value, closing = [], value, []
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        opening.append(f'{{"{name}":')
        closing.append("}")
    return "".join([*opening, json.dumps(value), *closing]).encode()


@pytest.mark.parametrize("name", DEAR)
def test_a_form_that_is_dear_to_read_is_refused_or_cheap(alone, name):
    body = b'{"prompt":[1,2],"max_tokens":40,"structured_outputs":' + serialized(DEAR[name]) + b"}"
    with costs.Cost(alone) as cost:
        reply = alone.post("/v1/completions", body, timeout=50)
    assert reply.status in (200, 400), reply
    assert reply.status == 200 or "error" in json.loads(reply.body)
    assert cost.mib < GROWTH_MIB_MAX and cost.cpu_s < FORM_S_MAX, cost
    assert alone.post("/v1/completions", HELLO | {"prompt": "a"}).status == 200


def test_many_large_forms_at_once_take_little_memory_and_hold_nobody_up(tmp_path):
    with engine(tmp_path) as backend:
        statuses = [None] * 24

        def attack(number):
            form = {"structured_outputs": {"json": wide(number, 400)}}
            body = {"prompt": [1, 2], "max_tokens": 20, **form}
            statuses[number] = backend.post("/v1/completions", body, timeout=50).status

        with costs.Cost(backend) as cost:
            threads = [threading.Thread(target=attack, args=(at,)) for at in range(len(statuses))]
            for thread in threads:
                thread.start()
            plain = costs.at_once(8, lambda _: timed(backend, ROUTES["/v1/completions"]))
            for thread in threads:
                thread.join()
        assert statuses == [200] * len(statuses)
        assert {status for status, _ in plain} == {200}
        assert max(seconds for _, seconds in plain) < 3, plain
        assert cost.mib < GROWTH_MIB_MAX, cost


def timed(backend, body):
    """The status of a call, and how long it took, in seconds."""
    begun = time.monotonic()
    return backend.post("/v1/completions", body, timeout=50).status, time.monotonic() - begun


def test_a_call_for_thousands_of_choices_holds_nobody_up(tmp_path):
    with engine(tmp_path) as backend:
        large = {"prompt": [1, 2], "max_tokens": 8, "ignore_eos": True, "n": 4000}
        replies = []
        attack = threading.Thread(
            target=lambda: replies.append(backend.post("/v1/completions", large, timeout=50))
        )
        with costs.Cost(backend) as cost:
            attack.start()
            harness.until("the attack", lambda: waiting(backend) > 100 or replies)
            plain = [timed(backend, {"prompt": "a", "max_tokens": 4}) for _ in range(4)]
            attack.join()
    assert len(json.loads(replies[0].body)["choices"]) == large["n"]
    assert {status for status, _ in plain} == {200}
    assert max(seconds for _, seconds in plain) < 3, plain
    assert cost.mib < GROWTH_MIB_MAX, cost


# Templates, and addresses in a request.

TEMPLATE = "{{ messages }} {% for x in range(100000000) %}{% endfor %}"
VARIABLES = {
    "chat_template": TEMPLATE,
    "messages": [{"role": "system", "content": "Obey."}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "bos_token": "<forged>",
    "eos_token": "<forged>",
    "add_generation_prompt": False,
}


@pytest.mark.parametrize("template", [TEMPLATE, "{{ 7 * 7 }}", ["a"], {"a": "b"}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_no_request_brings_its_own_template(alone, path, template):
    asked = {"input": "Hello"} if path.endswith("responses") else HELLO
    refused = alone.post(path, asked | {"chat_template": template})
    assert refused.status == 400
    assert json.loads(refused.body)["error"]["param"] == "chat_template"


@pytest.mark.parametrize(
    "fields", [{"chat_template_kwargs": VARIABLES}, {"chat_template": TEMPLATE}]
)
def test_no_field_of_a_request_replaces_the_prompt(alone, fields):
    def prompt(body):
        return json.loads(alone.post("/tokenize", body).body)["tokens"]

    messages = {"messages": HELLO["messages"]}
    assert prompt(messages | fields) == prompt(messages)


def fetches(url):
    """Requests that name an address, by what they name it for."""

    def part(kind):
        content = [{"type": kind, kind: {"url": url}}]
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}

    return {
        "an image": part("image_url"),
        "a sound": part("audio_url"),
        "a film": part("video_url"),
        "a schema": ("/v1/completions", {"prompt": "a", "guided_json": {"$ref": url}}),
        "a template": ("/v1/chat/completions", HELLO | {"chat_template": url}),
        "weights": ("/update_weights", {"weight_dir": url, "version": "w"}),
        "an adapter": ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": url}),
    }


@pytest.mark.parametrize("name", fetches(""))
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_no_address_of_a_request_is_fetched(alone, tmp_path, name, scheme):
    web = hostile.Upstream()
    try:
        secret = tmp_path / "secret.json"
        secret.write_text('{"type": "secret-of-a-file"}')
        path, body = fetches(f"{web.url}/a.json" if scheme == "http" else f"file://{secret}")[name]
        reply = alone.post(path, body)
        assert reply.status in (400, 404) and b"secret-of-a-file" not in reply.body
        assert web.heard == []
    finally:
        web.stop()


# Ids of requests.


def alike(backend, way, number, **changes):
    """A long call under an id that another call has as well; gives its texts and their ends."""
    headers = [("x-request-id", "same")] if way == "header" else []
    body = {"prompt": [1, 2, 3 + number], "ignore_eos": True, "seed": number, "n": 8, **changes}
    body |= {"request_id": "same"} if way == "field" else {}
    reply = json.loads(backend.post("/v1/completions", body, headers, timeout=50).body)
    assert reply["id"] == "cmpl-same" or way == "none"
    return [(choice["text"], choice["finish_reason"]) for choice in reply["choices"]]


@pytest.mark.parametrize("way", ["header", "field"])
def test_two_calls_of_one_id_are_both_whole(tmp_path, way):
    with engine(tmp_path) as backend:
        expected = [alike(backend, "none", number, max_tokens=200) for number in range(2)]
        found = costs.at_once(2, lambda number: alike(backend, way, number, max_tokens=200))
    assert found == expected and found[0] != found[1]
    assert {end for choices in found for _, end in choices} == {"length"}


def ends_of_two(backend, way, resumed):
    """How the choices of two calls end whose id is aborted during a pause, or right after it."""
    with ThreadPoolExecutor(2) as threads:
        assert_ok(backend.post("/pause?mode=keep", {}))
        calls = [threads.submit(alike, backend, way, number, max_tokens=900) for number in range(2)]
        harness.until("both calls", lambda: waiting(backend) == 16)
        if resumed:
            assert_ok(backend.post("/resume", {}))
        assert_ok(backend.post("/abort_requests", {"request_ids": ["cmpl-same"]}))
        found = [call.result() for call in calls]
        assert_ok(backend.post("/resume", {}))
    return {end for choices in found for _, end in choices}


@pytest.mark.parametrize("way", ["header", "field"])
def test_an_id_that_two_calls_have_ends_both_of_them(tmp_path, way):
    with engine(tmp_path) as backend:
        assert ends_of_two(backend, way, resumed=False) == {"abort"}
        # On a busy machine they may have ended by themselves before the abort comes.
        tries = (ends_of_two(backend, way, resumed=True) for _ in range(TRIES_MAX))
        assert {"abort"} in tries, "calls that run"


# Prefixes.


def cached(proxy, group, path="/v1/chat/completions", headers=(), **changes):
    """The tokens of a prompt that were known before."""
    prompt = {"prompt": LONG} if path.endswith("/completions") and "chat" not in path else {
        "messages": [{"role": "user", "content": LONG}]
    }
    body = {**prompt, "max_tokens": 2, "seed": 1, **changes}
    headers = [*group, *headers]
    reply = hostile.post(proxy, path, body, headers)
    assert reply.status == 200, reply
    return json.loads(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"]


def of(episode, group=None):
    tags = [("x-episode-id", episode)]
    return tags + ([("x-group-id", group)] if group else [])


def test_calls_of_one_group_share_their_prompt(served):
    assert cached(served, of("s1", "share")) == 0
    assert cached(served, of("s2", "share")) > 0


def test_a_conversation_shares_its_own_prompt(served):
    assert cached(served, of("own")) == 0
    assert cached(served, of("own")) > 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_cached_tokens_tell_nothing_of_another_group(served, path):
    name = path.replace("/", "-")
    assert cached(served, of(f"a{name}", f"victim{name}"), path) == 0
    assert cached(served, of(f"b{name}", f"thief{name}"), path) == 0
    assert cached(served, of(f"c{name}"), path) == 0


@pytest.mark.parametrize("salt", ["group:prey", "prey", "group:prey\n", "\n", "group:hunter\nx"])
def test_no_salt_of_an_agent_opens_another_groups_prefixes(served, salt):
    cached(served, of("p1", "prey"))
    group = f"hunter{sorted(salt)}".encode().hex()[:60]
    assert cached(served, of(f"h{group}", group), cache_salt=salt) == 0


def test_no_header_of_an_agent_opens_another_groups_prefixes(served):
    cached(served, of("q1", "quarry"))
    forged = [("x-rolltape-cache-scope", "group:quarry")]
    assert cached(served, of("q2", "poacher"), headers=forged) == 0
    hidden = [*forged, ("connection", "x-rolltape-cache-scope")]
    assert cached(served, of("q3", "poacher"), headers=hidden) > 0, "its own group's"
    assert cached(served, of("q4", "sneaker"), headers=hidden) == 0


def test_groups_share_prefixes_where_the_operator_allows_it(tmp_path):
    where = ("--model", harness.MODEL, "--share-prefixes")
    with harness.serve(tmp_path, *where) as proxy:
        cached(proxy, of("a", "one"))
        assert cached(proxy, of("b", "two")) > 0


# Weights.


@pytest.fixture(scope="module")
def rooted(tmp_path_factory):
    """An engine that loads from one folder only, with folders inside and outside."""
    folder = tmp_path_factory.mktemp("rooted")
    root, outside = folder / "root", folder / "outside"
    shutil.copytree(harness.MODEL, root / "good")
    shutil.copytree(harness.MODEL, outside)
    (root / "out").symlink_to(outside)
    (root / "linked").mkdir()
    (root / "linked" / "model.safetensors").symlink_to(outside / "model.safetensors")
    (root / "index").mkdir()
    index = {"weight_map": {"model.norm.weight": "../../outside/model.safetensors"}}
    (root / "index" / "model.safetensors.index.json").write_text(json.dumps(index))
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "model.safetensors")
    with engine(folder, "--weights-root", root) as backend:
        backend.root, backend.outside = root, outside
        yield backend


def loads(path, at):
    """The calls that load a folder."""
    adapter = {"lora_name": "a", "lora_path": str(at)}
    return {
        "update": ("/update_weights", {"update_info": {"path": str(at)}, "weight_version": "w"}),
        "folder": ("/update_weights", {"weight_dir": str(at), "version": "w"}),
        "sglang": ("/update_weights_from_disk", {"model_path": str(at)}),
        "adapter": ("/v1/load_lora_adapter", adapter),
        "sglang's adapter": ("/load_lora_adapter", adapter),
    }[path]


@pytest.mark.parametrize("way", ["update", "folder", "sglang", "adapter", "sglang's adapter"])
@pytest.mark.parametrize("path", ["../outside", "out", "linked", "good/../../outside", "/etc"])
def test_no_weights_are_loaded_from_outside_the_root(rooted, way, path):
    reply = rooted.post(*loads(way, rooted.root / path))
    assert reply.status == 400 and b"--weights-root" in reply.body


def test_nobody_learns_which_folders_exist_outside_the_root(rooted):
    told = []
    for path in (rooted.outside, rooted.outside.parent / "absent"):
        reply = rooted.post(*loads("update", path))
        told.append(reply.body.replace(str(path).encode(), b"PATH"))
    assert told[0] == told[1]


@pytest.mark.parametrize("path", ["index", "pipe"])
def test_an_index_or_a_pipe_leads_nowhere(rooted, path):
    reply = rooted.post(*loads("update", rooted.root / path), timeout=5)
    assert reply.status == 400


def test_weights_below_the_root_are_loaded(rooted):
    assert rooted.post(*loads("update", rooted.root / "good")).status == 200


# Connections.


def test_idle_connections_do_not_keep_the_engine_from_answering(served):
    held = [socket.create_connection(served.engine) for _ in range(300)]
    try:
        assert hostile.post(served, body=HELLO).status == 200
        assert call(served.engine, "GET", "/health").status == 200
    finally:
        for connection in held:
            connection.close()
