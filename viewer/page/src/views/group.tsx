/** The attempts of a group side by side. */

import { useRef, useState } from "preact/hooks";
import { askJson } from "../api/client";
import { FILE } from "../api/file";
import type { Episode, EpisodePage, Tree, Turn } from "../api/types";
import { Chooser } from "../compare/chooser";
import { alignTurns } from "../compare/turns";
import { Ids, spanMs } from "../lists/episodes";
import { Flat } from "../lists/groups";
import type { Group, GroupPage } from "../api/types";
import { Sampled, VerdictOf } from "../episode/head";
import { isAfterTool } from "../episode/times";
import { ToolWords } from "../call/tool";
import { useKeys } from "../parts/keys";
import { useEvents } from "../parts/live";
import { useLoad, useThrottled } from "../parts/load";
import {
  Failure,
  Mark,
  Outcome,
  RewardValue,
  State,
  Waiting,
  widened,
  type Scale,
} from "../parts/marks";
import { useNear } from "../parts/near";
import { Text } from "../parts/text";
import { Spread } from "../plots/spread";
import { callHref, episodeHref, go, home, href, replace } from "../route";
import { decimal, duration, plural, short } from "../words/format";
import { deedOf } from "../words/tools";

const REFRESH_MS = 1500;
/** Most attempts of one group that are shown. */
const ATTEMPTS_MAX = 512;

type Order = "reward" | "opened";

export function GroupView({ id, query }: { id: string; query: Record<string, string> }) {
  const { data, error, reload } = useLoad(id, async (signal) => {
    const [page, groups] = await Promise.all([
      askJson<EpisodePage>("episodes", { group: id, sort: "opened", limit: ATTEMPTS_MAX }, signal),
      askJson<GroupPage>("groups", { group: id }, signal),
    ]);
    const group = groups.groups.find((each) => each.group_id === id) ?? null;
    return { page, group };
  });
  const refresh = useThrottled(reload, REFRESH_MS);
  useEvents({ group: id }, refresh, refresh);
  const up = () => go(FILE ? home() : href(["groups"]));
  useKeys({ u: up, Backspace: up });

  if (error && !data) return <Failure error={error} retry={reload} />;
  if (!data) return <Waiting />;
  const order: Order = query["order"] === "opened" ? "opened" : "reward";
  return (
    <div class="page group">
      <Head id={id} group={data.group} page={data.page} order={order} />
      <Chooser episodes={ordered(data.page.episodes, "reward")} />
      <Columns episodes={ordered(data.page.episodes, order)} />
    </div>
  );
}

