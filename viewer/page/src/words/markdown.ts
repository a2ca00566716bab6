/**
 * Markdown as blocks: what models write, and no more. HTML is text. Where a form is not sure, the
 * lines stay as they are, so that the reader sees what was said.
 */

import { spansOf, type Span } from "./inline";

export type Block =
  | { kind: "paragraph"; spans: Span[] }
  | { kind: "heading"; level: number; spans: Span[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; items: Item[]; isOrdered: boolean }
  | { kind: "table"; head: Span[][]; rows: Span[][][] }
  | { kind: "rule" };

export interface Item {
  /** The number that was written; null in a list of points. */
  number: number | null;
  blocks: Block[];
}

/** A block, and the line behind it. */
interface Found {
  block: Block;
  end: number;
}

const DEPTH_MAX = 8;
/** Longer lines are no rule and no head of a table. */
const FORM_CHARS_MAX = 2000;

const ITEM = /^( *)([-*+]|(\d{1,9})[.)])( +|$)/;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;

export function blocksOf(text: string): Block[] {
  return parse(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

/** True if the blocks of a text show no more than the text itself. */
export function isPlain(blocks: Block[]): boolean {
  return blocks.every(
    (block) =>
      block.kind === "paragraph" && block.spans.length < 2 && block.spans[0]?.kind === "text",
  );
}

function parse(lines: string[], depth: number): Block[] {
  const out: Block[] = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const found = blockAt(lines, at, depth) ?? paragraphAt(lines, at);
    out.push(found.block);
    at = found.end;
  }
  return out;
}

const isBlank = (line: string | undefined): boolean => line === undefined || line.trim() === "";
const indentOf = (line: string): number => line.length - line.trimStart().length;

/** Returns the block that begins at a line, unless that is a paragraph. */
function blockAt(lines: string[], at: number, depth: number): Found | null {
  const line = lines[at] ?? "";
  return (
    fenceAt(lines, at) ??
    headingAt(line, at) ??
    ruleAt(line, at) ??
    tableAt(lines, at) ??
    (depth < DEPTH_MAX ? (quoteAt(lines, at, depth) ?? listAt(lines, at, depth)) : null)
  );
}

function paragraphAt(lines: string[], from: number): Found {
  let at = from + 1;
  while (at < lines.length && !isBlank(lines[at]) && !interrupts(lines, at)) at++;
  const spans = spansOf(lines.slice(from, at).join("\n"));
  return { block: { kind: "paragraph", spans }, end: at };
}

/** True if a line begins another block, also right behind a paragraph. */
function interrupts(lines: string[], at: number): boolean {
  const line = lines[at] ?? "";
  const item = ITEM.exec(line);
  return (
    FENCE.test(line) ||
    headingAt(line, at) !== null ||
    ruleAt(line, at) !== null ||
    /^ {0,3}>/.test(line) ||
    (item !== null && item[4] !== "" && (item[3] === undefined || item[3] === "1")) ||
    tableAt(lines, at) !== null
  );
}

function fenceAt(lines: string[], from: number): Found | null {
  const open = FENCE.exec(lines[from] ?? "");
  const mark = open?.[1];
  if (!open || !mark) return null;
  const isEnd = (line: string) => {
    const trimmed = line.trim();
    return trimmed.length >= mark.length && trimmed === mark.charAt(0).repeat(trimmed.length);
  };
  let at = from + 1;
  while (at < lines.length && !isEnd(lines[at] ?? "")) at++;

  const indent = indentOf(lines[from] ?? "");
  const body = lines
    .slice(from + 1, at)
    .map((line) => line.slice(Math.min(indent, indentOf(line))));
  const language = (open[2] ?? "").trim().split(/\s/, 1)[0] ?? "";
  return { block: { kind: "code", language, text: body.join("\n") }, end: at + 1 };
}

function headingAt(line: string, at: number): Found | null {
  const open = /^ {0,3}(#{1,6})[ \t]+/.exec(line);
  if (!open) return null;
  const words = line.slice(open[0].length).trim();
  const level = open[1]?.length ?? 1;
  return { block: { kind: "heading", level, spans: spansOf(words) }, end: at + 1 };
}

function ruleAt(line: string, at: number): Found | null {
  const bare = line.length < FORM_CHARS_MAX ? line.replace(/\s/g, "") : "";
  if (bare.length < 3 || !/^(-+|\*+|_+)$/.test(bare)) return null;
  return { block: { kind: "rule" }, end: at + 1 };
}

function quoteAt(lines: string[], from: number, depth: number): Found | null {
  const quoted: string[] = [];
  let at = from;
  for (; at < lines.length && /^ {0,3}>/.test(lines[at] ?? ""); at++)
    quoted.push((lines[at] ?? "").replace(/^ {0,3}> ?/, ""));
  if (at === from) return null;
  return { block: { kind: "quote", blocks: parse(quoted, depth + 1) }, end: at };
}

function tableAt(lines: string[], from: number): Found | null {
  const head = lines[from] ?? "";
  const rule = lines[from + 1] ?? "";
  if (!head.includes("|") || !rule.includes("-") || rule.length > FORM_CHARS_MAX) return null;
  const marks = cellsOf(rule);
  const names = cellsOf(head);
  if (marks.length !== names.length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;

  const rows: Span[][][] = [];
  let at = from + 2;
  for (; at < lines.length && !isBlank(lines[at]) && (lines[at] ?? "").includes("|"); at++)
    rows.push(cellsOf(lines[at] ?? "").map((cell) => spansOf(cell)));
  return { block: { kind: "table", head: names.map((cell) => spansOf(cell)), rows }, end: at };
}

/** Returns the cells of a row; a bar behind a backslash, or in code, parts none. */
function cellsOf(line: string): string[] {
  const cells: string[] = [];
  let cell = "";
  let inCode = false;
  const row = line.trim().replace(/^\|/, "");
  for (let at = 0; at < row.length; at++) {
    const char = row[at] ?? "";
    if (char === "`") inCode = !inCode;
    if (char === "\\" && row[at + 1] === "|") cell += row[++at];
    else if (char === "|" && !inCode) {
      cells.push(cell.trim());
      cell = "";
    } else cell += char;
  }
  if (cell.trim() !== "") cells.push(cell.trim());
  return cells;
}

function listAt(lines: string[], from: number, depth: number): Found | null {
  const first = ITEM.exec(lines[from] ?? "");
  if (!first) return null;
  const isOrdered = first[3] !== undefined;
  const indent = first[1]?.length ?? 0;
  const items: Item[] = [];
  let at = from;
  while (at < lines.length) {
    const next = isBlank(lines[at]) ? at + 1 : at;
    const mark = ITEM.exec(lines[next] ?? "");
    const isOurs = mark && (mark[3] !== undefined) === isOrdered;
    if (!mark || !isOurs || (mark[1]?.length ?? 0) < indent || ruleAt(lines[next] ?? "", 0)) break;
    const end = itemEnd(lines, next, indent);
    const inner = innerLines(lines.slice(next, end), mark[0].length);
    items.push({
      number: mark[3] === undefined ? null : Number(mark[3]),
      blocks: parse(inner, depth + 1),
    });
    at = end;
  }
  return items.length === 0 ? null : { block: { kind: "list", items, isOrdered }, end: at };
}

/** Returns the line behind an item: lines that are indented belong to it, and those that go on. */
function itemEnd(lines: string[], from: number, indent: number): number {
  let at = from + 1;
  for (; at < lines.length; at++) {
    const line = lines[at] ?? "";
    if (isBlank(line)) {
      const next = lines[at + 1];
      if (next === undefined || isBlank(next) || indentOf(next) <= indent) return at;
    } else if (indentOf(line) <= indent + 1) {
      const isNext = ITEM.test(line) || interrupts(lines, at) || isBlank(lines[at - 1]);
      if (isNext && !(indentOf(line) > indent && !ITEM.test(line))) return at;
    }
  }
  return at;
}

/** Returns the lines of an item without its mark and without its indent. */
function innerLines(lines: string[], width: number): string[] {
  return lines.map((line, at) =>
    at === 0 ? line.slice(width) : line.slice(Math.min(width, indentOf(line))),
  );
}
