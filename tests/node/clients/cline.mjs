// `cline`: chat completions. The package `cline` brings what the program of the machine at hand has
// in it, so that one is named here.

import { DONE, NOTES, TASK, calling, lines, work } from "./agent.mjs";
import { DOCUMENT, PICTURE, SHOWN, WORD_FILE } from "./shown.mjs";

export const program = "@cline/cli-linux-x64/bin/cline";

const shell = (text, ...commands) => calling(text, "run_commands", { commands });
const write = `printf '${NOTES.replaceAll("\n", "\\n")}' > notes.txt`;
const turns = [
  { reasoning: "The user wants a file.", ...shell("I write the file.", write) },
  shell("I look at it.", "cat notes.txt"),
  { text: DONE },
];

const prompt = "How many lines has notes.txt?";
const helper = { systemPrompt: "You count lines.", task: prompt };
const delegating = {
  turns: [calling("I ask a helper.", "spawn_agent", helper), turns[0], { text: DONE }],
  aside: [{ match: prompt, text: "None yet." }],
};

const look = (text, path) => calling(text, "read_files", { files: [{ path }] });
const reading = [look("I see.", PICTURE), look("I read.", DOCUMENT), ...turns];

// Its prompt has some 21,000 of the scripted tokens, each turn with listings 40,000. After the
// second it looks back at more than nine tenths of nine tenths of the window, and keeps the last.
const WINDOW = 100_000;
const listings = ["seq 9000", "seq 9001", "seq 9002", "seq 9003"];
const compacting = {
  turns: [
    shell("I write the file.", write, ...listings),
    shell("I count.", ...listings),
    ...turns.slice(1),
  ],
  aside: [{ match: "Summarize this session", text: "One file was written." }],
};

const ENV = { CLINE_NO_AUTO_UPDATE: "1", DO_NOT_TRACK: "1" };
const ID = "openai-compatible";
const providers = (root) => ({
  version: 1,
  lastUsedProvider: ID,
  modes: {},
  providers: {
    [ID]: {
      settings: {
        provider: ID,
        apiKey: "k",
        model: "tiny",
        baseUrl: `${root}/v1`,
        contextWindow: WINDOW,
      },
      updatedAt: "2026-11-27T00:00:00.000Z",
      tokenSource: "manual",
    },
  },
});

async function run(root) {
  const dotfiles = { ".cline/data/settings/providers.json": JSON.stringify(providers(root)) };
  const { stdout, files } = await work(program, ["--json", TASK], ENV, dotfiles, SHOWN);
  return { files, events: lines(stdout).flatMap(told) };
}

const PIECES = ["content_start", "content_update"];

/** An event without its times; those of pieces of a stream are left out. */
function told({ type, event, text, finishReason, usage }) {
  if (type === "run_result") return [{ type, text, finishReason, usage: counted(usage) }];
  if (type !== "agent_event" || PIECES.includes(event.type)) return [];
  const { durationMs, ...kept } = event;
  return [counted(kept)];
}

/**
 * Numbers without those that are zero: costs and cached tokens are zero once Cline has looked up the
 * model, and are not there before, which is a matter of its own time.
 */
function counted(numbers) {
  return Object.fromEntries(Object.entries(numbers ?? {}).filter(([, value]) => value !== 0));
}

const word = { turns: [look("I look.", WORD_FILE), { text: DONE }] };

export const cases = {
  reading: { script: { turns: reading }, run, rows: ["main 5"] },
  subagent: { script: delegating, run, rows: ["main 3", "subagent 1"] },
  compaction: {
    script: compacting,
    run,
    kinds: { compaction: 1, main: 5 },
    rows: ["compaction", "main 2 after compaction", "main 3"],
  },
  "other-world": { script: word, run, alone: true },
};
