/** One message: its role, reasoning, content and tool calls. */

import { useState } from "preact/hooks";
import type { Message, ToolCall } from "../api/types";
import { Copy, LongText, Text } from "../parts/text";
import { number } from "../words/format";
import { safe } from "../words/safe";
import { Arguments } from "./arguments";
import { Json, JsonText } from "./json";

/** Fields that have a place of their own; others are shown as JSON. */
const KNOWN = new Set([
  "role",
  "content",
  "name",
  "reasoning",
  "reasoning_content",
  "tool_calls",
  "tool_call_id",
  "refusal",
  "unread_parts",
  "unread_items",
]);

/** Returns the names of tools by the ids of their calls. */
export function toolNames(messages: Message[]): Map<string, string> {
  const calls = messages.flatMap((message) => message.tool_calls ?? []);
  return new Map(calls.map((call) => [call.id ?? "", call.function?.name ?? ""]));
}

interface Props {
  message: Message;
  /** Names of tools by the ids of their calls: a result has the id only. */
  tools?: Map<string, string>;
  sampled?: boolean;
}

export function MessageView({ message, tools, sampled = false }: Props) {
  const tool = tools?.get(message.tool_call_id ?? "");
  const reasoning = message.reasoning ?? message.reasoning_content;
  const others = Object.entries(message).filter(
    ([name, value]) => !KNOWN.has(name) && value !== null,
  );
  return (
    <article class={`message role-${roleClass(message.role)} ${sampled ? "sampled" : ""}`}>
      <div class="role">
        <Text text={message.role} />
        {message.name && (
          <span class="dim">
            <Text text={` ${message.name}`} />
          </span>
        )}
        {tool && !message.name && (
          <span class="tool-of">
            <Text text={` ${tool}`} />
          </span>
        )}
        {message.tool_call_id && (
          <div class="tool-id" title={safe(message.tool_call_id)}>
            <Text text={message.tool_call_id} />
          </div>
        )}
        <Copy text={() => JSON.stringify(message, null, 2)} />
      </div>
      <div class="content">
        {reasoning && <Reasoning text={reasoning} />}
        <Content content={message.content} isTool={message.role === "tool"} />
        {typeof message["refusal"] === "string" && <LongText text={message["refusal"]} />}
        {message.tool_calls?.map((call, at) => (
          <ToolCallView key={at} call={call} />
        ))}
        {[...(message.unread_parts ?? []), ...(message.unread_items ?? [])].map((part, at) => (
          <UnreadPart key={at} part={part} />
        ))}
        {others.length > 0 && <Json value={Object.fromEntries(others)} />}
      </div>
    </article>
  );
}

const roleClass = (role: string): string =>
  ["system", "developer", "user", "assistant", "tool"].includes(role) ? role : "other";

function Reasoning({ text }: { text: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <div class="reasoning">
      <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? "▾" : "▸"} {`reasoning, ${number(text.length)} characters`}
      </button>
      {isOpen ? (
        <LongText text={text} />
      ) : (
        <span class="dim one-line">
          <Text text={text.slice(0, 160)} />
        </span>
      )}
    </div>
  );
}

function Content({ content, isTool }: { content: unknown; isTool: boolean }) {
  if (content === null || content === undefined || content === "") return null;
  if (typeof content === "string") {
    return isTool || looksLikeJson(content) ? (
      <JsonText text={content} />
    ) : (
      <LongText text={content} />
    );
  }
  if (!Array.isArray(content)) return <Json value={content} />;
  return (
    <>
      {content.map((part, at) => (
        <PartView key={at} part={part} isTool={isTool} />
      ))}
    </>
  );
}

const looksLikeJson = (text: string): boolean => /^\s*[[{]/.test(text) && /[\]}]\s*$/.test(text);

/** Shows one part of a content that is a list. */
function PartView({ part, isTool }: { part: unknown; isTool: boolean }) {
  const form = part as { type?: string; text?: string; image_url?: { url?: string } } | null;
  if (typeof form?.text === "string") return <Content content={form.text} isTool={isTool} />;
  if (form?.image_url?.url) return <Image url={form.image_url.url} />;
  return <Json value={part} />;
}

/** Shows an image that is part of the message; one elsewhere is named, never fetched. */
function Image({ url }: { url: string }) {
  const [isOpen, setOpen] = useState(false);
  if (!/^data:image\/(png|jpeg|gif|webp);base64,/.test(url)) {
    return (
      <div class="note">
        image{" "}
        <span class="mono">
          <Text text={url.slice(0, 300)} />
        </span>
      </div>
    );
  }
  return (
    <div>
      <button
        class="fold"
        onClick={() => setOpen(!isOpen)}
      >{`image, ${number(url.length)} characters`}</button>
      {isOpen && <img class="image" src={url} alt="sent with the message" />}
    </div>
  );
}

/** Shows a part that has no form in chat, as it came. */
function UnreadPart({ part }: { part: unknown }) {
  const [isOpen, setOpen] = useState(false);
  const kind = (part as { type?: unknown } | null)?.type;
  return (
    <div class="unread">
      <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? "▾" : "▸"} left unread: <Text text={typeof kind === "string" ? kind : "a part"} />
      </button>
      {isOpen && <Json value={part} />}
    </div>
  );
}

function ToolCallView({ call }: { call: ToolCall }) {
  const given = call.function?.arguments;
  return (
    <div class="tool-call">
      <div class="tool-name">
        <b>
          <Text text={call.function?.name ?? call.type ?? "tool"} />
        </b>
        {call.id && (
          <span class="dim mono small">
            <Text text={` ${call.id}`} />
          </span>
        )}
      </div>
      {typeof given === "string" ? (
        <Arguments given={given} />
      ) : (
        given !== undefined && <Json value={given} />
      )}
      {call.function === undefined && <Json value={call} />}
    </div>
  );
}
