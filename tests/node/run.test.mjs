// Real agents behind `rolltape run -- AGENT ...`, which knows each by its command: nothing else
// names a server, and what the agent says is on record.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { DONE, installed } from "./clients/agent.mjs";
import { program as cline } from "./clients/cline.mjs";
import { program as opencode } from "./clients/opencode.mjs";
import { recorded, runs, scripted } from "./harness.mjs";

const LIMIT_MS = 120_000;
const TASK = "Say that you are done.";
/** What switches off calls to their makers, which no network would answer. */
const QUIET = {
  IS_SANDBOX: "1",
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  CLINE_NO_AUTO_UPDATE: "1",
  DISABLE_AUTOUPDATER: "1",
  DO_NOT_TRACK: "1",
  OPENCODE_DISABLE_AUTOUPDATE: "1",
  OPENCODE_DISABLE_MODELS_FETCH: "1",
  OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
};
/** The model is named where an agent would take one of its maker's; the server lists only one. */
const COMMANDS = {
  claude: ["claude", "-p", "--model", "scripted", TASK],
  cline: [cline, TASK],
  codex: ["codex", "exec", "--skip-git-repo-check", "-m", "scripted", TASK],
  opencode: [opencode, "run", TASK],
  qwen: ["qwen", "--model", "scripted", TASK],
};

for (const [name, [program, ...args]] of Object.entries(COMMANDS)) {
  const skip = !existsSync(installed(program)) && "npm has not installed it";
  test(`${name} by its name`, { timeout: LIMIT_MS, skip }, async () => {
    const folder = await mkdtemp(path.join(tmpdir(), "rolltape-node-"));
    const upstream = await scripted({ turns: [{ text: DONE }, { text: DONE }] }, folder);
    try {
      const store = path.join(folder, "recorded.db");
      const command = [installed(program), ...args];
      const { stdout } = await runs(upstream.url, store, command, { ...QUIET, HOME: folder });
      assert.ok(stdout.includes(DONE), stdout);

      const { calls, ids } = await recorded(store);
      assert.ok(calls.length > 0 && ids.length > 0, "its calls are on record, with ids");
      const asked = (await upstream.seen()).filter((request) => request.generates);
      assert.equal(calls.length, asked.length, "all of them");
      assert.equal(new Set(calls.map((call) => call.episode_id)).size, 1);
    } finally {
      await upstream.process.stop();
      await rm(folder, { recursive: true, force: true });
    }
  });
}
