/** What is known of one token, beside it. */

import type { Tokens, VersionSpan } from "../api/types";
import { decimal, number, percent } from "../words/format";
import { visible } from "./shown";
import type { Token } from "./windows";

const WIDTH_PX = 300;

export interface Place {
  at: number;
  x: number;
  y: number;
}

export function spanAt(spans: VersionSpan[], position: number): VersionSpan | null {
  return spans.find((span) => position >= span.start && position < span.end) ?? null;
}

/** Returns a text as it is written beside a token. */
function said(text: string | null): string {
  if (text === null) return "text not known";
  return text === "" ? "no text of its own: part of a character, or an end" : visible(text);
}

export function Hover({ token, part, place }: { token: Token; part: Tokens; place: Place }) {
  const span = token.isSampled ? spanAt(part.versions, token.at) : null;
  const sampledAt = token.at - part.prompt_tokens;
  const facts: [string, string][] = [
    [
      "position",
      token.isSampled
        ? `${number(token.at)}, sampled ${number(sampledAt)}`
        : `${number(token.at)}, prompt`,
    ],
    ["id", String(token.id)],
  ];
  if (token.isSampled) {
    facts.push(
      [
        "logprob",
        token.logprob === null
          ? "not reported"
          : `${decimal(token.logprob, 5)} (${percent(Math.exp(token.logprob))})`,
      ],
      ["of", part.logprob_kind ?? "unknown"],
      ["mask", token.mask ? "1, may be trained" : "0, not trained"],
      ["version", span ? span.version : "not reported"],
    );
    if (span?.checksum) facts.push(["checksum", span.checksum]);
    facts.push(["fidelity", part.fidelity ?? "no ids"]);
    for (const { name, version, value } of token.annotations) {
      facts.push([name, `${decimal(value, 5)} (version ${version})`]);
    }
  }
  const left = Math.min(place.x, innerWidth - WIDTH_PX - 16);
  const isLow = place.y > innerHeight - 240;
  const style = isLow
    ? { left: `${left}px`, bottom: `${innerHeight - place.y + 18}px` }
    : { left: `${left}px`, top: `${place.y + 18}px` };
  return (
    <div class="hover" style={style} role="tooltip">
      <div class="hover-text">{said(token.text)}</div>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
