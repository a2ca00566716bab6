/** Short marks: verdict, fidelity, state, outcome, reward. Each explains itself on hover. */

import { decimal } from "../words/format";
import { causes, ends, fidelities, outcomes, reasons, verdicts } from "../words/meanings";
import { safe } from "../words/safe";
import { Text } from "./text";

const GOOD = new Set(["exact", "completed", "complete"]);
const FAIR = new Set(["usable", "mapped", "truncated", "capped", "client_gone", "retokenized"]);
const BAD = new Set(["unusable", "failed", "aborted", "upstream_failed", "refused", "no end"]);

function tone(word: string): string {
  if (GOOD.has(word)) return "good";
  if (FAIR.has(word)) return "fair";
  if (BAD.has(word)) return "bad";
  return word === "open" || word === "running" ? "busy" : "plain";
}

interface MarkProps {
  word: string;
  title?: string | undefined;
  tone?: string;
}

export function Mark({ word, title, tone: given }: MarkProps) {
  return (
    <span class={`mark ${given ?? tone(word)}`} title={title && safe(title)}>
      <Text text={word} />
    </span>
  );
}

export const Verdict = ({ word }: { word: string }) => <Mark word={word} title={verdicts[word]} />;

export function Fidelity({ word }: { word: string | null }) {
  if (!word) return <Mark word="no ids" title="the server reported no token ids" tone="bad" />;
  return <Mark word={word} title={fidelities[word]} />;
}

/** Shows the state of an episode. Whoever failed, the word is the same. */
export const State = ({ word }: { word: string }) => (
  <Mark word={word === "infrastructure_failed" ? "failed" : word} title={ends[word]} />
);

export function Outcome({ word, error }: { word: string | null; error?: string | null }) {
  const shown = word ?? "running";
  return <Mark word={shown} title={[outcomes[shown], error].filter(Boolean).join(": ")} />;
}

export const ReasonMark = ({ word }: { word: string }) => (
  <Mark word={word} title={reasons[word]} tone="fair" />
);

/** Forks that agents make on purpose are not faults. */
const MEANT = new Set(["branched", "compaction", "other_agent", "other_conversation"]);

/** Shows the cause of a fork. */
export function ForkMark({ cause, label = cause }: { cause: string; label?: string }) {
  return (
    <Mark word={label} tone={MEANT.has(cause) ? "plain" : "kind-fork"} title={causes[cause]} />
  );
}

/** Shows a reward as a number; null as "not scored", which is not zero. */
export function RewardValue({ value, scale }: { value: number | null; scale?: Scale }) {
  if (value === null)
    return (
      <span class="none" title="no reward was given">
        –
      </span>
    );
  return (
    <span class={`reward ${value < 0 ? "down" : ""}`}>
      {scale && <RewardBar value={value} scale={scale} />}
      {decimal(value)}
    </span>
  );
}

/** The rewards of a group lie between these. */
export interface Scale {
  low: number;
  high: number;
}

/** Returns a scale that has a reward as well; it goes from 0 to 1 at least. */
export function widened(value: number | null | undefined, scale: Scale = { low: 0, high: 1 }) {
  return {
    low: Math.min(scale.low, value ?? scale.low),
    high: Math.max(scale.high, value ?? scale.high),
  };
}

/** Draws a reward from 0 to its value. */
function RewardBar({ value, scale }: { value: number; scale: Scale }) {
  const part = (at: number) => ((at - scale.low) / (scale.high - scale.low)) * 100;
  const left = part(Math.min(0, value));
  return (
    <span class="reward-bar">
      <i style={{ left: `${left}%`, width: `${part(Math.max(0, value)) - left}%` }} />
    </span>
  );
}

/** Shows an answer of the listener that is an error. */
export function Failure({ error, retry }: { error: Error; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <Text text={error.message} />
      {retry && <button onClick={retry}>try again</button>}
    </div>
  );
}

export const Waiting = () => <div class="waiting">loading</div>;
