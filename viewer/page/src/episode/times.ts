/** When calls of an episode ran, and what passed between them. */

import type { Tree, Turn } from "../api/types";
import { keyOf } from "./lanes";

/** Seconds since 1970. */
export interface Span {
  start: number;
  end: number;
}

const endOf = (turn: Turn): number => turn.started_at + (turn.duration_ms ?? 0) / 1000;

/** Turns of a tree by their keys, for as long as the tree is shown. */
const known = new WeakMap<Tree, Map<string, Turn>>();

function turnsOf(tree: Tree): Map<string, Turn> {
  const found = known.get(tree) ?? new Map(tree.turns.map((turn) => [keyOf(turn), turn]));
  known.set(tree, found);
  return found;
}

export function parentOf(tree: Tree, turn: Turn): Turn | null {
  return (turn.parent && turnsOf(tree).get(keyOf(turn.parent))) ?? null;
}

/** Returns what passed between the answer that a turn continues and the turn: tools, or a person. */
export function gapOf(tree: Tree, turn: Turn): Span | null {
  const parent = parentOf(tree, turn);
  if (!parent || parent.duration_ms === null) return null;
  const start = endOf(parent);
  return turn.started_at > start ? { start, end: turn.started_at } : null;
}

/** True if a turn heard what a tool gave. */
export const isAfterTool = (turn: Turn): boolean => turn.heard?.startsWith("tool: ") ?? false;

/**
 * Returns milliseconds in calls, and between them where tools ran; both may overlap. What was
 * tried again after the same tools counts once.
 */
export function timesOf(tree: Tree): { calls: number; tools: number } {
  let calls = 0;
  let tools = 0;
  const counted = new Set<string>();
  for (const turn of tree.turns) {
    if (turn.choice > 0) continue;
    calls += turn.duration_ms ?? 0;
    const parent = turn.parent && keyOf(turn.parent);
    const gap = isAfterTool(turn) ? gapOf(tree, turn) : null;
    if (!gap || !parent || counted.has(parent)) continue;
    counted.add(parent);
    tools += (gap.end - gap.start) * 1000;
  }
  return { calls, tools };
}

/** Calls that have more than one choice, for as long as the tree is shown. */
const branching = new WeakMap<Tree, Set<string>>();

export function hasChoices(tree: Tree, turn: Turn): boolean {
  let calls = branching.get(tree);
  if (!calls) {
    const seen = new Set<string>();
    calls = new Set<string>();
    for (const { call_id } of tree.turns) (seen.has(call_id) ? calls : seen).add(call_id);
    branching.set(tree, calls);
  }
  return calls.has(turn.call_id);
}
