"""`rolltape audit` on a real, trained model (SmolLM2-135M-Instruct): episodes of a real client that
went through rolltape, to an engine that is right or to one that is wrong in one way.

`exporter/src/diagnosis/audit/tests.rs` has the same at scale, on a model of random numbers.
"""

import json
from contextlib import ExitStack

import pytest
from openai import OpenAI

import audited
import harness
from audited import Fault
from test_realmodel import HOME, MODEL

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (HOME / ".installed").exists(), reason="realmodel/install.sh"),
    pytest.mark.xdist_group("audit"),
]

SMALL = ("--max-model-len", "1024", "--kv-cache-memory", "256MiB", "--device", "cpu")
TASKS = ["Name three cities in Italy.", "Why is the sky blue?", "Write a short poem about rain."]
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of the model's versions, of which 2 is the right one, and of an adapter."""
    root = tmp_path_factory.mktemp("weights")
    (root / "v2").symlink_to(MODEL)
    audited.other_weights(MODEL, root / "v1")
    audited.adapter(MODEL, root / "adapter")
    return root


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts engines with model folders, each once."""
    with ExitStack() as running:
        known = {}

        def started(folder, *arguments):
            if (folder, arguments) not in known:
                (address,) = harness.free_addresses(1)
                where = ("--model", folder, "--listen", harness.text(address))
                options = ("--served-model-name", "policy", *SMALL, *arguments)
                process = harness.Process(
                    "engine", *where, *options, folder=tmp_path_factory.mktemp("engine")
                )
                running.callback(process.kill)
                url = f"http://{harness.text(address)}"
                process.await_answer(f"{url}/health")
                known[folder, arguments] = url
            return known[folder, arguments]

        yield started


def record(folder, engines, fault, model="policy", serve=(), **sampling):
    """Plays three episodes of three turns; gives the store."""
    options = {"temperature": TEMPERATURE, "top_p": 1, "max_tokens": 20, **sampling}
    with (
        audited.between(engines, fault) as url,
        harness.serve(folder, "--upstream", url, "--dialect", "rolltape", *serve) as proxy,
    ):
        for number, task in enumerate(TASKS):
            base_url = proxy.base_url(f"episode-{number}")
            with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                messages = [{"role": "user", "content": task}]
                for turn in range(3):
                    reply = client.chat.completions.create(
                        model=model, messages=messages, seed=10 * number + turn, **options
                    )
                    messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                    messages.append({"role": "user", "content": "Go on, with other words."})
        return proxy.store


def audit(folder, store, *arguments):
    """The exit status and the report."""
    command = ("audit", "--store", store, "--json", "--sample", 1, *arguments)
    ended = harness.command(*command, folder=folder, timeout=120)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


class Hotter(Fault):
    def asked(self, body, turn):
        body["temperature"] = 1.0
        return 0


class Truncating(Fault):
    def asked(self, body, turn):
        body["top_p"] = 0.7
        return 0


class OtherEngine(Fault):
    """The engine with other weights answers, from a turn on."""

    def __init__(self, first):
        self.first = first

    def asked(self, body, turn):
        return int(turn >= self.first)


class Labelled(OtherEngine):
    """The same, and says that its weights are of version 2."""

    def answered(self, body, reply, turn):
        for choice in reply["choices"]:
            for span in choice["weight_versions"]:
                span["version"] = "2"


class BaseAnswers(Fault):
    """The base model answers in place of the adapter."""

    def asked(self, body, turn):
        body["model"] = "policy"
        return 0

    def answered(self, body, reply, turn):
        reply["model"] = "tuned"


class Shifting(Fault):
    def answered(self, body, reply, turn):
        for choice in reply["choices"]:
            entries = choice["logprobs"]["content"]
            told = [entry["logprob"] for entry in entries]
            for entry, logprob in zip(entries, told[1:] + told[:1], strict=True):
                entry["logprob"] = logprob
            # SGLang says them a second time.
            pairs = choice.get("meta_info", {}).get("output_token_logprobs", [])
            for pair, entry in zip(pairs, entries):
                pair[0] = entry["logprob"]


class Dropping(Fault):
    """The fifth id of each reply is lost, with its logprob."""

    def answered(self, body, reply, turn):
        for choice in reply["choices"]:
            del choice["token_ids"][4], choice["logprobs"]["content"][4]
            for span in choice["weight_versions"]:
                span["end"] -= 1


class OtherIds(Fault):
    """The ids of another tokenizer."""

    def answered(self, body, reply, turn):
        for choice in reply["choices"]:
            choice["token_ids"] = [(id * 7 + 11) % 40000 for id in choice["token_ids"]]


class OtherTemplate(Fault):
    """The engine reads other words than the ids that it reports say."""

    def __init__(self, url):
        self.url = url

    def answered(self, body, reply, turn):
        asked = json.dumps({key: body[key] for key in ("model", "messages")}).encode()
        _, told = audited.ask(f"{self.url}/tokenize", asked)
        reply["prompt_token_ids"] = json.loads(told)["tokens"]


def test_a_clean_recording_is_clean(tmp_path, start):
    store = record(tmp_path, [start(MODEL)], Fault())
    status, report = audit(tmp_path, store, "--with", MODEL)
    assert (status, report["verdict"], report["causes"]) == (0, "clean", []), report
    assert report["compared"] > 0.9 * report["tokens"] > 100
    assert report["gaps"]["mean_abs"] < 1e-3
    # The same by a server, and for people.
    status, by_server = audit(tmp_path, store, "--with", start(MODEL))
    assert (status, by_server["verdict"]) == (0, "clean")
    ended = harness.command("audit", "--store", store, "--with", MODEL, folder=tmp_path)
    assert ended.returncode == 0 and ended.stdout.startswith("clean\n"), ended


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        ("temperature", Hotter()),
        ("truncation", Truncating()),
        ("shifted_ids", Shifting()),
        ("dropped_ids", Dropping()),
        ("tokenizer", OtherIds()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_named(tmp_path, start, cause, fault):
    store = record(tmp_path, [start(MODEL)], fault)
    status, report = audit(tmp_path, store, "--with", start(MODEL))
    found = [finding["cause"] for finding in report["causes"]]
    assert (status, report["verdict"], found[:1]) == (1, "differs", [cause]), report
    assert report["causes"][0]["attempts"] == ["episode-0/0", "episode-1/0", "episode-2/0"]


def test_raw_logprobs_that_are_said_to_be_processed(tmp_path, start):
    engine = start(MODEL, "--logprobs-mode", "raw_logprobs")
    said = ("--logprobs-mode", "processed_logprobs")
    store = record(tmp_path, [engine], Fault(), serve=said)
    status, report = audit(tmp_path, store, "--with", start(MODEL))
    found = [finding["cause"] for finding in report["causes"]]
    assert (status, found) == (1, ["raw_against_processed"]), report


def test_a_stale_folder_is_named_with_its_version(tmp_path, start, folders):
    engines = [start(MODEL), start(folders / "v1")]
    store = record(tmp_path, engines, Labelled(first=0))
    weights = ("--weights", folders / "v{version}")
    status, report = audit(tmp_path, store, "--with", MODEL, *weights)
    (found,) = report["causes"]
    assert (status, found["cause"], found["versions"]) == (1, "version", ["2"]), report
    assert found["proven"] and "weights of 1 sampled" in found["sentence"]
    # The right weights of that label, in the folder's place.
    (tmp_path / "right").mkdir()
    store = record(tmp_path / "right", engines[:1], Labelled(first=9))
    assert audit(tmp_path, store, "--with", MODEL, *weights)[1]["verdict"] == "clean"


def test_an_adapter_that_took_no_part(tmp_path, start, folders):
    store = record(tmp_path, [start(MODEL)], BaseAnswers(), model="tuned")
    adapter = ("--adapter", f"tuned={folders / 'adapter'}")
    status, report = audit(tmp_path, store, "--with", MODEL, *adapter)
    (found,) = report["causes"]
    assert (status, found["cause"], found["proven"]) == (1, "adapter", True), report


def test_another_template(tmp_path, start, folders):
    changed = audited.other_template(MODEL, folders / "template")
    store = record(tmp_path, [start(changed)], OtherTemplate(start(MODEL)))
    status, report = audit(tmp_path, store, "--with", start(changed))
    (found,) = report["causes"]
    assert (status, found["cause"], found["proven"]) == (1, "template", True), report
    assert found["mean_gap_left"] < 0.1 * found["mean_gap"]


def test_a_stale_cache_is_told_by_where_it_is(tmp_path, start, folders):
    engines = [start(MODEL), start(folders / "v1")]
    store = record(tmp_path, engines, OtherEngine(first=1))
    status, report = audit(tmp_path, store, "--with", MODEL)
    (found,) = report["causes"]
    assert (status, found["cause"], found["proven"]) == (1, "prefix_cache", False), report
