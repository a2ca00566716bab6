/** The health of a run: each check with its verdict, asked for by the reader. */

import { useEffect, useRef, useState } from "preact/hooks";
import { askJson } from "../api/client";
import type { Check, Checks, CheckPlace } from "../api/sums";
import { FilterField } from "../lists/field";
import { paramsOf, type Filter } from "../lists/filter";
import { Failure, Mark } from "../parts/marks";
import { Copy, Text } from "../parts/text";
import { callHref, episodeHref, href, replace } from "../route";
import { AuditPart } from "./audit";
import { counted, number, plural } from "../words/format";

const FILTERS: Filter[] = [
  { name: "name", hint: "episodes whose name contains this", isPlain: true },
  { name: "group", hint: "attempts of a group" },
  { name: "task", hint: "attempts at a task" },
  { name: "label", hint: "NAME=VALUE", kind: "label" },
  { name: "since", hint: "began since: 90m, 24h, 7d ago, or a date", kind: "time" },
  { name: "until", hint: "began before", kind: "time" },
  { name: "limit", hint: "so many attempts, 1000 by default", kind: "number", options: ["10000"] },
];

const TONES: Record<string, string> = { finding: "bad", fine: "good" };

interface State {
  checks: Checks | null;
  isRunning: boolean;
  error: Error | null;
}

const NOTHING: State = { checks: null, isRunning: false, error: null };

export function HealthView({ query }: { query: Record<string, string> }) {
  const [state, setState] = useState<State>(NOTHING);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => {
    setState(NOTHING);
    return () => stop.current?.abort();
  }, [JSON.stringify(query)]);

  const run = async () => {
    const mine = new AbortController();
    stop.current = mine;
    setState({ ...NOTHING, isRunning: true });
    const done = (changes: Partial<State>) => {
      if (!mine.signal.aborted) setState({ ...NOTHING, ...changes });
    };
    await askJson<Checks>("checks", paramsOf(FILTERS, query), mine.signal)
      .then((checks) => done({ checks }))
      .catch((error: Error) => done({ error }));
  };

  const set = (changes: Record<string, string>) =>
    replace(href(["health"], { ...query, ...changes }));
  const { checks, isRunning, error } = state;
  return (
    <div class="page health">
      <div class="bar">
        <FilterField label="filter episodes" filters={FILTERS} values={query} onChange={set} />
        <button disabled={isRunning} onClick={() => void run()}>
          {isRunning ? "reading …" : "judge"}
        </button>
        {checks && <span class="count">{plural(checks.attempts, "attempt")}</span>}
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="verdicts">
        <AuditPart />
        <section class="part">
          <h2>The run</h2>
          {error && <Failure error={error} retry={() => void run()} />}
          {!checks && !error && (
            <p class="dim">
              {isRunning
                ? "Attempts are being read."
                : "judge reads the newest attempts once, for some seconds, and judges them by thirty checks."}
            </p>
          )}
          {checks && <Verdicts checks={checks} />}
        </section>
      </div>
    </div>
  );
}

function Verdicts({ checks }: { checks: Checks }) {
  const { verdict, attempts, unread, total, total_is_least, calls, sampled_tokens } = checks;
  const findings = checks.checks.filter((check) => check.verdict === "finding").length;
  const left = total > attempts || total_is_least;
  return (
    <>
      <p>
        <Mark word={verdict} tone={TONES[verdict] ?? "plain"} />{" "}
        {`${plural(findings, "finding")} in ${plural(attempts, "attempt")}, ${plural(calls, "call")}, ${plural(sampled_tokens, "sampled token")}`}
      </p>
      {left && (
        <div class="note">
          {`Of ${counted(total, total_is_least, "attempt")} the newest were read`}
          {unread > 0 && `; no time or memory was left for ${number(unread)} of them`}
          {". Filters choose others; rolltape health reads all."}
        </div>
      )}
      {checks.checks.map((check) => (
        <CheckLine key={check.check} check={check} />
      ))}
    </>
  );
}

function CheckLine({ check }: { check: Check }) {
  const isFinding = check.verdict === "finding";
  return (
    <details class="check-line" open={isFinding}>
      <summary>
        <Mark word={check.verdict} tone={TONES[check.verdict] ?? "plain"} /> <b>{check.check}</b>{" "}
        <Text text={check.sentence} />
      </summary>
      <ul>
        {check.examples.map((place, at) => (
          <li key={at}>
            <Place place={place} />
          </li>
        ))}
      </ul>
      <p class="dim">
        {`looked at ${number(check.looked_at)} ${check.units}`}
        {Object.entries(check.thresholds).map(([name, value]) => `, ${name} ${value}`)}
      </p>
      {check.sql && (
        <p>
          <code>{`rolltape sql "${check.sql}"`}</code> <Copy text={`rolltape sql "${check.sql}"`} />
        </p>
      )}
    </details>
  );
}

/** Links to an episode, or to a turn of it. */
function Place({ place: { episode_id, attempt, call_id, turn, note } }: { place: CheckPlace }) {
  const to = call_id ? callHref(episode_id, attempt, call_id) : episodeHref(episode_id, attempt);
  return (
    <>
      <a href={to}>
        <Text text={`${episode_id}/${attempt}`} />
        {turn !== null && `, turn ${turn}`}
      </a>{" "}
      <Text text={note} />
    </>
  );
}
