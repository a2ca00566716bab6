// Real Node clients that talk to the engine itself, on each wire that they use. Its model is tiny
// and says what it likes; what is looked at is whether they can read it.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { drive, engine } from "./harness.mjs";

const LIMIT_MS = 120_000;
/** Those with tools need a model that knows when to stop calling. */
const CASES = {
  openai: ["chat", "chat-stream", "chat-stream-usage", "responses", "responses-stream"],
  anthropic: ["create", "stream", "counted"],
};

test("clients read what the engine says", { timeout: LIMIT_MS }, async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), "rolltape-node-"));
  const { url, process } = await engine(folder);
  try {
    for (const [client, names] of Object.entries(CASES)) {
      for (const name of names) {
        await t.test(`${client} ${name}`, async () => {
          const seen = await drive(client, name, url, path.join(folder, "client"));
          assert.ok(JSON.stringify(seen).length > 50, JSON.stringify(seen));
        });
      }
    }
  } catch (error) {
    t.diagnostic(await process.said());
    throw error;
  } finally {
    await process.stop();
    await rm(folder, { recursive: true, force: true });
  }
});
