"""The OpenAPI documents of both listeners, and whether the listeners do what they say.

schemathesis makes requests from each document, right ones and wrong ones, for every route. None is
answered with a 5xx but that of a route that does nothing, every answer has the form that the
document gives it, and what the document does not allow is refused.
"""

import json
import urllib.error
import urllib.request

import pytest

import harness

schemathesis = pytest.importorskip("schemathesis")

import hypothesis  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import FailureGroup  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

EXAMPLES = 20
"""Right requests for a route, and as many wrong ones."""
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    # The same requests in every run.
    derandomize=True,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
NOT_IMPLEMENTED = 501
"""What routes answer that exist so that a client hears why they do nothing."""
UNKNOWN = {"colour": 1}
STREAMS = {"/events"}
"""Routes whose replies do not end."""
EPISODE = "known"
"""An episode that exists. No random name hits one."""
PROBES = ("/health_generate",)
"""Routes that rightly say 503 of an engine that the requests before put to sleep."""

pytestmark = pytest.mark.timeout(240)


class Listener:
    """A listener and its document."""

    def __init__(self, address, token=None):
        self.url = f"http://{harness.text(address)}"
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        with self._open("/openapi.json") as reply:
            self.document = json.load(reply)
        self.schema = schemathesis.openapi.from_dict(self.document)

    def operations(self):
        """Every route with its method."""
        return [found.ok() for found in self.schema.get_all_operations()]

    def post(self, path, body):
        """Posts JSON; gives the status and the text of the reply."""
        try:
            with self._open(path, json.dumps(body).encode()) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def _open(self, path, body=None):
        headers = self.headers | ({"content-type": "application/json"} if body else {})
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        return urllib.request.urlopen(request, timeout=10)


@pytest.fixture(scope="module")
def control_listener(tmp_path_factory):
    """The control listener in front of the tiny model, with one episode."""
    folder = tmp_path_factory.mktemp("openapi")
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        listener = Listener(proxy.control, proxy.token)
        assert listener.post("/episodes", {"episode_id": EPISODE})[0] == 200
        yield listener
        # It still serves, and its store is whole.
        assert listener.post(f"/episodes/{EPISODE}/rewards", {"value": 1})[0] in (200, 409)
        assert json.loads(proxy.command("verify", "--json"))["clean"]


@pytest.fixture(scope="module")
def engine_listener(tmp_path_factory):
    """The engine's own listener."""
    with harness.engine(tmp_path_factory.mktemp("openapi-engine")) as address:
        yield Listener(address)


def hammer(listener, operation, mode):
    """What is wrong with the answers to random requests for one route, in words."""
    wrong, heard = [], []

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @SETTINGS
    def ask(case):
        names = case.path_parameters or {}
        if mode == GenerationMode.POSITIVE and "/episodes/{id}" in operation.path:
            names["id"] = EPISODE
        reply = case.call(base_url=listener.url, headers=listener.headers, timeout=20)
        heard.append(reply.status_code)
        if reply.status_code >= 500 and reply.status_code != NOT_IMPLEMENTED:
            wrong.append(f"{reply.status_code}: {reply.content[:300]}\n{case.as_curl_command()}")
        try:
            case.validate_response(reply, checks=CHECKS)
        except FailureGroup as group:
            told = "; ".join(str(why) for why in group.exceptions)
            wrong.append(f"{told}\n{case.as_curl_command()}")

    try:
        ask()
    except Unsatisfiable:
        # A route without parameters and body takes no wrong request.
        assert mode == GenerationMode.NEGATIVE, operation.path
    return [f"{operation.method} {operation.path}: {what}" for what in wrong], heard


def hammer_all(listener):
    """Asks for every route, and gives the statuses that came."""
    wrong, heard = [], []
    for operation in listener.operations():
        if operation.path in (*STREAMS, *PROBES):
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            found, statuses = hammer(listener, operation, mode)
            wrong += found
            heard += statuses
    assert not wrong, f"{len(wrong)} answers:\n" + "\n\n".join(wrong[:10])
    return heard


def test_the_control_listener_does_what_its_document_says(control_listener):
    heard = hammer_all(control_listener)
    assert heard.count(200) > 20 and heard.count(400) > 100


def test_the_engine_does_what_its_document_says(engine_listener):
    heard = hammer_all(engine_listener)
    assert heard.count(200) > 20 and heard.count(400) > 100


def test_the_control_listener_refuses_a_field_that_its_document_lacks(control_listener):
    asked = 0
    for path, item in control_listener.document["paths"].items():
        content = item.get("post", {}).get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if not schema:
            continue
        assert schema["additionalProperties"] is False, path
        status, reply = control_listener.post(path.replace("{id}", EPISODE), UNKNOWN)
        assert status == 400 and "`colour` is not a field" in reply, (path, reply)
        asked += 1
    assert asked > 5


def test_the_control_listener_refuses_a_query_that_its_document_lacks(control_listener):
    asked = 0
    for path, item in control_listener.document["paths"].items():
        named = [p["name"] for p in item.get("post", {}).get("parameters", [])]
        if "attempt" not in named:
            continue
        path = path.replace("{id}", EPISODE) + "?atempt=1"
        status, reply = control_listener.post(path, {"value": 1} if "rewards" in path else {})
        assert status == 400 and "did you mean `attempt`" in reply, (path, reply)
        asked += 1
    assert asked > 2


@pytest.mark.parametrize("which", ["control_listener", "engine_listener"])
def test_a_method_that_the_document_lacks_is_refused(which, request):
    listener = request.getfixturevalue(which)
    operations = listener.operations()
    deleted = {one.path for one in operations if one.method.upper() == "DELETE"}
    for operation in (one for one in operations if one.path not in deleted):
        path = operation.path.replace("{id}", EPISODE).replace("{name}", "x")
        asked = urllib.request.Request(
            listener.url + path, method="DELETE", headers=listener.headers
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=10)
        assert refused.value.code in (404, 405), path
