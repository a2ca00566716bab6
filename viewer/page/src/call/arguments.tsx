/** The arguments of a tool call: a name and a value each, text as it reads and not as JSON. */

import { useMemo, useState } from "preact/hooks";
import { Copy, LongText, Text } from "../parts/text";
import { JsonText } from "./json";

/** Longer arguments are shown as they are. */
const PARSED_CHARS_MAX = 2_000_000;
/** Values longer than this, or of several lines, stand below their name. */
const INLINE_CHARS_MAX = 100;

export function Arguments({ given }: { given: string }) {
  const [asSent, setAsSent] = useState(false);
  const named = useMemo(() => parsed(given), [given]);
  if (named === null) return <JsonText text={given} />;
  return (
    <div class="json">
      <div class="json-bar">
        <button class="quiet" onClick={() => setAsSent(!asSent)}>
          {asSent ? "as text" : "as sent"}
        </button>
        <Copy text={given} />
      </div>
      {asSent ? <LongText mono text={given} /> : <Named named={named} />}
    </div>
  );
}

function Named({ named }: { named: [string, unknown][] }) {
  return (
    <dl class="arguments">
      {named.map(([name, value], at) => {
        const text = plain(value);
        const isLong = text.length > INLINE_CHARS_MAX || text.includes("\n");
        return (
          <div key={at} class={isLong ? "long-argument" : ""}>
            <dt>
              <Text text={name} />
            </dt>
            <dd>
              <LongText mono text={text} />
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

/** Returns names and values; null if the arguments are no object, or an empty one. */
function parsed(text: string): [string, unknown][] | null {
  if (text.length > PARSED_CHARS_MAX) return null;
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return null;
    const named = Object.entries(value);
    return named.length > 0 ? named : null;
  } catch {
    return null;
  }
}

/** Returns a text as it is, unless it would read as a value of another kind; else JSON. */
export function plain(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  return /^\s*([[{"]|-?\d|true$|false$|null$|$)/.test(value) ? JSON.stringify(value) : value;
}
