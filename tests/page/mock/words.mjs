// Texts that look like those of a coding agent, from a seed.

/** Returns numbers in [0, 1) that follow from a seed (mulberry32). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const PIECES = (
  "the function reads every line and returns its first word unless the file is empty ; def parse ( path : str ) -> " +
  "list [ str ] : if not path . exists ( ) : raise FileNotFoundError ( path ) return [ ] import json from pathlib " +
  'import Path test_ passes because value == 42 and self . state is None so we open it again with encoding = "utf-8" ' +
  "expected got error Traceback ( most recent call last ) assert x . shape == ( 3 , 4 ) np . zeros"
).split(" ");

/** Returns the text of one token. */
export function piece(at, seed) {
  const pick = random(at * 2654435761 + seed)();
  if (pick < 0.05) return "\n";
  if (pick < 0.08) return "\n    ";
  const word = PIECES[Math.floor(pick * 997 * PIECES.length) % PIECES.length];
  return pick < 0.7 ? ` ${word}` : word;
}

export const SAID = [
  "I will look at the failing test first.",
  "The parser drops the last line when the file has no newline at its end. I will read `reader.py`.",
  "Found it: `splitlines()` is called on a chunk, not on the whole text.",
  "The fix keeps the rest of a chunk until the next one arrives. Running the tests again.",
  "All 14 tests pass. The cause was a chunk that ended inside a line; the reader now keeps its rest.",
];

export const HEARD = [
  "user: The test test_reader.py::test_last_line fails. Find out why and fix it.",
  "tool: FAILED test_reader.py::test_last_line - AssertionError: expected 3 lines, got 2",
  "tool: def lines(chunks):\n    for chunk in chunks:\n        yield from chunk.splitlines()",
  "tool: 1 file changed, 6 insertions(+), 2 deletions(-)",
  "tool: 14 passed in 0.21s",
];
