"""Fixtures, and what a failing test shows of its processes."""

import os
import tempfile

# Before anything imports `datasets` or opens a connection.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
# Servers of others on this machine are none of the tests'.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="rolltape-states-")

import pytest  # noqa: E402

import harness  # noqa: E402
import played as session  # noqa: E402
from servers import running  # noqa: E402

STDERR_CHARS_MAX = 20_000


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """One engine, tap and proxy for all tests that only talk."""
    with harness.world(tmp_path_factory.mktemp("world")) as running:
        yield running


@pytest.fixture(scope="session")
def played(tmp_path_factory):
    """A world of its own in which everything was played, rewarded, closed and exported."""
    with harness.world(tmp_path_factory.mktemp("played")) as running:
        yield session.play(running)


@pytest.fixture(scope="session", params=running.CHOSEN)
def real(request, tmp_path_factory):
    """A real inference server, for all tests that ask for one."""
    kind = running.KINDS[request.param]
    if kind.why_not and running.NAMED is None:
        pytest.skip(kind.why_not)
    assert not kind.why_not, kind.why_not
    with running.running(kind, tmp_path_factory.mktemp(kind.name)) as server:
        yield server


@pytest.fixture
def vllm(real):
    """A real vLLM, whichever frontend."""
    if real.kind.dialect != "vllm":
        pytest.skip("only vLLM does that")
    return real


@pytest.fixture
def takes_ids(real):
    """A real server that takes the prompt of a chat as ids."""
    if real.kind.dialect not in ("vllm", "sglang"):
        pytest.skip("only vLLM and SGLang do that")
    return real


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of an emulated S3, to which the environment leads."""
    # Importing it takes long, and few tests want it.
    import buckets

    with buckets.emulated() as (client, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield client


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """With `-n`, tests that share what is slow to start run in one process."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item):
    if item.path.stem == "test_clients" and hasattr(item, "callspec"):
        return item.callspec.id
    # One real server runs at a time.
    return "servers" if item.path.stem.startswith("test_servers") else item.path.stem


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Each test answers for its own processes and those that all tests share."""
    harness.forget_ended()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Shows the stderr of every process that a failed test could have met."""
    report = yield
    if report.failed:
        for process in harness.started:
            said = process.stderr[-STDERR_CHARS_MAX:].rstrip() or "(nothing)"
            report.sections.append((f"stderr of rolltape {' '.join(process.arguments)}", said))
    return report
