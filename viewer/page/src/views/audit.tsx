/** The last audit that was kept: whether recorded logprobs are those of the policy. */

import { askJson } from "../api/client";
import type { Audit, AuditCause, Gaps } from "../api/sums";
import { useLoad } from "../parts/load";
import { Failure, Mark } from "../parts/marks";
import { Text } from "../parts/text";
import { episodeHref } from "../route";
import { number, percent, plural, time } from "../words/format";

const TONES: Record<string, string> = { differs: "bad", clean: "good" };

export function AuditPart() {
  const { data, error, reload } = useLoad("audit", (signal) =>
    askJson<{ audit: Audit | null }>("audit", {}, signal),
  );
  return (
    <section class="part audit">
      <h2>Are the logprobs those of the policy?</h2>
      {error && <Failure error={error} retry={reload} />}
      {data && !data.audit && (
        <p class="dim">
          No audit is kept. <code>rolltape audit --with URL|DIR --keep</code> scores recorded tokens
          again.
        </p>
      )}
      {data?.audit && <Kept audit={data.audit} />}
    </section>
  );
}

function Kept({ audit }: { audit: Audit }) {
  const { verdict, rows, tokens, compared, gaps, causes } = audit;
  return (
    <>
      <p>
        <Mark word={verdict} tone={TONES[verdict] ?? "plain"} />{" "}
        {`${number(compared)} of ${plural(tokens, "sampled token")} in ${plural(rows, "row")} compared, mean gap ${nats(gaps.mean_abs)}, largest ${nats(gaps.max_abs)}, kl ${nats(gaps.kl)}`}{" "}
        <span class="dim">
          {audit.of_trainer && "of a trainer's logprobs, "}
          {time(audit.audited_at)}
        </span>
      </p>
      {causes.map((cause) => (
        <Cause key={cause.cause} cause={cause} />
      ))}
      <details open={verdict === "differs"}>
        <summary>gaps</summary>
        <Histogram audit={audit} />
        <By name="version" parts={audit.by_version} />
        <By name="engine" parts={audit.by_engine} />
        <By name="place in the reply" parts={audit.by_position} isPlace />
      </details>
      {Object.entries(audit.left_out).map(([reason, count]) => (
        <p class="dim" key={reason}>
          {`not compared: ${plural(count, "token")}, ${reason}`}
        </p>
      ))}
    </>
  );
}

const nats = (value: number) => (value === 0 ? "0" : value.toPrecision(3));

function Cause({ cause }: { cause: AuditCause }) {
  const { sentence, tokens, mean_gap, mean_gap_left, proven, versions, engines, attempts } = cause;
  const lists: [string, string[]][] = [
    ["versions", versions],
    ["engines", engines],
  ];
  return (
    <div class="cause">
      <Mark word={cause.cause} tone={cause.cause === "numerics" ? "plain" : "bad"} />{" "}
      <Text text={sentence} />
      <div class="dim">
        {`${plural(tokens, "token")}, mean gap ${nats(mean_gap)}`}
        {mean_gap_left !== null && `, ${nats(mean_gap_left)} with it`}
        {!proven && ", by what is left"}
        {lists.map(
          ([name, list]) =>
            list.length > 0 && (
              <>
                {`, ${name} `}
                <Text text={list.join(", ")} />
              </>
            ),
        )}
      </div>
      {attempts.map((name) => (
        <AttemptLink key={name} name={name} />
      ))}
    </div>
  );
}

/** Links to an attempt by its name, `ID/ATTEMPT`. */
function AttemptLink({ name }: { name: string }) {
  const at = name.lastIndexOf("/");
  return (
    <a class="attempt" href={episodeHref(name.slice(0, at), Number(name.slice(at + 1)))}>
      <Text text={name} />
    </a>
  );
}

function Histogram({ audit: { histogram, compared } }: { audit: Audit }) {
  const most = Math.max(1, ...histogram.map((bar) => bar.tokens));
  if (histogram.length === 0) return null;
  return (
    <table class="plain histogram">
      <caption class="unseen">tokens by the amount of their gap</caption>
      <thead>
        <tr>
          <th>gap, in nats</th>
          <th class="right">tokens</th>
          <th>of the longest</th>
        </tr>
      </thead>
      <tbody>
        {histogram.map(({ below, tokens }) => (
          <tr key={below}>
            <td>{below === null ? "more" : `below ${below}`}</td>
            <td class="right">{number(tokens)}</td>
            <td>
              <progress
                max={most}
                value={tokens}
                aria-label={percent(tokens / Math.max(1, compared))}
              />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface ByProps {
  name: string;
  parts: Record<string, Gaps>;
  /** True if a letter before each name gives the order. */
  isPlace?: boolean;
}

function By({ name, parts, isPlace = false }: ByProps) {
  const rows = Object.entries(parts);
  if (rows.length < 2) return null;
  return (
    <table class="plain">
      <thead>
        <tr>
          <th>{name}</th>
          {["tokens", "mean", "mean amount", "largest", "kl"].map((head) => (
            <th key={head} class="right">
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(([part, { tokens, mean, mean_abs, max_abs, kl }]) => (
          <tr key={part}>
            <td>
              <Text text={(isPlace ? part.slice(2) : part) || "-"} />
            </td>
            <td class="right">{number(tokens)}</td>
            {[mean, mean_abs, max_abs, kl].map((value, at) => (
              <td key={at} class="right">
                {nats(value)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
