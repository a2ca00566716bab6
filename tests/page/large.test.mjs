// Sizes that a demo has not: 25,000 episodes, and a turn of 400,000 tokens. A double answers as the
// control listener would, at once; what is measured is the page alone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browser, go, open } from "./kit.mjs";
import { LONG, start } from "./mock/server.mjs";

/** Budgets in milliseconds, for a machine of two cores that does other things as well. */
const LIST_MS_MAX = 3000;
const TURN_MS_MAX = 1000;
/** Most loads until one is within its budget: other programs may have the machine meanwhile. */
const LOADS_MAX = 5;
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

/**
 * Loads what is asked for in fresh pages until one was within the budget, and gives that one.
 * `load` opens a page and gives it with the milliseconds that it took.
 */
async function within(budget, what, load) {
  const all = [];
  while (all.length < LOADS_MAX) {
    const { took, opened } = await load();
    all.push(Math.round(took));
    console.log(`${what} took ${took.toFixed(0)} ms`);
    if (took < budget) return opened;
    assert.deepEqual(opened.faults, []);
    await opened.close();
  }
  assert.fail(`${what} took ${all.join(", ")} ms`);
}

async function list() {
  const began = performance.now();
  const opened = await open(chromium, double.link);
  await opened.page.waitForSelector(".table a.row .id");
  return { took: performance.now() - began, opened };
}

async function longTurn() {
  const opened = await open(chromium, double.link);
  await go(opened.page, "#/e/long-context-0/0/call/01993a000001-7b2e-0005");
  await opened.page.waitForSelector(".message");

  const began = performance.now();
  await go(opened.page, "#/e/long-context-0/0/call/01993a000001-7b2e-0006?view=tokens");
  await opened.page.waitForSelector(`[data-at="${LONG.prompt}"]`);
  return { took: performance.now() - began, opened };
}

test("25,000 episodes are listed quickly, to the last one", async () => {
  const what = "the list of 25,000 episodes";
  const { page, faults, close } = await within(LIST_MS_MAX, what, list);
  await page.evaluate(() => (document.querySelector(".rows").scrollTop = 1e9));
  await page.waitForFunction(() => document.querySelectorAll(".table a.row .id").length > 20);
  await page.waitForFunction(() => !document.querySelector(".table a.row:not([href])"));
  assert.ok((await elements(page)) < ELEMENTS_MAX);
  assert.deepEqual(faults, []);
  await close();
});

test("a turn of 400,000 tokens opens in a second, and unfolds", async () => {
  const what = `a turn of ${LONG.prompt + LONG.sampled} tokens`;
  const { page, faults, close } = await within(TURN_MS_MAX, what, longTurn);
  await page.getByRole("button", { name: "378,900 prompt tokens" }).click();
  await page.waitForSelector('[data-at="0"]');
  await page.evaluate(() => (document.querySelector(".token-box").scrollTop = 1e9));
  await page.waitForSelector(`[data-at="${LONG.prompt + LONG.sampled - 1}"]`);
  assert.ok((await elements(page)) < ELEMENTS_MAX);
  assert.deepEqual(faults, []);
  await close();
});
