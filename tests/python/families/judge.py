"""The oracle: which ids each call of a server's log should have had.

    python judge.py FAMILY LOG

A path of a conversation is the ids that a call used and those that were sampled for a choice of it;
without the token that ended the choice, or without the text that did, it is one too. A call can go
on from a path whose bytes are the beginning of its canonical prompt, up to an end of one of its
tokens. The ids to be used are those of the longest such path and the canonical ids of the rest.
Where there is no path, the canonical ids are. It is as right to look only at paths that end beside
an added token, or at the end of the prompt: there it is certain that nothing is merged across.

Prints a JSON object for each conversation: its `number`, `rows`, the paths that no later call goes
on from, and `calls`, each with

- `tokens`: how many ids of a path were to be used, for each of the paths that are right;
- `is_right`: whether the ids that were used are those that were to be used;
- `is_valid`: whether they are those of any path, or of none;
- `is_same_text`: whether they say what the canonical ids say;
- `is_torn`: whether the canonical ids are others than those to be used;
- `is_whole`: whether all that the call before was given and said is to be used.
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from known import FAMILIES
from tokens import Spelling


@dataclass(frozen=True)
class Recorded:
    """What a call was given, and what one of its choices said, or a part of it."""

    ids: list[int]
    text: bytes
    call: int
    is_whole: bool


class Judge:
    """One conversation."""

    def __init__(self, spelling):
        self._spelling = spelling
        self._paths = []
        self._prompts = []
        self.calls = []

    def hear(self, entry):
        """Judges a call, and remembers its paths."""
        canonical = entry["canonical"]
        used = canonical if entry["given"] is None else entry["given"]
        fit, sure = self.parents(canonical)
        right = [chosen for paths in (fit, sure) for chosen in starts(longest_of(paths), canonical)]
        at = len(self.calls)
        self.calls.append(
            {
                "call": entry["call"],
                "nth": entry["nth"],
                "tokens": sorted({tokens for tokens, _ in right}),
                "is_right": used in [ids for _, ids in right],
                "is_valid": used in [canonical, *(ids for _, ids in starts(fit, canonical))],
                "is_same_text": self._spelling.bytes(used) == self._spelling.bytes(canonical),
                "is_torn": canonical not in [ids for _, ids in right],
                "is_whole": any(p.call == at - 1 and p.is_whole for p, _ in longest_of(sure)),
            }
        )
        self._prompts.append(used)
        for said in entry["said"]:
            self._paths += self._forms(used, said, at)

    def _forms(self, used, said, call):
        """The paths of a choice."""
        ids, whole = said["ids"], len(said["ids"])
        counts = [whole] if said["finish"] == "length" else [whole, whole - 1]
        if said["stop"] is not None:
            counts.append(self._before(ids, said["stop"].encode()))
        for count in counts:
            if count > 0:
                path = used + ids[:count]
                yield Recorded(path, self._spelling.bytes(path), call, count == whole)

    def _before(self, ids, stop):
        """How many tokens are before the last place of a text."""
        text = self._spelling.bytes(ids)
        ends = accumulate(len(self._spelling.bytes_of_token(token)) for token in ids)
        return sum(end <= text.rindex(stop) for end in ends)

    def parents(self, canonical):
        """The paths that a prompt can go on from, each with the number of canonical tokens that say
        the same: all of them, and those that end where it is certain."""
        parts = [self._spelling.bytes_of_token(token) for token in canonical]
        text = b"".join(parts)
        ends = {end: at for at, end in enumerate(accumulate(map(len, parts)), 1)}
        fit = [p for p in self._paths if len(p.text) in ends and text.startswith(p.text)]
        fit = [(path, ends[len(path.text)]) for path in fit]
        return fit, [(path, at) for path, at in fit if self._is_sure(canonical, at)]

    def _is_sure(self, canonical, at):
        """Whether nothing could be merged across the start of a token, or there is none."""
        beside = canonical[max(0, at - 1) : at + 1]
        return at == len(canonical) or any(map(self._spelling.is_added, beside))

    @property
    def rows(self):
        """The paths that no later call goes on from; a call goes on from the longest of several."""
        whole = [path for path in self._paths if path.is_whole]
        gone_on = set()
        for at, prompt in enumerate(self._prompts):
            before = (index for index, path in enumerate(whole) if path.call < at)
            fit = [index for index in before if whole[index].ids == prompt[: len(whole[index].ids)]]
            gone_on |= {max(fit, key=lambda index: len(whole[index].ids))} if fit else set()
        return len(whole) - len(gone_on)


def longest_of(paths):
    """Those that say most."""
    most = max((len(path.text) for path, _ in paths), default=0)
    return [(path, at) for path, at in paths if len(path.text) == most]


def starts(paths, canonical):
    """How many ids of each path are used, and the ids of the whole prompt."""
    whole = [(len(path.ids), path.ids + canonical[at:]) for path, at in paths]
    return whole or [(0, canonical)]


def judged(family, log):
    """The verdicts on all conversations of a log, each when its last call was read."""
    spelling, judges = Spelling(FAMILIES[family]), {}
    with Path(log).open() as lines:
        left = Counter(json.loads(line)["conversation"] for line in lines)
    with Path(log).open() as lines:
        for entry in map(json.loads, lines):
            number = entry["conversation"]
            judge = judges.setdefault(number, Judge(spelling))
            judge.hear(entry)
            left[number] -= 1
            if not left[number]:
                del judges[number]
                yield {"number": number, "rows": judge.rows, "calls": judge.calls}


def main():
    """Prints the verdicts."""
    for verdict in judged(*sys.argv[1:3]):
        print(json.dumps(verdict))


if __name__ == "__main__":
    main()
