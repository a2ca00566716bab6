// The page of the real binary, over stores that it recorded, in headless Chromium.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { browser, finish, go, open, rolltape, ROOT, view } from "./kit.mjs";
import { HOSTILE, LISTING, MARKDOWN, record, Server, SYSTEM } from "./record.mjs";

let folder, chromium, played, recorded;

before(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "rolltape-page-"));
  const store = path.join(folder, "rolltape.db");
  await Promise.all([
    record(store),
    finish(["demo", "--out", path.join(folder, "demo"), "--groups", "3", "--episodes", "4"]),
  ]);
  chromium = await browser();
  recorded = await view(store);
  played = await view(path.join(folder, "demo", "rolltape.db"));
});

after(async () => {
  await chromium?.close();
  await recorded?.stop();
  await played?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Runs `look` in an open page; errors, refusals of the policy and foreign requests fail it. */
async function inPage(link, look, options) {
  const { page, faults, close } = await open(chromium, link, options);
  try {
    await look(page);
    assert.deepEqual(faults, []);
  } finally {
    await close();
  }
}

const textOf = (page, selector) => page.locator(selector).first().innerText();

test("the list shows what the demo played, sorts and filters it", () =>
  inPage(played.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    assert.equal(await textOf(page, ".count"), "12 episodes");
    assert.equal(await page.locator(".table a.row").count(), 12);

    await page.getByRole("button", { name: "reward" }).click();
    await page.waitForFunction(() => location.hash.includes("sort=-reward"));
    // The rows of the order before stand for some frames behind the address.
    await page.waitForFunction(() => {
      const cells = [...document.querySelectorAll(".table a.row .reward")];
      const rewards = cells.map((cell) => Number(cell.textContent));
      return rewards.length === 12 && rewards.every((one, at) => !at || one <= rewards[at - 1]);
    });

    await page.getByLabel("filter episodes").fill("g1-e");
    await page.waitForFunction(
      () => document.querySelector(".count")?.textContent === "4 episodes",
    );
    assert.match(new URL(page.url()).hash, /name=g1-e/);
    await page.getByRole("button", { name: "clear" }).click();
    await page.waitForFunction(
      () => document.querySelector(".count")?.textContent === "12 episodes",
    );
  }));

const count = (page, words) =>
  page.waitForFunction(
    (expected) => document.querySelector(".count")?.textContent === expected,
    words,
  );

test("words of the field become chips, which are in the address", () =>
  inPage(played.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    const field = page.getByRole("combobox", { name: "filter episodes" });
    await page.keyboard.press("f");
    await page.keyboard.type("state:closed reward>=0.5 g1-");
    await page.waitForFunction(() => location.hash.includes("name=g1-"));
    const hash = new URL(page.url()).hash;
    assert.match(hash, /state=closed/);
    assert.match(hash, /min_reward=0\.5/);
    assert.deepEqual(await page.locator(".chip").allInnerTexts(), [
      "state:closed\n×",
      "reward>=0.5\n×",
    ]);
    assert.equal(await field.inputValue(), "g1-");

    await page.getByRole("button", { name: "remove reward>=0.5" }).click();
    await count(page, "4 episodes");
    // The last chip comes back into an empty field, to be changed.
    await field.fill("");
    await field.press("Backspace");
    assert.equal(await field.inputValue(), "state:closed");
    await field.fill("");
    await count(page, "12 episodes");
    assert.equal(await page.locator(".chip").count(), 0);
  }));

test("the field tells its words and values that are in sight", () =>
  inPage(played.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    const field = page.getByRole("combobox", { name: "filter episodes" });
    await field.focus();
    const options = page.getByRole("option");
    assert.match((await options.allInnerTexts()).join(" "), /state:.*group:.*reward>=.*until:/s);
    await page.keyboard.type("gro");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    assert.equal(await field.inputValue(), "group:");
    assert.equal(await options.count(), 3);
    const group = await options.nth(1).locator("b").innerText();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    const active = await field.getAttribute("aria-activedescendant");
    assert.equal(await page.locator(`[id="${active}"] b`).innerText(), group);
    await page.keyboard.press("Enter");
    await count(page, "4 episodes");
    assert.equal(await page.locator(".chip").innerText(), `${group}\n×`);
    await page.keyboard.press("Escape");
    assert.equal(await options.count(), 0);
  }));

