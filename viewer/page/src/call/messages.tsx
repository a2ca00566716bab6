/** A turn as messages: what is new first, the history folded, then the answer. */

import { useMemo, useState } from "preact/hooks";
import type { Call, Tree, Turn } from "../api/types";
import { CallLink } from "../episode/summary";
import { Text } from "../parts/text";
import { plural } from "../words/format";
import type { ToolLine } from "../words/tools";
import { MessageView } from "./message";
import { Json } from "./json";
import { toolLines } from "./tool";

interface Props {
  tree: Tree;
  call: Call;
  turn: Turn | null;
  choice: number;
}

export function Messages({ tree, call, turn, choice }: Props) {
  const newFrom = Math.min(turn?.new_from ?? 0, call.messages.length);
  const answer = call.choices.find((each) => each.index === choice);
  const tools = useMemo(() => toolLines(call.messages), [call]);
  return (
    <div class="messages">
      <Tools tools={call.tools} />
      {newFrom > 0 && <History {...{ tree, call, turn, tools }} end={newFrom} />}
      {call.messages.slice(newFrom).map((message, at) => (
        <MessageView key={newFrom + at} message={message} tools={tools} />
      ))}
      {answer?.message ? (
        <div class="answer">
          <MessageView message={answer.message} sampled />
        </div>
      ) : (
        <div class="empty">
          {call.outcome === null ? "The call is running." : "There is no answer."}
        </div>
      )}
    </div>
  );
}

/** Shows the messages that the turn before had as well, as far as they are asked for. */
function History({
  tree,
  call,
  turn,
  tools,
  end,
}: {
  tree: Tree;
  call: Call;
  turn: Turn | null;
  tools: Map<string, ToolLine>;
  end: number;
}) {
  const [isOpen, setOpen] = useState(false);
  return (
    <div class="history">
      <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? "▾" : "▸"} {plural(end, "earlier message")}
      </button>
      {turn?.parent && (
        <span class="dim">
          {" known from "}
          <CallLink tree={tree} call={turn.parent.call_id} />
        </span>
      )}
      {isOpen &&
        call.messages
          .slice(0, end)
          .map((message, at) => <MessageView key={at} message={message} tools={tools} />)}
    </div>
  );
}

function Tools({ tools }: { tools: unknown[] }) {
  const [isOpen, setOpen] = useState(false);
  if (tools.length === 0) return null;
  return (
    <div class="history">
      <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? "▾" : "▸"} {plural(tools.length, "tool")}
      </button>
      <span class="dim">
        {" "}
        <Text text={tools.map(nameOf).slice(0, 12).join(", ")} />
        {tools.length > 12 && ", ..."}
      </span>
      {isOpen && tools.map((tool, at) => <Json key={at} value={tool} />)}
    </div>
  );
}

function nameOf(tool: unknown): string {
  const form = tool as { name?: string; type?: string; function?: { name?: string } } | null;
  return form?.function?.name ?? form?.name ?? form?.type ?? "?";
}
