"""A plugin for pytest: writes the outcome of each test to `$ROLLTAPE_SUITE_OUTCOMES`."""

import json
import os

WORSE = {"passed": 0, "skipped": 1, "failed": 2}


class Outcomes:
    """The worst outcome of the phases of each test, with the last line of what went wrong."""

    def __init__(self):
        self.of = {}

    def pytest_runtest_logreport(self, report):
        outcome, why = self.of.get(report.nodeid, ("passed", ""))
        if WORSE[report.outcome] <= WORSE[outcome]:
            self.of.setdefault(report.nodeid, (outcome, why))
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr)
        self.of[report.nodeid] = (report.outcome, text.splitlines()[0][:300] if text else "")

    def pytest_collectreport(self, report):
        if report.failed:
            self.of[report.nodeid] = ("failed", "not collected: " + str(report.longrepr)[-200:])

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workerinput"):
            return
        with open(os.environ["ROLLTAPE_SUITE_OUTCOMES"], "w") as out:
            json.dump(self.of, out, indent=1)


def pytest_configure(config):
    config.pluginmanager.register(Outcomes())
