"""Agents in processes of their own: they take games from a queue, play, and reward themselves.

The rewards come from the game, over the control API; the agent in `game.py` does not see it.
"""

import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass

import game
import rolltape

THREADS = 8
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Job:
    """One game that is to be played."""

    episode: str
    group: str
    task: str
    secret: int


@dataclass(frozen=True)
class Result:
    """How it went."""

    job: Job
    found: bool
    reward: float
    calls: int
    error: str | None = None


class Players:
    """Processes that play; each holds one client of the `openai` package and several games."""

    def __init__(self, client, processes):
        self.jobs = SPAWN.Queue()
        self.results = SPAWN.Queue()
        self.processes = [
            SPAWN.Process(target=run, args=(client, self.jobs, self.results), daemon=True)
            for _ in range(processes)
        ]
        for process in self.processes:
            process.start()

    def check(self):
        """Raises if a process has died."""
        dead = [process.exitcode for process in self.processes if not process.is_alive()]
        if dead:
            raise RuntimeError(f"agent processes have ended: {dead}")

    def stop(self):
        """Ends them; games under way are given up."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()


def run(client, jobs, results):
    """The life of a process: games until it is ended."""
    import openai

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    agent = openai.OpenAI(base_url=client.base_url(), api_key="none", max_retries=2, timeout=120)
    threads = [
        threading.Thread(target=take, args=(client, agent, jobs, results), daemon=True)
        for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    parent = multiprocessing.parent_process()
    parent.join()
    os._exit(0)


def take(client, agent, jobs, results):
    """Games one after the other."""
    while True:
        job = jobs.get()
        try:
            results.put(one(client, agent, job))
        except Exception as error:  # told to whoever waits for the result
            results.put(Result(job, False, 0.0, 0, repr(error)))


def one(client, agent, job):
    """Plays one game as one episode, and rewards it."""
    played = game.Game(job.secret)
    tags = {"group_id": job.group, "task_id": job.task, "announce": False}
    with rolltape.episode(client, job.episode, **tags) as episode:
        mine = agent.with_options(base_url=episode.base_url, default_headers=episode.headers)
        calls = game.play(mine, played)
        episode.reward(played.reward, source="game")
    return Result(job, played.found, played.reward, calls)
