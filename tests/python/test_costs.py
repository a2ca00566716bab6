"""Costs by a file of prices: of models, episodes and groups, and what is not in them."""

import json
import re

import openai
import pytest

import harness
import upstream

PRICES = {
    "currency": "EUR",
    "models": {"coder": {"prompt": 2, "completion": 10}, "co*": {"prompt": 9, "completion": 9}},
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A recorder with a group of two episodes, one of them of several models."""
    folder = tmp_path_factory.mktemp("costs")
    turns = [{"text": "A word."}]
    # A hosted server: nothing is asked for, so a stream has no counts.
    with (
        upstream.scripted(folder, {"turns": turns, "by": "requests"}) as said,
        harness.serve(folder, "--upstream", said.url, "--dialect", "openai") as proxy,
    ):
        for episode, models in (("one", ["coder"]), ("two", ["coder", "coder", "nameless"])):
            for model in models:
                say(proxy, episode, model)
        for chunk in say(proxy, "two", "coder", stream=True):
            assert chunk
        for episode in ("one", "two"):
            proxy.command("close", episode)
        yield proxy


def say(proxy, episode, model, **options):
    """A call."""
    headers = {"x-group-id": "g", "x-episode-id": episode}
    agent = openai.OpenAI(base_url=proxy.base_url(), api_key="k", default_headers=headers)
    messages = [{"role": "user", "content": "Hello"}]
    return agent.chat.completions.create(model=model, messages=messages, **options)


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    """The file of prices."""
    file = tmp_path_factory.mktemp("prices") / "prices.json"
    file.write_text(json.dumps(PRICES))
    return file


def both(proxy, *words):
    """What a command prints, from the store and from the server, which is the same."""
    token = harness.token_file(proxy.store)
    server = ("--control", f"http://{harness.text(proxy.control)}", "--control-token-file", token)
    one, other = [
        harness.command(*words, *where, folder=proxy.folder)
        for where in (("--store", proxy.store), server)
    ]
    # The second comes a moment later.
    said = [re.sub(r"\b\d+ s ago", "now", ended.stdout) for ended in (one, other)]
    assert one.returncode == 0 and said[0] == said[1], (one, other)
    return one


def test_costs_are_those_of_the_counted_tokens(proxy, prices):
    stats = json.loads(both(proxy, "stats", "--json", "--prices", prices).stdout)
    coder, nameless = stats["models"]
    assert (coder["model"], coder["calls"], coder["uncounted"]) == ("coder", 3, 1)
    costs = stats["costs"]
    expected = (2 * coder["prompt_tokens"] + 10 * coder["completion_tokens"]) / 1e6
    assert expected > 0 and costs["amount"] == pytest.approx(expected, rel=1e-9)
    assert costs["currency"] == "EUR" and "usage" not in stats
    assert (costs["unpriced_models"], costs["unpriced_calls"]) == (["nameless"], 1)
    assert costs["uncounted_calls"] == 1

    (group,) = costs["groups"]
    assert (group["group_id"], group["episodes"]) == ("g", 2)
    assert group["mean"] == pytest.approx(expected / 2, rel=1e-9)
    lines = both(proxy, "episodes", "--json", "--prices", prices).stdout.splitlines()
    by_name = {one["episode_id"]: one["cost"] for one in map(json.loads, lines)}
    assert by_name["one"]["amount"] + by_name["two"]["amount"] == pytest.approx(expected, rel=1e-9)
    assert by_name["one"]["uncounted_calls"] == 0 and by_name["two"]["uncounted_calls"] == 1


def test_what_is_not_in_a_cost_is_said(proxy, prices):
    said = both(proxy, "stats", "--prices", prices)
    assert "EUR" in said.stdout and "no price" in said.stdout
    gaps = "1 call of models without a price: nameless; 1 call of which the server told no count"
    assert gaps in said.stderr, said.stderr
    listed = both(proxy, "episodes", "--prices", prices)
    assert "cost EUR" in listed.stdout and gaps in listed.stderr
    (two,) = [line for line in listed.stdout.splitlines() if line.startswith("two")]
    (one,) = [line for line in listed.stdout.splitlines() if line.startswith("one")]
    assert "+" in two and "+" not in one


def test_the_file_of_prices_can_stand_in_the_environment(proxy, prices):
    env = harness.environment(ROLLTAPE_PRICES=str(prices))
    words = ("episodes", "--store", proxy.store)
    assert "cost EUR" in harness.command(*words, folder=proxy.folder, env=env).stdout
    assert "cost" not in harness.command(*words, folder=proxy.folder).stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"currency": "EUR",\n "models": {"a": {"prompt": "1", "completion": 1}}}', "line 2"),
        ('{"currency": "EUR", "models": {"a": {"completion": 1}}}', "missing field `prompt`"),
        ('{"currency": "EUR", "models": {}}', "`models` names no model"),
        ('{"models": {"a": {"prompt": 1, "completion": 1}}}', "missing field `currency`"),
        ("currency = 'EUR'", "line 1 column 1"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_of_prices_is_told_with_its_place(proxy, tmp_path, text, why):
    file = tmp_path / "bad.json"
    if text:
        file.write_text(text)
    said = harness.command("stats", "--store", proxy.store, "--prices", file, folder=tmp_path)
    assert said.returncode == 1 and not said.stdout
    assert why in said.stderr and str(file) in said.stderr and "currency" in said.stderr
