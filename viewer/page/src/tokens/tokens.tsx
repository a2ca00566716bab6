/** A turn as tokens, colored by how likely each was. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Tokens, Tree, Turn } from "../api/types";
import { useKeys } from "../parts/keys";
import { Failure, Fidelity, Mark, ReasonMark, Waiting } from "../parts/marks";
import { Bar, Legend } from "./bars";
import { Hover, type Place } from "./hover";
import { FOLD_PX, itemsOf, Layout, LINE_PX, type Item } from "./layout";
import { TokenRow } from "./row";
import {
  EXTRA_PX,
  findUnlikely,
  inSight,
  scrollToToken,
  topsOf,
  useAnchor,
  useWidth,
  type View,
} from "./sight";
import { Strip } from "./strip";
import { Windows } from "./windows";

interface Props {
  tree: Tree;
  turn: Turn | null;
  callId: string;
  choice: number;
}

export function TokensView(props: Props) {
  const { turn, callId, choice } = props;
  const [version, setVersion] = useState(0);
  const end = turn?.outcome ?? "";
  const windows = useMemo(
    () => new Windows(callId, choice, () => setVersion((count) => count + 1)),
    [callId, choice, end],
  );
  useEffect(() => () => windows.close(), [windows]);
  useEffect(() => windows.need(Math.max(0, (turn?.prompt_tokens ?? 1) - 1)), [windows]);

  if (windows.error && !windows.newest) {
    return <Failure error={windows.error} retry={() => windows.need(0)} />;
  }
  if (!windows.newest) return <Waiting />;
  if (windows.newest.prompt_tokens + windows.newest.sampled_tokens === 0)
    return <NoTokens part={windows.newest} />;
  return <Loaded {...props} windows={windows} version={version} />;
}

/** Says where the texts come from, and the way to those that are not known. */
function Source({ part: { text_source: source } }: { part: Tokens }) {
  const way = "start rolltape with --tokenizer, the model's folder or its tokenizer.json";
  if (source === "tokenizer") return <Mark word="text from tokenizer" tone="plain" />;
  if (source === null)
    return <Mark word="no texts: start with --tokenizer" title={way} tone="fair" />;
  const known = "The reply lists the texts of what was sampled. For those of the prompt, ";
  return <Mark word={`text from ${source}, sampled only`} title={known + way} tone="plain" />;
}

/** Says why there is nothing to show. */
function NoTokens({ part }: { part: Tokens }) {
  return (
    <div class="empty">
      The server reported no token ids for this call.{" "}
      {part.reasons.map((reason) => (
        <ReasonMark key={reason} word={reason} />
      ))}
    </div>
  );
}

