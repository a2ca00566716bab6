"""Real clients play through the recorder; what is exported is what the upstream reported."""

from collections import Counter, defaultdict

import openai
import pytest

import control
from game import Agent, Game
from reported import bits

HIDDEN = {"logprobs", "token_ids", "prompt_token_ids", "weight_versions"}
UPSTREAM_ASKED = (b'"logprobs"', b'"return_token_ids":true', b'"return_weight_versions":true')


def values_of(keys, value):
    """Every value that stands under one of `keys`, however deep."""
    if isinstance(value, list):
        return [found for item in value for found in values_of(keys, item)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key in keys]
    return own + values_of(keys, list(value.values()))


def rows_by_episode(played):
    """Rows of each episode, in the order of the file."""
    episodes = defaultdict(list)
    for row in played.rows():
        episodes[row["episode_id"]].append(row)
    return episodes


def span(row, turn, column):
    """A column over a turn's sampled tokens."""
    return row[column][turn["start"] : turn["end"]]


def turn_key(row, turn):
    """What a row says of a turn, in the form of `Choice.key`."""
    ids = row["input_ids"]
    prompt, sampled = ids[: turn["start"]], ids[turn["start"] : turn["end"]]
    logprobs = bits(span(row, turn, "logprobs"))
    return tuple(prompt), tuple(sampled), logprobs, tuple(span(row, turn, "versions"))


def never_drifts(played, agent):
    """Whether each prompt starts with the prompt and the answer before it, by what is reported."""
    replies = played.reported()
    turns = [replies[reply_id].choices[0] for reply_id in agent.reply_ids]
    paths = [turn.prompt + turn.ids for turn in turns]
    return all(turn.prompt[: len(path)] == path for path, turn in zip(paths, turns[1:]))


def test_the_game_is_played_as_it_was_taught(played):
    """The prompt is the one of the model's own page, and games are won and lost."""
    first = played.reported()[played.agents["plain-0"].reply_ids[0]]
    assert len(first.choices[0].prompt) == 16
    assert {game.reward for game in played.games.values()} == {0.0, 1.0}
    assert max(len(agent.reply_ids) for agent in played.agents.values()) >= 4


def test_every_generation_is_recorded_complete(played):
    calls = played.generations()
    assert len(calls) == len(played.world.tap.generations())
    assert {call["outcome"] for call in calls} == {"complete"}
    assert {call["status"] for call in calls} == {200}


def test_the_upstream_was_asked(played):
    """Or else nothing below means anything."""
    for exchange in played.world.tap.generations():
        assert all(field in exchange.request.body for field in UPSTREAM_ASKED)
        assert exchange.reply.whole


def test_tags_do_not_reach_the_upstream(played):
    for exchange in played.world.tap.exchanges():
        if exchange.request.path.startswith(("/weight_info", "/server_info", "/close_attempt")):
            # What rolltape asks for itself: of a version it sees first, and of sampling; and what it
            # tells an engine of its own, that an attempt is over.
            continue
        names = [name for name, _ in exchange.request.headers]
        assert not [name for name in names if name.startswith(("x-episode", "x-group", "x-task"))]
        assert exchange.request.path.startswith("/v1/")


def test_agents_see_nothing_that_they_did_not_ask_for(played):
    for episode, agent in played.agents.items():
        if episode != "asks":
            assert set(values_of(HIDDEN, agent.seen)) <= {None}, episode


def test_an_agent_that_asks_is_answered(played):
    (seen,) = played.agents["asks"].seen
    (reported,) = played.reported()[seen["id"]].choices
    (choice,) = seen["choices"]
    assert seen["prompt_token_ids"] == reported.prompt
    assert choice["token_ids"] == reported.ids
    assert [e["logprob"] for e in choice["logprobs"]["content"]] == reported.logprobs
    assert set(values_of({"weight_versions"}, seen)) == {None}


def test_calls_carry_the_tags_of_their_episode(played):
    for call in played.generations():
        tagged = call["episode_id"] in played.games
        assert (call["group_id"] is not None) == tagged
        assert (call["task_id"] is not None) == (tagged or call["episode_id"] == "ids")


def test_exported_tokens_are_the_reported_ones(played):
    """Ids and versions, and logprobs bit by bit, of every turn of every row."""
    calls = played.by_call()
    for row in played.rows():
        for turn in row["turns"]:
            choices = calls[turn["call_id"]].choices
            assert turn_key(row, turn) in [choice.key for choice in choices], row["trajectory_id"]
        assert row["turns"][-1]["end"] == len(row["input_ids"])
        assert row["prompt_len"] == row["turns"][0]["start"]


def test_finish_reasons_are_the_reported_ones(played):
    calls = played.by_call()
    for row in played.rows():
        for turn in row["turns"]:
            reasons = {choice.finish_reason for choice in calls[turn["call_id"]].choices}
            assert turn["finish_reason"] in reasons