test("a word whose value cannot be stays in the field, and is said to be wrong", () =>
  inPage(played.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    const field = page.getByRole("combobox", { name: "filter episodes" });
    await field.fill("since:yesterday ");
    assert.equal(await field.getAttribute("aria-invalid"), "true");
    assert.match(await page.getByRole("alert").innerText(), /since: takes 90m, 24h/);
    assert.equal(await page.locator(".chip").count(), 0);
    await field.fill("since:24h");
    await field.press("Enter");
    await page.waitForSelector(".chip");
    assert.match(page.url(), /since=24h/);
    // A link of before has the same filters.
    await go(page, "#/episodes?state=completed&max_reward=0");
    await page.waitForFunction(() => document.querySelectorAll(".chip").length === 2);
    assert.deepEqual(await page.locator(".chip").allInnerTexts(), [
      "state:completed\n×",
      "reward<=0\n×",
    ]);
  }));

test("a row says what was asked, what was answered, and what went wrong", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/episodes?name=declined");
    const row = page.locator(".table a.row", { hasText: "declined" });
    await row.getByText("Guess a number from 1 to 7.").waitFor();
    const error = row.locator(".down");
    assert.match(await error.innerText(), /^400: .*temperature/);
    await go(page, "#/episodes?name=coding");
    const coding = page.locator(".table a.row", { hasText: "coding" });
    await coding.getByText("Mend the reader.", { exact: true }).waitFor();
    assert.equal(await coding.locator(".down").count(), 0);
    // What others wrote is text here as well.
    await go(page, "#/episodes?name=hostile");
    await page.locator(".table a.row", { hasText: "hostile" }).waitFor();
    await page.waitForSelector(".table .escape");
    assert.match(await page.locator(".table").innerText(), /<img src=x onerror=/);
    assert.equal(await page.locator(".table img, .table b").count(), 0);
  }));

test("columns are chosen, and the browser keeps the choice", () =>
  inPage(recorded.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    const heads = () => page.locator(".rows-head .cell").allInnerTexts();
    assert.ok((await heads()).includes("first prompt"));
    assert.ok(!(await heads()).includes("model"));
    const asked = page.waitForRequest((request) => /episodes\?(?!.*text=1)/.test(request.url()));
    await page.locator("summary", { hasText: "columns" }).press("Enter");
    for (const name of ["first prompt", "last answer", "model"])
      await page.getByRole("checkbox", { name, exact: true }).click();
    await asked;
    await page.reload();
    await page.waitForSelector(".table a.row .id");
    assert.ok(!(await heads()).includes("first prompt"));
    assert.ok((await heads()).includes("model"));
    await page.locator("summary", { hasText: "columns" }).click();
    await page.getByRole("button", { name: "usual columns" }).click();
    assert.ok((await heads()).includes("first prompt"));
  }));

test("a narrow window has the words below the row, and nothing beside it", () =>
  inPage(
    recorded.link,
    async (page) => {
      await page.waitForSelector(".table .below");
      const width = await page.locator(".rows").evaluate((rows) => rows.scrollWidth);
      assert.equal(width, 390);
      const row = page.locator(".table a.row", { hasText: "declined" });
      assert.match(await row.innerText(), /failed[^]*400: /);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    },
    { viewport: { width: 390, height: 800 } },
  ));

test("what is as it should be has no color, and a reward has a bar", () =>
  inPage(played.link, async (page) => {
    const looks = (selector) =>
      page
        .locator(selector)
        .first()
        .evaluate((one) => {
          const { color, backgroundColor } = getComputedStyle(one);
          return [color, backgroundColor];
        });
    await page.waitForSelector(".table a.row .reward-bar");
    const [dim] = await looks(".count");
    assert.deepEqual(await looks(".table .mark.good"), [dim, "rgba(0, 0, 0, 0)"]);
    assert.equal((await looks(".table .reward"))[0], (await looks(".table .id"))[0]);
    const widths = await page.locator(".table .reward").evaluateAll((all) =>
      all.map((one) => [
        Number(one.textContent),
        parseFloat(one.querySelector("i").style.width), // percent
      ]),
    );
    for (const [reward, width] of widths) assert.ok(Math.abs(reward * 100 - width) < 0.1);
  }));

test("the token leaves the address, and a wrong one brings the form", () =>
  inPage(played.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    assert.ok(!page.url().includes(played.token));
    await page.reload();
    await page.waitForSelector(".table a.row .id");

    await page.evaluate(() => localStorage.clear());
    await page.reload();
    const field = page.getByLabel("token");
    await field.fill("not the token");
    await field.press("Enter");
    await page.waitForTimeout(1500);
    await field.fill(played.token);
    await field.press("Enter");
    await page.waitForSelector(".table a.row .id");
  }));

