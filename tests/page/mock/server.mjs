// A double of the control listener with 25,000 episodes: `node mock/server.mjs [PORT]`.
// It shows what a demo cannot: a store of this size, and a turn of 400,000 tokens.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { dirname, join } from "node:path";
import { call, episode, LONG, NOW, numbersOf, tokens, tree } from "./data.mjs";
import { random } from "./words.mjs";

const DIST = join(dirname(fileURLToPath(import.meta.url)), "../../../viewer/page/dist");
const EPISODES = 25_000;
const TOKEN = "a-token-of-the-double";
export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const FILES = {
  "/": ["index.html", "text/html"],
  "/app.js": ["app.js", "text/javascript"],
  "/app.css": ["app.css", "text/css"],
  "/icon.svg": ["icon.svg", "image/svg+xml"],
};

const all = Array.from({ length: EPISODES }, (_, index) => ({ ...episode(index), index }));
const ORDERS = {
  opened: "opened_at",
  closed: "closed_at",
  name: "episode_id",
  reward: "reward",
  calls: "calls",
  tokens: "completion_tokens",
  mean: "mean",
  std: "std",
  episodes: "episodes",
};

function sorted(rows, sort, name) {
  const field = sort.replace("-", "") === "name" ? name : ORDERS[sort.replace("-", "")];
  const way = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) =>
    a[field] === b[field] ? 0 : (a[field] ?? -Infinity) < (b[field] ?? -Infinity) ? -way : way,
  );
}

function selected(query) {
  const get = (name) => query.get(name);
  return all.filter((row) => {
    const [label, value] = (get("label") ?? "").split("=");
    const state = get("state");
    return (
      (!get("name") || row.episode_id.includes(get("name"))) &&
      (!get("group") || row.group_id === get("group")) &&
      (!get("task") || row.task_id === get("task")) &&
      (!label || row.labels[label] === value) &&
      (!state || (state === "closed" ? row.closed_at !== null : row.state === state)) &&
      (!get("since") || row.opened_at >= Number(get("since"))) &&
      (!get("until") || row.opened_at <= Number(get("until"))) &&
      (!get("min_reward") || (row.reward ?? -Infinity) >= Number(get("min_reward"))) &&
      (!get("max_reward") || (row.reward ?? Infinity) <= Number(get("max_reward")))
    );
  });
}

function episodes(query) {
  const offset = Number(query.get("offset") ?? 0);
  const rows = sorted(selected(query), query.get("sort") ?? "-opened", "episode_id");
  return {
    total: rows.length,
    episodes: rows
      .slice(offset, offset + Number(query.get("limit") ?? 100))
      .map(({ index, ...row }) => row),
  };
}

function groups(query) {
  const by = new Map();
  for (const row of selected(
    new URLSearchParams({ since: query.get("since") ?? "", until: query.get("until") ?? "" }),
  )) {
    by.set(row.group_id, [...(by.get(row.group_id) ?? []), row]);
  }
  const rows = [...by]
    .filter(([id]) => id.includes(query.get("name") ?? ""))
    .map(([id, list]) => {
      const values = list.map((row) => row.reward).filter((value) => value !== null);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const std = Math.sqrt(
        values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1),
      );
      const sum = (field) => list.reduce((total, row) => total + row[field], 0);
      return {
        group_id: id,
        task_ids: [...new Set(list.map((row) => row.task_id))],
        size: 8,
        episodes: list.length,
        closed: list.filter((row) => row.closed_at).length,
        scored: values.length,
        mean: values.length ? mean : null,
        std: values.length > 1 ? std : null,
        min: values.length ? Math.min(...values) : null,
        max: values.length ? Math.max(...values) : null,
        calls: sum("calls"),
        completion_tokens: sum("completion_tokens"),
        opened_at: Math.min(...list.map((row) => row.opened_at)),
        last_opened_at: Math.max(...list.map((row) => row.opened_at)),
      };
    });
  const offset = Number(query.get("offset") ?? 0);
  const ordered = sorted(rows, query.get("sort") ?? "-opened", "group_id");
  return {
    total: rows.length,
    groups: ordered.slice(offset, offset + Number(query.get("limit") ?? 100)),
  };
}

