/**
 * What stands within a line of Markdown: code, emphasis, links. Nothing of it is HTML. A mark
 * without its end is a character like any other, and the work grows with the length of the text.
 */

import { isSafe } from "./safe";

export type Span =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "em" | "del"; spans: Span[] }
  | { kind: "link"; address: string; spans: Span[] };

/** What a mark becomes, and where the text goes on behind it. */
interface Piece {
  span: Span;
  end: number;
}

/** Farthest that the end of a mark is looked for. */
const REACH_CHARS = 4000;
const DEPTH_MAX = 6;
const ADDRESS_CHARS_MAX = 2000;

const ESCAPED = /[*_`#~|]/;
const WORD = /[\p{L}\p{N}_]/u;
/** A mark that opens has this before it, one that closes has it behind it. */
const EDGE = /[\s()[\]{}"'“”‘’,;:!?—–-]/;

/** Returns the spans of a text. Links within a link are text. */
export function spansOf(text: string, depth = 0, inLink = false): Span[] {
  const marks = /[\\`*_~[]|https?:\/\//g;
  const unclosed = new Set<string>();
  const out: Span[] = [];
  let shown = 0;
  for (let mark = marks.exec(text); mark; mark = marks.exec(text)) {
    const at = mark.index;
    const piece = depth < DEPTH_MAX ? pieceAt(text, at, { depth, inLink, unclosed }) : null;
    if (piece) {
      if (at > shown) out.push({ kind: "text", text: text.slice(shown, at) });
      out.push(piece.span);
      shown = piece.end;
    }
    marks.lastIndex = piece ? piece.end : at + runAt(text, at);
  }
  if (shown < text.length) out.push({ kind: "text", text: text.slice(shown) });
  return out;
}

interface Place {
  depth: number;
  inLink: boolean;
  /** Marks that have no end in the rest of the text. */
  unclosed: Set<string>;
}

function pieceAt(text: string, at: number, place: Place): Piece | null {
  switch (text[at]) {
    case "\\": {
      const next = text[at + 1] ?? "";
      return ESCAPED.test(next) ? { span: { kind: "text", text: next }, end: at + 2 } : null;
    }
    case "`":
      return codeAt(text, at, place);
    case "[":
      return place.inLink ? null : linkAt(text, at, place);
    case "h":
      return place.inLink ? null : bareLinkAt(text, at);
    default:
      return emphasisAt(text, at, place);
  }
}

/** Returns how often the character at a place is repeated there. */
function runAt(text: string, at: number): number {
  let end = at + 1;
  while (end < text.length && text[end] === text[at]) end++;
  return end - at;
}

/** Returns where a run of exactly this mark begins; -1 if none does that may close. */
function closing(
  text: string,
  from: number,
  mark: string,
  mayClose: (at: number) => boolean,
): number {
  const last = Math.min(text.length, from + REACH_CHARS);
  for (let at = text.indexOf(mark, from); at >= 0 && at < last;) {
    const run = runAt(text, at);
    if (run === mark.length && mayClose(at)) return at;
    at = text.indexOf(mark, at + run);
  }
  return -1;
}

function codeAt(text: string, at: number, { unclosed }: Place): Piece | null {
  const length = runAt(text, at);
  const mark = "`".repeat(length);
  const end = unclosed.has(mark) ? -1 : closing(text, at + length, mark, () => true);
  if (end < 0) {
    unclosed.add(mark);
    return null;
  }
  const inner = text.slice(at + length, end);
  const isPadded = /^ .*[^ ].* $/s.test(inner);
  return {
    span: { kind: "code", text: isPadded ? inner.slice(1, -1) : inner },
    end: end + length,
  };
}

const KINDS: Record<string, "strong" | "em" | "del"> = {
  "*": "em",
  "**": "strong",
  "***": "strong",
  _: "em",
  "~~": "del",
};

function emphasisAt(text: string, at: number, place: Place): Piece | null {
  const length = runAt(text, at);
  const mark = text.slice(at, at + length);
  const kind = KINDS[mark];
  if (!kind || place.unclosed.has(mark)) return null;
  const isEdge = (char: string | undefined) => char === undefined || EDGE.test(char);
  const isSpace = (char: string | undefined) => char === undefined || /\s/.test(char);
  // `src/*.ts` and `a_b_c` are no emphasis; two stars may stand within a word.
  const isLoose = length > 1;
  if (isSpace(text[at + length]) || !(isLoose || isEdge(text[at - 1]) || text[at - 1] === "*"))
    return null;

  const end = closing(text, at + length, mark, (close) => {
    const next = text[close + length];
    return !isSpace(text[close - 1]) && (isLoose || isEdge(next) || /[.*]/.test(next ?? ""));
  });
  if (end < 0) {
    place.unclosed.add(mark);
    return null;
  }
  const inner = spansOf(text.slice(at + length, end), place.depth + 1, place.inLink);
  const spans: Span[] = length === 3 ? [{ kind: "em", spans: inner }] : inner;
  return { span: { kind, spans }, end: end + length };
}

/** `[words](address)`; an image, and an address that is none of the web, stay as they are. */
function linkAt(text: string, at: number, place: Place): Piece | null {
  if (text[at - 1] === "!" || place.unclosed.has("[")) return null;
  const close = text.indexOf("]", at);
  if (close < 0) place.unclosed.add("[");
  if (close < 0 || close - at > REACH_CHARS || text[close + 1] !== "(") return null;
  const inside = text.slice(close + 2, close + 2 + ADDRESS_CHARS_MAX);
  const found = /^<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\)/.exec(inside);
  const address = found?.[1] ? addressOf(found[1]) : null;
  if (!found || address === null) return null;
  const spans = spansOf(text.slice(at + 1, close), place.depth + 1, true);
  return { span: { kind: "link", address, spans }, end: close + 2 + found[0].length };
}

function bareLinkAt(text: string, at: number): Piece | null {
  if (at > 0 && WORD.test(text[at - 1] ?? "")) return null;
  const found = /^[^\s<>"'`\]|]+/.exec(text.slice(at, at + ADDRESS_CHARS_MAX))?.[0] ?? "";
  let shown = found.replace(/[.,;:!?*_~]+$/, "");
  if (shown.endsWith(")") && !shown.includes("(")) shown = shown.replace(/\)[).,;:!?*_]*$/, "");
  const address = addressOf(shown);
  if (address === null) return null;
  const spans: Span[] = [{ kind: "text", text: shown }];
  return { span: { kind: "link", address, spans }, end: at + shown.length };
}

/** Returns an address that a reader may follow: of the web, in sight, and of no other host. */
export function addressOf(text: string): string | null {
  if (!/^https?:\/\//i.test(text) || text.length > ADDRESS_CHARS_MAX || !isSafe(text)) return null;
  try {
    const { protocol, username, password } = new URL(text);
    const isWeb = protocol === "http:" || protocol === "https:";
    return isWeb && !username && !password ? text : null;
  } catch {
    return null;
  }
}