test("an episode is a tree with a sub-agent, a fork, a try and two choices", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/forks/0/summary");
    await page.waitForSelector(".turn");
    const tree = await page.locator(".tree").innerText();
    for (const word of [
      "subagent",
      "halves",
      "fork: nonce_or_date",
      "try 2",
      "client_gone",
      "choice 0",
      "choice 1",
    ]) {
      assert.ok(tree.includes(word), `${word} in ${tree}`);
    }
    assert.equal(await textOf(page, ".head .mark"), "usable");
    const summary = await page.locator(".summary").innerText();
    assert.match(summary, /client_gone\s+the agent left before the end of a reply/);
    assert.match(summary, /fix the date for the episode/);
    assert.match(summary, /0\s+reward\s+episode\s+judge/);
    assert.match(summary, /0\.5\s+reward\s+episode\s+tests/);
    const given = await page.locator(".giver").allInnerTexts();
    assert.equal(given.length, 2);
    for (const text of given) {
      assert.match(text, /^under the token control-[0-9a-f]{8} from 127\.0\.0\.1, over \d+ calls$/);
    }
    assert.match(
      await page.locator(".giver").first().getAttribute("title"),
      /^chain [0-9a-f]{32}$/,
    );
    assert.ok(!tree.includes("/v1/models"));
    await page.getByLabel("show 1 call without a turn").check();
    assert.match(await page.locator(".tree").innerText(), /GET \/v1\/models/);
  }));

test("a fork has both texts, the cause, the cost and what to change", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/forks/0");
    await page.locator(".turn", { hasText: "nonce_or_date" }).click();
    await page.waitForSelector(".call-head");
    await page.keyboard.press("x");
    await page.waitForSelector(".fork");
    const fork = await page.locator(".fork", { hasText: "nonce_or_date" }).innerText();
    assert.match(fork, /a date, a clock, a counter or a random word changed/);
    assert.match(fork, /What to change: fix the date/);
    assert.match(fork, /prefilled again\s+\d+ tokens/);
    assert.match(await textOf(page, ".side.known mark"), /4/);
    assert.match(await textOf(page, ".side.sent mark"), /5/);
  }));

test("a turn shows what is new, its history folded, and its answer", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/forks/0");
    await page.locator(".turn").nth(1).click();
    await page.waitForSelector(".message.sampled");
    assert.match(await page.locator(".messages").innerText(), /earlier messages? known from\s+#1/);
    const shown = await page.locator(".message").count();
    await page.getByRole("button", { name: /earlier message/ }).click();
    assert.ok((await page.locator(".message").count()) > shown);
    assert.match(await textOf(page, ".history"), /1 tool\s+guess/);
  }));

test("an episode opens on its conversation, turn after turn", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/forks/0");
    await page.waitForSelector(".spoken .message.sampled");
    assert.equal(await page.locator(".summary").count(), 0);
    await page.keyboard.press("c");
    await page.waitForSelector(".summary");
    assert.match(page.url(), /#\/e\/forks\/0\/summary$/);
    await page.keyboard.press("c");
    await page.waitForSelector(".spoken .message.sampled");
    for (let turn = 0; turn < 12; turn++) await page.keyboard.press("j");
    await page.waitForFunction(
      () => document.querySelectorAll(".spoken .message.sampled").length === 10,
    );
    const said = await page.locator(".conversation").innerText();
    assert.equal(said.split("Find the number.").length, 3, "a history is not repeated");
    assert.equal(said.split("once more").length, 2, "two choices heard the same once");
    assert.match(said, /#3\s+subagent\s+halves/);
    assert.match(said, /tool guess/);
    assert.equal(await page.locator(".spoken.cursor").count(), 1);
    await page.keyboard.press("Enter");
    await page.waitForSelector(".call-head .big");
    assert.equal(await textOf(page, ".call-head .big"), "#9");
    await page.keyboard.press("c");
    await page.waitForSelector(".conversation");
    await page.keyboard.press("c");
    await page.waitForSelector(".summary");
  }));

