/** A point in time as a person writes it: `90m`, `24h`, `7d`, or `2026-11-24 10:00`. */

const UNITS: Record<string, number> = { m: 60, h: 3600, d: 86_400 };

/** Returns seconds since 1970, null for an empty text, undefined for one that is no time. */
export function when(text: string, now = Date.now() / 1000): number | null | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  const back = /^(\d+(?:\.\d+)?)\s*([mhd])$/.exec(trimmed);
  if (back) return now - Number(back[1]) * (UNITS[back[2] ?? ""] ?? 0);
  if (!/^\d{4}-\d\d-\d\d/.test(trimmed)) return undefined;
  const parsed = Date.parse(trimmed.length > 10 ? trimmed.replace(" ", "T") : `${trimmed}T00:00`);
  return Number.isNaN(parsed) ? undefined : parsed / 1000;
}
