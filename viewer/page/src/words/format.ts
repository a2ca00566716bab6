/** Numbers, times and durations in the few characters of a dense table. */

const NONE = "–";
const count = new Intl.NumberFormat("en-US");

export function number(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : count.format(value);
}

/** Returns a count with a unit from a thousand on: 900, 1.2k, 34k, 5.6M. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  for (const [unit, letter] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (Math.abs(value) >= unit) {
      const scaled = value / unit;
      return `${scaled >= 100 ? Math.round(scaled) : trim(scaled.toFixed(scaled >= 10 ? 0 : 1))}${letter}`;
    }
  }
  return Number.isInteger(value) ? String(value) : trim(value.toPrecision(3));
}

/** Returns a reward, a mean or a logprob with at most `digits` decimals. */
export function decimal(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return NONE;
  return trim(value.toFixed(digits)).replace(/^-0$/, "0");
}

export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const scaled = value * 100;
  if (scaled > 0 && scaled < 0.1) return "<0.1%";
  return `${scaled >= 99.95 || scaled < 0.05 ? Math.round(scaled) : scaled.toFixed(scaled < 10 ? 1 : 0)}%`;
}

export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return NONE;
  if (ms === 0) return "0";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${trim((ms / 1000).toFixed(ms < 10_000 ? 2 : 1))} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)}m ${Math.round((ms % 60_000) / 1000)}s`;
  return `${Math.floor(ms / 3_600_000)}h ${Math.round((ms % 3_600_000) / 60_000)}m`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 1024) return `${value} B`;
  if (value < 1 << 20) return `${trim((value / 1024).toFixed(1))} KiB`;
  return `${trim((value / (1 << 20)).toFixed(1))} MiB`;
}

/** Returns how long ago a time was, in one unit. */
export function ago(at: number | null | undefined, now = Date.now() / 1000): string {
  if (at === null || at === undefined) return NONE;
  const passed = Math.max(0, now - at);
  if (passed < 60) return `${Math.floor(passed)} s`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h`;
  return `${Math.floor(passed / 86_400)} d`;
}

/** Returns a time in the reader's zone: date, hour, minute, second. */
export function time(at: number | null | undefined): string {
  if (at === null || at === undefined) return NONE;
  const date = new Date(at * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(at)}`;
}

export function clock(at: number): string {
  const date = new Date(at * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** A number of which there may be more. */
export function counted(value: number, isLeast: boolean, one: string): string {
  return `${isLeast ? "more than " : ""}${plural(value, one)}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${number(value)} ${value === 1 ? one : many}`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