test("arguments of a tool read as text, and a result names its tool", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/files/0/read");
    const line = page.getByRole("button", { name: "write a.py" });
    await line.waitFor();
    assert.equal(await page.locator(".arguments").count(), 0);
    await line.click();
    const args = page.locator(".arguments").first();
    assert.deepEqual(await args.locator("dt").allInnerTexts(), ["path", "content", "n"]);
    const values = await args.locator("dd").allInnerTexts();
    // A text that would read as a number is quoted.
    assert.deepEqual(values, ["a.py", "def f():\n    return '<b>'\n", '"7"']);
    assert.match(await textOf(page, ".message.role-tool .role"), /^tool write/);
    await page.locator(".tool-call .json").first().hover();
    await page.getByRole("button", { name: "as sent" }).first().click();
    assert.match(await textOf(page, ".tool-call .json"), /return '<b>'\\n/);
  }));

test("what an agent adds is folded, and the words of a person are in sight", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/coding/0");
    const prompt = page.getByRole("button", { name: /system prompt, \d+ characters/ });
    await prompt.waitFor();
    const said = await page.locator(".conversation").innerText();
    assert.ok(!said.includes("The last rule."));
    assert.match(said, new RegExp(`system prompt, ${SYSTEM.length} characters`));
    assert.equal(await textOf(page, ".role-user .content > .long"), "Mend the reader.");
    await prompt.focus();
    await page.keyboard.press("Enter");
    assert.match(await textOf(page, ".system-prompt"), /The last rule\./);
    await page.getByRole("button", { name: /system-reminder, 21 characters/ }).click();
    assert.match(await textOf(page, ".reminder"), /Always run the tests\./);
  }));

test("a tool is a line, with its arguments and its result folded", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/coding/0");
    await page.getByRole("button", { name: "bash ls -la" }).waitFor();
    const result = page.locator(".role-tool");
    assert.match(await result.innerText(), /2 lines\s+total 24$/);
    await page.getByRole("button", { name: "2 lines" }).click();
    assert.equal(await result.locator(".prose").textContent(), LISTING);

    await go(page, "#/e/forks/0");
    await page.locator(".turn .tool-words").first().waitFor();
    assert.equal(await textOf(page, ".turn .tool-words b"), "guess");
    assert.ok(!(await page.locator(".tree").innerText()).includes("tool: "));
    assert.ok(await page.locator(".turn .time-gap").count());
  }));

test("Markdown is elements of the page's own, and raw is the text that was recorded", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/coding/0");
    await page.waitForSelector(".markdown table");
    const message = page.locator(".message.role-assistant", { has: page.locator(".markdown") });
    assert.equal(await message.locator("h2").innerText(), "Summary");
    assert.equal(await message.locator("strong").innerText(), "kept");
    assert.deepEqual(await message.locator("li").allInnerTexts(), ["one", "two"]);
    assert.match(await message.locator(".code-block").innerText(), /^python[^]*x = "<b>"$/);
    assert.deepEqual(await message.locator("td").allInnerTexts(), ["1", "2"]);

    const links = message.locator("a");
    const addresses = await links.evaluateAll((all) => all.map((one) => one.href));
    assert.deepEqual(addresses, ["https://example.com/a", "https://example.com/p.png"]);
    assert.match(await links.first().getAttribute("rel"), /noreferrer/);
    const words = await message.innerText();
    assert.ok(words.includes("[no](javascript:alert(1))"), words);
    assert.ok(words.includes('<img src=x onerror="document.title=1">'), words);
    assert.equal(await page.locator("main img, main script").count(), 0);

    await message.getByRole("button", { name: "raw" }).click();
    assert.equal(await page.locator(".markdown table").count(), 0);
    const raw = page.locator(".role-assistant .prose", { hasText: "## Summary" });
    assert.equal(await raw.textContent(), MARKDOWN);
    // All at once: what an agent put beside the words is part of the text.
    await page.locator(".detail .bar").getByRole("button", { name: "raw" }).click();
    assert.match(await textOf(page, ".role-user .prose"), /^<system-reminder>\n/);
  }));

test("a link of `view` opens the conversation of its episode", async () => {
  const store = path.join(folder, "rolltape.db");
  const one = await view(store, "forks");
  try {
    await inPage(one.link, async (page) => {
      await page.waitForSelector(".spoken .message.sampled");
      assert.match(page.url(), /\/#\/e\/forks\/0\/read$/);
    });
  } finally {
    await one.stop();
  }
});

test("a narrow window shows the bar in one line", () =>
  inPage(
    recorded.link,
    async (page) => {
      await page.waitForSelector(".table a.row .id");
      const tops = await page
        .locator("nav.top a")
        .evaluateAll((links) => links.map((link) => link.getBoundingClientRect().height));
      assert.equal(new Set(tops).size, 1, tops.join());
    },
    { viewport: { width: 420, height: 800 } },
  ));

test("an unknown address is said to be one, and a tab's word is an address", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/nothing");
    await page.getByText("There is no such page").waitFor();
    await go(page, "#/numbers");
    await page.waitForSelector(".totals");
    assert.equal(await page.locator("nav.top a.on").innerText(), "Numbers");
    assert.equal(await page.locator("h1").innerText(), "Numbers");
    assert.equal(await page.locator("svg[role=img]:not([aria-label])").count(), 0);
  }));

