// The page in one file, opened from a disk without a network, in headless Chromium.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { browser, finish, go, open, ROOT } from "./kit.mjs";
import { HOSTILE, record } from "./record.mjs";

const TOKENIZER = path.join(ROOT, "engine/models/tiny");
let folder, chromium, store;

before(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "rolltape-file-"));
  store = path.join(folder, "rolltape.db");
  await record(store, { groups: 1, size: 3 });
  chromium = await browser();
});

after(async () => {
  await chromium?.close();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Writes a page, and runs `look` in it; an error, a refusal of the policy or a request fails it. */
async function inFile(words, look) {
  const file = path.join(folder, `${words.join("-").replaceAll("/", "_")}.html`);
  await finish(["view", ...words, "--html", file, "--store", store, "--tokenizer", TOKENIZER]);
  const { page, faults, close } = await open(chromium, pathToFileURL(file).href, { offline: true });
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  try {
    await look(page, file);
    assert.deepEqual(faults, []);
    assert.deepEqual(
      asked.filter((url) => !url.startsWith("data:")),
      [],
    );
  } finally {
    await close();
  }
}

const textOf = (page, selector) => page.locator(selector).first().innerText();

test("a file opens on its conversation, and has its tokens", () =>
  inFile(["forks"], async (page, file) => {
    await page.waitForSelector(".conversation .message.sampled");
    assert.match(await textOf(page, ".conversation"), /It is from 1 to 7\./);
    assert.match(await textOf(page, ".written"), /^forks, written \d{4}-.* by rolltape \d/);

    await page.locator(".turn").first().click();
    await page.waitForSelector(".call-head");
    await page.keyboard.press("t");
    const token = page.locator(".token-row .tok:not(.prompt)").first();
    await token.hover();
    assert.match(await textOf(page, ".hover"), /logprob\s+(-\d|0)[^]*fidelity\s+exact/);
    assert.equal(await page.getByText("text from tokenizer").count(), 1);

    await go(page, "#/e/forks/0");
    await page.locator(".turn", { hasText: "fork: nonce_or_date" }).first().click();
    await page.keyboard.press("x");
    await page.waitForSelector(".fork-cause");

    const text = readFileSync(file, "utf8");
    const token_file = readFileSync(`${store}-token`, "utf8").trim();
    assert.ok(!text.includes(token_file), "the token of the store is not in the file");
    assert.ok(!text.includes(folder), "nor is the place of the store");
  }));

test("what only a server can answer is not offered", () =>
  inFile(["left"], async (page) => {
    await page.waitForSelector(".conversation .message.sampled");
    for (const word of ["Episodes", "Groups", "Numbers", "Live calls", "Search"])
      assert.equal(await page.locator("nav a", { hasText: word }).count(), 0, word);
    assert.equal(await page.locator(".following").count(), 0);
    await page.locator(".turn").first().click();
    await page.waitForSelector(".call-head");
    assert.equal(await page.getByRole("tab", { name: "request and reply" }).count(), 0);

    await go(page, "#/episodes");
    await page.getByText("There is no such page").waitFor();
    await page.locator(".empty a").click();
    await page.waitForSelector(".conversation");
    await go(page, "#/e/right/0");
    await page.getByText("This file has no such thing: it holds left alone.").waitFor();
  }));

test("no recorded text ends the data of the file", () =>
  inFile(["hostile", "--bodies"], async (page) => {
    await page.waitForSelector(".conversation .message.sampled");
    await page.locator(".turn").first().click();
    await page.waitForSelector(".role-user .content");
    assert.match(await textOf(page, ".role-user .content"), /^<\/script><!--<script>/);
    assert.match(await page.title(), /^rolltape · hostile/);
    assert.equal(await page.locator("main img").count(), 0);

    await page.keyboard.press("r");
    const sent = page.locator(".side", { hasText: "as the agent sent it" }).locator("pre.body");
    await sent.waitFor();
    const body = JSON.parse((await sent.innerText()).replaceAll("\u202e", "\\u202e"));
    assert.ok(body.messages[0].content.startsWith(HOSTILE.slice(0, 40)));
  }));

test("the attempts of a group stand side by side in a file, and are compared", () =>
  inFile(["--group", "game-0"], async (page) => {
    await page.waitForFunction(() => document.querySelectorAll(".column .card").length >= 3);
    assert.equal(await page.locator(".column").count(), 3);
    assert.match(await textOf(page, ".written"), /^group game-0, written/);
    await page.locator(".chooser a").click();
    await page.waitForSelector(".compared");
    await page.locator(".compared").first().getByRole("button").first().click();
    await page.keyboard.press("u");
    await page.waitForSelector(".columns");
    await page.locator(".column-head").first().click();
    await page.waitForSelector(".conversation .message.sampled");
  }));
