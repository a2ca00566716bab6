/** The turns of two attempts side by side, by what their excerpts say. */

import type { Turn } from "../api/types";
import { align, sharedOf, wordsOf, type Pair } from "../words/align";

/** What is heard says less of a turn than what was said. */
const SAID_WEIGHT = 0.7;

/** Returns the turns of two attempts as rows. */
export function alignTurns(left: Turn[], right: Turn[]): Pair[] {
  const a = left.map(wordsOfTurn);
  const b = right.map(wordsOfTurn);
  return align(left.length, right.length, (i, j) => {
    if (isSameTurn(left[i], right[j])) return 1;
    const [one, other] = [a[i], b[j]];
    if (!one || !other) return 0;
    // Less than 1: the same excerpts of another kind of turn are no equal turn.
    return (
      0.98 *
      (SAID_WEIGHT * sharedOf(one.said, other.said) +
        (1 - SAID_WEIGHT) * sharedOf(one.heard, other.heard))
    );
  });
}

/** True if two turns heard and said the same, as far as their excerpts tell. */
export function isSameTurn(left: Turn | undefined, right: Turn | undefined): boolean {
  if (!left || !right) return false;
  return left.said === right.said && left.heard === right.heard && left.kind === right.kind;
}

const wordsOfTurn = (turn: Turn) => ({
  heard: wordsOf(turn.heard ?? ""),
  said: wordsOf(turn.said ?? ""),
});
