"""Real clients that talk to the engine itself: every call is answered, on every wire that they use.

The model is tiny and says what it likes; what is looked at is whether clients can read it. Those
that ask for embeddings are left out.
"""

import json
import os

import pytest

import harness
import test_clients
from task import MODEL  # a module of the clients, on the path since the line before

SPOKEN = ("openai", "anthropic", "litellm", "langchain", "agents", "llm", "inspect", "autogen")
CLIENTS = [c for c in test_clients.MATRIX if c.name in SPOKEN and c.mode != "text"]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The engine under the name that the clients ask for. It says the same in each run."""
    folder = tmp_path_factory.mktemp("engine")
    with harness.engine(folder, "--served-model-name", MODEL, "--seed", "1") as address:
        yield address


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_the_client_is_answered(client, engine, tmp_path):
    if not client.installed:
        assert os.environ.get("ROLLTAPE_CLIENTS") != "all" or client.skipped
        pytest.skip(f"not installed: tests/python/clients/install.sh {client.group}")
    result, exchanges = test_clients.run(client, tmp_path, engine)
    assert json.loads(result)
    generations = [e for e in exchanges if test_clients.GENERATES.match(e.request.path)]
    assert generations
    refused = [(e.request.path, e.reply.body) for e in exchanges if e.reply.status != 200]
    assert not refused
