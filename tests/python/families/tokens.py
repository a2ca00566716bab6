"""Text as a family's tokenizer spells it: canonically, and as a model may have sampled it."""

import functools
import os
import re
from pathlib import Path

from tokenizers import Tokenizer

from take import MARKS

HOME = Path(os.environ.get("ROLLTAPE_FAMILIES_HOME", Path(__file__).with_name(".fetched")))
BYTES = {mark: byte for byte, mark in MARKS.items()}
TORN_CHANCE = 0.08
"""How likely a text is torn between two of its characters."""
BURST_CHANCE = 0.02
"""How likely a piece is sampled byte by byte."""


class Spelling:
    """A tokenizer, and the bytes of its tokens."""

    def __init__(self, family):
        self._tokenizer = Tokenizer.from_file(str(HOME / "tokenizers" / f"{family.tokenizer}.json"))
        self._added = self._tokenizer.get_added_tokens_decoder()
        names = sorted((token.content for token in self._added.values()), key=len, reverse=True)
        self._names = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        self.size = self._tokenizer.get_vocab_size()
        self.bytes_of_token = functools.cache(self._bytes_of_token)

    def canonical(self, text):
        """The ids that a server makes of a rendered text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def name(self, token):
        """A token as `convert_ids_to_tokens` writes it."""
        return self._tokenizer.id_to_token(token)

    def is_added(self, token):
        """Whether a token is cut out of a text before anything is merged."""
        return token in self._added

    def _bytes_of_token(self, token):
        if token in self._added:
            return self._added[token].content.encode()
        return bytes(BYTES[mark] for mark in self._tokenizer.id_to_token(token))

    def bytes(self, ids):
        """What ids say."""
        return b"".join(map(self.bytes_of_token, ids))

    def sampled(self, text, chance):
        """Ids that say a text, torn at random; added tokens stay whole."""
        ids = []
        for part in filter(None, self._names.split(text)):
            if self._names.fullmatch(part):
                ids.append(self._tokenizer.token_to_id(part))
                continue
            for piece in torn(part, chance):
                ids += self._piece(piece, chance)
        return ids

    def _piece(self, text, chance):
        ids = self.canonical(text)
        # A tokenizer that normalizes its text writes other bytes than these.
        if chance.random() < BURST_CHANCE or self.bytes(ids) != text.encode():
            ids = [self._tokenizer.token_to_id(MARKS[byte]) for byte in text.encode()]
        return ids


def torn(text, chance):
    """Pieces of a text."""
    start = 0
    for at in range(1, len(text)):
        if chance.random() < TORN_CHANCE:
            yield text[start:at]
            start = at
    yield text[start:]
