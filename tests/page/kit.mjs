// rolltape, and a browser that looks at its page.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/** Longest wait for a process to say that it is ready, and for one to end. */
const READY_MS_MAX = 60_000;
const STOP_MS_MAX = 20_000;

/** The rolltape to test: ROLLTAPE_BIN, else the release build here, else the debug build. */
function binary() {
  const built = ["release", "debug"].map((kind) => path.join(ROOT, "target", kind, "rolltape"));
  const named = process.env.ROLLTAPE_BIN;
  const found = (named ? [named] : built).find((file) => existsSync(file));
  if (!found) throw new Error("no rolltape binary: run `cargo build` or set ROLLTAPE_BIN");
  return path.resolve(found);
}

/** Runs a command of rolltape, and waits for its first line on a stream that matches. */
export async function rolltape(args, stream, pattern) {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("ROLLTAPE_"));
  const child = spawn(binary(), args, {
    env: Object.fromEntries(kept),
    stdio: ["ignore", "pipe", "pipe"],
  });
  const said = [];
  const found = new Promise((resolve, reject) => {
    const late = setTimeout(
      () => reject(new Error(`${args[0]}: not ready\n${said.join("\n")}`)),
      READY_MS_MAX,
    );
    for (const name of ["stdout", "stderr"]) {
      createInterface({ input: child[name] }).on("line", (line) => {
        said.push(line);
        const match = name === stream && pattern.exec(line);
        if (match) resolve(clearTimeout(late) ?? match);
      });
    }
    child.once("exit", (code) =>
      reject(new Error(`${args[0]} ended with ${code}\n${said.join("\n")}`)),
    );
  });
  found.catch(() => child.kill());
  const stop = () =>
    new Promise((ended) => {
      if (child.exitCode !== null) return ended(child.exitCode);
      const late = setTimeout(() => child.kill("SIGKILL"), STOP_MS_MAX);
      child.once("exit", (code) => ended(clearTimeout(late) ?? code));
      child.kill("SIGTERM");
    });
  return { match: await found, stop, said };
}

/** Runs a command of rolltape to its end; another exit code than 0 is an error. */
export async function finish(args) {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("ROLLTAPE_"));
  const child = spawn(binary(), args, {
    env: Object.fromEntries(kept),
    stdio: ["ignore", "ignore", "pipe"],
  });
  let said = "";
  child.stderr.on("data", (data) => (said += data));
  const code = await new Promise((ended) => child.once("exit", ended));
  if (code !== 0) throw new Error(`${args.join(" ")} ended with ${code}\n${said}`);
}

/** Serves a store for reading; `link` opens its page, or an episode on it. */
export async function view(store, ...episode) {
  const tokenizer = path.join(ROOT, "engine/models/tiny");
  const { match, stop } = await rolltape(
    ["view", ...episode, "--store", store, "--tokenizer", tokenizer],
    "stdout",
    /^(http:\S+)$/,
  );
  const link = match[1];
  const token = link.split("#token=")[1].split("&")[0];
  return { link, base: new URL(link).origin, token, stop };
}

export async function browser() {
  const found = [process.env.CHROMIUM, ...BROWSERS].find((file) => file && existsSync(file));
  if (!found) throw new Error("no Chromium: run `apt-get install chromium` or set CHROMIUM");
  return chromium.launch({ executablePath: found, args: ["--no-sandbox", "--disable-gpu"] });
}

/**
 * Opens a page. What it reports as an error, what the policy of the page refuses, and requests to
 * any other host are in `faults`; a test ends by looking at it.
 */
export async function open(launched, link, options = {}) {
  const context = await launched.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  const host = new URL(link).host;
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error" && !/status of 401/.test(message.text()))
      faults.push(message.text());
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith("http") && url.host !== host)
      faults.push(`a request to ${url.host}`);
  });
  await page.goto(link);
  return { page, faults, close: () => context.close() };
}

/** Goes to a place in an open page. */
export async function go(page, hash) {
  await page.evaluate((to) => (location.hash = to), hash);
}
