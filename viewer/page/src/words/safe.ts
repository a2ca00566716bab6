/**
 * Text that cannot deceive a reader. Models, agents and upstreams write what the page shows.
 * Control characters, marks that turn the direction of writing, and characters that are made to be
 * invisible are shown as escapes; `cli/src/terminal/safe.rs` does the same for terminals.
 */

const UNSAFE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|\u{db40}[\udc00-\udfff]|[\u{e0000}-\u{e0fff}]/gu;

/** A part of a text: characters as they are, or the escape of one character. */
export interface Part {
  text: string;
  escaped: boolean;
}

export function escapeOf(char: string): string {
  let out = "";
  for (let at = 0; at < char.length; at++) {
    out += `\\u${char.charCodeAt(at).toString(16).padStart(4, "0")}`;
  }
  return out;
}

/** Returns a text whose unsafe characters are parts of their own. Line breaks and tabs stay. */
export function parts(text: string): Part[] {
  const found: Part[] = [];
  let from = 0;
  for (const match of text.matchAll(UNSAFE)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), escaped: false });
    found.push({ text: escapeOf(match[0]), escaped: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), escaped: false });
  return found;
}

/** Returns a text with escapes in it, for places that hold only text, such as titles. */
export function safe(text: string): string {
  return text.replace(UNSAFE, escapeOf);
}

/** Returns true where `parts` would be more than the text itself. */
export function isSafe(text: string): boolean {
  return text.search(UNSAFE) < 0;
}
