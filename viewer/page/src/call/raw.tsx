/** The bytes of a call: what the agent sent, and what it received. */

import { useMemo, useState } from "preact/hooks";
import { ask } from "../api/client";
import type { Call } from "../api/types";
import { useLoad } from "../parts/load";
import { Failure, Waiting } from "../parts/marks";
import { Copy, Text } from "../parts/text";
import { bytes, number } from "../words/format";
import { pretty } from "./json";

/** Bytes of a body that are shown before the reader asks for all of them. */
const SHOWN_BYTES = 256 * 1024;
/** Longest body that is shown whole; longer ones can be saved. */
const WHOLE_BYTES_MAX = 4 << 20;

export function Raw({ call }: { call: Call }) {
  return (
    <div class="sides raw">
      <Body
        call={call}
        side="request"
        length={call.request_bytes}
        title="request, as the agent sent it"
      />
      <Body
        call={call}
        side="reply"
        length={call.reply_bytes}
        title="reply, as the agent received it"
      />
    </div>
  );
}

interface BodyProps {
  call: Call;
  side: "request" | "reply";
  length: number | null;
  title: string;
}

function Body({ call, side, length, title }: BodyProps) {
  const [isWhole, setWhole] = useState(false);
  const [isIndented, setIndented] = useState(false);
  const path = `calls/${encodeURIComponent(call.call_id)}/${side}`;
  const limit = isWhole ? WHOLE_BYTES_MAX : SHOWN_BYTES;
  const { data, error, reload } = useLoad(`${path}/${limit}/${call.outcome}`, (signal) =>
    head(path, limit, signal),
  );
  const shown = useMemo(
    () => (isIndented && data ? indent(data.text) : data?.text),
    [data, isIndented],
  );
  return (
    <section class="side">
      <h3>
        {title} <span class="dim">{bytes(length)}</span>
        <span class="grow" />
        <button class="quiet" aria-pressed={isIndented} onClick={() => setIndented(!isIndented)}>
          {isIndented ? "as sent" : "indent"}
        </button>
        {data && <Copy text={data.text} />}
        <button class="quiet" onClick={() => void save(path, `${call.call_id}-${side}.txt`)}>
          save
        </button>
      </h3>
      {error && <Failure error={error} retry={reload} />}
      {!data && !error && <Waiting />}
      {data && (
        <pre class="body">
          {shown === "" ? <span class="none">no bytes</span> : <Text text={shown} />}
        </pre>
      )}
      {data?.isCut && !isWhole && (
        <button class="more" onClick={() => setWhole(true)}>
          {`the first ${number(SHOWN_BYTES / 1024)} KiB are shown; show all ${bytes(length)}`}
        </button>
      )}
      {data?.isCut && isWhole && (
        <div class="note">{`The first ${bytes(WHOLE_BYTES_MAX)} are shown. Save it to see the rest.`}</div>
      )}
    </section>
  );
}

/** Reads the beginning of a body and leaves the rest unread. */
async function head(
  path: string,
  limit: number,
  signal: AbortSignal,
): Promise<{ text: string; isCut: boolean }> {
  const response = await ask(path, signal);
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let read = 0;
  while (reader) {
    const { done, value } = await reader.read();
    if (done) return { text: text + decoder.decode(), isCut: false };
    text += decoder.decode(value.subarray(0, limit - read), { stream: true });
    read += value.length;
    if (read > limit) {
      await reader.cancel();
      return { text, isCut: true };
    }
  }
  return { text, isCut: false };
}

async function save(path: string, name: string): Promise<void> {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await (await ask(path)).blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Returns a document, or the events of a stream, with its JSON indented. */
function indent(text: string): string {
  const whole = pretty(text);
  if (whole !== null) return whole;
  const lines = text.split("\n").map((line) => {
    const data = /^data: ?(.*)$/.exec(line)?.[1];
    const indented = data === undefined ? null : pretty(data);
    return indented === null ? line : `data: ${indented}`;
  });
  return lines.join("\n");
}
