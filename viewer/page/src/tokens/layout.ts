/**
 * Tokens in rows. The rows of a block are known when its tokens are there; until then its height is
 * an estimate. Only blocks in sight are laid out, so that a turn of any length opens at once.
 */

import type { Turn } from "../api/types";
import { columns, shown } from "./shown";
import type { Windows } from "./windows";

/** Tokens of a block; a window has a whole number of blocks. */
const BLOCK_TOKENS = 500;
/** New prompt tokens from which on they are folded, too, and how many of them stay in sight. */
const FOLD_NEW_TOKENS = 400;
const TAIL_TOKENS = 120;
/** Columns that a token takes on average, until it is known. */
const TYPICAL_COLUMNS = 4.3;

export const LINE_PX = 20;
export const FOLD_PX = 34;

export interface Fold {
  kind: "fold";
  name: string;
  from: number;
  to: number;
}

export interface Heading {
  kind: "heading";
  name: string;
  from: number;
  to: number;
}

export interface Block {
  kind: "block";
  from: number;
  to: number;
}

export type Item = Fold | Heading | Block;

/** Returns the parts of a choice in order; those in `open` are shown as tokens. */
export function itemsOf(
  prompt: number,
  sampled: number,
  turn: Turn | null,
  open: Set<string>,
): Item[] {
  const known = Math.min(prompt, Math.max(0, prompt - (turn?.new_prompt_tokens ?? prompt)));
  const fresh = prompt - known;
  const cut = fresh > FOLD_NEW_TOKENS ? prompt - TAIL_TOKENS : known;
  const items: Item[] = [];
  const folded = (name: string, from: number, to: number) => {
    if (from >= to) return;
    items.push({ kind: "fold", name, from, to });
    if (open.has(name)) items.push(...blocks(from, to));
  };
  folded("known", 0, known);
  folded("new", known, cut);
  items.push(...blocks(cut, prompt));
  items.push({ kind: "heading", name: "sampled", from: prompt, to: prompt + sampled });
  items.push(...blocks(prompt, prompt + sampled));
  return items;
}

/** Returns blocks whose bounds are multiples of their length, so that each is in one window. */
function blocks(from: number, to: number): Block[] {
  const found: Block[] = [];
  for (let at = from; at < to;) {
    const next = Math.min(to, (Math.floor(at / BLOCK_TOKENS) + 1) * BLOCK_TOKENS);
    found.push({ kind: "block", from: at, to: next });
    at = next;
  }
  return found;
}

/** A row of tokens [from, to). */
export type Row = [from: number, to: number];

/** Rows of blocks for one width, kept because a block's tokens do not change. */
export class Layout {
  private readonly rows = new Map<number, Row[]>();

  constructor(
    private readonly windows: Windows,
    /** Columns of a row. */
    private readonly width: number,
  ) {}

  /** Returns the rows of a block; null while its tokens are not there. */
  rowsOf(block: Block): Row[] | null {
    const known = this.rows.get(block.from);
    if (known) return known;
    if (!this.windows.has(block.from)) return null;
    const rows = this.broken(block);
    this.rows.set(block.from, rows);
    return rows;
  }

  height(item: Item): number {
    if (item.kind !== "block") return FOLD_PX;
    const rows = this.rowsOf(item)?.length;
    const guess = Math.ceil(((item.to - item.from) * TYPICAL_COLUMNS) / this.width);
    return (rows ?? Math.max(1, guess)) * LINE_PX;
  }

  /** Breaks a block into rows: where a row is full, and after a line break. */
  private broken(block: Block): Row[] {
    const rows: Row[] = [];
    let start = block.from;
    let used = 0;
    for (let at = block.from; at < block.to; at++) {
      const token = this.windows.token(at);
      if (!token) continue;
      const wide = columns(shown(token));
      if (used > 0 && used + wide > this.width) {
        rows.push([start, at]);
        start = at;
        used = 0;
      }
      used += wide;
      if (token.text?.includes("\n")) {
        rows.push([start, at + 1]);
        start = at + 1;
        used = 0;
      }
    }
    if (start < block.to) rows.push([start, block.to]);
    return rows;
  }
}
