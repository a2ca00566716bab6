/** One message: its role, reasoning, content and tool calls. */

import type { ComponentChildren } from "preact";
import { useContext, useMemo, useState } from "preact/hooks";
import type { Message } from "../api/types";
import { Fold } from "../parts/fold";
import { Copy, LongText, Text } from "../parts/text";
import { number } from "../words/format";
import { safe } from "../words/safe";
import type { ToolLine } from "../words/tools";
import { Json, JsonText } from "./json";
import { FORMED_CHARS_MAX, hasForm, Prose, RawContext } from "./prose";
import { ToolCallView, ToolResult } from "./tool";

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

/** A prompt of the system up to this length stands as it is, if it is one line. */
const SYSTEM_CHARS_MAX = 120;

interface Props {
  message: Message;
  /** What tools were asked to do, by the ids of their calls: a result has the id only. */
  tools?: Map<string, ToolLine>;
  sampled?: boolean;
  /** True where arguments and results of tools are folded at first. */
  isBrief?: boolean;
}

export function MessageView({ message, tools, sampled = false, isBrief = false }: Props) {
  const { isRaw, mayTurn, turn } = useRaw(message);
  const reasoning = message.reasoning ?? message.reasoning_content;
  const others = Object.entries(message).filter(
    ([name, value]) => !KNOWN.has(name) && value !== null,
  );
  return (
    <article class={`message role-${roleClass(message.role)} ${sampled ? "sampled" : ""}`}>
      <Role message={message} tool={tools?.get(message.tool_call_id ?? "")}>
        {mayTurn && (
          <button class="quiet raw-switch" aria-pressed={isRaw} onClick={turn}>
            raw
          </button>
        )}
      </Role>
      <div class="content">
        {reasoning && (
          <Fold
            class="reasoning"
            label={`reasoning, ${number(reasoning.length)} characters`}
            preview={reasoning}
          >
            <LongText text={reasoning} />
          </Fold>
        )}
        <Content content={message.content} as={{ role: message.role, isRaw, isBrief }} />
        {typeof message["refusal"] === "string" && <LongText text={message["refusal"]} />}
        {message.tool_calls?.map((call, at) => (
          <ToolCallView key={at} call={call} isBrief={isBrief} />
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

const isSystem = (role: string): boolean => role === "system" || role === "developer";

/** Whether a message is shown as recorded; long ones are until their form is asked for. */
function useRaw(message: Message): { isRaw: boolean; mayTurn: boolean; turn(): void } {
  const all = useContext(RawContext);
  const [own, setOwn] = useState<boolean | null>(null);
  const texts = useMemo(() => textsOf(message), [message]);
  const mayTurn = useMemo(() => texts.some(hasForm), [texts]);
  const isRaw = own ?? (all || texts.some((text) => text.length > FORMED_CHARS_MAX));
  return { isRaw, mayTurn, turn: () => setOwn(!isRaw) };
}

/** Returns the texts of a message that have a form; those of tools and JSON have their own. */
function textsOf({ role, content }: Message): string[] {
  if (role === "tool") return [];
  const parts = typeof content === "string" ? [content] : Array.isArray(content) ? content : [];
  return parts
    .map((part) => (typeof part === "string" ? part : (part as { text?: unknown } | null)?.text))
    .filter((text): text is string => typeof text === "string" && !looksLikeJson(text));
}

interface RoleProps {
  message: Message;
  tool: ToolLine | undefined;
  children: ComponentChildren;
}

function Role({ message, tool, children }: RoleProps) {
  return (
    <div class="role">
      <Text text={message.role} />
      {message.name && (
        <span class="dim">
          <Text text={` ${message.name}`} />
        </span>
      )}
      {tool && !message.name && (
        <span class="tool-of" title={safe(tool.about)}>
          <Text text={` ${tool.name}`} />
        </span>
      )}
      {message.tool_call_id && (
        <div class="tool-id" title={safe(message.tool_call_id)}>
          <Text text={message.tool_call_id} />
        </div>
      )}
      <span class="role-bar">
        {children}
        <Copy text={() => JSON.stringify(message, null, 2)} />
      </span>
    </div>
  );
}

/** How a content is shown: by whom it was said, as recorded or not, folded or not. */
interface As {
  role: string;
  isRaw: boolean;
  isBrief: boolean;
}

function Content({ content, as }: { content: unknown; as: As }) {
  if (content === null || content === undefined || content === "") return null;
  if (typeof content === "string") return <Words text={content} as={as} />;
  if (!Array.isArray(content)) return <Json value={content} />;
  return (
    <>
      {content.map((part, at) => (
        <PartView key={at} part={part} as={as} />
      ))}
    </>
  );
}

function Words({ text, as }: { text: string; as: As }) {
  if (as.role === "tool") return <ToolResult text={text} isBrief={as.isBrief} />;
  if (looksLikeJson(text)) return <JsonText text={text} />;
  const isShort = text.length <= SYSTEM_CHARS_MAX && !text.trim().includes("\n");
  if (!isSystem(as.role) || isShort) return <Prose text={text} isRaw={as.isRaw} />;
  return (
    <Fold
      class="system-prompt"
      label={`${as.role} prompt, ${number(text.length)} characters`}
      preview={text}
    >
      <Prose text={text} isRaw={as.isRaw} />
    </Fold>
  );
}

const looksLikeJson = (text: string): boolean => /^\s*[[{]/.test(text) && /[\]}]\s*$/.test(text);

/** Shows one part of a content that is a list. */
function PartView({ part, as }: { part: unknown; as: As }) {
  const form = part as { type?: string; text?: string; image_url?: { url?: string } } | null;
  if (typeof form?.text === "string") return <Content content={form.text} as={as} />;
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
  const kind = (part as { type?: unknown } | null)?.type;
  const label = (
    <>
      left unread: <Text text={typeof kind === "string" ? kind : "a part"} />
    </>
  );
  return (
    <Fold class="unread" label={label}>
      <Json value={part} />
    </Fold>
  );
}
