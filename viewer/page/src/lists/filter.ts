/**
 * Filters as a person writes them in one line: `state:failed reward>=0.5 some text`. Words that name
 * no field are the text that names contain.
 */

import { when } from "../words/when";

export interface Filter {
  /** The parameter of the address and of the question. */
  name: string;
  /** What stands before its value in the line; its name and a colon without one. */
  word?: string;
  /** What it selects. */
  hint: string;
  kind?: "text" | "number" | "time" | "label";
  /** Its values, or some of them. */
  options?: string[];
  /** True for the filter that words without a field are. */
  isPlain?: boolean;
}

/** What a line says. */
export interface Line {
  /** Values of fields whose words are whole, by the parameter. */
  fields: Record<string, string>;
  /** Words without a field. */
  plain: string;
  /** What stays in the line: words without a field, and what is no value yet. */
  rest: string;
  /** A word whose value cannot be; null if there is none. */
  wrong: string | null;
}

export const wordOf = (filter: Filter): string => filter.word ?? `${filter.name}:`;

/** Returns a filter and its value as one writes them. */
export function written(filter: Filter, value: string): string {
  return wordOf(filter) + (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);
}

/** Returns the filter that a word is of, if it names one. */
export function fieldOf(word: string, filters: Filter[]): Filter | undefined {
  return filters.find((filter) => !filter.isPlain && word.startsWith(wordOf(filter)));
}

/** Returns the value of a word of a filter. */
export function valueOf(word: string, filter: Filter): string {
  return word.slice(wordOf(filter).length).replaceAll('"', "");
}

/** Reads a line. The last word is whole once a blank follows it, or the reader `isDone`. */
export function read(line: string, filters: Filter[], isDone: boolean): Line {
  const words = line.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? [];
  const fields: Record<string, string> = {};
  const plain: string[] = [];
  const rest: string[] = [];
  let wrong: string | null = null;
  words.forEach((word, at) => {
    const filter = fieldOf(word, filters);
    if (!filter) {
      plain.push(word);
      rest.push(word);
      return;
    }
    const isLast = at === words.length - 1 && !isDone && !/\s$/.test(line);
    const value = valueOf(word, filter);
    if (!isLast && value !== "" && isValid(filter, value)) {
      fields[filter.name] = value;
      return;
    }
    if (!isLast) wrong ??= word;
    rest.push(word);
  });
  return { fields, plain: plain.join(" "), rest: rest.join(" "), wrong };
}

export function isValid(filter: Filter, text: string): boolean {
  if (text === "") return true;
  if (filter.kind === "number") return text.trim() !== "" && Number.isFinite(Number(text));
  if (filter.kind === "time") return when(text) !== undefined;
  return filter.kind === "label" ? text.indexOf("=") > 0 : true;
}

/** Returns the form of a filter's values. */
export function formOf(filter: Filter): string {
  if (filter.kind === "time") return "90m, 24h, 7d ago, or 2026-01-31";
  if (filter.kind === "label") return "NAME=VALUE";
  return filter.kind === "number" ? "a number" : "a text";
}

/** Returns filters as parameters of a question: times in seconds, what cannot be asked left out. */
export function paramsOf(
  filters: Filter[],
  values: Record<string, string>,
): Record<string, string> {
  const params: Record<string, string> = {};
  for (const filter of filters) {
    const value = values[filter.name];
    if (!value || !isValid(filter, value)) continue;
    params[filter.name] = filter.kind === "time" ? String(when(value)) : value;
  }
  return params;
}

/** A word that can stand for the one that is typed. */
export interface Suggestion {
  word: string;
  hint: string;
  /** True if it is a field without a value. */
  isField: boolean;
}

const SUGGESTIONS_MAX = 12;

/** Returns what the last word of a line may become: fields, or values of the one that it names. */
export function suggestions(
  line: string,
  filters: Filter[],
  known: (name: string) => string[],
): Suggestion[] {
  const typed = /(?:[^\s"]|"[^"]*"?)*$/.exec(line)?.[0] ?? "";
  const field = fieldOf(typed, filters);
  if (!field) {
    const fields = filters.filter((one) => !one.isPlain && wordOf(one).startsWith(typed));
    return fields.map((one) => ({ word: wordOf(one), hint: one.hint, isField: true }));
  }
  const begun = valueOf(typed, field).toLowerCase();
  const values = [...new Set([...(field.options ?? []), ...known(field.name)])];
  const fitting = values.filter((value) => value.toLowerCase().includes(begun) && value !== begun);
  return fitting
    .slice(0, SUGGESTIONS_MAX)
    .map((value) => ({ word: written(field, value), hint: "", isField: false }));
}

/** Returns a line with another last word. */
export function completed(line: string, suggestion: Suggestion): string {
  const before = line.replace(/(?:[^\s"]|"[^"]*"?)*$/, "");
  return before + suggestion.word + (suggestion.isField ? "" : " ");
}

/** Values that were in sight, by the parameter that would select them; the newest last. */
const seen = new Map<string, Set<string>>();
const SEEN_MAX = 200;

/** Remembers a value of a filter that is in sight. */
export function remember(name: string, value: string | null): void {
  if (!value) return;
  const values = seen.get(name) ?? new Set<string>();
  values.delete(value);
  values.add(value);
  for (const oldest of values) {
    if (values.size <= SEEN_MAX) break;
    values.delete(oldest);
  }
  seen.set(name, values);
}

export const remembered = (name: string): string[] => [...(seen.get(name) ?? [])].reverse();
