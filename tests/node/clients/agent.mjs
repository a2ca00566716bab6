// What the agents have in common: a git folder to work in, a bare environment, a time limit.

import { spawn } from "node:child_process";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const MODULES = fileURLToPath(new URL("../node_modules/", import.meta.url));
const RUN_MS_MAX = 60_000;
const OUTPUT_CHARS_SHOWN = 4000;

export const TASK = "Write notes.txt with two lines, then show it.";
export const NOTES = "one\ntwo\n";
export const DONE = "Done: notes.txt has two lines, the second is – zwei.";

/** The program `command` of the packages: one that npm links, or a path among them. */
export const installed = (command) =>
  path.join(MODULES, command.includes("/") ? command : path.join(".bin", command));

/**
 * Runs `command` of the packages in a new git folder below this one, with the files `given` in it.
 * It has a home of its own, with `dotfiles` in it. Both are text or bytes by path.
 */
export async function work(command, args, env = {}, dotfiles = {}, given = {}) {
  const home = path.resolve("home");
  const repo = path.resolve("repo");
  await put(home, dotfiles);
  await put(repo, given);
  const bare = { PATH: process.env.PATH, HOME: home, LANG: "C.UTF-8", TZ: "UTC", ...env };
  bare.NO_PROXY = bare.no_proxy = "127.0.0.1";
  await ran("git", ["init", "--quiet"], repo, bare);
  const stdout = await ran(installed(command), args, repo, bare);
  return { stdout, files: await files(repo) };
}

/** Makes `folder`, with files in it. */
async function put(folder, files) {
  await mkdir(folder, { recursive: true });
  for (const [name, content] of Object.entries(files)) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, name), content);
  }
}

/** The files in `folder`, by name, with their text. */
async function files(folder) {
  const found = await readdir(folder, { withFileTypes: true });
  const plain = found.filter((entry) => entry.isFile()).map((entry) => entry.name);
  const read = plain
    .sort()
    .map(async (name) => [name, await readFile(path.join(folder, name), "utf8")]);
  return Object.fromEntries(await Promise.all(read));
}

/** A turn that calls one tool. */
export const calling = (text, name, args) => ({ text, tool_calls: [{ name, arguments: args }] });

/** Each line of `text` that is JSON. */
export const lines = (text) =>
  text
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line));

/** stdout of a command that must succeed. The agents start shells: all of its group must go. */
function ran(program, args, cwd, env) {
  const stdio = ["ignore", "pipe", "pipe"];
  const child = spawn(program, args, { cwd, env, stdio, detached: true });
  const said = { stdout: "", stderr: "" };
  for (const name of Object.keys(said)) {
    child[name].setEncoding("utf8").on("data", (text) => (said[name] += text));
  }
  const kill = () => {
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch (error) {
      if (error.code !== "ESRCH") throw error;
    }
  };
  const leave = () => {
    kill();
    process.exit(1);
  };
  const stops = ["SIGTERM", "SIGINT", "SIGHUP"];
  stops.forEach((stop) => process.once(stop, leave));
  const late = setTimeout(kill, RUN_MS_MAX);
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code, signal) => {
      clearTimeout(late);
      stops.forEach((stop) => process.off(stop, leave));
      kill();
      const tail = `${said.stdout}\n${said.stderr}`.slice(-OUTPUT_CHARS_SHOWN);
      if (code === 0) resolve(said.stdout);
      else reject(new Error(`${path.basename(program)} ended with ${code ?? signal}:\n${tail}`));
    });
  });
}
