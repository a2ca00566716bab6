// Processes under test: found, started, waited for, stopped. What they left is read.

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { createWriteStream, existsSync, mkdtempSync } from "node:fs";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = path.resolve(HERE, "../..");
const SCRIPTED = path.resolve(HERE, process.env.SCRIPTED ?? "../python/scripted.py");
const PYTHON = process.env.PYTHON ?? "python3";
const STEERING = /^(ROLLTAPE_|OPENAI_|ANTHROPIC_|CLAUDE|CODEX_|OPENCODE_|NODE_)/;
const READY_MS_MAX = 60_000;
const STOP_MS_MAX = 25_000;
const DRIVE_MS_MAX = 75_000;
const BYTES_MAX = 64 << 20;
/** Others than those of the tests in Python; files of tests run side by side and begin apart. */
const PORT_FIRST = 30_000;
const PORTS = 2000;
/** Servers of others on this machine are none of the tests'. */
const STATES = mkdtempSync(path.join(tmpdir(), "rolltape-states-"));
let nextPort = process.pid * 101;

/** The rolltape to test: ROLLTAPE_BIN, else the release build here, else the debug build. */
function binary() {
  const built = ["release", "debug"].map((kind) => path.join(ROOT, "target", kind, "rolltape"));
  const named = process.env.ROLLTAPE_BIN;
  const found = (named ? [named] : built).find((file) => existsSync(file));
  if (!found) throw new Error("no rolltape binary: run `cargo build` or set ROLLTAPE_BIN");
  return path.resolve(found);
}

/** This process's environment without what would steer rolltape or a client. */
function environment() {
  const kept = Object.entries(process.env).filter(([name]) => !STEERING.test(name));
  const local = { NO_PROXY: "127.0.0.1", no_proxy: "127.0.0.1", XDG_STATE_HOME: STATES };
  return { ...Object.fromEntries(kept), ...local };
}

/** A running process; what it says on stderr is kept in `folder`. */
class Running {
  constructor(name, program, args, folder) {
    this.log = path.join(folder, `${name}.stderr`);
    const stdio = ["ignore", "pipe", "pipe"];
    this.child = spawn(program, args, { cwd: folder, env: environment(), stdio });
    this.child.stderr.pipe(createWriteStream(this.log));
    this.ended = once(this.child, "exit");
    this.ended.catch(() => {});
  }

  get alive() {
    return this.child.exitCode === null && this.child.signalCode === null;
  }

  /** Asks it to stop and gives its exit code. */
  async stop() {
    if (this.alive) this.child.kill("SIGTERM");
    const late = setTimeout(() => this.child.kill("SIGKILL"), STOP_MS_MAX);
    const [code] = await this.ended;
    clearTimeout(late);
    return code;
  }

  kill() {
    if (this.alive) this.child.kill("SIGKILL");
  }

  async said() {
    return readFile(this.log, "utf8").catch(() => "");
  }
}

/** A scripted upstream that plays `play`. */
export async function scripted(play, folder) {
  const script = path.join(folder, "script.json");
  const log = path.join(folder, "upstream.jsonl");
  await writeFile(script, JSON.stringify(play));
  await writeFile(log, "");
  const args = [SCRIPTED, "--port", "0", "--script", script, "--log", log];
  const process = new Running("scripted", PYTHON, args, folder);
  const [line] = await Promise.race([
    once(createInterface(process.child.stdout), "line"),
    process.ended.then(() => [""]),
    sleep(READY_MS_MAX, [""], { ref: false }),
  ]);
  const port = line.match(/(\d+)\s*$/)?.[1];
  if (!port) {
    process.kill();
    throw new Error(`no port from ${SCRIPTED}:\n${await process.said()}`);
  }
  return { url: `http://127.0.0.1:${port}`, process, seen: () => jsonLines(log) };
}

async function jsonLines(file) {
  const text = await readFile(file, "utf8");
  return text.split("\n").filter(Boolean).map(JSON.parse);
}

/**
 * Ports that nobody has. One that the kernel picked may be another connection's as soon as it is
 * let go; these are below those that it picks from, and are given again after all the others.
 */
async function freePorts(count) {
  const ports = [];
  for (let tries = 0; ports.length < count; tries++) {
    if (tries === PORTS) throw new Error("no port is free");
    const port = PORT_FIRST + (nextPort++ % PORTS);
    if (await isFree(port)) ports.push(port);
  }
  return ports;
}

