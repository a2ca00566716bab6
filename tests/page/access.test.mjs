// The page for those who do not see it, or do not see it well: the rules of axe, in both themes, on
// a wide screen and on a phone.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { browser, finish, go, open, ROOT, view } from "./kit.mjs";
import { record } from "./record.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = [390, 1280];

/** Where to look, and what is there once it is loaded. */
const PLACES = [
  ["#/episodes", ".table a.row .id"],
  ["#/episodes?state=failed&since=24h", ".chip"],
  ["#/groups", ".table a.row .id"],
  ["#/stats", ".plot svg"],
  ["#/calls", ".empty"],
  ["#/search?q=halves", ".hit"],
  ["#/e/forks/0", ".spoken"],
  ["#/e/branch/0", ".turn .mark"],
  ["#/e/branch/0/summary", ".siblings"],
  ["#/compare/trunk/0/branch/1", ".compared mark"],
  ["#/e/forks/0/summary", ".summary"],
  ["#/health", ".audit .mark"],
];

let folder, chromium, recorded;

before(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "rolltape-access-"));
  const store = path.join(folder, "rolltape.db");
  await record(store, { groups: 2, size: 2 });
  const model = path.join(ROOT, "engine/models/tiny");
  const of = ["--store", store, "--with", model, "--version", "default", "--keep"];
  await finish(["audit", ...of]);
  chromium = await browser();
  recorded = await view(store);
});

after(async () => {
  await chromium?.close();
  await recorded?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Returns what axe finds, as a line for each fault and element. */
async function faultsOf(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => axe.run());
  return found.violations.flatMap((rule) =>
    rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 160)}`),
  );
}

for (const colorScheme of ["light", "dark"]) {
  for (const width of WIDTHS) {
    test(`axe finds nothing in ${colorScheme}, ${width} pixels wide`, async () => {
      const options = { colorScheme, viewport: { width, height: 844 } };
      const { page, faults, close } = await open(chromium, recorded.link, options);
      for (const [place, ready] of PLACES) {
        await go(page, place);
        await page.waitForSelector(ready);
        if (place === "#/health") {
          await page.getByRole("button", { name: "judge" }).click();
          await page.waitForSelector(".check-line");
          await page.getByText("gaps", { exact: true }).click();
        }
        assert.deepEqual(await faultsOf(page), [], place);
        assert.equal(await page.locator("h1").count(), 1, place);
      }
      await go(page, "#/episodes");
      await page.getByRole("combobox").focus();
      await page.waitForSelector(".suggestions li");
      assert.deepEqual(await faultsOf(page), [], "with suggestions");
      assert.deepEqual(faults, []);
      await close();
    });
  }
}
