/** What a tool was asked to do, in one line: its name, and the argument that says most. */

/** Arguments that say most, the first one that is there. */
const PRINCIPAL = [
  "command",
  "cmd",
  "query",
  "pattern",
  "url",
  "file_path",
  "path",
  "notebook_path",
  "filename",
  "code",
  "prompt",
  "description",
];
const LINE_CHARS_MAX = 160;
/** Longer arguments are not read for their line. */
const PARSED_CHARS_MAX = 500_000;

/** A tool's name, and what it was given in short. */
export interface ToolLine {
  name: string;
  about: string;
}

/** Returns the line of a tool's arguments: text of JSON, or a value. */
export function aboutOf(given: unknown): string {
  if (typeof given !== "string") return given === undefined ? "" : principal(given);
  if (given.length > PARSED_CHARS_MAX) return cut(given);
  try {
    return principal(JSON.parse(given));
  } catch {
    return cut(given);
  }
}

function principal(value: unknown): string {
  if (typeof value !== "object" || value === null) return cut(String(value));
  const named = value as Record<string, unknown>;
  for (const name of PRINCIPAL) {
    const text = words(named[name]);
    if (text) return cut(text);
  }
  const text = JSON.stringify(value);
  return text === "{}" ? "" : cut(text);
}

/** Returns a text, or a command as a list of words; `bash -lc` says less than what it runs. */
function words(value: unknown): string {
  if (typeof value === "string") return value;
  if (!Array.isArray(value) || !value.every((word) => typeof word === "string")) return "";
  const isShell = /(^|\/)(ba|z|da)?sh$/.test(value[0] ?? "") && /^-\w*c$/.test(value[1] ?? "");
  return (isShell ? value.slice(2) : value).join(" ");
}

/** Returns the first line that says something, no longer than a line. */
function cut(text: string): string {
  const lines = text.slice(0, LINE_CHARS_MAX * 20).trim();
  const end = lines.indexOf("\n");
  const line = end < 0 ? lines : lines.slice(0, end);
  return end >= 0 || line.length > LINE_CHARS_MAX ? `${line.slice(0, LINE_CHARS_MAX)}…` : line;
}

/** What an answer was, from its excerpt: words, then the tools that it asked for. */
export interface Deed {
  words: string;
  tools: ToolLine[];
}

const CALL = /(^|\s)([\w.:/-]{1,80})\((?=\{)/g;

/**
 * Returns what the excerpt of an answer says that it did. An excerpt writes a call of a tool as
 * `name({"argument":"value"})`, and may be cut within it.
 */
export function deedOf(excerpt: string, finish: string | null): Deed {
  const isCall = /tool|function/.test(finish ?? "") || /^[\w.:/-]{1,80}\(\{/.test(excerpt);
  if (!isCall) return { words: excerpt, tools: [] };
  const found = [...excerpt.matchAll(CALL)];
  if (found.length === 0) return { words: excerpt, tools: [] };
  const tools = found.map((match, at) => {
    const from = match.index + match[0].length;
    const end = found[at + 1]?.index ?? excerpt.length;
    return { name: match[2] ?? "", about: aboutOfCut(excerpt.slice(from, end).trim()) };
  });
  return { words: excerpt.slice(0, found[0]?.index ?? 0).trim(), tools };
}

/** Returns the line of arguments whose end may be cut off. */
function aboutOfCut(text: string): string {
  const whole = text.replace(/\)$/, "");
  try {
    return principal(JSON.parse(whole));
  } catch {
    for (const name of PRINCIPAL) {
      const found = new RegExp(`"${name}"\\s*:\\s*"((?:[^"\\\\]|\\\\.)*)`).exec(whole);
      if (found?.[1]) return cut(unescaped(found[1]));
    }
    return cut(whole);
  }
}

function unescaped(text: string): string {
  try {
    return String(JSON.parse(`"${text}"`));
  } catch {
    return text;
  }
}
