// Comments: written on the page, kept with who said them, shown as text in every form.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { browser, finish, go, open, rolltape, ROOT, view } from "./kit.mjs";

const HOSTILE = '<img src=x onerror="document.title=1"><script>alert(1)</script> \u202e';

let folder, store, serve, control, token, chromium;

before(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "rolltape-comments-"));
  store = path.join(folder, "rolltape.db");
  const model = path.join(ROOT, "engine/models/tiny");
  const ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"];
  const args = ["serve", "--model", model, "--store", store, ...ports];
  serve = await rolltape(args, "stderr", /^listening on (\S+), control on ([^\s,]+),/);
  control = serve.match[2];
  token = readFileSync(`${store}-token`, "utf8").trim();
  const messages = [{ role: "user", content: "One" }];
  const reply = await fetch(`${serve.match[1]}/e/run/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "tiny", messages, max_tokens: 4 }),
  });
  assert.equal(reply.status, 200);
  chromium = await browser();
});

after(async () => {
  await chromium?.close();
  await serve?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

async function inPage(link, look) {
  const { page, faults, close } = await open(chromium, link);
  try {
    await look(page);
    assert.deepEqual(faults, []);
  } finally {
    await close();
  }
}

/** Writes a comment in the form below `button`. */
async function write(page, button, { text, score, name, token }) {
  await page.getByRole("button", { name: button, exact: true }).first().click();
  if (text) await page.getByLabel("comment", { exact: true }).fill(text);
  if (score) await page.getByLabel("score").fill(score);
  await page.getByLabel("your name").fill(name);
  if (token) await page.getByLabel("token to write").fill(token);
  await page.getByRole("button", { name: "save" }).click();
}

const comments = (page) => page.locator(".comment");

async function recorded() {
  const asked = await fetch(`${control}/episodes/run/tree`, {
    headers: { authorization: `Bearer ${token}` },
  });
  return (await asked.json()).comments;
}

test("a comment on the attempt and a score of a turn are kept with who said them", () =>
  inPage(`${control}/#token=${token}&to=/e/run/0`, async (page) => {
    await page.waitForSelector(".conversation");
    await write(page, "comment on the attempt", { text: HOSTILE, name: "ada" });
    await page.waitForSelector(".comment");
    await write(page, "comment", { score: "0.25", name: "ada" });
    await comments(page).nth(1).waitFor();
    assert.match(await comments(page).nth(1).innerText(), /^ada scores 0\.25/);

    const [first, second] = await recorded();
    assert.equal(first.text, HOSTILE.trim());
    assert.equal(first.call_id, null);
    assert.equal(second.score, 0.25);
    assert.ok(second.call_id);
    assert.equal(first.given_by, "control_token");
    assert.match(first.key_name, /^control-[0-9a-f]{8}$/);
    assert.equal(first.given_from, "127.0.0.1");
  }));

test("what was written is text, on the page, in a file and in a copy", async () => {
  const looked = async (page) => {
    const said = page.locator(".comment-text").first();
    await said.waitFor();
    assert.match(await said.innerText(), /^<img src=x onerror=.*<\/script> \\u202e$/);
    assert.equal(await page.locator(".comment img, .comment script").count(), 0);
    assert.notEqual(await page.title(), "1");
  };
  await inPage(`${control}/#token=${token}&to=/e/run/0`, looked);
  const file = path.join(folder, "run.html");
  await finish(["view", "run", "--html", file, "--store", store]);
  await inPage(pathToFileURL(file).href, async (page) => {
    await looked(page);
    assert.equal(await page.getByRole("button", { name: "comment" }).count(), 0);
  });
  const copy = path.join(folder, "copy.db");
  await finish(["backup", "--episode", "run", "--to", copy, "--store", store]);
  const shown = await view(copy, "run");
  await inPage(shown.link, looked);
  await shown.stop();
});

test("a tab that only reads asks for the token, and keeps it nowhere", () =>
  inPage(`${control}/#token=${token}&to=/e/run/0`, async (page) => {
    await page.waitForSelector(".comment");
    await page.reload();
    await page.waitForSelector(".comment");
    const before = (await recorded()).length;
    await write(page, "comment", { text: "later", name: "bob", token: "wrong" });
    await page.getByRole("alert").waitFor();
    assert.match(await page.getByRole("alert").innerText(), /requires its token/);
    assert.equal((await recorded()).length, before);
    await page.getByLabel("token to write").fill(token);
    await page.getByRole("button", { name: "save" }).click();
    await comments(page).nth(before).waitFor();
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }]));
    assert.ok(!stored.includes(token));
    assert.equal(JSON.parse(stored)[0]["rolltape-author"], "bob");

    const { token: reads } = JSON.parse(JSON.parse(stored)[0]["rolltape-read-token:/"]);
    const said = await fetch(`${control}/annotations`, {
      method: "POST",
      headers: { authorization: `Bearer ${reads}`, "content-type": "application/json" },
      body: JSON.stringify({ comments: [{ episode_id: "run", text: "x" }] }),
    });
    assert.equal(said.status, 403);
  }));

test("the page of a store writes to the store", async () => {
  const shown = await view(store, "run");
  const before = (await recorded()).length;
  await inPage(shown.link, async (page) => {
    await page.waitForSelector(".comment");
    await go(page, "/e/run/0/summary");
    await write(page, "comment on the attempt", { text: "from view", name: "eve" });
    await comments(page).filter({ hasText: "from view" }).waitFor();
  });
  await shown.stop();
  const all = await recorded();
  assert.equal(all.length, before + 1);
  assert.equal(all.at(-1).author, "eve");
});
