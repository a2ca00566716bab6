/** Numbers over time, over versions and over groups. */

import { askJson } from "../api/client";
import type { Stats } from "../api/sums";
import type { GroupPage } from "../api/types";
import { FilterField } from "../lists/field";
import { paramsOf, remember, type Filter } from "../lists/filter";
import { useEvents } from "../parts/live";
import { useLoad, useThrottled } from "../parts/load";
import { Failure, Outcome, Waiting } from "../parts/marks";
import { Plot, type Series } from "../plots/plot";
import { GroupPlot } from "../plots/groups";
import { Text } from "../parts/text";
import { href, replace } from "../route";
import { decimal, duration, number, percent, short, time } from "../words/format";
import { safe } from "../words/safe";

const REFRESH_MS = 5000;
const GROUPS_SHOWN = 200;

const FILTERS: Filter[] = [
  { name: "name", hint: "episodes whose name contains this", isPlain: true },
  { name: "group", hint: "attempts of a group" },
  { name: "task", hint: "attempts at a task" },
  { name: "label", hint: "NAME=VALUE", kind: "label" },
  {
    name: "solved_at",
    word: "solved>=",
    hint: "the reward from which on an episode is solved",
    kind: "number",
  },
  { name: "since", hint: "began since: 90m, 24h, 7d ago, or a date", kind: "time" },
  { name: "until", hint: "began before", kind: "time" },
  {
    name: "buckets",
    hint: "points of a plot over time, 60 by default",
    kind: "number",
    options: ["20", "120", "240", "500"],
  },
];

export function StatsView({ query }: { query: Record<string, string> }) {
  const key = JSON.stringify(query);
  const { data, error, reload } = useLoad(key, async (signal) => {
    const params = paramsOf(FILTERS, query);
    const { since, until } = params;
    const [stats, groups] = await Promise.all([
      askJson<Stats>("stats", params, signal),
      askJson<GroupPage>(
        "groups",
        { name: params["group"], since, until, limit: GROUPS_SHOWN },
        signal,
      ),
    ]);
    for (const group of groups.groups) remember("group", group.group_id);
    return { stats, groups };
  });
  const refresh = useThrottled(reload, REFRESH_MS);
  useEvents({ group: query["group"], task: query["task"] }, refresh, refresh);

  const set = (changes: Record<string, string>) =>
    replace(href(["stats"], { ...query, ...changes }));
  return (
    <div class="page stats">
      <div class="bar">
        <FilterField label="filter episodes" filters={FILTERS} values={query} onChange={set} />
        {data && data.stats.totals.calls > 0 && (
          <span class="count">{`${time(data.stats.from)} to ${time(data.stats.to)}`}</span>
        )}
      </div>
      {error && <Failure error={error} retry={reload} />}
      {!data && !error && <Waiting />}
      {data && data.stats.totals.calls === 0 && (
        <div class="empty">No call was recorded, or none that the filters take.</div>
      )}
      {data && data.stats.totals.calls > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="numbers">
          {data.stats.truncated && (
            <div class="note">
              There are more calls than can be added up; the newest ones are. Narrow the time to see
              others.
            </div>
          )}
          <Totals stats={data.stats} />
          <GroupPlot groups={data.groups.groups} total={data.groups.total} />
          <div class="plots">
            <VersionPlot stats={data.stats} solvedAt={Number(query["solved_at"] ?? 1)} />
            <TimePlots stats={data.stats} />
          </div>
          <VersionTable stats={data.stats} />
        </div>
      )}
    </div>
  );
}

function Totals({ stats }: { stats: Stats }) {
  const { totals } = stats;
  const facts: [string, string][] = [
    ["episodes", number(totals.episodes)],
    ["open", number(totals.open)],
    ["scored", number(totals.scored)],
    ["mean reward", decimal(totals.reward)],
    ["calls", number(totals.calls)],
    ["failed calls", number(totals.failed)],
    ["prompt tokens", short(totals.prompt_tokens)],
    ["sampled tokens", short(totals.completion_tokens)],
  ];
  return (
    <div class="totals">
      {facts.map(([name, value]) => (
        <div key={name}>
          <b>{value}</b>
          <span>{name}</span>
        </div>
      ))}
      <div class="outcomes">
        {Object.entries(stats.outcomes).map(([word, count]) => (
          <span key={word}>
            <Outcome word={word} /> {number(count)}
          </span>
        ))}
      </div>
    </div>
  );
}

