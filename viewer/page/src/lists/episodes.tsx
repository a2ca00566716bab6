/** All episodes, with filters, live. */

import { askJson } from "../api/client";
import type { Episode, EpisodePage } from "../api/types";
import { ReplayMark } from "../episode/replay";
import { useEvents } from "../parts/live";
import { useThrottled } from "../parts/load";
import { Mark, RewardValue, State, widened, type Scale } from "../parts/marks";
import { useKeys } from "../parts/keys";
import { usePaged } from "../parts/paged";
import { Text } from "../parts/text";
import { episodeHref, href, replace } from "../route";
import { ago, counted, duration, number, plural, short, time } from "../words/format";
import { safe } from "../words/safe";
import { ColumnMenu, useColumns } from "./columns";
import { FilterField } from "./field";
import { paramsOf, remember, type Filter } from "./filter";
import { Table, type Column } from "./table";

const REFRESH_MS = 1000;

const STATES = ["open", "closed", "completed", "truncated", "aborted", "failed"];

const FILTERS: Filter[] = [
  { name: "name", hint: "episodes whose name contains this", isPlain: true },
  { name: "state", hint: "open, closed, or how it ended", options: STATES },
  { name: "group", hint: "attempts of a group" },
  { name: "task", hint: "attempts at a task" },
  { name: "label", hint: "NAME=VALUE", kind: "label" },
  { name: "min_reward", word: "reward>=", hint: "this reward or a higher one", kind: "number" },
  { name: "max_reward", word: "reward<=", hint: "this reward or a lower one", kind: "number" },
  { name: "since", hint: "began since: 90m, 24h, 7d ago, or a date", kind: "time" },
  { name: "until", hint: "began before", kind: "time" },
];

/** Shows that calls have ids, or how many have none. */
export function Ids({ row }: { row: Episode }) {
  if (row.generations === 0) return <span class="none">–</span>;
  const whole = row.with_ids === row.generations;
  const title = `${plural(row.generations, "call")} that sample, ${number(row.with_ids)} with token ids`;
  return (
    <Mark
      word={`${row.with_ids}/${row.generations}`}
      tone={whole ? "good" : "fair"}
      title={title}
    />
  );
}

/** Shows what is missing from a recording. */
export function Holes({ row }: { row: Episode }) {
  if (row.incomplete === 0 && row.refused === 0 && !row.may_lack_calls) return null;
  return (
    <>
      {row.incomplete > 0 && (
        <Mark
          word={`${row.incomplete} incomplete`}
          tone="fair"
          title="calls without a complete reply"
        />
      )}
      {row.refused > 0 && (
        <Mark word={`${row.refused} refused`} tone="fair" title="calls that were declined" />
      )}
      {row.may_lack_calls && (
        <Mark word="may lack calls" tone="bad" title="recorded with --durability relaxed" />
      )}
    </>
  );
}

/** Scales of groups, of the rewards that were listed; episodes without a group share one. */
const scales = new Map<string | null, Scale>();

const scaleOf = (row: Episode): Scale => scales.get(row.group_id) ?? widened(row.reward);

/** Learns the scales of groups, and values for filters, from the rows of a page. */
function learn(rows: Episode[]): void {
  for (const { group_id, task_id, labels, reward } of rows) {
    scales.set(group_id, widened(reward, scales.get(group_id)));
    remember("group", group_id);
    remember("task", task_id);
    for (const [name, value] of Object.entries(labels)) remember("label", `${name}=${value}`);
  }
}

/** Shows words that may be cut off, whole on hover. */
function Words({ text, kind = "" }: { text: string | null | undefined; kind?: string }) {
  if (!text) return <span class="none">–</span>;
  return (
    <span class={kind} title={safe(text)}>
      <Text text={text} />
    </span>
  );
}

/** Shows what went wrong, else what was answered last. */
function Outcome({ row }: { row: Episode }) {
  if (row.last_error) return <Words text={row.last_error} kind="down" />;
  return <Words text={row.last_answer} />;
}

/** The words below a row of a narrow window. */
const GIST = "gist";
/** Columns that ask for what was said. */
const WORDS = ["first prompt", "last answer"];

