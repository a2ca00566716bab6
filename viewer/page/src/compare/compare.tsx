/** Two attempts side by side: their turns aligned, and the words in which they differ. */

import { useMemo, useRef, useState } from "preact/hooks";
import { askJson } from "../api/client";
import { isGroupHere } from "../api/file";
import type { Tree } from "../api/types";
import { VerdictOf } from "../episode/head";
import { spanMs } from "../lists/episodes";
import { Fold } from "../parts/fold";
import { useKeys } from "../parts/keys";
import { useLoad } from "../parts/load";
import { Failure, RewardValue, State, Waiting } from "../parts/marks";
import { Text } from "../parts/text";
import { compareHref, episodeHref, go, home, href } from "../route";
import { duration, plural, short } from "../words/format";
import { Row } from "./row";
import { alignedFrom, sharedTurns } from "./turns";

/** Rows that are drawn at first, and with each click. */
const DRAWN = 200;

/** `path` names two attempts: ID, ATTEMPT, ID, ATTEMPT. */
export function CompareView({ path }: { path: string[] }) {
  const [left = "", leftAttempt = "0", right = "", rightAttempt = "0"] = path;
  const { data, error, reload } = useLoad(path.join("/"), (signal) => {
    const read = (id: string, attempt: string) =>
      askJson<Tree>(`episodes/${encodeURIComponent(id)}/tree`, { attempt }, signal);
    return Promise.all([read(left, leftAttempt), read(right, rightAttempt)]);
  });
  if (error && !data) return <Failure error={error} retry={reload} />;
  if (!data) return <Waiting />;
  return <Loaded left={data[0]} right={data[1]} />;
}

function Loaded({ left, right }: { left: Tree; right: Tree }) {
  const shared = useMemo(() => sharedTurns(left.turns, right.turns), [left, right]);
  const rows = useMemo(() => alignedFrom(left.turns, right.turns, shared), [left, right]);
  const [drawn, setDrawn] = useState(DRAWN);
  const list = useRef<HTMLDivElement>(null);
  const known = left.episode.group_id;
  const group = known && isGroupHere(known) ? known : null;
  const up = () => go(group ? href(["group", group]) : home());
  const cursorTo = useCursor(list);
  useKeys({ u: up, Backspace: up, j: () => cursorTo(1), k: () => cursorTo(-1) });
  return (
    <div class="page compare">
      <header class="bar head">
        <h1>{titleOf(left, right)}</h1>
        {group && (
          <span class="fact">
            group{" "}
            <a href={href(["group", group])}>
              <Text text={group} />
            </a>
          </span>
        )}
        <span class="fact">{`${plural(left.turns.length, "turn")} and ${right.turns.length}`}</span>
        <span class="grow" />
        <a class="fact" href={compareHref(right.episode, left.episode)}>
          swap
        </a>
      </header>
      <div class="compared-rows" ref={list}>
        <div class="compared-heads">
          <Head tree={left} />
          <Head tree={right} />
        </div>
        {shared > 0 && <Shared trees={[left, right]} count={shared} />}
        {rows.slice(0, drawn).map((pair) => (
          <Row
            key={`${pair.left}/${pair.right}`}
            trees={[left, right]}
            turns={[at(left, pair.left), at(right, pair.right)]}
            isAlike={pair.likeness === 1}
          />
        ))}
        {rows.length === 0 && (
          <div class="empty">{`Neither attempt has ${shared > 0 ? "another" : "a"} turn.`}</div>
        )}
        {drawn < rows.length && (
          <button class="more" onClick={() => setDrawn(drawn + DRAWN)}>
            {`${plural(rows.length - drawn, "more row")}`}
          </button>
        )}
      </div>
    </div>
  );
}

const isSource = ({ episode }: Tree, of: Tree): boolean =>
  of.episode.replay?.episode_id === episode.episode_id &&
  of.episode.replay.attempt === episode.attempt;

function titleOf(left: Tree, right: Tree): string {
  if (isSource(left, right)) return "Beside its source";
  return isSource(right, left) ? "Beside a branch" : "Two attempts";
}

/** The turns that both attempts have, folded above the turn where they part. */
function Shared({ trees, count }: { trees: [Tree, Tree]; count: number }) {
  const [left, right] = trees;
  const shared = left.turns.slice(0, count);
  const others = shared.filter((turn, index) => turn.heard !== right.turns[index]?.heard).length;
  const label = `${plural(count, "shared turn")}, given again`;
  return (
    <div class="compared-shared">
      <Fold label={others > 0 ? `${label}; ${others} heard something else` : label}>
        {shared.map((turn, index) => (
          <Row
            key={`${turn.call_id}/${turn.choice}`}
            trees={trees}
            turns={[turn, at(right, index)]}
            isAlike={turn.heard === right.turns[index]?.heard}
          />
        ))}
      </Fold>
    </div>
  );
}

const at = (tree: Tree, index: number | null) =>
  (index === null ? null : tree.turns[index]) ?? null;

/** Goes from one row that differs to the next. */
function useCursor(list: { current: HTMLElement | null }): (by: number) => void {
  const cursor = useRef(-1);
  return (by: number) => {
    const rows = list.current?.querySelectorAll<HTMLElement>(".compared.differs") ?? [];
    cursor.current = Math.max(0, Math.min(rows.length - 1, cursor.current + by));
    rows[cursor.current]?.scrollIntoView({ block: "center" });
  };
}

function Head({ tree }: { tree: Tree }) {
  const { episode } = tree;
  return (
    <div class="compared-head">
      <a class="id" href={episodeHref(episode.episode_id, episode.attempt)}>
        <Text text={episode.episode_id} />
        {episode.attempt > 0 ? ` attempt ${episode.attempt}` : ""}
      </a>
      <span class="fact">
        reward <RewardValue value={episode.reward} />
      </span>
      <State word={episode.state} />
      <VerdictOf tree={tree} />
      <span class="dim">
        {`${plural(episode.calls, "call")}, ${short(episode.completion_tokens)} sampled, ${duration(spanMs(episode))}`}
      </span>
    </div>
  );
}
