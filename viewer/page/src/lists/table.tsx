/** A sorted, filtered, endless table: what the lists of episodes and groups share. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Paged } from "../parts/paged";
import { Failure, Waiting } from "../parts/marks";
import { Rows } from "../parts/rows";
import { useKeys } from "../parts/keys";
import { go } from "../route";

const ROW_PX = 27;
/** Height of a row that has a second line. */
const TALL_ROW_PX = 48;
/** Widest window in which a table has only what fits. */
const NARROW = matchMedia("(max-width: 640px)");
/** Pixels between columns, and beside a row. */
const GAP_PX = 12;

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
  /** True for a number that stands back behind what there is to read. */
  dim?: boolean;
  /** True for a column that is hidden until the reader chooses it. */
  isExtra?: boolean;
  /**
   * Where it stands in a narrow window: in the row, or below it. Others are left out there, and what
   * is below a row is left out of a wide window.
   */
  narrow?: "row" | "below";
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

/** Returns true while the window is narrow. */
function useNarrow(): boolean {
  const [isNarrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const changed = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  return isNarrow;
}

/** Returns the columns of a row, and those below it. */
function placed<T>(columns: Column<T>[], isNarrow: boolean): [Column<T>[], Column<T>[]] {
  const of = (place: string) => columns.filter((column) => column.narrow === place);
  if (!isNarrow) return [columns.filter((column) => column.narrow !== "below"), []];
  return [of("row"), of("below").slice(0, 1)];
}

/** Returns the tracks of a row, and the width that it takes at least. */
function tracksOf<T>(columns: Column<T>[], isNarrow: boolean) {
  const least = columns.map((column) => Number(/\d+(?=px)/.exec(column.width)?.[0] ?? 0));
  const sum = least.reduce((all, one) => all + one + GAP_PX, GAP_PX);
  return {
    gridTemplateColumns: columns.map((column) => column.width).join(" "),
    minWidth: isNarrow ? "0" : `${sum}px`,
  };
}

function Cell<T>({ column, row, isBelow }: { column: Column<T>; row: T; isBelow?: boolean }) {
  const kinds = ["cell", column.right && !isBelow && "right", column.dim && "dim"];
  return (
    <span class={`${kinds.filter(Boolean).join(" ")}${isBelow ? " below" : ""}`}>
      {column.cell(row)}
    </span>
  );
}

export function Table<T>({ label, columns, paged, link, sort, onSort, resetKey, empty }: Props<T>) {
  const name = `${label} ${resetKey}`;
  const [cursor, setCursor] = useState(cursors.get(name) ?? -1);
  const count = paged.total ?? 0;
  const isNarrow = useNarrow();
  const [beside, below] = placed(columns, isNarrow);
  const tracks = tracksOf(beside, isNarrow);
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
  const height = below.length > 0 ? TALL_ROW_PX : ROW_PX;
  const row = (index: number) => {
    const value = paged.row(index);
    return (
      <a
        key={index}
        class={`row ${index === cursor ? "cursor" : ""}`}
        style={{ ...tracks, height: `${height}px` }}
        {...(value ? { href: link(value) } : {})}
      >
        {value && beside.map((column) => <Cell key={column.head} column={column} row={value} />)}
        {value &&
          below.map((column) => <Cell key={column.head} column={column} row={value} isBelow />)}
      </a>
    );
  };
  return (
    <Rows
      label={label}
      class="table"
      count={count}
      height={height}
      row={row}
      cursor={cursor}
      onRange={(first, last) => paged.need(first, Math.min(last, Math.max(0, count - 1)))}
      name={name}
      head={<Head columns={beside} tracks={tracks} sort={sort} onSort={onSort} />}
      foot={paged.total === null ? <Waiting /> : count === 0 && <div class="empty">{empty}</div>}
    />
  );
}

interface HeadProps<T> {
  columns: Column<T>[];
  tracks: Record<string, string>;
  sort: string;
  onSort(sort: string): void;
}

function Head<T>({ columns, tracks, sort, onSort }: HeadProps<T>) {
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
