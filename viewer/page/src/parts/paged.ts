/** A long list that is loaded in pages, as far as it is looked at. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export const PAGE_ROWS = 100;

export interface Page<T> {
  total: number;
  /** True if there are more than these. */
  isLeast: boolean;
  rows: T[];
}

export interface Paged<T> {
  /** Rows that the filters select; null before the first answer. */
  total: number | null;
  /** True if there are more than these: the count has ended at its bound. */
  isLeast: boolean;
  error: Error | null;
  row(index: number): T | undefined;
  /** Loads the pages of these rows, if they are not there. */
  need(first: number, last: number): void;
  /** Loads the pages that were needed last once more. */
  refresh(): void;
  /** Replaces rows that are there. */
  update(change: (row: T) => T): void;
}

interface State<T> {
  pages: Map<number, T[]>;
  asked: Set<number>;
  total: number | null;
  isLeast: boolean;
  error: Error | null;
  range: [number, number];
  stop: AbortController;
}

function empty<T>(): State<T> {
  const stop = new AbortController();
  return {
    pages: new Map(),
    asked: new Set(),
    total: null,
    isLeast: false,
    error: null,
    range: [0, 0],
    stop,
  };
}

/** Loads pages with `ask`; another `key` starts anew. */
export function usePaged<T>(
  key: string,
  ask: (offset: number, limit: number, signal: AbortSignal) => Promise<Page<T>>,
): Paged<T> {
  const state = useRef<State<T>>(empty());
  const latest = useRef(ask);
  latest.current = ask;
  const [, draw] = useState(0);
  const redraw = useCallback(() => draw((count) => count + 1), []);

  const load = useCallback(async (page: number) => {
    const mine = state.current;
    mine.asked.add(page);
    try {
      const answer = await latest.current(page * PAGE_ROWS, PAGE_ROWS, mine.stop.signal);
      mine.pages.set(page, answer.rows);
      mine.total = answer.total;
      mine.isLeast = answer.isLeast;
      mine.error = null;
    } catch (error) {
      if (mine.stop.signal.aborted) return;
      mine.asked.delete(page);
      mine.error = error as Error;
    }
    if (mine === state.current) redraw();
  }, []);

  const need = useCallback((first: number, last: number) => {
    const mine = state.current;
    mine.range = [Math.floor(first / PAGE_ROWS), Math.floor(Math.max(last, first) / PAGE_ROWS)];
    for (let page = mine.range[0]; page <= mine.range[1]; page++) {
      if (!mine.asked.has(page)) void load(page);
    }
  }, []);

  const refresh = useCallback(() => {
    const mine = state.current;
    const [first, last] = mine.range;
    for (const page of [...mine.pages.keys()]) {
      if (page < first || page > last) mine.pages.delete(page);
    }
    mine.asked = new Set(mine.pages.keys());
    for (let page = first; page <= last; page++) void load(page);
  }, []);

  const update = useCallback((change: (row: T) => T) => {
    for (const [page, rows] of state.current.pages) state.current.pages.set(page, rows.map(change));
    redraw();
  }, []);

  useEffect(() => {
    state.current = empty();
    need(0, 0);
    redraw();
    const mine = state.current;
    return () => mine.stop.abort();
  }, [key]);

  const row = (index: number) =>
    state.current.pages.get(Math.floor(index / PAGE_ROWS))?.[index % PAGE_ROWS];
  const { total, isLeast, error } = state.current;
  return { total, isLeast, error, row, need, refresh, update };
}