test("tokens have their logprob, mask, version and fidelity on hover", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/episodes?name=game-2-e0");
    await page.locator(".table a.row").first().click();
    await page.locator(".turn").first().click();
    await page.waitForSelector(".call-head");
    await page.keyboard.press("t");
    const token = page.locator(".token-row .tok:not(.prompt)").first();
    await token.hover();
    const hover = await page.locator(".hover").innerText();
    assert.match(hover, /logprob\s+(-\d|0)/);
    assert.match(hover, /mask\s+1, may be trained/);
    assert.match(hover, /version\s+3/);
    assert.match(hover, /checksum\s+[0-9a-f]{8}/);
    assert.match(hover, /fidelity\s+exact/);
    assert.match(hover, /trainer_logprobs\s+-\d[.\d]* \(version 3\)/);
    assert.match(hover, /entropies\s+0\.25\d* \(version 4\)/);
    const facts = await textOf(page, ".call-head");
    assert.match(facts, /\d+ of \d+ tokens? trainable/);
    const [, sampled] = /of (\d+) tokens? trainable/.exec(facts);
    assert.equal(await page.locator(".token-row .tok:not(.prompt)").count(), Number(sampled));
  }));

test("tokens of an agent that left are not trained", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/forks/0");
    await page.locator(".turn", { hasText: "client_gone" }).click();
    await page.waitForSelector(".call-head");
    await page.keyboard.press("t");
    await page.locator(".token-row .tok:not(.prompt)").first().hover();
    assert.match(await page.locator(".hover").innerText(), /mask\s+0, not trained/);
    assert.ok(await page.locator(".token-row .tok.masked").count());
  }));

test("the bytes of a call are those that were sent", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/forks/0");
    await page.locator(".turn").first().click();
    await page.waitForSelector(".call-head");
    await page.keyboard.press("r");
    const request = page.locator(".side", { hasText: "as the agent sent it" }).locator("pre.body");
    await request.waitFor();
    const sent = JSON.parse(await request.innerText());
    assert.equal(sent.messages[0].content, "Find the number. The time is 2026-11-24 10:04.");
    await page.getByRole("button", { name: "indent" }).first().click();
    assert.match(await request.innerText(), /^\{\n {2}"model"/);
  }));

test("text that others wrote is text, and what is hidden in it is shown", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/hostile/0");
    await page.locator(".turn").first().click();
    await page.waitForSelector(".message.sampled");
    const said = await textOf(page, ".role-user .content");
    assert.equal(
      said,
      HOSTILE.replace("\u202e", "\\u202e")
        .replace("\u0007", "\\u0007")
        .replace("\u200b", "\\u200b"),
    );
    assert.equal(await page.locator("main img, main b:has-text('bold')").count(), 0);
    assert.equal(await page.locator(".role-user .escape").count(), 3);
  }));

test("what was left unread is named, and opens as it came", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/sealed/0");
    await page.locator(".turn").first().click();
    const unread = page.getByRole("button", { name: "left unread: redacted_thinking" });
    await unread.waitFor();
    assert.match(await textOf(page, ".role-assistant .content"), /I guess 5\./);
    await unread.click();
    assert.match(await textOf(page, ".unread"), /"?data"?\W+sealed/);
  }));

test("the attempts of a group stand side by side, the best one first", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/groups");
    await page.waitForSelector(".table a.row .id");
    assert.deepEqual((await page.locator(".table .id").allInnerTexts()).sort(), [
      "game-0",
      "game-1",
      "game-2",
    ]);
    await page.locator(".table a.row", { hasText: "game-1" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".column .card").length >= 4);
    assert.equal(await page.locator(".column").count(), 4);
    const rewards = (await page.locator(".column-reward").allInnerTexts()).map(Number);
    assert.deepEqual(
      rewards,
      [...rewards].sort((a, b) => b - a),
    );
    assert.match(await textOf(page, ".column-verdict"), /exact/);
  }));