function stats(query) {
  const count = Number(query.get("buckets") ?? 60);
  const from = Number(query.get("since") ?? NOW - EPISODES * 31);
  const bucket_s = (NOW - from) / count;
  const buckets = Array.from({ length: count }, (_, at) => {
    const next = random(at + 3);
    const quiet = at === 22 || at === 23;
    const calls = quiet ? 0 : Math.floor(4000 + next() * 900);
    return {
      at: from + at * bucket_s,
      calls,
      failed: Math.floor(next() * 40),
      episodes: Math.floor(calls / 12),
      prompt_tokens: calls * 5200,
      completion_tokens: calls * 410,
      first_byte_ms: quiet ? null : 90 + next() * 40,
      first_byte_p95_ms: quiet ? null : 300 + next() * 400,
      duration_ms: quiet ? null : 2400 + next() * 900,
      duration_p95_ms: quiet ? null : 9000 + next() * 6000,
      staleness: quiet ? null : 0.4 + next() * 1.3,
      scored: quiet ? 0 : 300,
      reward: quiet ? null : 0.25 + at / count / 3 + next() * 0.06,
    };
  });
  const versions = Array.from({ length: 42 }, (_, at) => ({
    number: at,
    label: String(at),
    first_seen: from + (at * (NOW - from)) / 42,
    calls: 6200,
    completion_tokens: 2_480_000,
    scored: 590,
    reward: 0.25 + at / 110,
    solved: 0.2 + at / 100 + random(at)() * 0.04,
  }));
  return {
    from,
    to: NOW,
    bucket_s,
    buckets,
    outcomes: { complete: 262_114, client_gone: 801, upstream_failed: 77, running: 12 },
    versions,
    solved_at: 1,
    totals: {
      episodes: EPISODES,
      open: 3,
      calls: 263_004,
      failed: 878,
      prompt_tokens: 1_367_600_000,
      completion_tokens: 107_830_000,
      scored: 23_011,
      reward: 0.431,
    },
  };
}

function search(query) {
  const from = Number(query.get("cursor") ?? 0);
  const hits = all.slice(from, from + 25).map((row) => ({
    episode_id: row.episode_id,
    attempt: row.attempt,
    call_id: tree(row.index).turns[2].call_id,
    number: 3,
    choice: 0,
    role: "assistant",
    before: "The cause was a chunk that ended ",
    match: query.get("q"),
    after: " a line; the reader now keeps its rest.",
    started_at: row.opened_at,
  }));
  return {
    hits,
    searched: from + 25,
    total: EPISODES,
    next: from >= 300 ? null : String(from + 25),
  };
}

function events(response) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  let count = 0;
  const timer = setInterval(() => {
    const row = all[count % 3];
    const turn = tree(row.index).turns[count % 20];
    const data = {
      ...turn,
      call_id: `${turn.call_id}-${Math.floor(count / 2)}`,
      episode_id: row.episode_id,
      attempt: 0,
      group_id: row.group_id,
      number: null,
      method: "POST",
      path: "/v1/messages",
      outcome: count % 2 ? "complete" : null,
    };
    response.write(`event: call\ndata: ${JSON.stringify(data)}\n\n`);
    count++;
  }, 400);
  response.on("close", () => clearInterval(timer));
}

function answerOf(path, query) {
  const [first, second, third] = path.split("/").filter(Boolean).map(decodeURIComponent);
  if (first === "episodes" && third === "tree") {
    const attempt = Number(query.get("attempt") ?? 0);
    const found =
      all.find((row) => row.episode_id === second && row.attempt === attempt) ??
      all.find((row) => row.episode_id === second);
    return found ? tree(found.index) : null;
  }
  if (first === "calls" && third === "tokens")
    return tokens(
      second,
      Number(query.get("choice") ?? 0),
      Number(query.get("from") ?? 0),
      query.has("count") ? Number(query.get("count")) : undefined,
    );
  if (first === "calls" && third === "request")
    return JSON.stringify({
      model: "claude-sonnet",
      messages: call(second).messages,
      stream: true,
    });
  if (first === "calls" && third)
    return 'data: {"type":"message_start"}\n\ndata: {"type":"content_block_delta","delta":{"text":"I will look"}}\n\n'.repeat(
      30,
    );
  if (first === "calls") return call(second);
  return { episodes, groups, stats, search }[first]?.(query) ?? null;
}

/** Answers one request as the control listener does: files to all, data to those with the token. */
function handle(request, response) {
  const url = new URL(request.url, "http://double");
  const file = FILES[url.pathname];
  const secure = { "content-security-policy": CSP, "x-content-type-options": "nosniff" };
  if (file)
    return response
      .writeHead(200, { ...secure, "content-type": file[1] })
      .end(readFileSync(join(DIST, file[0])));
  const refuse = (status, message) =>
    response
      .writeHead(status, { "content-type": "application/json" })
      .end(JSON.stringify({ error: { message } }));
  if (request.headers.authorization !== `Bearer ${TOKEN}`)
    return refuse(401, "the token is missing or wrong");
  if (url.pathname === "/events") return events(response);
  if (url.pathname === "/read-token") return response.end(JSON.stringify({ read_token: TOKEN }));
  const answer = answerOf(url.pathname, url.searchParams);
  if (answer === null) return refuse(404, "no such thing is recorded");
  const isText = typeof answer === "string";
  response
    .writeHead(200, { "content-type": isText ? "text/plain; charset=utf-8" : "application/json" })
    .end(isText ? answer : JSON.stringify(answer));
}

/** Starts the double, and returns the link to the page. */
export async function start(port = 0) {
  const server = createServer(handle).listen(port, "127.0.0.1");
  await new Promise((ready) => server.once("listening", ready));
  const base = `http://127.0.0.1:${server.address().port}`;
  return {
    base,
    link: `${base}/#token=${TOKEN}`,
    stop: () => server.closeAllConnections() ?? server.close(),
  };
}

export { LONG, numbersOf };
if (process.argv[1] === fileURLToPath(import.meta.url))
  console.log((await start(Number(process.argv[2] ?? 0))).link);
