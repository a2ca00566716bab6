"""A session of many agents against one recorder, and everything that is known of it."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import openai
import pyarrow.parquet as pq

import control
import reported
from game import TOKENS_MAX, Agent, Game
from harness import World

GAMES = 8
GROUP = "games"
TASK = "guess-1-to-7"
SPLIT_TASK = "unit-test"
"""A task whose name has the word of a split."""


@dataclass
class Played:
    """What was played, and what came out."""

    world: World
    agents: dict[str, Agent] = field(default_factory=dict)
    games: dict[str, Game] = field(default_factory=dict)
    rewards: dict[str, float | None] = field(default_factory=dict)
    """The reward that each episode must come out with."""
    parquet: str = ""

    def client(self, episode=None, **headers):
        """An unmodified client, tagged by path or by headers."""
        url = self.world.proxy.base_url(episode)
        options = {"default_headers": headers, "max_retries": 0, "timeout": 30}
        return openai.OpenAI(base_url=url, api_key="none", **options)

    def agent(self, episode, client, **options):
        """A new agent that plays under `episode`."""
        return self.agents.setdefault(episode, Agent(client, **options))

    def calls(self):
        """The view `calls`, in the order in which they began."""
        order = "SELECT * FROM calls ORDER BY started_at, call_id"
        with sqlite3.connect(self.world.proxy.store) as store:
            store.row_factory = sqlite3.Row
            return [dict(row) for row in store.execute(order)]

    def generations(self, episode=None):
        """The recorded calls that asked for tokens, of one episode or of all."""
        calls = [call for call in self.calls() if call["route"] in ("chat", "completions")]
        return [call for call in calls if episode in (None, call["episode_id"])]

    def reported(self):
        """What the upstream reported, by the id of the reply."""
        replies = [reported.read(e.reply) for e in self.world.tap.generations()]
        return {reply.id: reply for reply in replies}

    def rows(self):
        """The exported rows; logprobs are the file's float32 as floats."""
        return pq.read_table(self.parquet).to_pylist()

    def by_call(self):
        """For each recorded call what the upstream reported of it.

        An agent makes one call after the other, so the calls of an episode and the replies that its
        agent saw stand in one order.
        """
        replies, found = self.reported(), {}
        for episode, agent in self.agents.items():
            calls = self.generations(episode)
            assert len(calls) == len(agent.reply_ids), episode
            for call, reply_id in zip(calls, agent.reply_ids):
                found[call["call_id"]] = replies[reply_id]
        return found


def play(world):
    """Plays, rewards, closes and exports."""
    played = Played(world)
    play_games(played)
    play_choices(played)
    play_branch(played)
    complete_ids(played)
    ask_openly(played)
    reward(played)
    close(played)
    out = world.proxy.folder / "export"
    world.proxy.command("export", "--out", out)
    played.parquet = str(out / "trajectories.parquet")
    return played


def play_games(played):
    """Many games at once: half streamed, tagged by headers; half not, tagged by path."""

    def one(number):
        streams, secret = number % 2 == 1, number % 7 + 1
        episode = f"{'streamed' if streams else 'plain'}-{number}"
        tags = {"x-group-id": GROUP, "x-task-id": TASK, "x-episode-tag": f"secret={secret}"}
        by_header = {"x-episode-id": episode, **tags}
        client = played.client(**by_header) if streams else played.client(episode, **tags)
        agent = played.agent(episode, client, stream=streams, seed=100 * number)
        game = played.games.setdefault(episode, Game(secret))
        agent.play(game)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(2 * GAMES)))


def play_choices(played):
    """Two choices a call: one agent goes on with the second, one with none."""
    agent = played.agent("two-choices", played.client("two-choices"), seed=1)
    _, second = agent.ask(n=2)
    agent.answer(second, Game(4))
    agent.ask(turn=1)
    streamed = played.agent("two-streamed", played.client("two-streamed"), stream=True, seed=2)
    streamed.ask(n=2)


def play_branch(played):
    """An agent that asks again at its second turn and goes on with the new answer."""
    agent = played.agent("branch", played.client("branch"), seed=3)
    game = Game(7)
    agent.answer(agent.ask()[0], game)
    agent.ask(turn=10)
    agent.answer(agent.ask(turn=20)[0], game)
    agent.ask(turn=30)


def complete_ids(played):
    """One completion of a prompt of token ids, as trainers' own clients ask for it."""
    prompt = next(iter(played.reported().values())).choices[0].prompt
    agent = played.agent("ids", played.client("ids", **{"x-task-id": SPLIT_TASK}))
    completion = agent.client.completions.create(
        model="tiny", prompt=prompt, max_tokens=TOKENS_MAX, temperature=1.0, seed=5
    )
    agent.reply_ids.append(completion.id)
    agent.seen.append(completion.model_dump())


def ask_openly(played):
    """One agent wants the logprobs and ids for itself."""
    agent = played.agent("asks", played.client("asks"), seed=6)
    agent.ask(logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})


def reward(played):
    """Rewards from both sides: over HTTP and by the command; the last one of an episode counts."""
    proxy = played.world.proxy
    for episode, game in played.games.items():
        played.rewards[episode] = game.reward
        if played.agents[episode].stream:
            control.reward(proxy, episode, 0.5, source="too-early")
            control.reward(proxy, episode, game.reward, source="game")
        else:
            proxy.command("reward", episode, game.reward)
    control.reward(proxy, "branch", None)
    control.reward(proxy, "branch", 0.25, name="style")
    proxy.command("reward", "two-choices", "-1.5")
    played.rewards |= {"branch": None, "two-choices": -1.5}


def close(played):
    """Closes every episode."""
    for number, episode in enumerate(played.agents):
        if number % 2:
            control.close(played.world.proxy, episode)
        else:
            played.world.proxy.command("close", episode)
