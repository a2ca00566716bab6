"""`python -m rolltape.track wandb|mlflow|trackio --project NAME`: a tracker beside a run."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence

from rolltape.track.tracker import TEXT_CHARS, Tracker
from rolltape.track.trackers import LIBRARIES, MissingLibrary

ONCE_WAIT_S = 600.0
STOP_WAIT_S = 60.0


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Ends the process with 2 where it is wrong."""
    parser = argparse.ArgumentParser("python -m rolltape.track", description=__doc__)
    parser.add_argument("to", choices=LIBRARIES, help="the tracker")
    parser.add_argument("--project", required=True, help="project or experiment to send to")
    parser.add_argument("--run", help="name of the new run in it")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", help="a recording: a file or a database")
    where.add_argument("--control", metavar="URL", help="a running server's control listener")
    parser.add_argument("--every", type=_positive, default=10.0, metavar="S", help="pause in s")
    help = "share of rollouts to send, whole groups (default: 0.05)"
    parser.add_argument("--sample", type=_share, default=0.05, metavar="SHARE", help=help)
    help = "send all that is there, and end"
    parser.add_argument("--once", action="store_true", help=help)
    help = f"longest text of a message (default: {TEXT_CHARS})"
    parser.add_argument("--text-chars", type=int, default=TEXT_CHARS, metavar="N", help=help)
    help = "wait for the reward of a finished attempt (default: 60 s)"
    parser.add_argument("--reward-wait", type=float, default=60.0, metavar="S", help=help)
    help = "send no text of prompts and answers"
    parser.add_argument("--no-text", action="store_true", help=help)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Sends until a signal comes. Returns 1 if something could not be read or sent."""
    told = arguments(words)
    logging.basicConfig(format="rolltape.track: %(message)s", level=logging.WARNING)
    try:
        tracker = Tracker(
            told.to,
            told.project,
            told.run,
            control=told.control,
            store=told.store,
            every_s=told.every,
            sample=told.sample,
            text_chars=0 if told.no_text else told.text_chars,
            reward_wait_s=told.reward_wait,
            past=told.once,
        )
    except (MissingLibrary, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return _run(tracker, told.once)


def _run(tracker: Tracker, once: bool) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if once:
        tracker.once(ONCE_WAIT_S)
    else:
        tracker.start()
        while not stop.wait(1.0) and tracker.runs:
            pass
        tracker.close(STOP_WAIT_S)

    said = ", ".join(f"{count} {kind}" for kind, count in sorted(tracker.sent.items()))
    lost = ", ".join(f"{n} {kind}" for kind, n in sorted(tracker.dropped.items()) if n)
    print(f"sent {said or 'nothing'}" + (f"; dropped {lost}" if lost else ""), file=sys.stderr)
    return 1 if lost or tracker.error else 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is no time")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not from 0 to 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
