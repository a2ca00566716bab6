"""An agent as a user would bring it: no flag, no header, only what its client finds in the
environment. It plays one game, prints what it knows as one JSON line, and ends as it is told to.

    python agent.py [--secret N] [--seed N] [--exit CODE] [--wait] [--quit-on-term CODE]
"""

import argparse
import json
import os
import signal
import sys
import time

import openai

import game

SHOWN = ("OPENAI_", "ANTHROPIC_", "HOSTED_VLLM_", "ROLLTAPE_")


def arguments():
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--secret", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1, help="of its first turn; -1 for none")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--wait", action="store_true", help="stay until a signal comes")
    parser.add_argument("--quit-on-term", type=int, help="exit code after SIGTERM")
    return parser.parse_args()


def main():
    """Plays, tells, ends."""
    options = arguments()
    if options.quit_on_term is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(options.quit_on_term))
    seed = None if options.seed < 0 else options.seed
    agent = game.Agent(openai.OpenAI(max_retries=0), seed=seed)
    agent.play(game.Game(options.secret))
    env = {key: value for key, value in os.environ.items() if key.startswith(SHOWN)}
    print(json.dumps({"calls": len(agent.reply_ids), "env": env}), flush=True)
    while options.wait:
        time.sleep(0.1)
    return options.exit


if __name__ == "__main__":
    sys.exit(main())