test("turns that say the same are faint, also behind a prompt of the attempt's own", async () => {
  const store = path.join(folder, "seeds.db");
  const server = await Server.start(store);
  for (const seed of [7, 8]) {
    const headers = { "x-group-id": "seeds" };
    const messages = [];
    for (const words of [`Seed ${seed}. Begin.`, "Go on.", "And on."]) {
      messages.push({ role: "user", content: words });
      // Nothing but one token can be said.
      const said = { max_tokens: 1, logit_bias: { 40: 100 } };
      messages.push(await server.ask(`seed-${seed}`, messages, { headers, ...said }));
    }
  }
  await server.stop();

  const seeds = await view(store);
  try {
    await inPage(seeds.link, async (page) => {
      await go(page, "#/group/seeds");
      await page.waitForFunction(() => document.querySelectorAll(".column .card").length === 6);
      const faint = page.locator(".column:nth-child(2) .card");
      const classes = await faint.evaluateAll((cards) =>
        cards.map((card) => card.className.trim()),
      );
      assert.deepEqual(classes, ["card", "card same", "card same"]);
      assert.match(
        await page.locator(".column:nth-child(2)").innerText(),
        /2 turns as in the first/,
      );
    });
  } finally {
    await seeds.stop();
  }
});

test("the best and the worst attempt of a group are chosen, and compared", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/group/game-1");
    await page.waitForSelector(".chooser");
    const rewards = (await page.locator(".column-reward").allInnerTexts()).map(Number);
    const chosen = await page
      .locator(".chooser select")
      .evaluateAll((all) => all.map((one) => Number(one.selectedOptions[0].label.split(" ")[0])));
    assert.deepEqual(chosen, [Math.max(...rewards), Math.min(...rewards)]);
    await page.locator(".chooser a").click();
    await page.waitForSelector(".compared");
    assert.match(page.url(), /#\/compare\/game-1-e\d\/0\/game-1-e\d\/0$/);
    const heads = await page.locator(".compared-head .reward").allInnerTexts();
    assert.deepEqual(heads.map(Number), chosen);
    assert.equal(await page.locator("h1").count(), 1);
    await page.keyboard.press("u");
    await page.waitForSelector(".columns");
  }));

test("two attempts are aligned by their turns, and the words that differ are marked", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/compare/left/0/right/0");
    await page.waitForSelector(".compared mark");
    const titles = await page.locator(".compared-title").allInnerTexts();
    const numbers = titles.map((title) => /^#\d/.exec(title)?.[0] ?? title);
    assert.deepEqual(numbers, ["#1", "#1", "no turn here", "#2", "#2", "#3"]);
    const first = page.locator(".compared").first();
    assert.deepEqual(await first.locator(".known mark").first().allInnerTexts(), ["left"]);
    assert.deepEqual(await first.locator(".sent mark").first().allInnerTexts(), ["right"]);
    // What both heard is folded, and opens.
    const equal = first.getByRole("button", { name: "user, equal, 18 characters" });
    await equal.click();
    assert.match(await first.innerText(), /It is from 1 to 7\./);

    await go(page, "#/compare/left/0/left/0");
    await page.waitForFunction(() => document.querySelectorAll(".compared.same").length === 2);
    assert.equal(await page.locator(".compared mark").count(), 0);
  }));

