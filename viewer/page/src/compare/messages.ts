/** What two turns heard and said, message beside message, with the words that differ. */

import type { Message } from "../api/types";
import { align, sharedOf, wordsOf } from "../words/align";
import { diff, type Run } from "../words/diff";

/** Longer texts are compared up to here. */
export const COMPARED_CHARS_MAX = 50_000;

/** A message of a turn as one text. */
export interface Told {
  role: string;
  text: string;
}

/** Two messages that face each other; null where one attempt has none. */
export interface Facing {
  left: Told | null;
  right: Told | null;
  isSame: boolean;
}

/** Returns all that a message says: its words, its reasoning, its tools and their arguments. */
export function toldOf(message: Message): Told {
  const reasoning = message.reasoning ?? message.reasoning_content;
  const tools = (message.tool_calls ?? []).map((call) => {
    const given = call.function?.arguments;
    const text = typeof given === "string" ? given : JSON.stringify(given ?? {});
    return `${call.function?.name ?? call.type ?? "tool"} ${indented(text)}`;
  });
  const said = [reasoning && `[reasoning] ${reasoning}`, textOf(message.content), ...tools];
  return { role: message.role, text: said.filter(Boolean).join("\n") };
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (content === null || content === undefined) return "";
  if (!Array.isArray(content)) return JSON.stringify(content, null, 2);
  return content
    .map((part: { text?: unknown } | null) =>
      typeof part?.text === "string" ? part.text : JSON.stringify(part, null, 2),
    )
    .join("\n");
}

/** Returns arguments with a line for each, so that lines can be compared. */
function indented(text: string): string {
  if (text.length > COMPARED_CHARS_MAX) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Sets the messages of two turns beside each other. */
export function facing(left: Told[], right: Told[]): Facing[] {
  const words = (told: Told) => wordsOf(told.text.slice(0, 4000));
  const a = left.map(words);
  const b = right.map(words);
  const pairs = align(left.length, right.length, (i, j) => {
    if (left[i]?.role !== right[j]?.role) return 0;
    if (left[i]?.text === right[j]?.text) return 1;
    // Messages of one role face each other, however little they share.
    return 0.4 + 0.5 * sharedOf(a[i] ?? new Set(), b[j] ?? new Set());
  });
  return pairs.map((pair) => {
    const one = (pair.left === null ? null : left[pair.left]) ?? null;
    const other = (pair.right === null ? null : right[pair.right]) ?? null;
    const isSame = one !== null && one.role === other?.role && one.text === other.text;
    return { left: one, right: other, isSame };
  });
}

/** Returns both texts with the words marked that the other lacks. */
export function marked(left: Told | null, right: Told | null): [Run[], Run[]] {
  const [one, other] = [left, right].map((told) => told?.text.slice(0, COMPARED_CHARS_MAX) ?? "");
  if (!left) return [[], [{ text: other ?? "", same: false }]];
  if (!right) return [[{ text: one ?? "", same: false }], []];
  return diff(one ?? "", other ?? "");
}
