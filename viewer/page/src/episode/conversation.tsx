/** An episode read from its beginning to its end: what each turn heard, and what it said. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { askJson } from "../api/client";
import type { Call, Fork, Tree, Turn } from "../api/types";
import { MessageView } from "../call/message";
import { toolLines } from "../call/tool";
import { useKeys } from "../parts/keys";
import { useLoad } from "../parts/load";
import { Failure, Outcome } from "../parts/marks";
import { useNear } from "../parts/near";
import { Text } from "../parts/text";
import { callHref, go } from "../route";
import { duration, number, plural } from "../words/format";
import { Comments } from "./comments";
import { gapOf, isAfterTool } from "./times";
import { lineHref, lineKey, TurnMarks, type Line } from "./tree";

/** Turns are read when they come this near to what is in sight. */
const NEAR = "800px";
/** Turns that are drawn at first; others follow when their place comes near. */
const DRAWN = 120;

export function Conversation({ tree, lines }: { tree: Tree; lines: Line[] }) {
  const [cursor, setCursor] = useState(-1);
  const [drawn, setDrawn] = useState(DRAWN);
  const list = useRef<HTMLDivElement>(null);
  const move = (to: number) => {
    const next = Math.max(0, Math.min(lines.length - 1, drawn - 1, to));
    setCursor(next);
    list.current?.children[next]?.scrollIntoView({ block: "start" });
  };
  useKeys({
    j: () => move(cursor + 1),
    k: () => move(cursor - 1),
    Enter: () => {
      const line = lines[Math.max(cursor, 0)];
      if (line) go(lineHref(tree, line, null));
    },
  });
  // What is drawn stays as it is while only the cursor moves.
  const bodies = useMemo(
    () => lines.slice(0, drawn).map((line, at) => bodyOf(tree, line, lines[at - 1])),
    [tree, lines, drawn],
  );
  if (lines.length === 0) return <div class="empty">No call yet.</div>;
  return (
    <div class="conversation" ref={list}>
      {bodies.map((body, at) => (
        <section key={body.key} class={`spoken ${at === cursor ? "cursor" : ""}`}>
          {body}
        </section>
      ))}
      {drawn < lines.length && (
        <More key={drawn} left={lines.length - drawn} draw={() => setDrawn(drawn + DRAWN)} />
      )}
    </div>
  );
}

function bodyOf(tree: Tree, line: Line, before: Line | undefined) {
  if (line.kind === "other") return <OtherHead key={lineKey(line)} tree={tree} line={line} />;
  const { turn } = line.lane;
  const isFirst = callOf(before) !== turn.call_id;
  return <Spoken key={lineKey(line)} tree={tree} turn={turn} fork={line.fork} isFirst={isFirst} />;
}

/** The place of turns that are not drawn yet. */
function More({ left, draw }: { left: number; draw(): void }) {
  const place = useRef<HTMLDivElement>(null);
  const isNear = useNear(place, NEAR);
  useEffect(() => {
    if (isNear) draw();
  }, [isNear]);
  return <div class="note" ref={place}>{`${plural(left, "more turn")}`}</div>;
}

const callOf = (line: Line | undefined): string | null =>
  line?.kind === "turn" ? line.lane.turn.call_id : null;

function OtherHead({ tree, line }: { tree: Tree; line: Extract<Line, { kind: "other" }> }) {
  const { other } = line;
  return (
    <header class="spoken-head">
      <a href={lineHref(tree, line, null)}>{`#${other.number}`}</a>
      {other.outcome !== "complete" && <Outcome word={other.outcome} error={other.error} />}
      <span class="mono dim">
        <Text text={`${other.method ?? ""} ${other.path ?? other.route}`} />
      </span>
      <span class="dim">{other.status ?? ""}</span>
    </header>
  );
}

interface SpokenProps {
  tree: Tree;
  turn: Turn;
  fork: Fork | null;
  /** False if the turn before is another choice of the same call, which heard the same. */
  isFirst: boolean;
}

function Spoken({ tree, turn, fork, isFirst }: SpokenProps) {
  const place = useRef<HTMLDivElement>(null);
  const isNear = useNear(place, NEAR);
  const { episode_id, attempt } = tree.episode;
  return (
    <div ref={place}>
      <header class="spoken-head">
        <a href={callHref(episode_id, attempt, turn.call_id, turn.choice)}>{`#${turn.number}`}</a>
        <TurnMarks tree={tree} turn={turn} fork={fork} />
        <span class="dim" title="new prompt tokens; sampled tokens; time until the end">
          {`${numbersOf(turn)}, ${duration(turn.duration_ms)}`}
        </span>
        <Gap tree={tree} turn={turn} />
      </header>
      {isNear ? <Read turn={turn} isFirst={isFirst} /> : <Excerpt turn={turn} />}
      {isFirst && <Comments tree={tree} call={turn.call_id} />}
    </div>
  );
}

/** Returns the tokens of a turn in words. */
function numbersOf(turn: Turn): string {
  if (turn.replayed) return "nothing sampled";
  const counted = turn.counted_tokens ?? null;
  return counted === null
    ? `+${number(turn.new_prompt_tokens)} prompt, ${number(turn.sampled_tokens)} sampled`
    : `${number(turn.prompt_tokens)} prompt, ${number(counted)} sampled, by the server's count`;
}

/** Shorter times between two calls are the agent's own. */
const GAP_MS_MIN = 100;

/** Shows how long the tools took whose results a turn heard, or when a person wrote again. */
function Gap({ tree, turn }: { tree: Tree; turn: Turn }) {
  const gap = gapOf(tree, turn);
  const took = gap ? (gap.end - gap.start) * 1000 : 0;
  if (took < GAP_MS_MIN) return null;
  return (
    <span class="dim" title="from the end of the answer that this turn continues to its beginning">
      {isAfterTool(turn) ? `tools took ${duration(took)}` : `${duration(took)} later`}
    </span>
  );
}

/** Shows a turn in full, once it is read. The history that its call repeats is let go. */
function Read({ turn, isFirst }: { turn: Turn; isFirst: boolean }) {
  const { call_id, choice, new_from: newFrom, outcome } = turn;
  // The answer of a call that runs is not there yet; its end changes the key.
  const { data, error, reload } = useLoad(`${call_id}/${newFrom}/${outcome}`, async (signal) => {
    const call = await askJson<Call>(`calls/${encodeURIComponent(call_id)}`, {}, signal);
    return {
      heard: call.messages.slice(newFrom),
      tools: toolLines(call.messages),
      answer: call.choices.find((each) => each.index === choice)?.message,
    };
  });
  if (error && !data) return <Failure error={error} retry={reload} />;
  if (!data) return <Excerpt turn={turn} />;
  return (
    <>
      {isFirst && newFrom > 0 && turn.parent === null && (
        <div class="history dim">{`after ${plural(newFrom, "earlier message")}`}</div>
      )}
      {isFirst &&
        data.heard.map((message, at) => (
          <MessageView key={at} message={message} tools={data.tools} isBrief />
        ))}
      {data.answer ? (
        <div class="answer">
          <MessageView message={data.answer} sampled isBrief />
        </div>
      ) : (
        <div class="empty">{outcome === null ? "The call is running." : "There is no answer."}</div>
      )}
    </>
  );
}

function Excerpt({ turn }: { turn: Turn }) {
  return (
    <div class="spoken-excerpt">
      <p class="dim">
        <Text text={turn.heard} />
      </p>
      <p>
        <Text text={turn.said} />
      </p>
    </div>
  );
}
