// Real Node clients and agents, each run twice against one scripted upstream: directly, and
// through rolltape. Their users must see the same, and every call must be on record. Then each runs
// against the recording alone, and once in a world that is not the recorded one.
//
// How to run: `npm ci && node --test` in this folder (Node 22 or newer, Python 3, git).
// ROLLTAPE_BIN names the binary if it is not in ../../target; SCRIPTED and PYTHON name the
// upstream's script and what runs it; ROLLTAPE_KEEP=1 keeps the folders of the runs.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { DONE, NOTES, installed } from "./clients/agent.mjs";
import { WORD } from "./clients/shown.mjs";
import { TOOL } from "./clients/weather.mjs";
import { drive, exported, recorded, replays, scripted, serve, told } from "./harness.mjs";
import { meant } from "./spelling.mjs";

const SDKS = ["openai", "anthropic", "ai-sdk"];
const AGENTS = ["codex", "claude", "opencode", "qwen", "cline"];
const GENERATING = new Set(
  ["chat/completions", "responses", "messages"].map((route) => `POST /v1/${route}`),
);
/** Where the lock file has all programs, none may be missing. */
const LOCKED = process.platform === "linux" && process.arch === "x64";
const LIMIT_MS = 240_000;

// Imported before any test begins, because a test may begin while this file is still read.
const clients = [...SDKS, ...AGENTS];
const files = await Promise.all(clients.map((client) => import(`./clients/${client}.mjs`)));
for (const [at, { cases, program }] of files.entries()) {
  const skip = program && !existsSync(installed(program)) && !LOCKED && "npm has not installed it";
  for (const [name, one] of Object.entries(cases)) {
    if (one.alone) continue;
    const options = { timeout: LIMIT_MS, skip };
    test(`${clients[at]} ${name}`, options, (t) => compare(t, clients[at], name, one));
  }
  const changed = cases["other-world"];
  if (!changed) continue;
  const options = { timeout: LIMIT_MS, skip };
  test(`${clients[at]} in another world`, options, (t) => stops(t, clients[at], changed));
}

// The runner's default. A server that keeps no threads has to say so: the runner then sends the
// whole history. Dropping `thread` without a word leaves the model with the last message alone.
test("anthropic threads, translated", { timeout: LIMIT_MS }, (t) =>
  world(t, TOOL, async ({ folder, upstream, start }) => {
    const proxy = await start();
    const root = `${proxy.url}/e/threads`;
    const answers = await drive("anthropic", "threads", root, path.join(folder, "client"));
    assert.deepEqual(said(answers.at(-1)), TOOL.turns.at(-1).text);
    const [first, second] = (await upstream.seen()).filter((one) => one.generates).slice(-2);
    assert.deepEqual(second.body.messages.slice(0, 2), first.body.messages);
  }),
);

const said = ({ content }) => content.map(({ text }) => text).join("");

/** Runs one case on both roads, and against the recording. */
function compare(t, client, name, { script, kinds, thinks, hosted, rows, ignored, stopped }) {
  return world(t, script, async ({ folder, upstream, start, again }) => {
    const own = path.join(folder, "client");
    const episode = `${client}-${name}`;

    const direct = await drive(client, name, upstream.url, own);
    const asked = (await upstream.seen()).map(request);
    const proxy = await start(hosted);
    const through = await drive(client, name, `${proxy.url}/e/${episode}`, own);
    assert.equal(await proxy.process.stop(), 0, "rolltape stops well");
    const sent = (await upstream.seen()).slice(asked.length);
    if (thinks) remembered(sent, script);
    const forwarded = sent.map(request);

    const translated = name.startsWith("responses");
    const [here, there] = translated ? [meant(through), meant(direct)] : [through, direct];
    assert.deepEqual(here, there, "its user sees the same");
    if (AGENTS.includes(client)) worked(direct);
    assert.ok(asked.length >= Math.min(2, script.turns.length), "the script was played");
    const store = await recorded(proxy.store);
    accounts(store, { episode, asked, forwarded, hosted });
    understood(store, kinds);
    if (!hosted) sampled(store, forwarded);
    await drawn(proxy.store, store, { episode, hosted });
    if (rows) await conversed(proxy.store, rows, script);
    if (thinks) await sealed(proxy.store, store, episode);

    const replay = await again(episode, ignored);
    const root = `${replay.url}/e/again`;
    const replayed = await drive(client, name, root, own).catch((error) => error);
    assert.equal(await replay.process.stop(), 0, "rolltape stops well");
    const [refused] = await refusals(proxy.store);
    if (stopped) return assert.match(refused, stopped);
    assert.deepEqual(replayed, through, `its user sees the same of the recording; ${refused}`);
    await given(proxy.store, store, episode);
  });
}

