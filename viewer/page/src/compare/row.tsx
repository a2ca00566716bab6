/** Two turns that face each other. Both are read when they come into sight. */

import { useMemo, useRef, useState } from "preact/hooks";
import { askJson } from "../api/client";
import type { Call, Tree, Turn } from "../api/types";
import { ToolWords } from "../call/tool";
import { TurnMarks } from "../episode/tree";
import { useLoad } from "../parts/load";
import { Failure } from "../parts/marks";
import { useNear } from "../parts/near";
import { Text } from "../parts/text";
import { callHref } from "../route";
import type { Run } from "../words/diff";
import { number } from "../words/format";
import { deedOf } from "../words/tools";
import { facing, marked, toldOf, COMPARED_CHARS_MAX, type Facing, type Told } from "./messages";

interface Props {
  trees: [Tree, Tree];
  turns: [Turn | null, Turn | null];
  /** True if the excerpts of both turns are equal. */
  isAlike: boolean;
}

export function Row({ trees, turns, isAlike }: Props) {
  const place = useRef<HTMLElement>(null);
  const isNear = useNear(place, "400px");
  const [isOpen, setOpen] = useState<boolean | null>(null);
  const key = isNear ? turns.map((turn) => (turn ? keyOf(turn) : "")).join(" ") : "";
  const { data, error, reload } = useLoad(key, async (signal) => {
    if (!key) return null;
    const [left, right] = await Promise.all(turns.map((turn) => told(turn, signal)));
    return facing(left ?? [], right ?? []);
  });
  // Excerpts are short: what is equal is known when all was read.
  const isSame = data ? data.every((pair) => pair.isSame) : isAlike;
  const isShown = isOpen ?? !isSame;
  return (
    <section class={`compared ${isSame ? "same" : "differs"}`} ref={place}>
      <div class="compared-titles">
        <Title tree={trees[0]} turn={turns[0]} />
        <Title tree={trees[1]} turn={turns[1]} />
        <button class="quiet" aria-expanded={isShown} onClick={() => setOpen(!isShown)}>
          {isSame ? (isShown ? "equal, fold" : "equal, show") : isShown ? "fold" : "show"}
        </button>
      </div>
      {error && <Failure error={error} retry={reload} />}
      {isShown && data?.map((pair, at) => <Pair key={at} pair={pair} />)}
      {isShown && !data && !error && <div class="waiting">loading</div>}
    </section>
  );
}

const keyOf = (turn: Turn): string => `${turn.call_id}/${turn.choice}/${turn.outcome}`;

/** Reads what a turn heard that was new, and what it said. */
async function told(turn: Turn | null, signal: AbortSignal): Promise<Told[]> {
  if (!turn) return [];
  const call = await askJson<Call>(`calls/${encodeURIComponent(turn.call_id)}`, {}, signal);
  const answer = call.choices.find((each) => each.index === turn.choice)?.message;
  const heard = call.messages.slice(turn.new_from).map(toldOf);
  return answer ? [...heard, { ...toldOf(answer), role: "answer" }] : heard;
}

function Title({ tree, turn }: { tree: Tree; turn: Turn | null }) {
  if (!turn) return <div class="compared-title none">no turn here</div>;
  const { episode_id, attempt } = tree.episode;
  const deed = deedOf(turn.said ?? "", turn.finish_reason);
  return (
    <div class="compared-title">
      <a href={callHref(episode_id, attempt, turn.call_id, turn.choice)}>{`#${turn.number}`}</a>{" "}
      <TurnMarks tree={tree} turn={turn} fork={null} />
      <span class="one-line">
        {deed.tools.length > 0 ? (
          deed.tools.map((line, at) => <ToolWords key={at} line={line} />)
        ) : (
          <Text text={deed.words} />
        )}
      </span>
    </div>
  );
}

function Pair({ pair }: { pair: Facing }) {
  const [isOpen, setOpen] = useState(false);
  const [left, right] = useMemo(() => marked(pair.left, pair.right), [pair]);
  const role = pair.left?.role ?? pair.right?.role ?? "";
  if (pair.isSame) {
    const chars = pair.left?.text.length ?? 0;
    return (
      <div class="compared-pair same">
        <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "▾" : "▸"} <Text text={role} />
          {`, equal, ${number(chars)} characters`}
        </button>
        {isOpen && <Side told={pair.left} runs={left} tone="" />}
      </div>
    );
  }
  return (
    <div class="compared-pair">
      <Side told={pair.left} runs={left} tone="known" />
      <Side told={pair.right} runs={right} tone="sent" />
    </div>
  );
}

function Side({ told, runs, tone }: { told: Told | null; runs: Run[]; tone: string }) {
  if (!told) return <div class="compared-side none">nothing</div>;
  return (
    <div class={`compared-side side-of ${tone}`}>
      <div class="dim">
        <Text text={told.role} />
      </div>
      <pre>
        {excerpted(runs).map((run, at) =>
          run.same ? (
            <Text key={at} text={run.text} />
          ) : (
            <mark key={at}>
              <Text text={run.text} />
            </mark>
          ),
        )}
      </pre>
      {told.text.length > COMPARED_CHARS_MAX && (
        <div class="note">{`${number(COMPARED_CHARS_MAX)} of ${number(told.text.length)} characters are compared`}</div>
      )}
    </div>
  );
}

/** Equal text is shown this far on each side of a difference. */
const AROUND_CHARS = 200;
const AROUND_LINES = 4;

/** Leaves out the middle of long runs that both texts have. */
function excerpted(runs: Run[]): Run[] {
  if (runs.length < 2) return runs;
  return runs.map((run, at) => {
    const { text } = run;
    const head = at === 0 ? "" : text.slice(0, AROUND_CHARS).split("\n", AROUND_LINES).join("\n");
    const isLast = at === runs.length - 1;
    const tail = isLast
      ? ""
      : text.slice(-AROUND_CHARS).split("\n").slice(-AROUND_LINES).join("\n");
    const left = text.length - head.length - tail.length;
    if (!run.same || left < AROUND_CHARS) return run;
    const gap = `[… ${number(left)} equal characters …]`;
    return { same: true, text: [head, gap, tail].filter(Boolean).join("\n") };
  });
}
