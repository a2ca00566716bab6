/** Calls as they begin and end, of all episodes. */

import { useRef, useState } from "preact/hooks";
import type { CallEvent } from "../api/sums";
import { useKeys } from "../parts/keys";
import { useEvents } from "../parts/live";
import { Mark, Outcome } from "../parts/marks";
import { Rows } from "../parts/rows";
import { Text } from "../parts/text";
import { callHref, go } from "../route";
import { clock, duration, plural, short } from "../words/format";

/** Most calls that are kept; the oldest go first. */
const CALLS_MAX = 2000;
const ROW_PX = 27;
const TRACKS =
  "66px minmax(120px, 1fr) 84px minmax(90px, 0.6fr) 104px minmax(200px, 3fr) 76px 60px 60px";

const linkOf = (call: CallEvent): string => callHref(call.episode_id, call.attempt, call.call_id);

export function CallsView() {
  const calls = useRef(new Map<string, CallEvent>());
  const [cursor, setCursor] = useState(-1);
  const [, draw] = useState(0);
  useEvents({ text: 1 }, (event) => {
    if (event.type !== "call") return;
    const held = calls.current;
    const before = held.get(event.data.call_id);
    held.set(event.data.call_id, { ...before, ...event.data });
    for (const oldest of held.keys()) {
      if (held.size <= CALLS_MAX) break;
      held.delete(oldest);
    }
    draw((count) => count + 1);
  });
  const list = [...calls.current.values()].reverse();
  useKeys({
    j: () => setCursor((at) => Math.min(list.length - 1, at + 1)),
    k: () => setCursor((at) => Math.max(0, at - 1)),
    Enter: () => list[cursor] && go(linkOf(list[cursor])),
  });
  const running = list.filter((call) => call.outcome === null).length;
  return (
    <div class="page list">
      <div class="bar">
        <span class="dim">Calls since this view was opened, the newest first.</span>
        <span class="count">{`${plural(list.length, "call")}, ${running} running`}</span>
      </div>
      <Rows
        label="live calls"
        class="table"
        count={list.length}
        height={ROW_PX}
        cursor={cursor}
        head={<Head />}
        row={(index) =>
          list[index] && (
            <Line key={list[index].call_id} call={list[index]} isCursor={index === cursor} />
          )
        }
        foot={list.length === 0 && <div class="empty">No call has come yet.</div>}
      />
    </div>
  );
}

function Head() {
  const words = [
    "began",
    "episode",
    "route",
    "agent",
    "outcome",
    "said",
    "tokens",
    "first byte",
    "took",
  ];
  return (
    <div class="row rows-head live" style={{ gridTemplateColumns: TRACKS }}>
      {words.map((word, at) => (
        <span key={word} class={at > 5 ? "cell right" : "cell"}>
          {word}
        </span>
      ))}
    </div>
  );
}

function Line({ call, isCursor }: { call: CallEvent; isCursor: boolean }) {
  return (
    <a
      class={`row live ${isCursor ? "cursor" : ""}`}
      style={{ gridTemplateColumns: TRACKS }}
      href={linkOf(call)}
    >
      <span class="cell dim">{clock(call.started_at)}</span>
      <span class="cell id">
        <Text text={call.episode_id} />
      </span>
      <span class="cell">{call.route}</span>
      <span class="cell">
        {call.kind !== "main" && <Mark word={call.kind} tone={`kind-${call.kind}`} />}
        <Text text={call.agent ?? call.client} />
      </span>
      <span class="cell">
        <Outcome word={call.outcome} error={call.error} />
      </span>
      <span class="cell">
        {call.error ? (
          <span class="down">
            <Text text={call.error} />
          </span>
        ) : (
          <Text text={call.said ?? `${call.method} ${call.path}`} />
        )}
      </span>
      <span
        class="cell right"
        title="prompt and sampled tokens"
      >{`${short(call.prompt_tokens)} ${short(call.completion_tokens)}`}</span>
      <span class="cell right">{duration(call.first_byte_ms)}</span>
      <span class="cell right">{duration(call.duration_ms)}</span>
    </a>
  );
}
