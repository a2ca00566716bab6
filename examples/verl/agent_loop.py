"""An agent loop for verl: an agent of its own plays through rolltape, verl gets its tokens.

Name it in the configuration of verl, with the data set's `agent_name` or as the default:

    actor_rollout_ref.rollout.agent.agent_loop_config_path=examples/verl/agent_loop.yaml
    actor_rollout_ref.rollout.agent.default_agent_loop=rolltape

The agent is a command, in `command`; it finds its model in the usual variables and its task, the
row of the data set as JSON, in ROLLTAPE_TASK. A number that ends its stdout is the reward.
rolltape runs in front of verl's own server (`rolltape serve --upstream URL`), which verl keeps in
step with its weights; `token_file` is the one that it names at its start. Imports without verl; then there is no class to register.
"""

import asyncio
import json

import rolltape
from rolltape.trl.rollout import best_rows

ROWS_WAIT_S = 60

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
except ImportError:  # to be read and tested without it
    AgentLoopBase, AgentLoopOutput = object, dict

    def register(_name):
        return lambda kind: kind


def fields(row, prompt_max, response_max):
    """The fields of an AgentLoopOutput, out of a row of the feed. Prompts are cut in front."""
    start = row["prompt_len"]
    end = start + response_max
    return {
        "prompt_ids": row["input_ids"][max(0, start - prompt_max) : start],
        "response_ids": row["input_ids"][start:end],
        "response_mask": row["loss_mask"][start:end],
        "response_logprobs": row["logprobs"][start:end],
        "reward_score": row["reward"],
        "num_turns": 2 * len(row["turns"]),
        "metrics": {},
        "extra_fields": {
            "turn_scores": [],
            "tool_rewards": [],
            "trajectory_id": row["trajectory_id"],
            "min_global_steps": row["policy_version_min"],
            "max_global_steps": row["policy_version_max"],
            "reward_extra_info": {"score": row["reward"]},
        },
    }


def number(said):
    """The last line of what a command said, as a number; None if it is none."""
    lines = said.decode(errors="replace").strip().splitlines()
    try:
        return float(lines[-1])
    except (IndexError, ValueError):
        return None


@register("rolltape")
class RolltapeAgentLoop(AgentLoopBase):
    """One episode for each row of the data set."""

    def __init__(self, *args, command, control=None, data=None, token_file=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.command = list(command)
        self.client = rolltape.Client(control, data, token_file=token_file)

    async def run(self, sampling_params, **row):
        """Runs the agent and gives what rolltape recorded of it."""
        task = {name: value for name, value in row.items() if isinstance(value, (str, int, list))}
        found = await asyncio.to_thread(self.client_side, sampling_params, task)
        limits = self.rollout_config.prompt_length, self.rollout_config.response_length
        return AgentLoopOutput(**fields(found, *limits))

    def client_side(self, sampling, task):
        """An episode around the command; waits for its rows."""
        import subprocess

        group = str(task.get("uid") or task.get("index") or "") or None
        known = ("temperature", "top_p", "top_k")
        forced = [f"{name}={sampling[name]}" for name in known if sampling.get(name) is not None]
        forced = [word.replace("top_k=-1", "top_k=off") for word in forced]
        with rolltape.episode(self.client, group_id=group) as episode:
            if forced:
                self.client.announce(episode.id, force_sampling=",".join(forced))
            told = {"ROLLTAPE_TASK": json.dumps(task, default=str)}
            done = subprocess.run(
                self.command,
                env={**episode.environ(), **told},
                stdout=subprocess.PIPE,
                check=True,
            )
            reward = number(done.stdout)
            if reward is not None:
                episode.reward(reward)
        rows = rolltape.rows_of(self.client, episodes=[episode.id], wait_s=ROWS_WAIT_S)
        best = best_rows(rows).get(episode.id)
        if best is None:
            raise RuntimeError(f"{episode.id}: nothing was recorded that could be trained")
        return best
