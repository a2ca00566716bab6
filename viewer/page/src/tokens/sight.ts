/** Which tokens are in sight: measures, positions, and the way to a token. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { LINE_PX, type Item, type Layout } from "./layout";
import type { Windows } from "./windows";

/** Pixels above and below the box that are drawn, too. */
export const EXTRA_PX = 300;
/** Pixels beside the rows, and columns that are kept free for wide characters. */
const PADDING_PX = 28;
const SPARE_COLUMNS = 2;
/** A sampled token below this logprob is one that `.` goes to: a probability of 10%. */
const UNLIKELY = Math.log(0.1);

/** The part of the box that is in sight, in pixels. */
export interface View {
  top: number;
  space: number;
}

type Box = { current: HTMLDivElement | null };

/** Returns the top of each item, and the height of all as the last entry. */
export function topsOf(items: Item[], layout: Layout): number[] {
  const tops = [0];
  for (const item of items) tops.push((tops.at(-1) ?? 0) + layout.height(item));
  return tops;
}

export interface Sight {
  item: Item;
  top: number;
}

/** Returns the items in sight, and those near it. */
export function inSight(items: Item[], tops: number[], view: View): Sight[] {
  const found: Sight[] = [];
  const from = view.top - EXTRA_PX;
  const to = view.top + view.space + EXTRA_PX;
  items.forEach((item, at) => {
    const top = tops[at] ?? 0;
    if ((tops[at + 1] ?? 0) >= from && top <= to) found.push({ item, top });
  });
  return found;
}

/** Measures the box in columns of its font. */
export function useWidth(
  box: Box,
  setWidth: (columns: number) => void,
  setView: (change: (view: View) => View) => void,
): void {
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => {
      const pen = document.createElement("canvas").getContext("2d");
      if (!pen) return;
      pen.font = getComputedStyle(element).font;
      const columns = (element.clientWidth - PADDING_PX) / pen.measureText("0").width;
      setWidth(Math.floor(columns) - SPARE_COLUMNS);
      setView((view) => ({ ...view, space: element.clientHeight }));
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);
}

/**
 * Keeps what is in sight in its place when the heights above it become known. At the end of all
 * tokens, the end stays in sight.
 */
export function useAnchor(box: Box, items: Item[], tops: number[]): void {
  const anchor = useRef({ key: "", offset: 0, isEnd: false, items, tops });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const held = anchor.current;
    if (held.tops !== tops && held.key) {
      const at = items.findIndex((item) => keyOf(item) === held.key);
      const moved =
        held.isEnd && held.items === items ? element.scrollHeight : (tops[at] ?? 0) + held.offset;
      if (at >= 0 && Math.abs(moved - element.scrollTop) > 1) element.scrollTop = moved;
    }
    const top = element.scrollTop;
    let at = 0;
    while (at < items.length - 1 && (tops[at + 1] ?? 0) <= top) at++;
    const item = items[at];
    const isEnd = top > 0 && top + element.clientHeight >= (tops.at(-1) ?? 0) - 2;
    anchor.current = {
      key: item ? keyOf(item) : "",
      offset: top - (tops[at] ?? 0),
      isEnd,
      items,
      tops,
    };
  });
}

const keyOf = (item: Item): string => `${item.kind}${item.from}`;

/** Returns the next position whose token was unlikely; null if none is, as far as is loaded. */
export function findUnlikely(
  windows: Windows,
  from: number,
  step: number,
  start: number,
  end: number,
): number | null {
  for (let at = from + step; at >= start && at < end; at += step) {
    const token = windows.token(at);
    if (!token) {
      windows.need(at);
      return null;
    }
    if (token.logprob !== null && token.logprob < UNLIKELY) return at;
  }
  return null;
}

/** Brings a token into sight, if it is not. */
export function scrollToToken(
  box: HTMLDivElement | null,
  items: Item[],
  tops: number[],
  layout: Layout,
  at: number,
): void {
  const index = items.findIndex((item) => item.kind === "block" && at >= item.from && at < item.to);
  const item = items[index];
  if (!box || item?.kind !== "block") return;
  const row = layout.rowsOf(item)?.findIndex(([from, to]) => at >= from && at < to) ?? 0;
  const top = (tops[index] ?? 0) + row * LINE_PX;
  if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 3 * LINE_PX)
    box.scrollTop = top - box.clientHeight / 3;
}