/**
 * An agent reads a file, and reads it again with another word in it: the replay stops there, and
 * says what was read.
 */
function stops(t, client, { script, ignored }) {
  return world(t, script, async ({ folder, start, again }) => {
    const own = path.join(folder, "client");
    const proxy = await start();
    await drive(client, "other-world", `${proxy.url}/e/word`, own);
    assert.equal(await proxy.process.stop(), 0, "rolltape stops well");
    const replay = await again("word", ignored);
    // Some agents end well all the same.
    const env = { WORD: "magpie" };
    await drive(client, "other-world", `${replay.url}/e/again`, own, env).catch(() => {});

    assert.equal(await replay.process.stop(), 0, "rolltape stops well");
    const [refused] = await refusals(proxy.store);
    assert.ok(refused, "the replay stopped");
    const lines = refused.split("\n").map((line) => line.trim());
    assert.match(lines[0], /^the request differs from call \d+ of the recording `word\/0`:$/);
    const at = lines.findIndex((line) => line.startsWith("the tool result `"));
    assert.match(lines[at + 1], new RegExp(`^recorded: .*${WORD}`), refused);
    assert.match(lines[at + 2], /^sent: .*magpie/, refused);
    assert.match(lines.at(-1), /^if that does not matter: --ignore \/(messages|input)\/\d+\//);
  });
}

/**
 * Gives `use` a scripted upstream and what starts a rolltape before it, and stops both. A rolltape
 * takes the upstream for a hosted server if it is told so. `again` starts one that has nothing but
 * the recording of an episode.
 */
async function world(t, script, use) {
  const folder = await mkdtemp(path.join(tmpdir(), "rolltape-node-"));
  const running = [];
  try {
    const upstream = await scripted(script, folder);
    running.push(upstream.process);
    const start = async (hosted) => {
      const proxy = await serve(upstream.url, folder, hosted ? ["--dialect", "openai"] : []);
      running.push(proxy.process);
      return proxy;
    };
    const again = async (episode, ignored) => {
      const proxy = await replays(episode, folder, ignored);
      running.push(proxy.process);
      return proxy;
    };
    await use({ folder, upstream, start, again });
  } catch (error) {
    for (const process of running) t.diagnostic(await process.said());
    throw error;
  } finally {
    await Promise.all(running.map((process) => process.stop()));
    if (process.env.ROLLTAPE_KEEP) t.diagnostic(folder);
    else await rm(folder, { recursive: true, force: true });
  }
}

/** An agent did its task, and said so. */
function worked({ files, events }) {
  assert.deepEqual(files, { "notes.txt": NOTES });
  assert.ok(JSON.stringify(events).includes(DONE), "it says that it is done");
}

/** What the model thought in its first turn stands in the prompt of its last. */
function remembered(sent, { turns }) {
  const last = sent.filter((one) => one.generates).at(-1).body;
  const thoughts = last.messages.flatMap(({ reasoning }) => reasoning ?? []);
  assert.deepEqual(thoughts, turns.flatMap(({ reasoning }) => reasoning ?? []), "thoughts stay");
}

/** Thoughts come back as they were sealed, with or without their words. */
async function sealed(file, { calls }, episode) {
  const last = calls.findLast((call) => GENERATING.has(`${call.method} ${plain(call.path)}`));
  const [call] = await told(file, "show", episode, "--call", last.call_id);
  const input = JSON.parse(call.request).input;
  const texts = input.flatMap(({ encrypted_content }) => encrypted_content ?? []);
  assert.ok(texts.length > 0, "thoughts were sealed");
  assert.ok(texts.every((text) => text.startsWith("rolltape-thoughts-1.")), texts.join());
}

/** A request as the upstream logged it. */
function request({ method, path: target, headers, sampled }) {
  const names = headers.map(([key]) => key.toLowerCase());
  return { method, path: plain(target), upgrade: names.includes("upgrade"), sampled };
}

/** A path without its tag and its query. */
const plain = (target) => target.replace(/\?.*/, "").replace(/^\/e\/[^/]+(?=\/|$)/, "") || "/";

const tally = (requests) => requests.map(({ method, path }) => `${method} ${path}`).sort();

/** Other forms go upstream as chat completions where the upstream does not speak them exactly. */
const translated = ({ method, path }) => ({
  method,
  path: path.replace(/^\/v1\/(messages|responses)$/, "/v1/chat/completions"),
});

/** The store holds every call, once, whole, under the one episode. */
function accounts({ episodes, calls }, { episode, asked, forwarded, hosted }) {
  assert.deepEqual(
    episodes.map(({ episode_id, attempt, source }) => ({ episode_id, attempt, source })),
    [{ episode_id: episode, attempt: 0, source: "path" }],
    "one episode",
  );
  const made = calls.map((call) => ({ method: call.method, path: plain(call.path) }));
  // rolltape refuses upgrades, so they are in no store and go nowhere.
  const wanted = asked.filter(({ upgrade }) => !upgrade);
  assert.deepEqual(tally(made), tally(wanted), "recorded = what the client asks");

  const probe = forwarded.findIndex(({ method, path }) => `${method} ${path}` === "GET /v1/models");
  assert.equal(probe === -1, hosted === true, "rolltape asked who the upstream is");
  // It also asks what the server samples with, and again in a minute.
  const asks = ({ method, path }) => method === "GET" && path.startsWith("/server_info");
  const rest = forwarded.filter((one, at) => at !== probe && !asks(one));
  assert.ok(!rest.some(({ upgrade }) => upgrade), "no upgrade went through");
  const alike = (requests) => tally(requests.map(translated));
  assert.deepEqual(alike(rest), alike(made), "recorded = what the upstream saw");
}

/** The calls of a store that had a model say something. */
const generations = ({ calls }) =>
  calls.filter((call) => GENERATING.has(`${call.method} ${plain(call.path)}`));

/** Each reply is whole, and each call is known for what it was. */
function understood(store, kinds) {
  const made = generations(store);
  for (const call of made) {
    assert.deepEqual([call.status, call.outcome], [200, "complete"], JSON.stringify(call));
  }
  const counted = {};
  for (const { kind } of made) counted[kind] = (counted[kind] ?? 0) + 1;
  assert.deepEqual(counted, kinds ?? { main: made.length }, "what the calls were for");
}

/** Each reply is known by its tokens. */
function sampled(store, forwarded) {
  for (const call of generations(store)) {
    const own = store.choices.filter((choice) => choice.call_id === call.call_id);
    assert.deepEqual(own.map((choice) => choice.fidelity), ["exact"], JSON.stringify(call));
  }
  const said = forwarded.flatMap((one) => one.sampled ?? []);
  const sorted = (lists) => lists.map(String).sort();
  assert.deepEqual(sorted(store.ids), sorted(said), "the very tokens that were sampled");
}

/**
 * An export has the rows, each told as its kind, its number of turns and the summary that it begins
 * with; and the main conversations have the words of the script.
 */
async function conversed(file, rows, { turns }) {
  const made = await exported(file, "trajectories");
  const folds = made.filter((row) => row.kind === "compaction").map((row) => row.trajectory_id);
  const told = ({ kind, turns, parent_trajectory_id: parent }) => {
    if (kind === "compaction") return kind;
    return `${kind} ${turns.length}${folds.includes(parent) ? " after compaction" : ""}`;
  };
  assert.deepEqual(made.map(told).sort(), rows, "the rows");

  const main = made.filter((row) => row.kind === "main").map((row) => row.trajectory_id);
  const talks = (await exported(file, "sft")).filter((row) => main.includes(row.trajectory_id));
  const words = ({ messages }) =>
    messages.filter(({ role }) => role === "assistant").map(({ content }) => content);
  assert.equal(words(talks.at(-1)).at(-1), DONE, "its last words");
  if (main.length > 1) return;
  assert.deepEqual(words(talks[0]), turns.map(({ text }) => text), "whole words");
}

/** `rolltape show` draws each choice that has tokens, or each of a server that tells none. */
async function drawn(file, { choices }, { episode, hosted }) {
  const turns = await told(file, "show", episode);
  const exact = choices.filter((choice) => hosted || choice.has_token_ids);
  assert.equal(turns.length, exact.length, "a turn for each choice with tokens");
}

/** What was refused in a store. */
async function refusals(file) {
  const { calls } = await recorded(file);
  return calls.flatMap(({ status, error }) => (status === 409 ? error : []));
}

/** Each recorded call answered once, with its bytes, and nothing of that is trained. */
async function given(file, { calls: known }, episode) {
  const { calls } = await recorded(file);
  const made = calls.filter((call) => call.episode_id === "again");
  const sampled = (call) => GENERATING.has(`${call.method} ${plain(call.path)}`);
  const ids = (list, name) => list.filter(sampled).map((call) => call[name]).sort();
  assert.deepEqual(ids(made, "replayed"), ids(known, "call_id"), "each answered once");
  assert.equal(made.length, known.length, "and no other was made");
  for (const call of made) {
    const [[one], [other]] = await Promise.all([
      told(file, "show", "again", "--call", call.call_id),
      told(file, "show", episode, "--call", call.replayed),
    ]);
    assert.deepEqual([one.status, one.reply], [other.status, other.reply], "the same bytes");
  }
  const rows = await exported(file, "trajectories");
  const trained = rows.filter((row) => row.episode_id === "again" && row.loss_mask.some(Boolean));
  assert.deepEqual(trained, [], "nothing is trained of them");
}
