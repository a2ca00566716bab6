/**
 * The tree of turns as lanes beside a list. Turns stay in the order in which they began. A turn
 * that continues another stands in its lane; another continuation gets a lane of its own, from the
 * turn that both have in common. A turn that continues none may still come from one: a fork from
 * the call whose history it left, a sub-agent from the turn that may have started it. Such a lane
 * is a loose one.
 */

import type { Fork, Turn, TurnKey } from "../api/types";

/** Causes of forks that are no way from one turn to another. */
const APART = new Set(["other_agent", "other_conversation"]);

/** A line to the next row. */
export interface LaneLine {
  lane: number;
  isLoose: boolean;
}

export interface LaneRow {
  turn: Turn;
  /** Column of the turn's dot. */
  lane: number;
  /** The line that comes from above into the dot, if one does. */
  above: LaneLine | null;
  /** Lines that pass this row from top to bottom. */
  passing: LaneLine[];
  /** Lines that leave the dot; the one into the dot's own lane is straight. */
  leaving: LaneLine[];
}

export interface Lanes {
  rows: LaneRow[];
  /** Columns in all. */
  width: number;
}

export const keyOf = (turn: TurnKey): string => `${turn.call_id}/${turn.choice}`;

/** Turns that come after one: those that continue it, the main one first, and loose ones. */
interface Following {
  continuing: number[];
  loose: number[];
}

export function lanesOf(turns: Turn[], forks: Fork[]): Lanes {
  const following = followingOf(turns, forks);
  const reserved = new Map<number, LaneLine>();
  const lanes: (LaneLine | null)[] = [];
  const rows: LaneRow[] = [];

  const take = (isLoose: boolean): LaneLine => {
    const free = lanes.indexOf(null);
    const line = { lane: free < 0 ? lanes.length : free, isLoose };
    lanes[line.lane] = line;
    return line;
  };

  turns.forEach((turn, index) => {
    const above = reserved.get(index) ?? null;
    const { lane } = above ?? take(false);
    const passing = lanes.filter((line) => line !== null && line.lane !== lane) as LaneLine[];
    const { continuing, loose } = following[index] ?? { continuing: [], loose: [] };
    lanes[lane] = continuing.length > 0 ? { lane, isLoose: false } : null;

    const leaving = [...continuing, ...loose].map((child, order) => {
      const own = order < continuing.length && order === 0 ? lanes[lane] : null;
      const line = own ?? take(order >= continuing.length);
      reserved.set(child, line);
      return line;
    });
    rows.push({ turn, lane, above, passing, leaving });
  });
  return { rows, width: Math.max(1, lanes.length) };
}

function followingOf(turns: Turn[], forks: Fork[]): Following[] {
  const following: Following[] = turns.map(() => ({ continuing: [], loose: [] }));
  const at = new Map(turns.map((turn, index) => [keyOf(turn), index]));
  const weight = turns.map(() => 1);
  for (let index = turns.length - 1; index >= 0; index--) {
    const parent = turns[index]?.parent;
    const above = parent ? at.get(keyOf(parent)) : undefined;
    if (above !== undefined && above < index) {
      following[above]?.continuing.unshift(index);
      weight[above] = (weight[above] ?? 0) + (weight[index] ?? 0);
    } else {
      const origin = originOf(turns, forks, at, index);
      if (origin !== null) following[origin]?.loose.unshift(index);
    }
  }
  following.forEach(({ continuing }, index) => {
    const isSame = (child: number) => Number(turns[child]?.kind === turns[index]?.kind);
    const heavy = (child: number) => weight[child] ?? 0;
    continuing.sort((a, b) => isSame(b) - isSame(a) || heavy(b) - heavy(a) || a - b);
  });
  return following;
}

/** Returns the turn that one without a parent comes from: of its fork, or of its agent. */
function originOf(
  turns: Turn[],
  forks: Fork[],
  at: Map<string, number>,
  index: number,
): number | null {
  const turn = turns[index];
  if (!turn) return null;
  const left = forks.find((fork) => fork.call_id === turn.call_id && !APART.has(fork.cause));
  const known = left && at.get(`${left.parent_call_id}/0`);
  if (known !== undefined && known < index) return known;
  if (turn.kind !== "subagent") return null;
  return starterOf(turns, index, turn.parent_agent);
}

/** Returns the newest turn before a sub-agent's first one, of the agent that started it. */
function starterOf(turns: Turn[], index: number, parent: string | null): number | null {
  for (let before = index - 1; before >= 0; before--) {
    const agent = turns[before]?.agent ?? null;
    if (agent === parent || (agent === null && turns[before]?.kind !== "subagent")) return before;
  }
  return null;
}
