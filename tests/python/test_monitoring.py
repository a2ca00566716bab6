"""Metrics, and what is made of them: the table of the page, the dashboard, the alerts."""

import itertools
import json
import operator
import os
import re
import shutil
import sqlite3
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import yaml

import control
import harness
from harness import MODEL, ROOT, free_addresses, serve, text

PAGE = ROOT / "docs" / "monitoring.md"
FILES = ROOT / "docs" / "monitoring"
RULE_TESTS = Path(__file__).with_name("alerts_test.yml")
UNPACKED = Path(__file__).with_name(".prometheus") / "usr" / "bin"

JOBS = {"rolltape": "127.0.0.1:8081", "rolltape-engine": "127.0.0.1:8082"}
"""The jobs of the sample configuration, with the addresses in it."""
TOKEN_FILE = "/srv/rolltape/rolltape.db-token"
FROM_PROMETHEUS = {"up": set(), "scrape_duration_seconds": set()}
"""Metrics that Prometheus itself makes, with their labels beside `job` and `instance`."""
TARGET_LABELS = {"job", "instance"}
ENGINE_LABELS = {"engine", "model_name"}
UNSEEN = {"upstream_failed", "client_gone", "capped"}
"""Outcomes that no call of these tests has; a query for one has no answer."""
UNITS = {"none", "short", "percentunit", "cps", "ops", "s", "bytes"}
RATE_WINDOW = "20s"
SCRAPES_WAIT_S = 45