function Loaded({ tree, turn, windows, version }: Props & { windows: Windows; version: number }) {
  const part = windows.newest;
  const box = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(new Set<string>());
  const [width, setWidth] = useState(0);
  const [view, setView] = useState<View>({ top: 0, space: 800 });
  const [hover, setHover] = useState<Place | null>(null);
  const [pinned, setPinned] = useState(-1);

  const prompt = part?.prompt_tokens ?? 0;
  const sampled = part?.sampled_tokens ?? 0;
  const items = useMemo(() => itemsOf(prompt, sampled, turn, open), [prompt, sampled, turn, open]);
  const layout = useMemo(() => new Layout(windows, Math.max(20, width)), [windows, width]);
  const tops = useMemo(() => topsOf(items, layout), [items, layout, version]);

  useWidth(box, setWidth, setView);
  useAnchor(box, items, tops);
  useEffect(() => {
    for (const item of inSight(items, tops, view)) {
      if (item.item.kind === "block") windows.need(item.item.from);
    }
  });

  const unlikely = (step: number) => {
    const from = pinned < 0 ? prompt - (step > 0 ? 1 : 0) : pinned;
    const at = findUnlikely(windows, from, step, prompt, prompt + sampled);
    if (at === null) return;
    setHover(null);
    show(at);
  };
  const show = (at: number) => {
    setPinned(at);
    scrollToToken(box.current, items, tops, layout, at);
  };
  useKeys({ ".": () => unlikely(1), ",": () => unlikely(-1) });
  if (!part) return null;

  const hovered = hover && windows.token(hover.at);
  const onOver = (event: MouseEvent) => {
    const at = (event.target as HTMLElement).closest<HTMLElement>("[data-at]")?.dataset["at"];
    setHover(at === undefined ? null : { at: Number(at), x: event.clientX, y: event.clientY });
  };
  const toggle = (name: string) => {
    const next = new Set(open);
    if (!next.delete(name)) next.add(name);
    setOpen(next);
  };
  return (
    <div class="tokens">
      <div class="bar">
        <Legend />
        <Source part={part} />
        <Fidelity word={part.fidelity} />
        {part.reasons.map((reason) => (
          <ReasonMark key={reason} word={reason} />
        ))}
        <span class="grow" />
        <button
          class="quiet"
          title="the token before that had less than 10% (,)"
          onClick={() => unlikely(-1)}
        >
          ← unlikely
        </button>
        <button
          class="quiet"
          title="the next token that had less than 10% (.)"
          onClick={() => unlikely(1)}
        >
          unlikely →
        </button>
      </div>
      <Strip {...{ windows, version, prompt, sampled }} onSeek={show} />
      <div
        class="token-box"
        ref={box}
        tabIndex={0}
        onScroll={(event) =>
          setView({ top: event.currentTarget.scrollTop, space: event.currentTarget.clientHeight })
        }
        onMouseOver={onOver}
        onMouseLeave={() => setHover(null)}
      >
        <div class="token-space" style={{ height: `${tops.at(-1) ?? 0}px` }}>
          {inSight(items, tops, view).map(({ item, top }) => (
            <Piece
              key={`${item.kind}${item.from}`}
              {...{ item, top, view, layout, windows, pinned }}
            >
              {item.kind !== "block" && (
                <Bar
                  tree={tree}
                  turn={turn}
                  item={item}
                  isOpen={open.has(item.name)}
                  onToggle={toggle}
                />
              )}
            </Piece>
          ))}
        </div>
      </div>
      {hover && hovered && <Hover token={hovered} part={part} place={hover} />}
      {!hover && pinned >= 0 && <PinnedHover windows={windows} at={pinned} />}
    </div>
  );
}

/** Shows the facts of the token that the keys went to. */
function PinnedHover({ windows, at }: { windows: Windows; at: number }) {
  const token = windows.token(at);
  const element = document.querySelector(`[data-at="${at}"]`)?.getBoundingClientRect();
  if (!token || !windows.newest || !element) return null;
  return (
    <Hover token={token} part={windows.newest} place={{ at, x: element.left, y: element.top }} />
  );
}

interface PieceProps {
  item: Item;
  top: number;
  view: View;
  layout: Layout;
  windows: Windows;
  pinned: number;
  children: ComponentChildren;
}

/** Shows a bar, or the rows of a block that are in sight. */
function Piece({ item, top, view, layout, windows, pinned, children }: PieceProps) {
  if (item.kind !== "block")
    return (
      <div class="piece" style={{ top: `${top}px`, height: `${FOLD_PX}px` }}>
        {children}
      </div>
    );
  const rows = layout.rowsOf(item);
  if (!rows) {
    return (
      <div class="piece waiting" style={{ top: `${top}px`, height: `${layout.height(item)}px` }}>
        loading
      </div>
    );
  }
  const first = Math.max(0, Math.floor((view.top - EXTRA_PX - top) / LINE_PX));
  const last = Math.min(rows.length, Math.ceil((view.top + view.space + EXTRA_PX - top) / LINE_PX));
  return (
    <div class="piece" style={{ top: `${top + first * LINE_PX}px` }}>
      {rows.slice(first, last).map((row) => (
        <TokenRow key={row[0]} row={row} windows={windows} pinned={pinned} />
      ))}
    </div>
  );
}
