/** The turns of an episode as a tree, and the calls without a turn between them. */

import type { Exchange, Fork, Tree, Turn } from "../api/types";
import { Rows } from "../parts/rows";
import { Fidelity, ForkMark, Mark, Outcome } from "../parts/marks";
import { Text } from "../parts/text";
import { callHref } from "../route";
import { decimal, duration, short } from "../words/format";
import { deedOf } from "../words/tools";
import { ToolWords } from "../call/tool";
import { Gutter, gutterPx, PassingGutter } from "./gutter";
import { isTextOnly } from "./head";
import { keyOf, lanesOf, type LaneLine, type LaneRow } from "./lanes";
import { GivenAgain } from "./replay";
import { gapOf, hasChoices, isAfterTool, type Span } from "./times";

const ROW_PX = 42;
/** Longer names of agents are cut: the text beside them says more. */
const AGENT_CHARS_MAX = 10;

/** A line of the tree: a turn in its lane, or a call without a turn. */
export type Line =
  | { kind: "turn"; lane: LaneRow; fork: Fork | null }
  | { kind: "other"; other: Exchange; passing: LaneLine[] };

export interface Lines {
  lines: Line[];
  /** True if lines are left out that a text does not select. */
  isFiltered: boolean;
  width: number;
}

/**
 * Returns the lines of a tree that have a text in what is shown of them. Of the calls without a
 * turn, faults are always there.
 */
export function linesOf(tree: Tree, withOthers: boolean, text: string): Lines {
  const lanes = lanesOf(tree.turns, tree.forks);
  const forks = new Map(tree.forks.map((fork) => [fork.call_id, fork]));
  const lines: Line[] = lanes.rows.map((lane) => ({
    kind: "turn",
    lane,
    fork: lane.turn.choice === 0 ? (forks.get(lane.turn.call_id) ?? null) : null,
  }));
  const shown = tree.others.filter((other) => withOthers || other.outcome !== "complete");
  for (const other of shown) lines.push({ kind: "other", other, passing: [] });
  lines.sort((a, b) => numberOf(a) - numberOf(b));
  const wanted = text.trim().toLowerCase();
  const all = withPassing(lines);
  const selected = wanted ? all.filter((line) => wordsOf(line).includes(wanted)) : all;
  return { lines: selected, isFiltered: wanted !== "", width: lanes.width };
}

/** Returns what a line shows, for the filter. */
function wordsOf(line: Line): string {
  const words =
    line.kind === "other"
      ? [line.other.method, line.other.path, line.other.error, line.other.outcome]
      : [
          line.lane.turn.heard,
          line.lane.turn.said,
          line.lane.turn.kind,
          line.lane.turn.agent,
          line.lane.turn.outcome,
          line.lane.turn.finish_reason,
          line.lane.turn.fidelity,
          line.fork && `fork: ${line.fork.cause}`,
          line.lane.turn.replayed && "given again",
          ...line.lane.turn.reasons,
        ];
  return words.filter(Boolean).join("\n").toLowerCase();
}

/** Gives the calls without a turn the lanes that go on below the turn before them. */
function withPassing(lines: Line[]): Line[] {
  let open: LaneLine[] = [];
  return lines.map((line) => {
    if (line.kind === "other") return { ...line, passing: open };
    open = [...line.lane.passing, ...line.lane.leaving];
    return line;
  });
}

const numberOf = (line: Line): number =>
  line.kind === "turn" ? line.lane.turn.number : line.other.number;

export function lineKey(line: Line): string {
  return line.kind === "turn" ? keyOf(line.lane.turn) : `${line.other.call_id}/0`;
}

export function lineHref(tree: Tree, line: Line, view: string | null): string {
  const { episode_id, attempt } = tree.episode;
  if (line.kind === "other") return callHref(episode_id, attempt, line.other.call_id, 0, view);
  const { call_id, choice } = line.lane.turn;
  return callHref(episode_id, attempt, call_id, choice, view);
}

