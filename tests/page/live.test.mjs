// The page of a server that records: what happens shows without a reload.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { browser, go, open, rolltape, ROOT } from "./kit.mjs";

test("episodes, calls and rewards show as they come", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "rolltape-live-"));
  const store = path.join(folder, "rolltape.db");
  const model = path.join(ROOT, "engine/models/tiny");
  const args = [
    "serve",
    "--model",
    model,
    "--store",
    store,
    "--listen",
    "127.0.0.1:0",
    "--control",
    "127.0.0.1:0",
  ];
  const serve = await rolltape(args, "stderr", /^listening on (\S+), control on ([^\s,]+),/);
  const [, data, control] = serve.match;
  const token = readFileSync(`${store}-token`, "utf8").trim();
  const chromium = await browser();
  try {
    const { page, faults } = await open(chromium, `${control}/#token=${token}`);
    await page.waitForSelector(".following.on");
    await page.waitForSelector(".empty");

    const body = { model: "tiny", messages: [{ role: "user", content: "Guess." }], max_tokens: 8 };
    const json = { "content-type": "application/json" };
    const call = () =>
      fetch(`${data}/e/alive/v1/chat/completions`, {
        method: "POST",
        headers: json,
        body: JSON.stringify(body),
      });
    await (await call()).text();
    await page.waitForSelector(".table a.row:has-text('alive')");

    const headers = { ...json, authorization: `Bearer ${token}` };
    await fetch(`${control}/episodes/alive/rewards`, {
      method: "POST",
      headers,
      body: JSON.stringify({ value: 0.75 }),
    });
    await page.waitForSelector(".table .reward:has-text('0.75')");

    const labels = Object.fromEntries(Array.from({ length: 20 }, (_, at) => [`label-${at}`, "x"]));
    await fetch(`${control}/episodes`, {
      method: "POST",
      headers,
      body: JSON.stringify({ episode_id: "labeled", labels }),
    });
    const labeled = page.locator(".table a.row", { hasText: "labeled" });
    await labeled.waitFor();
    const left = labeled.locator(".mark", { hasText: "+4" });
    assert.equal(await left.getAttribute("title"), "4 labels more, which the episode shows");
    assert.equal(await labeled.locator(".mark", { hasText: "label-" }).count(), 16);

    await go(page, "#/e/alive/0");
    await page.waitForSelector(".turn");
    await (await call()).text();
    await page.waitForFunction(() => document.querySelectorAll(".turn").length === 2);

    await go(page, "#/calls");
    await page.waitForSelector(".following.on");
    await (await call()).text();
    await page.waitForSelector(".table a.row:has-text('complete')");
    assert.deepEqual(faults, []);
  } finally {
    await chromium.close();
    await serve.stop();
    rmSync(folder, { recursive: true, force: true });
  }
});