function VersionPlot({ stats, solvedAt }: { stats: Stats; solvedAt: number }) {
  const versions = stats.versions;
  return (
    <Plot
      isWide
      title="Success over version"
      note={`share of scored episodes with a reward of at least ${decimal(solvedAt)}`}
      at={versions.map((_, index) => index)}
      labels={versions.map((version) => safe(version.label))}
      series={[
        {
          name: "solved",
          color: 1,
          shape: "line",
          values: versions.map((version) => version.solved),
        },
        {
          name: "mean reward",
          color: 0,
          shape: "line",
          values: versions.map((version) => version.reward),
        },
      ]}
      format={(value) => decimal(value, 2)}
      include={[0, 1]}
      detail={(index) => <span class="dim">{`${number(versions[index]?.scored)} scored`}</span>}
    />
  );
}

function TimePlots({ stats }: { stats: Stats }) {
  const { buckets } = stats;
  const at = buckets.map((bucket) => bucket.at);
  const of = (
    name: string,
    color: number,
    field: keyof (typeof buckets)[number],
    shape: Series["shape"] = "line",
  ): Series => ({
    name,
    color,
    shape,
    values: buckets.map((bucket) => bucket[field]),
  });
  const each = `in each ${duration(stats.bucket_s * 1000)}`;
  return (
    <>
      <Plot
        title="Reward"
        note={`mean of the episodes that began ${each}`}
        at={at}
        series={[of("reward", 0, "reward")]}
        format={(value) => decimal(value, 2)}
        include={[0, 1]}
      />
      <Plot
        title="Staleness"
        note="newest version less the one that sampled, mean"
        at={at}
        series={[of("staleness", 4, "staleness")]}
        format={(value) => decimal(value, 2)}
        include={[0, 1]}
      />
      <Plot
        title="Tokens"
        note={each}
        at={at}
        series={[of("prompt", 2, "prompt_tokens"), of("sampled", 0, "completion_tokens")]}
        format={short}
        include={[0]}
      />
      <Plot
        title="Time to the first byte"
        note="median and 95th percentile"
        at={at}
        series={[of("median", 0, "first_byte_ms"), of("95%", 3, "first_byte_p95_ms")]}
        format={duration}
        include={[0]}
      />
      <Plot
        title="Time of a call"
        note="median and 95th percentile"
        at={at}
        series={[of("median", 0, "duration_ms"), of("95%", 3, "duration_p95_ms")]}
        format={duration}
        include={[0]}
      />
      <Plot
        title="Calls"
        note={each}
        at={at}
        series={[of("calls", 0, "calls", "bar"), of("failed", 3, "failed", "bar")]}
        format={short}
        include={[0]}
      />
    </>
  );
}

function VersionTable({ stats }: { stats: Stats }) {
  if (stats.versions.length === 0) return null;
  return (
    <table class="plain versions">
      <thead>
        <tr>
          <th>version</th>
          <th class="right">number</th>
          <th>first seen</th>
          <th class="right">calls</th>
          <th class="right">sampled</th>
          <th class="right">scored</th>
          <th class="right">reward</th>
          <th class="right">solved</th>
        </tr>
      </thead>
      <tbody>
        {[...stats.versions].reverse().map((version) => (
          <tr key={`${version.label}/${version.first_seen}`}>
            <td>
              <Text text={version.label} />
            </td>
            <td class="right">{number(version.number)}</td>
            <td class="dim">{time(version.first_seen)}</td>
            <td class="right">{number(version.calls)}</td>
            <td class="right">{short(version.completion_tokens)}</td>
            <td class="right">{number(version.scored)}</td>
            <td class="right">{decimal(version.reward)}</td>
            <td class="right">{percent(version.solved)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
