// The token of the page: all tabs share one that only reads, for a while.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { browser, open, rolltape, ROOT } from "./kit.mjs";

const KEY = "rolltape-read-token:/";
const HOUR_MS = 3600 * 1000;

let folder, serve, control, token, chromium;

before(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "rolltape-token-"));
  const store = path.join(folder, "rolltape.db");
  const model = path.join(ROOT, "engine/models/tiny");
  const ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"];
  const args = ["serve", "--model", model, "--store", store, ...ports];
  serve = await rolltape(args, "stderr", /^listening on (\S+), control on ([^\s,]+),/);
  control = serve.match[2];
  token = readFileSync(`${store}-token`, "utf8").trim();
  chromium = await browser();
});

after(async () => {
  await chromium?.close();
  await serve?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Opens the page with the control listener's token; `look` gets it and its browser's context. */
async function inPage(look) {
  const { page, faults, close } = await open(chromium, `${control}/#token=${token}`);
  try {
    await page.waitForSelector(".empty");
    await look(page, page.context());
    assert.deepEqual(faults, []);
  } finally {
    await close();
  }
}

test("a link in another tab opens, also after the first has gone", () =>
  inPage(async (page, context) => {
    const second = await context.newPage();
    await second.goto(`${control}/#/episodes`);
    await second.waitForSelector(".following.on");
    await page.close();
    const third = await context.newPage();
    await third.goto(`${control}/#/groups`);
    await third.waitForSelector(".following.on");
    assert.equal(await third.getByLabel("token").count(), 0);
  }));

test("only a token that reads is kept", () =>
  inPage(async (page) => {
    const stored = await page.evaluate(() => [{ ...localStorage }, { ...sessionStorage }]);
    assert.ok(!JSON.stringify(stored).includes(token));
    assert.deepEqual(stored[1], {});
    const kept = JSON.parse(stored[0][KEY]);
    const asked = (method, where) =>
      fetch(`${control}${where}`, { method, headers: { authorization: `Bearer ${kept.token}` } });
    assert.equal((await asked("GET", "/episodes")).status, 200);
    assert.equal((await asked("POST", "/episodes/a/close")).status, 403);
    assert.equal((await asked("POST", "/feed")).status, 403);
  }));

test("it is kept for twelve hours after its last use", () =>
  inPage(async (page) => {
    const left = () =>
      page.evaluate((key) => JSON.parse(localStorage.getItem(key)).until - Date.now(), KEY);
    const leave = (ms) =>
      page.evaluate(
        ([key, ms]) => {
          const kept = JSON.parse(localStorage.getItem(key));
          localStorage.setItem(key, JSON.stringify({ ...kept, until: Date.now() + ms }));
        },
        [KEY, ms],
      );
    await leave(HOUR_MS);
    await page.reload();
    await page.waitForSelector(".following.on");
    assert.ok((await left()) > 11 * HOUR_MS, "a use renews it");

    await leave(-1);
    await page.reload();
    await page.getByLabel("token").waitFor();
    assert.equal(await page.evaluate((key) => localStorage.getItem(key), KEY), null);
  }));

test("a tab that waits for the token takes the one that another is given", () =>
  inPage(async (page, context) => {
    await page.evaluate(() => localStorage.clear());
    const waiting = await context.newPage();
    await waiting.goto(`${control}/#/episodes`);
    await waiting.getByLabel("token").waitFor();
    await page.goto(`${control}/#token=${token}`);
    await waiting.waitForSelector(".following.on");
  }));