interface Props {
  tree: Tree;
  lines: Lines;
  /** Index of the line that is open; -1 if none is. */
  cursor: number;
  view: string | null;
}

export function TreeView({ tree, lines, cursor, view }: Props) {
  const gutter = gutterPx(lines.width);
  return (
    <Rows
      label="turns"
      class={lines.isFiltered ? "tree filtered" : "tree"}
      count={lines.lines.length}
      height={ROW_PX}
      cursor={cursor}
      row={(index) => {
        const line = lines.lines[index];
        if (!line) return null;
        return (
          <a
            key={lineKey(line)}
            class={`turn ${index === cursor ? "cursor" : ""} ${line.kind}`}
            href={lineHref(tree, line, view)}
            style={{ gridTemplateColumns: `${gutter}px 30px minmax(0, 1fr) max-content` }}
          >
            <TimeBar tree={tree} call={line.kind === "turn" ? line.lane.turn : line.other} />
            {line.kind === "turn" ? (
              <TurnLine tree={tree} line={line.lane} fork={line.fork} width={lines.width} />
            ) : (
              <OtherLine line={line} width={lines.width} />
            )}
          </a>
        );
      }}
      foot={lines.lines.length === 0 && <div class="empty">No call yet.</div>}
    />
  );
}

/**
 * Shows when a call ran, between the beginning and the end of the episode; fainter before it, how
 * long the tools took whose results it got, or the agent.
 */
function TimeBar({ tree, call }: { tree: Tree; call: Exchange | Turn }) {
  const { opened_at, closed_at, last_call_at } = tree.episode;
  const begin = Math.min(opened_at, call.started_at);
  const spread = spreadOf(tree, begin, Math.max(closed_at ?? 0, last_call_at ?? 0));
  const place = ({ start, end }: Span, least: number) => {
    const left = (start - begin) / spread;
    const width = Math.min(1 - left, (end - start) / spread);
    return { left: `${left * 100}%`, width: `max(${least}px, ${width * 100}%)` };
  };
  const end = call.started_at + (call.duration_ms ?? 0) / 1000;
  const gap = "choice" in call ? gapOf(tree, call) : null;
  return (
    <>
      {gap && <i class="time-gap" style={place(gap, 0)} />}
      <i class="time-bar" style={place({ start: call.started_at, end }, 2)} />
    </>
  );
}

/** Returns the seconds from the beginning of an episode to the end of its last call. */
function spreadOf(tree: Tree, begin: number, least: number): number {
  const last = tree.turns.at(-1);
  const end = last ? last.started_at + (last.duration_ms ?? 0) / 1000 : 0;
  return Math.max(1e-3, (last ? end : least) - begin);
}

interface TurnLineProps {
  tree: Tree;
  line: LaneRow;
  fork: Fork | null;
  width: number;
}

function TurnLine({ tree, line, fork, width }: TurnLineProps) {
  const { turn } = line;
  return (
    <>
      <Gutter row={line} width={width} height={ROW_PX} />
      <span class="turn-number">{turn.number}</span>
      <TurnText tree={tree} turn={turn} fork={fork} />
      <span class="turn-numbers">
        <span title="new prompt tokens, then sampled tokens">
          <span class="dim">{turn.fidelity ? `+${short(turn.new_prompt_tokens)}` : ""}</span>{" "}
          {turn.fidelity ? short(turn.sampled_tokens) : short(turn.counted_tokens ?? null)}
        </span>
        <span class="dim" title={timesTitle(tree, turn)}>
          {decimal(turn.mean_logprob, 2)} · {duration(turn.duration_ms)}
        </span>
      </span>
    </>
  );
}

function timesTitle(tree: Tree, turn: Turn): string {
  const gap = gapOf(tree, turn);
  const words = "mean logprob of the sampled tokens; time until the end of the reply";
  if (!gap) return words;
  const took = duration((gap.end - gap.start) * 1000);
  return `${words}; ${isAfterTool(turn) ? "tools took" : "it came after"} ${took}`;
}

