/** What was said in words: as Markdown, with what agents add to it folded, or as recorded. */

import { createContext } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Fold } from "../parts/fold";
import { Markdown } from "../parts/markdown";
import { LongText } from "../parts/text";
import { number } from "../words/format";
import { blocksOf, isPlain } from "../words/markdown";

/** True while all messages are shown as they were recorded. */
export const RawContext = createContext(false);

/** Longer texts are shown as recorded until their form is asked for. */
export const FORMED_CHARS_MAX = 50_000;
/** What is laid out at first, and what each click adds. */
const FIRST_CHARS = 8000;
const STEP_CHARS = 50_000;

const OPEN = "<system-reminder>";
const CLOSE = "</system-reminder>";

interface Said {
  text: string;
  isReminder: boolean;
}

/** Parts a text into what was said and the reminders that an agent put beside it. */
export function partsOf(text: string): Said[] {
  const out: Said[] = [];
  const put = (part: string, isReminder: boolean) => {
    if (part.trim() !== "") out.push({ text: part.replace(/^\n+/, "").trimEnd(), isReminder });
  };
  let from = 0;
  for (let open = text.indexOf(OPEN); open >= 0; open = text.indexOf(OPEN, from)) {
    const close = text.indexOf(CLOSE, open);
    if (close < 0) break;
    put(text.slice(from, open), false);
    put(text.slice(open + OPEN.length, close), true);
    from = close + CLOSE.length;
  }
  put(text.slice(from), false);
  return out;
}

/** True if a text would show otherwise than it was recorded. */
export function hasForm(text: string): boolean {
  return (
    text.length > FORMED_CHARS_MAX ||
    (text.includes(OPEN) && text.includes(CLOSE)) ||
    !isPlain(blocksOf(text.slice(0, FIRST_CHARS)))
  );
}

export function Prose({ text, isRaw }: { text: string; isRaw: boolean }) {
  const parts = useMemo(() => (isRaw ? [] : partsOf(text)), [text, isRaw]);
  if (isRaw) return <LongText text={text} />;
  return (
    <>
      {parts.map((part, at) =>
        part.isReminder ? (
          <Fold
            key={at}
            class="reminder"
            label={`system-reminder, ${number(part.text.length)} characters`}
            preview={part.text}
          >
            <Formed text={part.text} />
          </Fold>
        ) : (
          // A text without any addition is shown to the last line break.
          <Formed key={at} text={parts.length === 1 ? text : part.text} />
        ),
      )}
    </>
  );
}

function Formed({ text }: { text: string }) {
  const [wanted, setWanted] = useState(FIRST_CHARS);
  const end = text.length <= wanted * 1.2 ? text.length : cutBefore(text, wanted);
  const shown = text.slice(0, end);
  const isBare = useMemo(() => isPlain(blocksOf(shown)), [shown]);
  if (isBare) return <LongText text={text} />;
  return (
    <div class="long">
      <Markdown text={shown} />
      {end < text.length && (
        <button class="more" onClick={() => setWanted((chars) => chars + STEP_CHARS)}>
          {`show more (${number(text.length - end)} characters left)`}
        </button>
      )}
    </div>
  );
}

/** Returns where a text is cut: behind a paragraph, else behind a line. */
function cutBefore(text: string, end: number): number {
  for (const mark of ["\n\n", "\n"]) {
    const at = text.lastIndexOf(mark, end);
    if (at > end / 2) return at;
  }
  return end;
}
