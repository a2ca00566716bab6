"""Agents play with the clients of each wire behind real servers; what is exported is exact."""

from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest

import control
import harness
from game import Game
from servers import known, truth
from servers.players import PLAYERS
from test_servers import SCORE_ERROR_MAX

GAMES = 4
MODES = ("whole", "streamed")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def recorder(real, tmp_path_factory):
    """A recorder that is told what the server does not say of itself, and no more."""
    folder = tmp_path_factory.mktemp("games")
    with harness.serve(folder, "--upstream", real.url, *real.kind.told) as proxy:
        yield proxy


@contextmanager
def rows_of(proxy, episode):
    """The exported rows of an episode, which is closed first."""
    control.close(proxy, episode)
    out = proxy.folder / episode
    proxy.command("export", "--out", out, "--episode", episode)
    yield pq.read_table(out / "trajectories.parquet").to_pylist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wire", PLAYERS)
def test_games_are_exact(real, recorder, wire, mode):
    if f"{wire}-{mode}" in known.INEXACT_GAMES.get(real.kind.name, ()):
        pytest.skip("the server does not tell all of its tokens there")
    turns = 0
    for secret in range(1, GAMES + 1):
        episode = f"{wire}-{mode}-{secret}"
        player = PLAYERS[wire](recorder.base_url(episode), mode == "streamed")
        game = Game(secret)
        player.play(game)
        control.reward(recorder, episode, game.reward)
        with rows_of(recorder, episode) as rows:
            assert {(row["verdict"], *row["reasons"]) for row in rows} == {("exact",)}
            calls = {turn["call_id"] for row in rows for turn in row["turns"]}
            assert len(calls) == player.turns
            assert {row["reward"] for row in rows} == {game.reward}
            assert_scored(real, rows)
        turns += player.turns
    assert turns > GAMES, "no game had a second turn"


def assert_scored(real, rows):
    """Every trained token is as likely as the server says of the ids before it."""
    for row in rows:
        own = truth.score(real, row["input_ids"], row["prompt_len"])
        for at, logprob in enumerate(own, row["prompt_len"]):
            if row["loss_mask"][at] and logprob is not None:
                assert row["logprobs"][at] == pytest.approx(logprob, abs=SCORE_ERROR_MAX), at
