/** A call of a tool, and what it gave: one line each, and the whole of it below. */

import { useState } from "preact/hooks";
import type { Message, ToolCall } from "../api/types";
import { Fold } from "../parts/fold";
import { Text } from "../parts/text";
import { number } from "../words/format";
import { aboutOf, type ToolLine } from "../words/tools";
import { Arguments } from "./arguments";
import { Json, JsonText } from "./json";

/** Returns what tools were asked to do, by the ids of their calls. */
export function toolLines(messages: Message[]): Map<string, ToolLine> {
  const calls = messages.flatMap((message) => message.tool_calls ?? []);
  return new Map(calls.map((call) => [call.id ?? "", lineOf(call)]));
}

function lineOf(call: ToolCall): ToolLine {
  const about = aboutOf(call.function?.arguments);
  return { name: call.function?.name ?? call.type ?? "tool", about };
}

/** Shows `bash ls -la`: the name of a tool, and what it was given in short. */
export function ToolWords({ line }: { line: ToolLine }) {
  return (
    <span class="tool-words">
      <b>
        <Text text={line.name} />
      </b>
      {line.about && (
        <span class="mono">
          {" "}
          <Text text={line.about} />
        </span>
      )}
    </span>
  );
}

interface CallProps {
  call: ToolCall;
  /** True where the arguments are folded at first. */
  isBrief: boolean;
}

export function ToolCallView({ call, isBrief }: CallProps) {
  const [isOpen, setOpen] = useState(!isBrief);
  const given = call.function?.arguments;
  return (
    <div class={`tool-call ${isOpen ? "open" : ""}`}>
      <div class="tool-name">
        <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <i>{isOpen ? "▾" : "▸"}</i> <ToolWords line={lineOf(call)} />
        </button>
        {isOpen && call.id && (
          <span class="dim mono small">
            <Text text={call.id} />
          </span>
        )}
      </div>
      {isOpen &&
        (typeof given === "string" ? (
          <Arguments given={given} />
        ) : (
          given !== undefined && <Json value={given} />
        ))}
      {isOpen && call.function === undefined && <Json value={call} />}
    </div>
  );
}

/** Results that are shown without a fold: one line, not a long one. */
const SHORT_CHARS_MAX = 120;

/** Shows what a tool gave: a short line as it is, else its length and its beginning. */
export function ToolResult({ text, isBrief }: { text: string; isBrief: boolean }) {
  const trimmed = text.trimEnd();
  const isShort = trimmed.length <= SHORT_CHARS_MAX && !trimmed.includes("\n");
  if (!isBrief || isShort) return <JsonText text={text} />;
  return (
    <Fold label={lengthOf(trimmed)} preview={trimmed.trimStart().split("\n", 1)[0] ?? ""}>
      <JsonText text={text} />
    </Fold>
  );
}

function lengthOf(text: string): string {
  let lines = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  return lines > 1 ? `${number(lines)} lines` : `${number(text.length)} characters`;
}
