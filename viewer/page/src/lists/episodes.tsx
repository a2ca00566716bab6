/** All episodes, with filters, live. */

import { askJson } from "../api/client";
import type { Episode, EpisodePage } from "../api/types";
import { useEvents } from "../parts/live";
import { useThrottled } from "../parts/load";
import { Mark, RewardValue, State, widened, type Scale } from "../parts/marks";
import { useKeys } from "../parts/keys";
import { usePaged } from "../parts/paged";
import { Text } from "../parts/text";
import { episodeHref, href, replace } from "../route";
import { ago, duration, number, plural, short, time } from "../words/format";
import { safe } from "../words/safe";
import { Filters, paramsOf, type Filter } from "./filters";
import { Table, type Column } from "./table";

const REFRESH_MS = 1000;

const STATES = ["open", "closed", "completed", "truncated", "aborted", "failed"];

const FILTERS: Filter[] = [
  { name: "name", hint: "episode contains", width: 18 },
  { name: "group", hint: "group", width: 14 },
  { name: "task", hint: "task", width: 12 },
  { name: "label", hint: "label=value", width: 12, kind: "label" },
  { name: "state", hint: "any state", width: 10, options: STATES },
  { name: "min_reward", hint: "reward from", width: 11, kind: "number" },
  { name: "max_reward", hint: "reward to", width: 10, kind: "number" },
  { name: "since", hint: "since", width: 8, kind: "time" },
  { name: "until", hint: "until", width: 8, kind: "time" },
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

/** Widens the scales of groups by the rewards of a page. */
function learnScales(rows: Episode[]): void {
  for (const { group_id, reward } of rows)
    scales.set(group_id, widened(reward, scales.get(group_id)));
}

const COLUMNS: Column<Episode>[] = [
  {
    head: "episode",
    sort: "name",
    rising: true,
    width: "minmax(180px, 2.2fr)",
    cell: (row) => (
      <span class="id" title={safe(row.episode_id)}>
        <Text text={row.episode_id} />
        {row.attempt > 0 && <span class="dim">{` attempt ${row.attempt}`}</span>}
      </span>
    ),
  },
  { head: "group", width: "minmax(70px, 1fr)", cell: (row) => <Text text={row.group_id} /> },
  { head: "task", width: "minmax(60px, 0.8fr)", cell: (row) => <Text text={row.task_id} /> },
  { head: "state", width: "88px", cell: (row) => <State word={row.state} /> },
  {
    head: "ids",
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
    cell: (row) => <RewardValue value={row.reward} scale={scaleOf(row)} />,
  },
  { head: "calls", sort: "calls", width: "54px", right: true, cell: (row) => number(row.calls) },
  {
    head: "prompt",
    title: "prompt tokens over all calls",
    width: "62px",
    right: true,
    cell: (row) => short(row.prompt_tokens),
  },
  {
    head: "sampled",
    sort: "tokens",
    title: "sampled tokens",
    width: "66px",
    right: true,
    cell: (row) => short(row.completion_tokens),
  },
  {
    head: "took",
    title: "from its first call to its closing, or to its last call",
    width: "68px",
    right: true,
    cell: (row) => duration(spanMs(row)),
  },
  {
    head: "opened",
    sort: "opened",
    width: "68px",
    right: true,
    cell: (row) => <span title={time(row.opened_at)}>{ago(row.opened_at)}</span>,
  },
  { head: "model", width: "minmax(80px, 1fr)", cell: (row) => <Text text={row.model} /> },
  {
    head: "labels",
    width: "minmax(70px, 1.2fr)",
    cell: (row) => (
      <>
        <Holes row={row} />
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
  const key = JSON.stringify(query);
  const paged = usePaged<Episode>(key, async (offset, limit, signal) => {
    const params = { ...paramsOf(FILTERS, query), sort, offset, limit };
    const page = await askJson<EpisodePage>("episodes", params, signal);
    learnScales(page.episodes);
    return { total: page.total, rows: page.episodes };
  });
  const refresh = useThrottled(paged.refresh, REFRESH_MS);
  useEvents({ group: query["group"], task: query["task"] }, refresh, refresh);

  const set = (name: string, value: string) =>
    replace(href(["episodes"], { ...query, [name]: value }));
  useKeys({ f: () => (document.querySelector(".filters input") as HTMLElement | null)?.focus() });
  return (
    <div class="page list">
      <div class="bar">
        <Filters
          filters={FILTERS}
          values={query}
          onChange={set}
          onClear={() => replace(href(["episodes"]))}
        />
        <span class="count">{paged.total !== null && plural(paged.total, "episode")}</span>
      </div>
      <Table
        label="episodes"
        columns={COLUMNS}
        paged={paged}
        link={(row) => episodeHref(row.episode_id, row.attempt)}
        sort={sort}
        onSort={(next) => set("sort", next)}
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