test("a branch stands beside its source from the turn where they part", () =>
  inPage(recorded.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    const row = page.locator(".table a.row", { hasText: "branch attempt 1" });
    const mark = row.locator(".mark", { hasText: /^branch$/ });
    assert.equal(await mark.getAttribute("title"), "branch of trunk, live from turn 3");
    await row.click();
    await page.waitForSelector(".spoken");
    assert.match(await textOf(page, "header.head"), /branch of trunk, live from turn 3/);
    const marks = await page.locator(".spoken .spoken-head").allInnerTexts();
    const given = marks.map((text) => /given again[^]*nothing sampled/.test(text));
    assert.deepEqual(given, [true, true, false]);
    assert.equal(await page.locator(".turn .mark", { hasText: "given again" }).count(), 2);

    await page.getByRole("link", { name: "beside its source" }).click();
    await page.waitForSelector(".compared mark");
    assert.match(page.url(), /#\/compare\/trunk\/0\/branch\/1$/);
    assert.equal(await textOf(page, "h1"), "Beside its source");
    const numbers = async () => {
      const titles = await page.locator(".compared-title").allInnerTexts();
      return titles.map((title) => /^#\d/.exec(title)?.[0]);
    };
    assert.deepEqual(await numbers(), ["#3", "#3"]);
    await page.getByRole("button", { name: "2 shared turns, given again" }).click();
    assert.deepEqual(await numbers(), ["#1", "#1", "#2", "#2", "#3", "#3"]);
    await page.waitForFunction(() => document.querySelectorAll(".compared.same").length === 2);

    await go(page, "#/compare/branch/0/branch/1");
    await page.getByRole("heading", { name: "Two attempts" }).waitFor();
    await page.waitForSelector(".compared-shared");
    assert.deepEqual(await numbers(), ["#3", "#3"]);
  }));

test("a branch names those beside it, and a turn the call that it was given from", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/e/branch/0");
    await page.getByRole("link", { name: "1 other branch" }).click();
    await page.waitForSelector(".siblings");
    const sibling = await page.locator(".siblings tbody tr").innerText();
    assert.match(sibling, /branch attempt 1\s+completed\s+1\s+compare/);
    await page.locator(".turn").first().click();
    await page.waitForSelector(".call-head .note");
    assert.match(await textOf(page, ".call-head .note"), /given again, and nothing was sampled/);
    await page.locator(".call-head .note a").click();
    await page.waitForFunction(() => location.hash.startsWith("#/e/trunk/0/call/"));
    await page.waitForSelector(".call-head .big");
    assert.equal(await textOf(page, ".call-head .big"), "#1");

    await go(page, "#/e/trunk/0");
    await page.getByRole("link", { name: "attempts go on from it" }).click();
    await page.waitForSelector(".siblings");
    const behind = await page.locator(".siblings tbody tr").allInnerTexts();
    assert.match(behind[0], /branch\s+branch, live from turn 3\s+completed/);
  }));

test("numbers are those of the store", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/stats");
    await page.waitForSelector(".totals");
    const totals = await page.locator(".totals").innerText();
    assert.match(totals, /24\s+episodes/);
    assert.match(totals, /client_gone\s*1/);
    const versions = await page.locator("table.versions tbody tr").allInnerTexts();
    assert.ok(
      versions.some((row) => /^3\s+3\s/.test(row)),
      versions.join("|"),
    );
    for (const title of [
      "Reward by group",
      "Success over version",
      "Staleness",
      "Tokens",
      "Time of a call",
    ]) {
      assert.ok(await page.locator("figcaption", { hasText: title }).count(), title);
    }
    assert.ok((await page.locator(".group-plot circle").count()) === 3);
  }));

test("a store without recordings says so on each page, and draws nothing", async () => {
  const store = path.join(folder, "empty.db");
  const places = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"];
  const words = ["serve", "--upstream", "http://127.0.0.1:9", "--store", store, ...places];
  await (await rolltape(words, "stderr", /^listening on/)).stop();
  const empty = await view(store);
  try {
    await inPage(empty.link, async (page) => {
      for (const place of ["episodes", "groups", "stats", "calls"]) {
        await go(page, `#/${place}`);
        await page.waitForSelector(`a.on[href="#/${place}"]`);
        await page.waitForSelector(".empty");
        const main = await textOf(page, "main");
        assert.doesNotMatch(main, /1970|NaN|undefined|no data/, place);
        assert.equal(await page.locator("main svg").count(), 0, place);
      }
    });
  } finally {
    await empty.stop();
  }
});

test("a search finds what was said, and leads to its turn", () =>
  inPage(recorded.link, async (page) => {
    await page.waitForSelector(".table a.row .id");
    await page.keyboard.press("/");
    await page.getByLabel("a text that was said").fill("HALVES 1 to");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".hit");
    assert.match(await textOf(page, ".hit"), /Which number halves 1 to 7\?/);
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".message");
    assert.match(page.url(), /#\/e\/forks\/0\/call\//);
  }));

test("the keyboard goes from the list to a turn's tokens and back", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/episodes?name=forks");
    await page.waitForSelector(".table a.row .id");
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".spoken .message.sampled");
    await page.keyboard.press("j");
    await page.waitForSelector(".spoken.cursor");
    await page.keyboard.press("Enter");
    await page.waitForFunction(
      () => document.querySelector(".call-head .big")?.textContent === "#1",
    );
    await page.keyboard.press("j");
    await page.waitForFunction(
      () => document.querySelector(".call-head .big")?.textContent === "#2",
    );
    await page.waitForSelector(".call-head");
    await page.keyboard.press("t");
    await page.waitForSelector(".token-row");
    await page.keyboard.press("u");
    await page.waitForSelector(".conversation");
    await page.keyboard.press("?");
    assert.match(await page.locator(".help").innerText(), /one level up/);
    await page.keyboard.press("Escape");
    assert.equal(await page.locator(".help").count(), 0);
    await page.keyboard.press("u");
    await page.waitForSelector(".table");
  }));

