// What differs between two equal runs, taken out of a result: ids, times, folders.

const ID = new RegExp(
  "\\b(?:chatcmpl|cmpl|resp|msg|rs|fc|call|toolu|srvtoolu|item|ses|prt|aitxt|reasoning|req)" +
    "(?:[-_](?:tool[-_])?)[A-Za-z0-9][A-Za-z0-9_-]{7,}" +
    "|\\btool_[0-9a-f]{10}[A-Za-z0-9]{8,}" +
    "|\\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\b",
  "g",
);
const MADE_UP = /^(created|created_at|createdAt|completed_at|timestamp|signature)$/;

/**
 * `value` as plain JSON in which each id is a number in the order of appearance; the order of keys,
 * which says nothing, does not count.
 */
export function stable(value, folder) {
  const numbers = new Map();
  const number = (id) => {
    if (!numbers.has(id)) numbers.set(id, numbers.size + 1);
    return `id-${numbers.get(id)}`;
  };
  const text = (said) => {
    const moved = folder ? said.replaceAll(folder, "FOLDER") : said;
    return moved.replace(ID, number);
  };
  return walk(JSON.parse(JSON.stringify(value) ?? "null"), text);
}

function walk(value, text) {
  if (typeof value === "string") return text(value);
  if (Array.isArray(value)) return value.map((one) => walk(one, text));
  if (value === null || typeof value !== "object") return value;
  const names = Object.keys(value).sort();
  const fields = names.map((name) => [
    text(name),
    MADE_UP.test(name) && value[name] ? "SOME" : walk(value[name], text),
  ]);
  return Object.fromEntries(fields);
}
