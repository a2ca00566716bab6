// Sizes that a demo has not: 25,000 episodes, and a turn of 400,000 tokens. A double answers as the
// control listener would, at once; what is measured is the page alone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browser, go, open } from "./kit.mjs";
import { LONG, start } from "./mock/server.mjs";

/** Budgets in milliseconds, for a machine of two cores that does other things as well. */
const LIST_MS_MAX = 3000;
const TURN_MS_MAX = 1000;
/** Most elements of a page: lists of any length draw what is in sight. */
const ELEMENTS_MAX = 4000;

let double, chromium;
before(async () => {
  double = await start();
  chromium = await browser();
});
after(async () => {
  await chromium?.close();
  double?.stop();
});

const elements = (page) => page.evaluate(() => document.querySelectorAll("*").length);

test("25,000 episodes are listed quickly, to the last one", async () => {
  const began = performance.now();
  const { page, faults, close } = await open(chromium, double.link);
  await page.waitForSelector(".table a.row .id");
  const took = performance.now() - began;
  console.log(`the list of 25,000 episodes took ${took.toFixed(0)} ms`);
  assert.ok(took < LIST_MS_MAX, `${took} ms`);

  await page.evaluate(() => (document.querySelector(".rows").scrollTop = 1e9));
  await page.waitForFunction(() => document.querySelectorAll(".table a.row .id").length > 20);
  await page.waitForFunction(() => !document.querySelector(".table a.row:not([href])"));
  assert.ok((await elements(page)) < ELEMENTS_MAX);
  assert.deepEqual(faults, []);
  await close();
});

test("a turn of 400,000 tokens opens in a second, and unfolds", async () => {
  const { page, faults, close } = await open(chromium, double.link);
  await go(page, "#/e/long-context-0/0/call/01993a000001-7b2e-0005");
  await page.waitForSelector(".message");

  const began = performance.now();
  await go(page, "#/e/long-context-0/0/call/01993a000001-7b2e-0006?view=tokens");
  await page.waitForSelector(`[data-at="${LONG.prompt}"]`);
  const took = performance.now() - began;
  console.log(`a turn of ${LONG.prompt + LONG.sampled} tokens took ${took.toFixed(0)} ms`);
  assert.ok(took < TURN_MS_MAX, `${took} ms`);

  await page.getByRole("button", { name: "378,900 prompt tokens" }).click();
  await page.waitForSelector('[data-at="0"]');
  await page.evaluate(() => (document.querySelector(".token-box").scrollTop = 1e9));
  await page.waitForSelector(`[data-at="${LONG.prompt + LONG.sampled - 1}"]`);
  assert.ok((await elements(page)) < ELEMENTS_MAX);
  assert.deepEqual(faults, []);
  await close();
});
