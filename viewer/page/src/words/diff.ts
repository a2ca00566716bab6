/** The difference of two texts, word by word; of long ones line by line first. */

export interface Run {
  text: string;
  /** True where the other text has these words, too. */
  same: boolean;
}

/** Most words, or lines, on a side; longer texts are compared from both ends only. */
const WORDS_MAX = 600;
const LINES_MAX = 1500;

/** Returns both texts as runs of words that the other has or lacks. */
export function diff(left: string, right: string): [Run[], Run[]] {
  const a = words(left);
  const b = words(right);
  let start = 0;
  while (start < Math.min(a.length, b.length) && a[start] === b[start]) start++;
  let end = 0;
  while (
    end < Math.min(a.length, b.length) - start &&
    a[a.length - 1 - end] === b[b.length - 1 - end]
  )
    end++;

  const middle = compared(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const flags = (own: boolean[], length: number) =>
    Array.from(
      { length },
      (_, at) => at < start || at >= length - end || (own[at - start] ?? false),
    );
  return [runs(a, flags(middle[0], a.length)), runs(b, flags(middle[1], b.length))];
}

/** Compares words; many of them by the lines that they stand in, and between equal lines. */
function compared(a: string[], b: string[]): [boolean[], boolean[]] {
  if (a.length <= WORDS_MAX && b.length <= WORDS_MAX) return common(a, b);
  const left = linesOf(a);
  const right = linesOf(b);
  const texts = (lines: string[][]) => lines.map((line) => line.join(""));
  const [inLeft, inRight] = common(texts(left), texts(right), LINES_MAX);

  const inA: boolean[] = [];
  const inB: boolean[] = [];
  let i = 0;
  let j = 0;
  while (i < left.length || j < right.length) {
    const one: string[] = [];
    const other: string[] = [];
    while (i < left.length && !inLeft[i]) one.push(...(left[i++] ?? []));
    while (j < right.length && !inRight[j]) other.push(...(right[j++] ?? []));
    const [own, others] = common(one, other);
    inA.push(...own);
    inB.push(...others);
    if (i < left.length) inA.push(...(left[i++] ?? []).map(() => true));
    if (j < right.length) inB.push(...(right[j++] ?? []).map(() => true));
  }
  return [inA, inB];
}

/** Parts words into lines; a line ends with the space that has its break. */
function linesOf(list: string[]): string[][] {
  const lines: string[][] = [[]];
  for (const word of list) {
    lines.at(-1)?.push(word);
    if (word.includes("\n")) lines.push([]);
  }
  return lines;
}

const words = (text: string): string[] => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

/** Returns for each word of both lists whether it is in their longest common part. */
function common(a: string[], b: string[], most = WORDS_MAX): [boolean[], boolean[]] {
  const inA = a.map(() => false);
  const inB = b.map(() => false);
  if (a.length === 0 || b.length === 0 || a.length > most || b.length > most) return [inA, inB];
  const width = b.length + 1;
  const best = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number) => best[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] =
        a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      inA[i++] = true;
      inB[j++] = true;
    } else if (at(i + 1, j) >= at(i, j + 1)) i++;
    else j++;
  }
  return [inA, inB];
}

function runs(list: string[], same: boolean[]): Run[] {
  const out: Run[] = [];
  list.forEach((text, at) => {
    const last = out.at(-1);
    if (last && last.same === same[at]) last.text += text;
    else out.push({ text, same: same[at] ?? false });
  });
  return out;
}
