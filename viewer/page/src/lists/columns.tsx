/** The columns of a table that the reader chose. The browser keeps the choice. */

import { useState } from "preact/hooks";
import type { Column } from "./table";

const KEY = "rolltape-columns";

/** Returns the names of the columns that are hidden; those of `usual` until the reader chooses. */
function kept(list: string, usual: string[]): string[] {
  try {
    const all: unknown = JSON.parse(localStorage.getItem(`${KEY}-${list}`) ?? "");
    if (Array.isArray(all)) return all.filter((name) => typeof name === "string");
  } catch {
    // Nothing was chosen, or it cannot be read.
  }
  return usual;
}

export interface Chosen<T> {
  shown: Column<T>[];
  hidden: string[];
  /** Hides a column, or shows it. */
  turn(head: string): void;
  /** Goes back to the usual columns. */
  reset(): void;
}

export function useColumns<T>(list: string, columns: Column<T>[]): Chosen<T> {
  const usual = columns.filter((column) => column.isExtra).map((column) => column.head);
  const [hidden, setHidden] = useState(() => kept(list, usual));
  const keep = (names: string[]) => {
    localStorage.setItem(`${KEY}-${list}`, JSON.stringify(names));
    setHidden(names);
  };
  return {
    shown: columns.filter((column, at) => at === 0 || !hidden.includes(column.head)),
    hidden,
    turn: (head) =>
      keep(hidden.includes(head) ? hidden.filter((name) => name !== head) : [...hidden, head]),
    reset: () => {
      localStorage.removeItem(`${KEY}-${list}`);
      setHidden(usual);
    },
  };
}

interface Props<T> {
  columns: Column<T>[];
  chosen: Chosen<T>;
}

/** The menu of columns. The first one is always there. */
export function ColumnMenu<T>({ columns, chosen }: Props<T>) {
  return (
    <details
      class="column-menu"
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        event.currentTarget.open = false;
        event.currentTarget.querySelector("summary")?.focus();
      }}
    >
      <summary>columns</summary>
      <div class="menu">
        {columns.slice(1).map(({ head }) => (
          <label key={head}>
            <input
              type="checkbox"
              checked={!chosen.hidden.includes(head)}
              onChange={() => chosen.turn(head)}
            />
            {head}
          </label>
        ))}
        <button onClick={chosen.reset}>usual columns</button>
      </div>
    </details>
  );
}
