/** The turns of two attempts side by side, by what their excerpts say. */

import type { Turn } from "../api/types";
import { align, sharedOf, wordsOf, type Pair } from "../words/align";

/** What is heard says less of a turn than what was said. */
const SAID_WEIGHT = 0.7;

/** The call that sampled a turn: a recorded one, if its reply was given again. */
const originOf = (turn: Turn): string => `${turn.replayed ?? turn.call_id}/${turn.choice}`;

/**
 * Returns how many turns two attempts share from the beginning: one attempt was given again what
 * the other sampled, or both what a third one did.
 */
export function sharedTurns(left: Turn[], right: Turn[]): number {
  const parted = left.findIndex((turn, at) => {
    const other = right[at];
    const isGiven = Boolean(turn.replayed || other?.replayed);
    return !other || !isGiven || originOf(turn) !== originOf(other);
  });
  return parted < 0 ? left.length : parted;
}

/** Returns the turns of two attempts as rows, from a turn of both on. */
export function alignedFrom(left: Turn[], right: Turn[], from: number): Pair[] {
  const behind = (at: number | null) => (at === null ? null : at + from);
  return alignTurns(left.slice(from), right.slice(from)).map((pair) => ({
    left: behind(pair.left),
    right: behind(pair.right),
    likeness: pair.likeness,
  }));
}

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
