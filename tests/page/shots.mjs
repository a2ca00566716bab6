// Writes the pictures of docs/page.md: `node shots.mjs [FOLDER]`. They show a real recording.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { browser, go, open, ROOT, view } from "./kit.mjs";
import { record } from "./record.mjs";

const to = process.argv[2] ?? path.join(ROOT, "docs/images");
const SIZE = { width: 1200, height: 640 };

/** What each picture shows: where, in which colors, and what is done before it is taken. */
const SHOTS = [
  ["page-episodes", "light", "#/episodes", ".table .id"],
  ["page-conversation", "light", "#/e/coding/0", ".markdown table", ["last"]],
  ["page-compare", "dark", "#/compare/left/0/right/0", ".compared mark"],
  ["page-beside", "light", "#/compare/trunk/0/branch/1", ".compared mark"],
  ["page-tree", "light", "#/e/forks/0/summary", ".summary"],
  ["page-fork", "dark", "#/e/forks/0", ".spoken", ["turn:nonce_or_date", "key:x", "wait:.fork"]],
  ["page-messages", "light", "#/e/forks/0", ".spoken", ["turn:try 2", "wait:.message"]],
  ["page-tokens", "dark", "#/e/long/0", ".spoken", ["turn:Guess", "key:t", "hover"]],
  ["page-group", "light", "#/group/game-4", ".column .card"],
  ["page-numbers", "dark", "#/stats", ".totals"],
];

/** Does one step before a picture. */
async function step(page, word) {
  const [kind, value] = word.split(":");
  if (kind === "turn") await page.locator(".turn", { hasText: value }).first().click();
  if (kind === "key") {
    await page.waitForSelector(".call-head");
    await page.keyboard.press(value);
  }
  if (kind === "last")
    await page.evaluate(() =>
      document.querySelector(".markdown")?.closest(".message").scrollIntoView({ block: "end" }),
    );
  if (kind === "wait") await page.waitForSelector(value);
  if (kind === "hover") await page.locator(".token-row .tok.p6").nth(3).hover();
}

const folder = mkdtempSync(path.join(tmpdir(), "rolltape-shots-"));
const store = path.join(folder, "rolltape.db");
await record(store, { groups: 12, size: 8 });
const shown = await view(store);
const chromium = await browser();
try {
  for (const [name, colorScheme, place, ready, steps = []] of SHOTS) {
    const { page, faults, close } = await open(chromium, shown.link, {
      colorScheme,
      viewport: SIZE,
    });
    await go(page, place);
    await page.waitForSelector(ready);
    for (const word of steps) await step(page, word);
    await page.waitForTimeout(600);
    await page.screenshot({ path: path.join(to, `${name}.png`) });
    if (faults.length > 0) throw new Error(`${name}: ${faults.join("; ")}`);
    await close();
  }
} finally {
  await chromium.close();
  await shown.stop();
  rmSync(folder, { recursive: true, force: true });
}
