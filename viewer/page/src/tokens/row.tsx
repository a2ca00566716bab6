/** One row of tokens. */

import { spanAt } from "./hover";
import type { Row } from "./layout";
import { classOf, shown } from "./shown";
import type { Windows } from "./windows";

interface Props {
  row: Row;
  windows: Windows;
  /** Position that is marked; -1 if none is. */
  pinned: number;
}

export function TokenRow({ row, windows, pinned }: Props) {
  const spans = windows.newest?.versions ?? [];
  const cells = [];
  for (let at = row[0]; at < row[1]; at++) {
    const token = windows.token(at);
    if (!token) continue;
    const isNewVersion = spans.length > 1 && token.isSampled && spanAt(spans, at)?.start === at;
    const extra = `${isNewVersion ? " version-start" : ""}${at === pinned ? " pinned" : ""}`;
    cells.push(
      <span key={at} class={`tok ${classOf(token)}${extra}`} data-at={at}>
        {shown(token)}
      </span>,
    );
  }
  return <div class="token-row">{cells}</div>;
}
