/** A sorted, filtered, endless table: what the lists of episodes and groups share. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Paged } from "../parts/paged";
import { Failure, Waiting } from "../parts/marks";
import { Rows } from "../parts/rows";
import { useKeys } from "../parts/keys";
import { go } from "../route";

export const ROW_PX = 27;

export interface Column<T> {
  head: string;
  title?: string;
  /** Width as a track of a CSS grid. */
  width: string;
  /** Name of the order for the listener; without one, the column cannot be sorted. */
  sort?: string;
  /** True where a first click sorts from small to large. */
  rising?: boolean;
  right?: boolean;
  cell(row: T): ComponentChildren;
}

/** How often ages are written anew. */
const TICK_MS = 10_000;

/** Draws again from time to time. */
function useTick(ms: number): void {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((count) => count + 1), ms);
    return () => clearInterval(timer);
  }, [ms]);
}

/** Rows under the cursor when lists were left, by their names. */
const cursors = new Map<string, number>();

interface Props<T> {
  label: string;
  columns: Column<T>[];
  paged: Paged<T>;
  link(row: T): string;
  sort: string;
  onSort(sort: string): void;
  resetKey: string;
  empty: ComponentChildren;
}

export function Table<T>({ label, columns, paged, link, sort, onSort, resetKey, empty }: Props<T>) {
  const name = `${label} ${resetKey}`;
  const [cursor, setCursor] = useState(cursors.get(name) ?? -1);
  const count = paged.total ?? 0;
  const tracks = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
  useTick(TICK_MS);
  useEffect(() => setCursor(cursors.get(name) ?? -1), [name]);
  useEffect(() => void cursors.set(name, cursor), [cursor]);
  useKeys({
    j: () => setCursor((at) => Math.min(count - 1, at + 1)),
    k: () => setCursor((at) => Math.max(0, at - 1)),
    Enter: () => {
      const row = paged.row(cursor);
      if (row) go(link(row));
    },
  });

  if (paged.error) return <Failure error={paged.error} retry={paged.refresh} />;
  const row = (index: number) => {
    const value = paged.row(index);
    return (
      <a
        key={index}
        class={`row ${index === cursor ? "cursor" : ""}`}
        style={tracks}
        {...(value ? { href: link(value) } : {})}
      >
        {value &&
          columns.map((column) => (
            <span key={column.head} class={column.right ? "cell right" : "cell"}>
              {column.cell(value)}
            </span>
          ))}
      </a>
    );
  };
  return (
    <Rows
      label={label}
      class="table"
      count={count}
      height={ROW_PX}
      row={row}
      cursor={cursor}
      onRange={(first, last) => paged.need(first, Math.min(last, Math.max(0, count - 1)))}
      name={name}
      head={<Head columns={columns} sort={sort} onSort={onSort} />}
      foot={paged.total === null ? <Waiting /> : count === 0 && <div class="empty">{empty}</div>}
    />
  );
}

interface HeadProps<T> {
  columns: Column<T>[];
  sort: string;
  onSort(sort: string): void;
}

function Head<T>({ columns, sort, onSort }: HeadProps<T>) {
  const tracks = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
  return (
    <div class="row rows-head" style={tracks}>
      {columns.map((column) => (
        <span key={column.head} class={column.right ? "cell right" : "cell"} title={column.title}>
          {column.sort ? (
            <button
              class="sort"
              aria-pressed={sort.replace("-", "") === column.sort}
              onClick={() => onSort(turned(sort, column))}
            >
              {column.head}
              {sort === column.sort ? " ↑" : sort === `-${column.sort}` ? " ↓" : ""}
            </button>
          ) : (
            column.head
          )}
        </span>
      ))}
    </div>
  );
}

/** Returns the order after a click on a column. */
function turned<T>(sort: string, column: Column<T>): string {
  const rising = column.sort ?? "";
  if (sort === rising) return `-${rising}`;
  if (sort === `-${rising}`) return rising;
  return column.rising ? rising : `-${rising}`;
}