BOARD = json.loads((FILES / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


def ask(url, body):
    """The status of a call of an agent."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def use(proxy):
    """Calls that end as complete, as refused and not at all; a feed that drops, delivers and gets
    an ack; a rule of admission; so that every metric of the recorder has a value."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    for episode in ("a", "b"):
        assert ask(f"{proxy.base_url(episode)}/chat/completions", chat)[0] == 200
    assert ask(f"{proxy.base_url('a')}/chat/completions", chat | {"max_tokens": -1})[0] == 400

    control.reward(proxy, "a", 1.0)
    for episode in ("a", "b"):
        control.close(proxy, episode)
    where = f"http://{text(proxy.control)}/feed?consumer=t&min_reward=1"
    headers = control.headers_for(proxy.control)
    request = urllib.request.Request(where, method="POST", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200, "a passes, and b has no reward"
        lease = reply.headers["x-rolltape-lease"]
    assert control.post(proxy, f"/feed/leases/{lease}/ack", {})[0] == 200

    with closing(sqlite3.connect(proxy.store, isolation_level=None)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        status, said = ask(f"{proxy.base_url('c')}/chat/completions", chat)
    assert status == 503 and b"recorder_error" in said, said

    rule = {"consumer": "t", "batch_attempts": 64, "max_versions": 1}
    assert control.post(proxy, "/admission", rule)[0] == 200
    assert ask(f"{proxy.base_url('d')}/chat/completions", chat)[0] == 200


SERIES_OF_HISTOGRAM = re.compile("_(bucket|sum|count)$")


def scrape(address, token):
    """The series at an address: {name: (type, {labels: value})}. Those of a histogram have its type
    and their own names."""
    headers = {"authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://{text(address)}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as page:
        lines = page.read().decode().splitlines()
    kinds, found = {}, {}
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        elif not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            kind = kinds.get(name) or kinds[metric_of(name)]
            pairs = re.findall(r'(\w+)="([^"]*)"', labels or "")
            found.setdefault(name, (kind, {}))[1][tuple(pairs)] = float(value)
    return found


def metric_of(series):
    """The histogram that a series is part of."""
    return SERIES_OF_HISTOGRAM.sub("", series)


def metrics(page):
    """The metrics of scraped series: {name: (type, labels)}."""
    found = {}
    for name, (kind, samples) in page.items():
        labels = label_names(samples)
        if kind == "histogram":
            name, labels = metric_of(name), labels - {"le"}
        found[name] = (kind, labels | found.get(name, (kind, set()))[1])
    return found


def label_names(samples):
    """The names of all labels of a metric."""
    return {name for labels in samples for name, _ in labels}


class Served:
    """A recorder with its engine, and their metrics after some use."""

    def __init__(self, proxy, engine):
        self.proxy, self.engine = proxy, engine
        use(proxy)
        self.recorder_page = scrape(proxy.control, proxy.token)
        self.engine_page = scrape(engine, proxy.token)

    @property
    def labels(self):
        """The labels of each metric, those of a target left out."""
        scraped = self.recorder_page | self.engine_page
        of = {name: label_names(samples) for name, (_, samples) in scraped.items()}
        return of | FROM_PROMETHEUS


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A recorder in front of its own engine."""
    folder = tmp_path_factory.mktemp("served")
    (engine,) = free_addresses(1)
    with serve(folder, "--model", MODEL, "--engine-listen", text(engine)) as proxy:
        yield Served(proxy, engine)


def table(heading):
    """The metrics in a table of the page: {name: (type, labels)}."""
    section = PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:]]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): (row[1], set(re.findall(r"`(\w+)`", row[2]))) for row in rows}


def test_the_page_lists_what_is_measured(served):
    def measured(page, common=frozenset()):
        return {name: (kind, labels - common) for name, (kind, labels) in metrics(page).items()}

    of_the_recorder = table("The recorder") | table("The feed") | table("Admission")
    assert of_the_recorder == measured(served.recorder_page)
    assert table("The engine") == measured(served.engine_page, ENGINE_LABELS)
    for name, (_, samples) in served.engine_page.items():
        assert label_names(samples) >= ENGINE_LABELS, name


def test_the_page_names_the_values_of_labels(served):
    page = PAGE.read_text()
    fixed = {
        "rolltape_control_refused_total": "reason",
        "vllm:engine_sleep_state": "sleep_state",
        "vllm:request_success_total": "finished_reason",
        "rolltape_weight_updates_total": "outcome",
    }
    for metric, label in fixed.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{metric}` |")]
        _, samples = (served.recorder_page | served.engine_page)[metric]
        values = {dict(labels)[label] for labels in samples}
        assert values and all(f"`{value}`" in row for value in values), (metric, values)


def selectors(query):
    """The metrics of a query, each with the labels that its selector names; and the labels by
    which the query groups and matches."""
    bare = re.sub(r'"[^"]*"', '""', query)
    words = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
    grouped = {label.strip() for found in re.findall(words, bare) for label in found.split(",")}
    bare = re.sub(words, "", bare)
    named = r"([a-zA-Z_][\w:]*)\s*(?:\{([^}]*)\}|(?![\w:({]|\s*\())"
    keywords = {"or", "and", "unless", "offset", "bool"}
    found = [
        (name, set(re.findall(r"(\w+)\s*[=!]", labels)))
        for name, labels in re.findall(named, re.sub(r"\[[^\]]*\]|\b\d+\w*\b", "", bare))
        if name not in keywords
    ]
    return found, grouped - {""}


def test_a_query_is_taken_apart():
    query = 'sum by (a, b) (rate(x:y{c="d{e}", f!~"g"}[5m])) / on (h) up unless z offset 5m > 0'
    assert selectors(query) == ([("x:y", {"c", "f"}), ("up", set()), ("z", set())], {"a", "b", "h"})


def assert_measured(query, labels):
    """Every metric and every label of a query exists."""
    found, grouped = selectors(query)
    assert found, query
    of_all = set(TARGET_LABELS)
    for name, selected in found:
        assert name in labels, f"there is no {name}: {query}"
        unknown = selected - labels[name] - TARGET_LABELS
        assert not unknown, f"{name} has no {unknown}: {query}"
        of_all |= labels[name]
    assert grouped <= of_all, f"no metric has {grouped - of_all}: {query}"


def test_the_dashboard_shows_what_is_measured(served):
    shown = set()
    for title, target in QUERIES:
        assert_measured(target["expr"], served.labels)
        shown |= {name for name, _ in selectors(target["expr"])[0]}
    shown |= {metric_of(name) for name in shown}
    unseen = set(metrics(served.recorder_page | served.engine_page)) - shown
    assert not unseen, f"no panel shows {unseen}"


def test_the_alerts_look_at_what_is_measured(served):
    for rule in RULES:
        assert_measured(rule["expr"], served.labels)


def overlap(one, other):
    """Whether two places of panels share a cell."""
    apart = [
        one[at] >= other[at] + other[size] or other[at] >= one[at] + one[size]
        for at, size in (("x", "w"), ("y", "h"))
    ]
    return not any(apart)


def test_the_dashboard_is_one_that_grafana_imports():
    (put_in,) = BOARD["__inputs"]
    assert (put_in["name"], put_in["type"], put_in["pluginId"]) == (
        "DS_PROMETHEUS",
        "datasource",
        "prometheus",
    )
    assert BOARD["schemaVersion"] == 38 and BOARD["id"] is None and BOARD["uid"] and BOARD["title"]
    required = {one["id"] for one in BOARD["__requires"] if one["type"] == "panel"}
    assert required == {panel["type"] for panel in PANELS}

    panels = BOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids) and all(isinstance(one, int) for one in ids)
    for one, other in itertools.combinations(panels, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24, panel["title"]
        assert panel["type"] != "row" or panel["panels"] == [], "an open row has no panels inside"


def test_each_panel_says_what_it_shows():
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert all(titles) and BOARD["panels"][0]["type"] == "row"
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    for panel in PANELS:
        title = panel["title"]
        assert re.fullmatch(r"[A-Z0-9][^.]*\.", panel["description"]), title
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, title
        assert panel["datasource"] == source and panel["targets"], title
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), title
        assert all(target["datasource"] == source for target in panel["targets"]), title


def test_the_variables_of_the_dashboard_are_used(served):
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    queries = " ".join(target["expr"] for _, target in QUERIES)
    used = set(re.findall(r"\$(\w+)", queries)) - {"__rate_interval"}
    assert used == set(variables)
    for one in variables.values():
        metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", one["definition"]).groups()
        assert one["query"]["query"] == one["definition"]
        assert_measured(metric, served.labels)
        ((name, _),) = selectors(metric)[0]
        assert label in served.labels[name] | TARGET_LABELS


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_alert_says_what_to_do():
    for name, rule in ALERTS.items():
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, name
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        path, anchor = rule["annotations"]["runbook"].split("#")
        assert anchor in anchors(ROOT / path), (name, path, anchor)
        said = rule["annotations"]["summary"] + rule["annotations"]["description"]
        labels = set(re.findall(r"\$labels\.(\w+)", said))
        assert labels <= {"instance", "consumer"}, name


def test_the_page_lists_the_alerts():
    rows = re.findall(r"^\| `(Rolltape\w+)` \| (\w+) \|", PAGE.read_text(), re.M)
    assert rows == [(name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]


def tool(name):
    """A program of Prometheus: on the path, or where `.ci/run install` unpacked it."""
    found = shutil.which(name) or shutil.which(name, path=UNPACKED)
    if not found and os.environ.get("ROLLTAPE_TEST_PROMETHEUS") == "required":
        pytest.fail(f"there is no {name}: run `.ci/run install`")
    return found or pytest.skip(f"there is no {name}")


def run(*command):
    """Runs a program that must succeed."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_alerts_fire_where_they_should():
    run(tool("promtool"), "check", "rules", FILES / "alerts.yml")
    run(tool("promtool"), "test", "rules", RULE_TESTS)


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_is_quiet():
    cases = {name: set() for name in ALERTS}
    for case in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
        for expected in case["promql_expr_test"]:
            (name,) = re.findall(r'alertname="(\w+)"', expected["expr"])
            ((value,),) = [sample.values() for sample in expected["exp_samples"]]
            cases[name].add(value)
    assert all(values == {0, 1} for values in cases.values()), cases


class Prometheus:
    """A Prometheus that runs the sample configuration."""

    def __init__(self, address):
        self.address = address

    def get(self, path, **parameters):
        """A reply of the API; None if it is not there yet."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://{text(self.address)}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except urllib.error.URLError:
            pass
        return None

    def query(self, query):
        """What a query gives now: the labels and the value of each series."""
        found = self.get("query", query=query)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def await_scrapes(self, count):
        """Waits until both jobs were scraped `count` times, and the rules were evaluated since."""
        until = time.monotonic() + SCRAPES_WAIT_S
        enough = f"count_over_time(up[1m]) >= {count}"

        def wait(is_there):
            while not is_there():
                assert time.monotonic() < until, (self.get("targets"), self.get("rules"))
                time.sleep(0.1)

        wait(lambda: self.get("status/runtimeinfo") is not None)
        wait(lambda: len(self.query(enough)) >= len(JOBS))
        before = self.evaluations()
        # An evaluation that was under way may have begun before the last scrape.
        for _ in range(2):
            wait(lambda: all(map(operator.ne, before, self.evaluations())))
            before = self.evaluations()

    def evaluations(self):
        """When each rule was evaluated last."""
        rules = self.get("rules")["groups"][0]["rules"]
        return [rule["lastEvaluation"] for rule in rules]


@contextmanager
def prometheus(folder, served):
    """The sample configuration with other addresses, another token file and short intervals."""
    sample = (FILES / "prometheus.yml").read_text()
    config = sample.replace(": 15s", ": 1s").replace(
        TOKEN_FILE, str(harness.token_file(served.proxy.store))
    )
    for address, real in zip(JOBS.values(), (served.proxy.control, served.engine), strict=True):
        assert config.count(f'"{address}"') == 1, address
        config = config.replace(f'"{address}"', f'"{text(real)}"')
    assert config.count(": 1s") == 2 and TOKEN_FILE not in config
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(FILES / "alerts.yml", folder)
    run(tool("promtool"), "check", "config", folder / "prometheus.yml")

    (address,) = free_addresses(1)
    command = [
        tool("prometheus"),
        "--config.file",
        folder / "prometheus.yml",
        "--storage.tsdb.path",
        folder / "data",
        "--web.listen-address",
        text(address),
    ]
    with (folder / "stderr").open("wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield Prometheus(address)
        assert child.poll() is None, (folder / "stderr").read_text()
    finally:
        child.kill()
        child.wait()


def assert_drawn(asked, title, target):
    """A query of a panel has an answer, with each label that its legend names."""
    query = target["expr"].replace("$__rate_interval", RATE_WINDOW)
    query = re.sub(r"\$(instance|engine|consumer)\b", ".*", query)
    found = asked.query(query)
    if any(f'outcome="{outcome}"' in query for outcome in UNSEEN):
        assert found == [], query
        return
    assert found, f"{title}: {query}"
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    for labels, _ in found:
        assert legend <= set(labels), f"{title}: {legend} of {labels}"


@pytest.mark.timeout(120)
def test_a_real_prometheus_reads_and_draws_it(served, tmp_path):
    with prometheus(tmp_path, served) as asked:
        asked.await_scrapes(3)
        targets = asked.get("targets")["activeTargets"]
        assert {one["labels"]["job"]: (one["health"], one["lastError"]) for one in targets} == {
            job: ("up", "") for job in JOBS
        }

        rules = asked.get("rules")["groups"][0]["rules"]
        assert len(rules) == len(RULES)
        for rule in rules:
            assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule

        for title, target in QUERIES:
            assert_drawn(asked, title, target)
        ((_, failed),) = asked.query('rolltape_store_records_total{result="failed"}')
        assert failed == 1, "the record that met a locked store"
