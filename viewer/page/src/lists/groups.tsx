/** All groups, with their rewards. */

import { askJson } from "../api/client";
import type { Group, GroupPage } from "../api/types";
import { useEvents } from "../parts/live";
import { useThrottled } from "../parts/load";
import { Mark } from "../parts/marks";
import { useKeys } from "../parts/keys";
import { usePaged } from "../parts/paged";
import { Text } from "../parts/text";
import { href, replace } from "../route";
import { ago, counted, decimal, number, plural, short, time } from "../words/format";
import { FilterField } from "./field";
import { paramsOf, type Filter } from "./filter";
import { Table, type Column } from "./table";
import { Spread } from "../plots/spread";

const REFRESH_MS = 1500;

const FILTERS: Filter[] = [
  { name: "name", hint: "groups whose name contains this", isPlain: true },
  { name: "since", hint: "began since: 90m, 24h, 7d ago, or a date", kind: "time" },
  { name: "until", hint: "began before", kind: "time" },
];

/** Shows how far a group is: attempts that closed, of those that were announced. */
function Progress({ row }: { row: Group }) {
  const of = row.size ?? row.episodes;
  const done = row.closed >= of;
  const title = `${plural(row.episodes, "attempt")}, ${number(row.closed)} closed, announced: ${number(row.size)}`;
  return <Mark word={`${row.closed}/${of}`} tone={done ? "good" : "busy"} title={title} />;
}

/** Shows that a group teaches nothing to an advantage of differences. */
export function Flat({ row }: { row: Group }) {
  if (row.scored < 2 || row.std === null || row.std > 0) return null;
  return <Mark word="all equal" tone="fair" title="the rewards do not differ: advantages are 0" />;
}

const COLUMNS: Column<Group>[] = [
  {
    head: "group",
    sort: "name",
    rising: true,
    width: "minmax(130px, 2fr)",
    narrow: "row",
    cell: (row) => (
      <span class="id">
        <Text text={row.group_id} />
      </span>
    ),
  },
  {
    head: "tasks",
    width: "minmax(80px, 1fr)",
    cell: (row) => <Text text={row.task_ids.join(", ")} />,
  },
  {
    head: "closed",
    title: "attempts that are closed, of those announced",
    width: "72px",
    narrow: "row",
    cell: (row) => <Progress row={row} />,
  },
  {
    head: "attempts",
    sort: "episodes",
    width: "74px",
    right: true,
    cell: (row) => number(row.episodes),
  },
  { head: "scored", width: "58px", right: true, cell: (row) => number(row.scored) },
  {
    head: "mean",
    sort: "mean",
    title: "mean reward",
    width: "64px",
    narrow: "row",
    right: true,
    cell: (row) => decimal(row.mean),
  },
  {
    head: "std",
    sort: "std",
    title: "standard deviation of the sample",
    width: "64px",
    right: true,
    cell: (row) => decimal(row.std),
  },
  {
    head: "rewards",
    title: "from the least to the greatest reward; the dot is the mean",
    width: "minmax(110px, 1fr)",
    cell: (row) => <Spread row={row} />,
  },
  { head: "", width: "80px", cell: (row) => <Flat row={row} /> },
  { head: "calls", width: "58px", right: true, cell: (row) => short(row.calls) },
  { head: "sampled", width: "66px", right: true, cell: (row) => short(row.completion_tokens) },
  {
    head: "opened",
    sort: "opened",
    width: "70px",
    right: true,
    cell: (row) => <span title={time(row.opened_at)}>{ago(row.opened_at)}</span>,
  },
];

export function Groups({ query }: { query: Record<string, string> }) {
  const sort = query["sort"] ?? "-opened";
  const key = JSON.stringify(query);
  const paged = usePaged<Group>(key, async (offset, limit, signal) => {
    const params = { ...paramsOf(FILTERS, query), sort, offset, limit };
    const page = await askJson<GroupPage>("groups", params, signal);
    return { total: page.total, isLeast: page.total_is_least ?? false, rows: page.groups };
  });
  const refresh = useThrottled(paged.refresh, REFRESH_MS);
  useEvents({}, refresh, refresh);

  const set = (changes: Record<string, string>) =>
    replace(href(["groups"], { ...query, ...changes }));
  useKeys({ f: () => (document.querySelector(".filters input") as HTMLElement | null)?.focus() });
  return (
    <div class="page list">
      <div class="bar">
        <FilterField label="filter groups" filters={FILTERS} values={query} onChange={set} />
        <span class="count" role="status">
          {paged.total !== null && counted(paged.total, paged.isLeast, "group")}
        </span>
      </div>
      <Table
        label="groups"
        columns={COLUMNS}
        paged={paged}
        link={(row) => href(["group", row.group_id])}
        sort={sort}
        onSort={(next) => set({ sort: next })}
        resetKey={key}
        empty="No group. Episodes get one with the header x-group-id, or when they are announced."
      />
    </div>
  );
}
