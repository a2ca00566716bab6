/** Text that others wrote: escapes are shown as such. */

import { useState } from "preact/hooks";
import { isSafe, parts } from "../words/safe";
import { number } from "../words/format";

/** Shows a text of any length as it is; unsafe characters as marked escapes. */
export function Text({ text }: { text: string | null | undefined }) {
  if (text === null || text === undefined) return null;
  if (isSafe(text)) return <>{text}</>;
  return (
    <>
      {parts(text).map((part, at) =>
        part.escaped ? (
          <span key={at} class="escape" title="a control or invisible character">
            {part.text}
          </span>
        ) : (
          part.text
        ),
      )}
    </>
  );
}

const FOLD_LINES = 24;
const FOLD_CHARS = 2400;
/** Most characters that are laid out at once; the rest comes in steps of this length. */
const STEP_CHARS = 200_000;

/** Shows a long text folded, with a button for the rest of it. */
export function LongText({ text, mono = false }: { text: string; mono?: boolean }) {
  const [shown, setShown] = useState(0);
  const end = shown === 0 ? foldEnd(text) : Math.min(text.length, shown);
  const kind = mono ? "prose mono" : "prose";
  return (
    <div class="long">
      <div class={kind}>
        <Text text={text.slice(0, end)} />
      </div>
      {end < text.length && (
        <button class="more" onClick={() => setShown((chars) => chars + STEP_CHARS)}>
          {end + STEP_CHARS >= text.length || shown === 0
            ? `show all (${number(text.length)} characters)`
            : `show more (${number(text.length - end)} characters left)`}
        </button>
      )}
    </div>
  );
}

/** Returns the length of the folded text; the whole length where folding would save little. */
function foldEnd(text: string): number {
  let end = Math.min(text.length, FOLD_CHARS);
  let at = -1;
  for (let line = 0; line < FOLD_LINES; line++) {
    at = text.indexOf("\n", at + 1);
    if (at < 0 || at > end) break;
    if (line === FOLD_LINES - 1) end = at;
  }
  return text.length - end < 200 && text.length < FOLD_CHARS + 200 ? text.length : end;
}

/** Copies a text, and says so for a moment. */
export function Copy({ text, label = "copy" }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(typeof text === "string" ? text : text());
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return (
    <button class="quiet copy" onClick={() => void copy()}>
      {done ? "copied" : label}
    </button>
  );
}