test("light and dark follow the system, and the reader's choice", () =>
  inPage(
    played.link,
    async (page) => {
      const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const dark = await paper();
      await page.getByRole("button", { name: /theme/ }).click();
      assert.notEqual(await paper(), dark);
      await page.reload();
      assert.notEqual(await paper(), dark);
      await page.getByRole("button", { name: /theme/ }).click();
      assert.equal(await paper(), dark);
    },
    { colorScheme: "dark" },
  ));

test("a run is judged on request, and a finding leads to its turn", () =>
  inPage(recorded.link, async (page) => {
    await go(page, "#/health");
    // The section is there before the answer to its question is.
    await page
      .locator(".audit", { hasText: "No audit is kept. rolltape audit --with URL|DIR --keep" })
      .waitFor();
    assert.equal(await page.locator(".check-line").count(), 0);

    await page.getByRole("button", { name: "judge" }).click();
    await page.waitForSelector(".check-line");
    assert.equal(await page.locator(".check-line").count(), 30);
    const failed = page.locator(".check-line", { hasText: "ended_on_failure" });
    assert.match(await failed.innerText(), /^finding ended_on_failure 1 of \d+ closed attempts/);
    assert.match(await failed.innerText(), /rolltape sql "SELECT c\.episode_id/);
    const fine = page.locator(".check-line", { hasText: "unreadable_attempts" });
    assert.equal(await fine.getAttribute("open"), null);
    assert.equal(await page.locator(".health .note").count(), 0);
    await failed.getByRole("link", { name: "declined/0, turn 2" }).click();
    await page.waitForSelector(".call-head");
    assert.match(new URL(page.url()).hash, /^#\/e\/declined\/0\/call\//);

    await go(page, "#/health?limit=3");
    await page.waitForFunction(() => document.querySelectorAll(".check-line").length === 0);
    await page.getByRole("button", { name: "judge" }).click();
    await page.waitForSelector(".check-line");
    assert.match(await textOf(page, ".health .note"), /^Of \d+ attempts the newest were read\./);
    assert.equal(await textOf(page, ".count"), "3 attempts");
  }));

test("an audit that is kept is on the page, with its cause and its histogram", async () => {
  const store = path.join(folder, "rolltape.db");
  const model = path.join(ROOT, "engine/models/tiny");
  const of = ["--store", store, "--with", model, "--version", "default", "--sample", "1"];
  await finish(["audit", ...of, "--keep"]);
  const kept = JSON.parse(readFileSync(`${store}-audit`, "utf8"));
  await inPage(recorded.link, async (page) => {
    await go(page, "#/health");
    await page.waitForSelector(".audit .mark");
    assert.match(await textOf(page, ".audit"), /clean\s*\d+ of \d+ sampled tokens in \d+ rows/);
    await page.getByText("gaps", { exact: true }).click();
    const rows = await page.locator(".histogram tbody tr").allInnerTexts();
    assert.equal(rows.length, 7);
    assert.match(rows[0], new RegExp(`^below 0.00001\\s+${kept.histogram[0].tokens}`));
  });

  const cause = {
    cause: "temperature",
    proven: true,
    sentence: HOSTILE,
    tokens: 3,
    mean_gap: 0.3,
    mean_gap_left: 0.0004,
    versions: ["step_1"],
    engines: [],
    attempts: ["forks/0"],
    calls: [],
  };
  const differs = { ...kept, verdict: "differs", causes: [cause] };
  writeFileSync(`${store}-audit`, JSON.stringify(differs));
  await inPage(recorded.link, async (page) => {
    await go(page, "#/health");
    await page.waitForSelector(".cause");
    const said = await textOf(page, ".cause");
    assert.match(said, /^temperature/);
    assert.ok(said.includes("\\u202egnp.exe"), said);
    assert.match(said, /3 tokens, mean gap 0\.300, 0\.000400 with it, versions step_1/);
    assert.equal(await page.locator(".cause img, .cause b").count(), 0);
    await page.getByRole("link", { name: "forks/0" }).click();
    await page.waitForSelector(".spoken");
  });
});
