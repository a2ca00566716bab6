/** How the call was sampled: each parameter, and who set it. */

import type { Call } from "../api/types";
import { Mark } from "../parts/marks";
import { Text } from "../parts/text";

const KINDS: Record<string, string> = {
  processed: "logprobs of the distribution that was sampled from",
  temperature: "logprobs of the full softmax after temperature",
  raw: "the model's logprobs before temperature",
  unknown: "the server does not say of which distribution the logprobs are",
};

const shown = (value: unknown): string =>
  value === undefined || value === null
    ? "–"
    : typeof value === "string"
      ? value
      : JSON.stringify(value);

export function Sampling({ call }: { call: Call }) {
  const used = Object.entries(call.sampled_with ?? {});
  const sent = Object.entries(call.sampling ?? {}).filter(
    ([name]) => !(name in (call.sampled_with ?? {})),
  );
  if (used.length === 0 && sent.length === 0) return null;
  return (
    <div class="facts-line sampling">
      {used.map(([name, { value, source }]) => (
        <span key={name} class={`parameter ${source}`} title={`set by: ${source}`}>
          <Text text={name} />{" "}
          <b>
            <Text text={source === "unknown" ? "unknown" : shown(value)} />
          </b>
          {source !== "request" && source !== "unknown" && <span class="dim">{` ${source}`}</span>}
        </span>
      ))}
      {sent.map(([name, value]) => (
        <span key={name} class="parameter" title="sent upstream">
          <Text text={name} />{" "}
          <b>
            <Text text={shown(value).slice(0, 80)} />
          </b>
        </span>
      ))}
      {call.logprob_kind && (
        <Mark
          word={`${call.logprob_kind} logprobs`}
          tone="plain"
          title={KINDS[call.logprob_kind]}
        />
      )}
    </div>
  );
}
