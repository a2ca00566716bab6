/** The difference of two texts, word by word. */

export interface Run {
  text: string;
  /** True where the other text has these words, too. */
  same: boolean;
}

/** Most words on a side; longer texts are compared from both ends only. */
const WORDS_MAX = 600;

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

  const middle = common(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const flags = (own: boolean[], length: number) =>
    Array.from(
      { length },
      (_, at) => at < start || at >= length - end || (own[at - start] ?? false),
    );
  return [runs(a, flags(middle[0], a.length)), runs(b, flags(middle[1], b.length))];
}

const words = (text: string): string[] => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

/** Returns for each word of both lists whether it is in their longest common part. */
function common(a: string[], b: string[]): [boolean[], boolean[]] {
  const inA = a.map(() => false);
  const inB = b.map(() => false);
  if (a.length === 0 || b.length === 0 || a.length > WORDS_MAX || b.length > WORDS_MAX)
    return [inA, inB];
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
