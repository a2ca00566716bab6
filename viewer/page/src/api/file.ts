/** The answers that came with the page, where the page is a file of its own. */

/** What the file says of itself. */
export interface FileFacts {
  title: string;
  attempts: { episode_id: string; attempt: number }[];
  group: string | null;
  /** True if the bytes of requests and replies are in the file. */
  has_bodies: boolean;
  version: string;
  written_at: number;
}

interface Answer {
  document?: unknown;
  /** Where in the document a part belongs, and its number. */
  parts?: [(string | number)[], number][];
  /** A recorded body. */
  base64?: string;
}

/** The elements with data, by the names that they have. */
function elements(attribute: string): Map<string, Element> {
  const found = document.querySelectorAll(`script[${attribute}]`);
  return new Map([...found].map((element) => [element.getAttribute(attribute) ?? "", element]));
}

const answers = elements("data-answer");
const parts = elements("data-part");

/** The file that the page is; null for the page of a listener. */
export const FILE: FileFacts | null = parsed<FileFacts>(elements("data-file").get(""));

/** Returns the document that answers a question; null if the file has none. */
export function documentInFile(path: string): unknown {
  const answer = parsed<Answer>(answers.get(keyOf(path)));
  if (!answer) return null;
  for (const [place, number] of answer.parts ?? []) {
    put(answer.document, place, parsed(parts.get(String(number))));
  }
  return answer.document ?? null;
}

/** Returns the recorded bytes that answer a question; null if the file has none. */
export function bodyInFile(path: string): Uint8Array<ArrayBuffer> | null {
  const text = parsed<Answer>(answers.get(keyOf(path)))?.base64;
  if (text === undefined) return null;
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** True if the page can show an attempt. */
export function isHere(id: string, attempt: number): boolean {
  return !FILE || FILE.attempts.some((one) => one.episode_id === id && one.attempt === attempt);
}

/** True if the page can show a group. */
export const isGroupHere = (group: string): boolean => !FILE || FILE.group === group;

/** Returns the name of a question: its path, then its parameters by name. */
function keyOf(question: string): string {
  const [path = "", query = ""] = question.split("?", 2);
  const pairs = [...new URLSearchParams(query)].map(([name, value]) => ` ${name}=${value}`);
  return path.split("/").map(decodeURIComponent).join("/") + pairs.sort().join("");
}

function parsed<T>(element: Element | undefined): T | null {
  return element ? (JSON.parse(element.textContent ?? "null") as T) : null;
}

/** Puts a value at its place in a document. */
function put(document: unknown, place: (string | number)[], value: unknown): void {
  let holder = document as Record<string | number, unknown>;
  for (const step of place.slice(0, -1)) holder = holder[step] as Record<string | number, unknown>;
  const last = place.at(-1);
  if (last !== undefined) holder[last] = value;
}
