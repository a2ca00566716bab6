/** JSON, indented; and text that may be JSON, with a switch to what was sent. */

import { useMemo, useState } from "preact/hooks";
import { Copy, LongText } from "../parts/text";

/** Longer texts are shown as they are. */
const PRETTY_CHARS_MAX = 2_000_000;

export function Json({ value }: { value: unknown }) {
  return (
    <div class="json">
      <LongText mono text={JSON.stringify(value, null, 2)} />
    </div>
  );
}

/** Returns indented JSON; null if a text is none, or a bare number or string. */
export function pretty(text: string): string | null {
  if (text.length > PRETTY_CHARS_MAX) return null;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

/** Shows a text, indented if it is JSON. The switch shows it as it was sent. */
export function JsonText({ text }: { text: string }) {
  const [asSent, setAsSent] = useState(false);
  const indented = useMemo(() => pretty(text), [text]);
  if (indented === null || indented === text)
    return (
      <div class="json">
        <LongText mono text={text} />
      </div>
    );
  return (
    <div class="json">
      <div class="json-bar">
        <button class="quiet" onClick={() => setAsSent(!asSent)}>
          {asSent ? "indent" : "as sent"}
        </button>
        <Copy text={text} />
      </div>
      <LongText mono text={asSent ? text : indented} />
    </div>
  );
}