/** Shows what a turn did: its words, or the tools it asked for; above, what a person asked. */
function TurnText({ tree, turn, fork }: Omit<TurnLineProps, "line" | "width"> & { turn: Turn }) {
  const deed = deedOf(turn.said ?? "", turn.finish_reason);
  const marks = <TurnMarks tree={tree} turn={turn} fork={fork} />;
  const above = isAfterTool(turn) ? (deed.tools.length > 0 ? deed.words : "") : turn.heard;
  const hasMarks = isMarked(tree, turn, fork);
  return (
    <span class="turn-text">
      {(above || hasMarks) && (
        <span class="heard">
          {marks}
          <Text text={above} />
        </span>
      )}
      <span class="said">
        {deed.tools.length > 0 ? (
          deed.tools.map((line, at) => <ToolWords key={at} line={line} />)
        ) : deed.words ? (
          <Text text={deed.words} />
        ) : (
          <span class="none">no answer</span>
        )}
      </span>
    </span>
  );
}

/** True if a turn has a mark. */
function isMarked(tree: Tree, turn: Turn, fork: Fork | null): boolean {
  return (
    turn.kind !== "main" ||
    Boolean(turn.replayed || turn.agent || fork || turn.retry > 0 || hasChoices(tree, turn)) ||
    turn.outcome !== "complete" ||
    (turn.fidelity !== "exact" && !isTextOnly(tree)) ||
    turn.finish_reason === "length"
  );
}

/** Returns the beginning of a long name: agents are often named by random ids. */
const shortName = (name: string): string =>
  name.length > AGENT_CHARS_MAX ? `${name.slice(0, AGENT_CHARS_MAX - 1)}…` : name;

/** Shows what is not usual about a turn: kind, agent, fork, retry, fidelity, outcome, choice. */
export function TurnMarks({ tree, turn, fork }: { tree: Tree; turn: Turn; fork: Fork | null }) {
  return (
    <>
      {turn.replayed && <GivenAgain />}
      {turn.kind !== "main" && !(fork && turn.kind === "fork") && (
        <Mark word={turn.kind} tone={`kind-${turn.kind}`} title={turn.kind_reason ?? ""} />
      )}
      {turn.agent && (
        <Mark
          word={shortName(turn.agent)}
          tone="plain"
          title={`agent ${turn.agent}, started by ${turn.parent_agent ?? "none"}`}
        />
      )}
      {fork && <ForkMark cause={fork.cause} label={`fork: ${fork.cause}`} />}
      {turn.retry > 0 && (
        <Mark word={`try ${turn.retry + 1}`} tone="fair" title="the client's own count of tries" />
      )}
      {hasChoices(tree, turn) && <Mark word={`choice ${turn.choice}`} tone="plain" />}
      {turn.outcome !== "complete" && <Outcome word={turn.outcome} error={turn.error} />}
      {turn.outcome !== null && turn.fidelity !== "exact" && !isTextOnly(tree) && (
        <Fidelity word={turn.fidelity} />
      )}
      {turn.finish_reason === "length" && (
        <Mark word="length" tone="fair" title="the answer was cut at its longest" />
      )}
    </>
  );
}

function OtherLine({ line, width }: { line: Extract<Line, { kind: "other" }>; width: number }) {
  const { other } = line;
  return (
    <>
      <PassingGutter passing={line.passing} width={width} height={ROW_PX} />
      <span class="turn-number">{other.number}</span>
      <span class="turn-text">
        <span class="heard">
          {other.outcome !== "complete" && <Outcome word={other.outcome} error={other.error} />}
          {other.error ? <Text text={other.error} /> : `a call without a turn: ${other.route}`}
        </span>
        <span class="said mono">
          <Text text={`${other.method ?? ""} ${other.path ?? other.route}`} />
        </span>
      </span>
      <span class="turn-numbers">
        <span>{other.status ?? "–"}</span>
        <span class="dim">{duration(other.duration_ms)}</span>
      </span>
    </>
  );
}