const COLUMNS: Column<Episode>[] = [
  {
    head: "episode",
    sort: "name",
    rising: true,
    width: "minmax(130px, 1fr)",
    narrow: "row",
    cell: (row) => (
      <span class="id" title={safe(row.episode_id)}>
        <Text text={row.episode_id} />
        {row.attempt > 0 && <span class="dim">{` attempt ${row.attempt}`}</span>}
      </span>
    ),
  },
  {
    head: "first prompt",
    title: "what a user asked first",
    width: "minmax(140px, 2fr)",
    cell: (row) => <Words text={row.first_prompt} />,
  },
  {
    head: "last answer",
    title: "what was said last; of an episode that failed the last error",
    width: "minmax(140px, 2fr)",
    cell: (row) => <Outcome row={row} />,
  },
  {
    head: GIST,
    width: "0px",
    narrow: "below",
    cell: (row) =>
      row.last_error ? (
        <Words text={row.last_error} kind="down" />
      ) : (
        <Words text={row.first_prompt} />
      ),
  },
  { head: "state", width: "88px", narrow: "row", cell: (row) => <State word={row.state} /> },
  {
    head: "ids",
    isExtra: true,
    title: "calls with token ids, of those that sample",
    width: "64px",
    cell: (row) => <Ids row={row} />,
  },
  {
    head: "reward",
    sort: "reward",
    title: "newest reward of the episode; the bar is on the scale of its group",
    width: "92px",
    right: true,
    narrow: "row",
    cell: (row) => <RewardValue value={row.reward} scale={scaleOf(row)} />,
  },
  {
    head: "calls",
    sort: "calls",
    width: "54px",
    right: true,
    dim: true,
    cell: (row) => number(row.calls),
  },
  {
    head: "prompt",
    title: "prompt tokens over all calls",
    width: "62px",
    right: true,
    dim: true,
    isExtra: true,
    cell: (row) => short(row.prompt_tokens),
  },
  {
    head: "sampled",
    sort: "tokens",
    title: "sampled tokens",
    width: "66px",
    right: true,
    dim: true,
    cell: (row) => short(row.completion_tokens),
  },
  {
    head: "took",
    title: "from its first call to its closing, or to its last call",
    width: "68px",
    right: true,
    dim: true,
    cell: (row) => duration(spanMs(row)),
  },
  {
    head: "opened",
    sort: "opened",
    width: "68px",
    right: true,
    dim: true,
    cell: (row) => <span title={time(row.opened_at)}>{ago(row.opened_at)}</span>,
  },
  { head: "group", width: "minmax(64px, 0.7fr)", cell: (row) => <Text text={row.group_id} /> },
  {
    head: "task",
    width: "minmax(60px, 0.7fr)",
    isExtra: true,
    cell: (row) => <Text text={row.task_id} />,
  },
  {
    head: "model",
    width: "minmax(80px, 1fr)",
    isExtra: true,
    cell: (row) => <Text text={row.model} />,
  },
  {
    head: "labels",
    width: "minmax(70px, 0.9fr)",
    cell: (row) => (
      <>
        <ReplayMark replay={row.replay} />
        <Holes row={row} />
        {row.labels_left_out ? (
          <Mark
            word={`+${row.labels_left_out}`}
            title={`${plural(row.labels_left_out, "label")} more, which the episode shows`}
            tone="plain"
          />
        ) : null}
        {Object.entries(row.labels).map(([name, value]) => (
          <Mark key={name} word={`${name}=${value}`} tone="plain" />
        ))}
      </>
    ),
  },
];

/** Returns how long an episode took: to its closing, else to its last call. */
export function spanMs(row: Episode): number | null {
  const end = row.closed_at ?? row.last_call_at;
  return end === null || end <= row.opened_at ? null : (end - row.opened_at) * 1000;
}

export function Episodes({ query }: { query: Record<string, string> }) {
  const sort = query["sort"] ?? "-opened";
  const columns = useColumns("episodes", COLUMNS);
  const hasText = columns.shown.some(({ head }) => WORDS.includes(head));
  const key = JSON.stringify({ ...query, hasText });
  const paged = usePaged<Episode>(key, async (offset, limit, signal) => {
    const text = hasText ? 1 : null;
    const params = { ...paramsOf(FILTERS, query), sort, offset, limit, text };
    const page = await askJson<EpisodePage>("episodes", params, signal);
    learn(page.episodes);
    return { total: page.total, isLeast: page.total_is_least ?? false, rows: page.episodes };
  });
  const refresh = useThrottled(paged.refresh, REFRESH_MS);
  useEvents({ group: query["group"], task: query["task"] }, refresh, refresh);

  const set = (changes: Record<string, string>) =>
    replace(href(["episodes"], { ...query, ...changes }));
  useKeys({ f: () => (document.querySelector(".filters input") as HTMLElement | null)?.focus() });
  return (
    <div class="page list">
      <div class="bar">
        <FilterField label="filter episodes" filters={FILTERS} values={query} onChange={set} />
        <span class="count" role="status">
          {paged.total !== null && counted(paged.total, paged.isLeast, "episode")}
        </span>
        <ColumnMenu columns={COLUMNS.filter(({ head }) => head !== GIST)} chosen={columns} />
      </div>
      <Table
        label="episodes"
        columns={columns.shown.filter(({ head }) => hasText || head !== GIST)}
        paged={paged}
        link={(row) => episodeHref(row.episode_id, row.attempt)}
        sort={sort}
        onSort={(next) => set({ sort: next })}
        resetKey={key}
        empty={<NoEpisodes filtered={Object.keys(query).some((name) => name !== "sort")} />}
      />
    </div>
  );
}

function NoEpisodes({ filtered }: { filtered: boolean }) {
  if (filtered) return <>No episode matches. Remove a filter.</>;
  return <>Nothing is recorded yet. Point an agent at rolltape, and its calls show up here.</>;
}