async function isFree(port) {
  const server = createServer().listen(port, "127.0.0.1");
  try {
    await once(server, "listening");
  } catch {
    return false;
  }
  server.close();
  await once(server, "close");
  return true;
}

/** `rolltape engine` with the tiny model on a free port. */
export async function engine(folder) {
  const [port] = await freePorts(1);
  const model = path.join(ROOT, "engine/models/tiny");
  const args = ["engine", "--model", model, "--listen", `127.0.0.1:${port}`];
  const process = new Running("engine", binary(), args, folder);
  await answers(process, port);
  return { url: `http://127.0.0.1:${port}`, process };
}

/** `rolltape serve` with a store in `folder`, with `more` arguments. */
export const serve = (upstream, folder, more = []) =>
  served(["--upstream", upstream, ...more], folder);

/** `rolltape serve` that answers every call from an episode of the store in `folder`. */
export const replays = (episode, folder, ignored = []) =>
  served(["--replay", episode, ...ignored.map((rule) => `--replay-ignore=${rule}`)], folder);

/** `rolltape serve` on free ports. */
async function served(more, folder) {
  const [data, control] = await freePorts(2);
  const store = path.join(folder, "recorded.db");
  const where = ["--listen", `127.0.0.1:${data}`, "--control", `127.0.0.1:${control}`];
  const args = ["serve", ...more, ...where, "--store", store];
  const process = new Running("rolltape", binary(), args, folder);
  await answers(process, control);
  return { url: `http://127.0.0.1:${data}`, store, process };
}

/** What a command says that `rolltape run` runs in the folder of `store`, as one episode. */
export async function runs(upstream, store, command, env) {
  const args = ["run", "--upstream", upstream, "--store", store, ...command];
  const options = { cwd: path.dirname(store), env: { ...environment(), ...env } };
  const ended = run(binary(), args, { ...options, timeout: DRIVE_MS_MAX, maxBuffer: BYTES_MAX });
  ended.child.stdin.end();
  return ended;
}

/** Waits until a rolltape answers on a port. */
async function answers(process, port) {
  const until = Date.now() + READY_MS_MAX;
  while (!(await healthy(port))) {
    if (!process.alive || Date.now() > until) {
      process.kill();
      throw new Error(`rolltape does not answer:\n${await process.said()}`);
    }
    await sleep(5);
  }
}

async function healthy(port) {
  try {
    return (await fetch(`http://127.0.0.1:${port}/health`)).ok;
  } catch {
    return false;
  }
}

const QUERY = `
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.row_factory = sqlite3.Row
tables = ("episodes", "calls", "choices")
rows = lambda table: [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
print(json.dumps({table: rows(table) for table in tables}))
`;

/** What the store holds: `episodes`, `calls`, `choices`, and the sampled `ids` of each choice. */
export async function recorded(store) {
  const { stdout } = await run(PYTHON, ["-c", QUERY, store], { maxBuffer: BYTES_MAX });
  const views = JSON.parse(stdout);
  const known = new Set(views.choices.filter((c) => c.has_token_ids).map((c) => c.call_id));
  const ids = [];
  for (const { call_id, episode_id } of views.calls.filter((call) => known.has(call.call_id))) {
    const [call] = await told(store, "show", episode_id, "--call", call_id);
    ids.push(...call.choices.map((choice) => choice.token_ids).filter(Boolean));
  }
  return { ...views, ids };
}

/** What a command of rolltape says about a store, a JSON object a line. */
export async function told(store, ...args) {
  const all = [...args, "--json", "--store", store];
  const { stdout } = await run(binary(), all, { env: environment(), maxBuffer: BYTES_MAX });
  return stdout.split("\n").filter(Boolean).map(JSON.parse);
}

/** The rows of an export of a store, of which each is an object. */
export async function exported(store, format) {
  const file = `${store}.${format}.jsonl`;
  const args = ["export", "--format", format, "--out", file, "--store", store];
  await run(binary(), args, { env: environment(), maxBuffer: BYTES_MAX });
  return jsonLines(file);
}

/** What a client shows its user of the server at `root`; `folder` is its own and new. */
export async function drive(client, name, root, folder, env = {}) {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const args = [path.join(HERE, "clients", "drive.mjs"), client, name, root];
  const settings = { env: { ...environment(), ...env }, timeout: DRIVE_MS_MAX };
  const options = { cwd: folder, maxBuffer: BYTES_MAX, ...settings };
  const { stdout } = await run(process.execPath, args, options);
  return JSON.parse(stdout);
}
