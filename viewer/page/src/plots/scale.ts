/** Axes of a plot: round steps, and values as positions. */

/** Returns round values that cover [low, high] in about `count` steps. */
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step =
    [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? rough;
  const found: number[] = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

/** Returns a function from values of [low, high] to positions of [from, to]. */
export function linear(
  low: number,
  high: number,
  from: number,
  to: number,
): (value: number) => number {
  const spread = high - low || 1;
  return (value) => from + ((value - low) / spread) * (to - from);
}

const TIME_STEPS = [
  1,
  5,
  15,
  60,
  300,
  900,
  1800,
  3600,
  2 * 3600,
  4 * 3600,
  12 * 3600,
  86_400,
  2 * 86_400,
  3 * 86_400,
  7 * 86_400,
  30 * 86_400,
];

/** Returns round times, in the reader's zone, that cover [from, to] in at most `count` steps. */
export function timeTicks(from: number, to: number, count: number): number[] {
  const step = TIME_STEPS.find((each) => (to - from) / each <= count) ?? (to - from) / count;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const found: number[] = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return found;
}

/** Writes a time of an axis: the day where steps are days, else hours and minutes. */
export function timeLabel(at: number, spread: number): string {
  const date = new Date(at * 1000);
  const pad = (value: number) => String(value).padStart(2, "0");
  if (spread > 3 * 86_400) return `${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  return spread < 300 ? `${minutes}:${pad(date.getSeconds())}` : minutes;
}
