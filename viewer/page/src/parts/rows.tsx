/** A long list of rows of one height, of which only those in sight are in the document. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const EXTRA_ROWS = 8;
/** Browsers lose the position in elements that are higher than this. */
const HEIGHT_MAX_PX = 15_000_000;

/** Where lists were left, by their names: going back to one leads to the same rows. */
const left = new Map<string, number>();

interface Props {
  count: number;
  /** Height of a row in pixels. */
  height: number;
  row(index: number): ComponentChildren;
  /** Tells the rows in sight after they changed. */
  onRange?(first: number, last: number): void;
  /** A row that is brought into sight when it changes. */
  cursor?: number;
  head?: ComponentChildren;
  foot?: ComponentChildren;
  class?: string;
  label: string;
  /** Names what is listed: another name starts at its top, or where it was left. */
  name?: string;
}

/** Shows rows in a box that scrolls by itself. */
export function Rows(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [space, setSpace] = useState(600);
  const count = Math.min(props.count, Math.floor(HEIGHT_MAX_PX / props.height));
  const first = Math.max(0, Math.floor(top / props.height) - EXTRA_ROWS);
  const last = Math.min(count - 1, Math.ceil((top + space) / props.height) + EXTRA_ROWS);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setSpace(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => props.onRange?.(first, Math.max(first, last)), [first, last, props.name]);
  useLayoutEffect(() => {
    if (count > 0) box.current?.scrollTo(0, (props.name && left.get(props.name)) || 0);
  }, [props.name, count > 0]);
  useLayoutEffect(() => {
    if (props.cursor !== undefined && props.cursor >= 0)
      reveal(box.current, props.cursor, props.height);
  }, [props.cursor]);

  const shown = [];
  for (let index = first; index <= last; index++) shown.push(props.row(index));
  return (
    <div
      class={`rows ${props.class ?? ""}`}
      ref={box}
      role="region"
      aria-label={props.label}
      tabIndex={0}
      onScroll={(event) => {
        const { scrollTop } = event.currentTarget;
        setTop(scrollTop);
        if (props.name && count > 0) left.set(props.name, scrollTop);
      }}
    >
      {props.head}
      <div class="rows-space" style={{ height: `${count * props.height}px` }}>
        <div class="rows-shown" style={{ transform: `translateY(${first * props.height}px)` }}>
          {shown}
        </div>
      </div>
      {count < props.count && (
        <div class="note">{`The first ${count} rows are shown. Narrow the filters to see others.`}</div>
      )}
      {props.foot}
    </div>
  );
}

/** Scrolls as little as needed to have a row in sight, below the heading. */
function reveal(box: HTMLDivElement | null, index: number, height: number): void {
  if (!box) return;
  const head = (box.querySelector(".rows-head") as HTMLElement | null)?.offsetHeight ?? 0;
  const at = index * height;
  if (at < box.scrollTop) box.scrollTop = at;
  const below = at + height + head - box.clientHeight;
  if (below > box.scrollTop) box.scrollTop = below;
}