function ordered(episodes: Episode[], order: Order): Episode[] {
  if (order === "opened") return episodes;
  return [...episodes].sort(
    (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.opened_at - b.opened_at,
  );
}

function Head({
  id,
  group,
  page,
  order,
}: {
  id: string;
  group: Group | null;
  page: EpisodePage;
  order: Order;
}) {
  return (
    <header class="bar head">
      <h1>
        <Text text={id} />
      </h1>
      <span class="fact">
        {plural(page.total, "attempt")}
        {group?.size ? ` of ${group.size}` : ""}
      </span>
      {group && (
        <>
          <span class="fact">
            mean <b>{decimal(group.mean)}</b>
            {` ± ${decimal(group.std)}`}
          </span>
          <Spread row={group} />
          <Flat row={group} />
          <span class="fact">{`${short(group.completion_tokens)} sampled tokens`}</span>
          {group.task_ids.length > 0 && (
            <span class="fact">
              task{" "}
              <b>
                <Text text={group.task_ids.join(", ")} />
              </b>
            </span>
          )}
        </>
      )}
      <span class="grow" />
      {!FILE && (
        <a class="fact" href={href(["episodes"], { group: id })}>
          as a list
        </a>
      )}
      <span class="tabs small" role="tablist" aria-label="order">
        {(["reward", "opened"] as const).map((name) => (
          <button
            key={name}
            role="tab"
            aria-selected={order === name}
            class={order === name ? "on" : ""}
            onClick={() => replace(href(["group", id], { order: name }))}
          >
            {`by ${name === "opened" ? "time" : name}`}
          </button>
        ))}
      </span>
    </header>
  );
}

/** Shows attempts as columns. The turns of the first one are what the others are compared with. */
function Columns({ episodes }: { episodes: Episode[] }) {
  const [first, setFirst] = useState<{ key: string; tree: Tree } | null>(null);
  const lead = episodes[0];
  const scale = episodes.reduce<Scale>((wide, { reward }) => widened(reward, wide), widened(null));
  const leadKey = lead ? `${lead.episode_id}/${lead.attempt}` : "";
  return (
    <div class="columns">
      {episodes.map((episode, at) => (
        <Column
          scale={scale}
          key={`${episode.episode_id}/${episode.attempt}`}
          episode={episode}
          lead={at > 0 && first?.key === leadKey ? first.tree : null}
          onTree={at === 0 ? (tree) => setFirst({ key: leadKey, tree }) : undefined}
        />
      ))}
      {episodes.length === 0 && <div class="empty">No attempt of this group is recorded.</div>}
    </div>
  );
}

interface TurnsProps {
  episode: Episode;
  lead: Tree | null;
  onTree: ((tree: Tree) => void) | undefined;
}

interface ColumnProps extends TurnsProps {
  scale: Scale;
}

function Column({ episode, lead, onTree, scale }: ColumnProps) {
  const box = useRef<HTMLElement>(null);
  const isSeen = useNear(box, "300px");
  return (
    <section class="column" ref={box}>
      <a class="column-head" href={episodeHref(episode.episode_id, episode.attempt)}>
        <span class="column-reward">
          <RewardValue value={episode.reward} scale={scale} />
        </span>
        <span class="id">
          <Text text={episode.episode_id} />
          {episode.attempt > 0 ? ` attempt ${episode.attempt}` : ""}
        </span>
        <span class="column-facts">
          <State word={episode.state} />
          <Ids row={episode} />
          <span class="dim">{`${plural(episode.calls, "call")}, ${short(episode.completion_tokens)} sampled, ${duration(spanMs(episode))}`}</span>
        </span>
      </a>
      {isSeen && <Turns episode={episode} lead={lead} onTree={onTree} />}
    </section>
  );
}

const TURNS_SHOWN = 60;

function Turns({ episode, lead, onTree }: TurnsProps) {
  const key = `${episode.episode_id}/${episode.attempt}/${episode.calls}/${episode.state}`;
  const { data, error, reload } = useLoad(key, async (signal) => {
    const path = `episodes/${encodeURIComponent(episode.episode_id)}/tree`;
    const tree = await askJson<Tree>(path, { attempt: episode.attempt }, signal);
    onTree?.(tree);
    return tree;
  });
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Waiting />;
  const same = lead ? sameTurns(data.turns, lead.turns) : new Set<number>();
  return (
    <>
      <div class="column-verdict">
        <VerdictOf tree={data} />
        <Sampled tree={data} />
        {data.forks.length > 0 && (
          <Mark word={plural(data.forks.length, "fork")} tone="kind-fork" />
        )}
      </div>
      {same.size > 0 && (
        <div class="note">{`${plural(same.size, "turn")} as in the first column`}</div>
      )}
      {data.turns.slice(0, TURNS_SHOWN).map((turn, at) => (
        <Card
          key={`${turn.call_id}/${turn.choice}`}
          episode={episode}
          turn={turn}
          isSame={same.has(at)}
        />
      ))}
      {data.turns.length > TURNS_SHOWN && (
        <a
          class="note"
          href={episodeHref(episode.episode_id, episode.attempt)}
        >{`${data.turns.length - TURNS_SHOWN} more turns`}</a>
      )}
    </>
  );
}

/** Returns which turns heard and said the same as the turns of the first column beside them. */
function sameTurns(turns: Turn[], lead: Turn[]): Set<number> {
  const pairs = alignTurns(turns, lead);
  const same = pairs.filter((pair) => pair.likeness === 1).map((pair) => pair.left ?? -1);
  return new Set(same);
}

function Card({ episode, turn, isSame }: { episode: Episode; turn: Turn; isSame: boolean }) {
  const deed = deedOf(turn.said ?? "", turn.finish_reason);
  const above = isAfterTool(turn) ? (deed.tools.length > 0 ? deed.words : "") : turn.heard;
  return (
    <a
      class={`card ${isSame ? "same" : ""}`}
      href={callHref(episode.episode_id, episode.attempt, turn.call_id, turn.choice)}
    >
      <span class="card-marks">
        <b>{turn.number}</b>
        {turn.kind !== "main" && <Mark word={turn.kind} tone={`kind-${turn.kind}`} />}
        {turn.outcome !== "complete" && <Outcome word={turn.outcome} error={turn.error} />}
        <span class="grow" />
        <span class="dim">{`${short(turn.counted_tokens ?? turn.sampled_tokens)} · ${decimal(turn.mean_logprob, 2)}`}</span>
      </span>
      {above && (
        <span class="heard">
          <Text text={above} />
        </span>
      )}
      <span class="said">
        {deed.tools.length > 0 ? (
          deed.tools.map((line, at) => <ToolWords key={at} line={line} />)
        ) : (
          <Text text={deed.words} />
        )}
      </span>
    </a>
  );
}