def test_columns_are_aligned_and_empty_off_the_sampled_spans(played):
    for row in played.rows():
        length = len(row["input_ids"])
        columns = [row[name] for name in ("loss_mask", "logprobs", "versions")]
        assert [len(column) for column in columns] == [length] * 3
        sampled = {at for turn in row["turns"] for at in range(turn["start"], turn["end"])}
        for at in set(range(length)) - sampled:
            assert [column[at] for column in columns] == [0, 0.0, -1], (row["trajectory_id"], at)


def test_every_sampled_token_is_trained_in_one_row(played):
    """The trained spans of an episode are the reported choices, each once."""
    calls, rows = played.by_call(), rows_by_episode(played)
    for episode in played.agents:
        ids = [call["call_id"] for call in played.generations(episode)]
        expected = Counter(choice.key for call in ids for choice in calls[call].choices)
        trained = Counter()
        for row in rows[episode]:
            for turn in row["turns"]:
                mask = set(span(row, turn, "loss_mask"))
                assert len(mask) == 1, "a turn is trained as a whole or not at all"
                trained[turn_key(row, turn)] += mask == {1}
        assert trained == expected, episode


def test_row_weights_sum_to_one_an_episode(played):
    for episode, rows in rows_by_episode(played).items():
        assert sum(row["row_weight"] for row in rows) == pytest.approx(1.0, abs=1e-12), episode


def test_a_game_is_one_trajectory(played):
    """No false forks: an agent that only ever appends has one row, whatever it did to the JSON."""
    rows, multi = rows_by_episode(played), 0
    for episode in played.games:
        agent = played.agents[episode]
        if never_drifts(played, agent):
            assert [row["kind"] for row in rows[episode]] == ["main"], episode
            assert len(rows[episode][0]["turns"]) == len(agent.reply_ids)
            multi += len(agent.reply_ids) > 1
    assert multi >= len(played.games) * 3 // 4, "too few games had turns that extend each other"


def test_a_choice_that_nobody_continues_is_a_sibling(played):
    rows = rows_by_episode(played)
    main, sibling = rows["two-choices"]
    assert [main["kind"], sibling["kind"]] == ["main", "sibling"]
    assert len(main["turns"]) == 2 and len(sibling["turns"]) == 1
    assert sibling["parent_trajectory_id"] == main["trajectory_id"]
    assert sibling["fork_position"] == sibling["prompt_len"] == main["prompt_len"]
    reply = played.reported()[played.agents["two-choices"].reply_ids[0]]
    assert span(main, main["turns"][0], "input_ids") == reply.choices[1].ids
    assert [row["kind"] for row in rows["two-streamed"]] == ["main", "sibling"]


def test_a_turn_that_is_asked_again_is_a_sibling_of_the_one_that_was_continued(played):
    main, other = rows_by_episode(played)["branch"]
    assert [main["kind"], other["kind"]] == ["main", "sibling"]
    assert [turn["continued"] for turn in main["turns"]] == [True, True, False]
    assert [turn["continued"] for turn in other["turns"]] == [True, False]
    assert other["parent_trajectory_id"] == main["trajectory_id"]
    position = other["fork_position"]
    assert main["input_ids"][:position] == other["input_ids"][:position]
    assert set(other["loss_mask"][:position]) == {0}


def test_messages_are_those_of_the_conversation(played):
    rows = rows_by_episode(played)
    for episode in played.games:
        agent, row = played.agents[episode], rows[episode][0]
        roles = [message["role"] for message in row["prompt"] + row["completion"]]
        assert roles == [m["role"] if isinstance(m, dict) else m.role for m in agent.messages]


def test_rewards_come_out(played):
    """From the control listener and from the command; null stays null; the last one counts."""
    for row in played.rows():
        expected = played.rewards.get(row["episode_id"])
        assert row["reward"] == expected, row["episode_id"]


def test_verdicts_are_exact(played):
    for row in played.rows():
        assert (row["verdict"], row["reasons"]) == ("exact", []), row["trajectory_id"]
        assert (row["fidelity"], row["logprob_kind"]) == ("exact", "processed")


def test_a_closed_episode_takes_no_more_calls(world):
    """The agent is told, and the upstream is not bothered with what nobody will record."""
    client = openai.OpenAI(base_url=world.proxy.base_url("over"), api_key="k", max_retries=0)
    Agent(client).ask()
    control.close(world.proxy, "over")
    seen = len(world.tap.generations())
    with pytest.raises(openai.ConflictError, match="closed") as met:
        Agent(client).ask()
    assert met.value.response.headers["x-rolltape-error"] == "1"
    assert len(world.tap.generations()) == seen


def test_exports_of_one_store_are_the_same_bytes(played, tmp_path):
    played.world.proxy.command("export", "--out", tmp_path / "again")
    again = (tmp_path / "again" / "trajectories.parquet").read_bytes()
    with open(played.parquet, "rb") as first:
        assert again == first.read()


def test_the_game_answers_as_the_model_was_taught():
    game = Game(3)
    assert [game.guess(n) for n in (1, 7, 2)] == ["higher", "lower", "no guesses left"]
    assert game.reward == 0.0
    assert (Game(3).guess(3), Game(3).reward) == ("correct", 0.0)
