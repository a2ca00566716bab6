"""Fixtures of the attacks: each gets a fresh server, and says on failure what the server said."""

import pytest

import harness
import hostile

STDERR_CHARS_MAX = 20_000


@pytest.fixture
def serve(tmp_path):
    """Starts `rolltape serve` with the given arguments in front of a hostile upstream."""
    with hostile.Stage(tmp_path) as stage:
        yield stage


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """`rolltape serve` with the tiny model inside, for attacks that leave it as it was."""
    with harness.serve(tmp_path_factory.mktemp("world"), "--model", harness.MODEL) as proxy:
        yield proxy


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Each test answers for its own processes and those that all tests of its file share."""
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
