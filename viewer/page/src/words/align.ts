/** Two lists side by side: what is alike stands in one row, in the order of both lists. */

/** Indexes of a row; null where a list has nothing there. */
export interface Pair {
  left: number | null;
  right: number | null;
  /** How alike both are, from 0 to 1; 0 where only one is there, or where they merely face. */
  likeness: number;
}

/** Most members of a list that are aligned; those behind them face each other by number. */
export const ALIGNED_MAX = 400;
/** Members that are less alike are no pair. */
const LIKENESS_MIN = 0.3;

/**
 * Aligns two lists so that the sum of the likenesses of all pairs is largest: a longest common
 * subsequence in which similar members count as well. What is left over on both sides between two
 * pairs faces each other.
 */
export function align(
  left: number,
  right: number,
  likeness: (left: number, right: number) => number,
): Pair[] {
  const rows = Math.min(left, ALIGNED_MAX);
  const columns = Math.min(right, ALIGNED_MAX);
  const width = columns + 1;
  const alike = new Float32Array(rows * columns);
  const best = new Float32Array((rows + 1) * width);
  const at = (i: number, j: number) => best[i * width + j] ?? 0;
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      const found = likeness(i, j);
      const taken = found >= LIKENESS_MIN ? found + at(i + 1, j + 1) : 0;
      alike[i * columns + j] = found;
      best[i * width + j] = Math.max(taken, at(i + 1, j), at(i, j + 1));
    }
  }

  const pairs: Pair[] = [];
  let i = 0;
  let j = 0;
  while (i < rows && j < columns) {
    const found = alike[i * columns + j] ?? 0;
    if (found >= LIKENESS_MIN && at(i, j) <= found + at(i + 1, j + 1) + 1e-4)
      pairs.push({ left: i++, right: j++, likeness: found });
    else if (at(i + 1, j) >= at(i, j + 1)) i++;
    else j++;
  }
  return withRest(pairs, left, right);
}

/** Puts the members without a pair between the pairs, those of both lists beside each other. */
function withRest(pairs: Pair[], left: number, right: number): Pair[] {
  const out: Pair[] = [];
  let i = 0;
  let j = 0;
  const fill = (untilLeft: number, untilRight: number) => {
    while (i < untilLeft || j < untilRight)
      out.push({
        left: i < untilLeft ? i++ : null,
        right: j < untilRight ? j++ : null,
        likeness: 0,
      });
  };
  for (const pair of pairs) {
    fill(pair.left ?? i, pair.right ?? j);
    out.push(pair);
    i = (pair.left ?? i) + 1;
    j = (pair.right ?? j) + 1;
  }
  fill(left, right);
  return out;
}

/** Returns the words of a text, once each. */
export const wordsOf = (text: string): Set<string> =>
  new Set(text.toLowerCase().match(/[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? []);

/** Returns what part of the words of two texts is in both. */
export function sharedOf(left: Set<string>, right: Set<string>): number {
  if (left.size === 0 && right.size === 0) return 1;
  const [few, many] = left.size < right.size ? [left, right] : [right, left];
  let both = 0;
  for (const word of few) if (many.has(word)) both++;
  return (2 * both) / (left.size + right.size);
}
