/** How a token is written: line breaks and unsafe characters are visible, and its width is known. */

import { isSafe, parts } from "../words/safe";
import type { Token } from "./windows";

/** Longer texts are cut in the rows; all of it is shown on hover. */
const SHOWN_CHARS_MAX = 96;

/** Returns the text of a token in one line; its id where no text is known. */
export function shown(token: Token): string {
  const { text, id } = token;
  if (text === null || text === "") return `⟨${id}⟩`;
  const cut = text.length > SHOWN_CHARS_MAX ? `${text.slice(0, SHOWN_CHARS_MAX)}…` : text;
  return visible(cut);
}

/** Returns a text without line breaks, tabs and unsafe characters, with marks in their place. */
export function visible(text: string): string {
  const marked = text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
  if (isSafe(marked)) return marked;
  return parts(marked)
    .map((part) => part.text)
    .join("");
}

const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u;

/** Returns the columns that a text takes in a font of one width. */
export function columns(text: string): number {
  let width = 0;
  for (const char of text) width += char > "\u10ff" && WIDE.test(char) ? 2 : 1;
  return width;
}

/** Lower bounds of probabilities, from sure to unlikely; a token below all has the last class. */
const STEPS = [0.99, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01];

/** What the colors mean, for the legend. */
export const LEGEND: [string, string][] = [
  ["p1", "90%"],
  ["p2", "70%"],
  ["p3", "50%"],
  ["p4", "30%"],
  ["p5", "10%"],
  ["p6", "3%"],
  ["p7", "1%"],
  ["p8", "less"],
];

/** Returns the class that colors a token. */
export function classOf(token: Token): string {
  if (!token.isSampled) return "prompt";
  const masked = token.mask === 0 ? " masked" : "";
  if (token.logprob === null) return `unknown${masked}`;
  const probability = Math.exp(token.logprob);
  const step = STEPS.findIndex((bound) => probability >= bound);
  return `p${step < 0 ? STEPS.length : step}${masked}`;
}
