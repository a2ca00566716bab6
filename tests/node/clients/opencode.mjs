// `opencode run`: chat completions. The package `opencode-ai` only picks the program of the
// machine at hand; it is named here, because npm cannot lock the others where it lacks them.

import { readFileSync } from "node:fs";

import { DONE, NOTES, TASK, calling, installed, lines, work } from "./agent.mjs";
import { DOCUMENT, PICTURE, SHOWN, WORD_FILE } from "./shown.mjs";

export const program = "opencode-linux-x64/bin/opencode";

const write = {
  reasoning: "The user wants a file.",
  text: "I write the file.",
  tool_calls: [{ name: "write", arguments: { filePath: "notes.txt", content: NOTES } }],
};
const cat = { command: "cat notes.txt", description: "Show the file" };
const show = { text: "I look at it.", tool_calls: [{ name: "bash", arguments: cat }] };
const turns = [write, show, { text: DONE }];

const prompt = "How many lines has notes.txt?";
const aside = [{ match: prompt, text: "None yet." }];
const general = { description: "Count", prompt, subagent_type: "general" };
const delegating = [
  { text: "I ask a helper.", tool_calls: [{ name: "task", arguments: general }] },
  write,
  { text: DONE },
];

const look = (text, filePath) => calling(text, "read", { filePath });
const reading = [look("I see.", PICTURE), look("I read.", DOCUMENT), ...turns];

// Its prompt has some 30,000 of the scripted tokens, the listing 10,000. It may hold 36,000.
const WINDOW = 44_000;
const listing = { description: "Write", command: `printf 'one\\ntwo\\n' > notes.txt; seq 6000` };
const compacting = {
  turns: [{ ...write, tool_calls: [{ name: "bash", arguments: listing }] }, ...turns.slice(1)],
  aside: [{ match: "a context summarization agent", text: "One file was written." }],
};

const INPUTS = { input: ["text", "image", "pdf"], output: ["text"] };
const model = (context) => ({
  name: "Tiny",
  attachment: true,
  modalities: INPUTS,
  limit: { context, output: 8192 },
});
const config = (root, context) => ({
  autoupdate: false,
  share: "disabled",
  model: "up/tiny",
  provider: {
    up: {
      npm: "@ai-sdk/openai-compatible",
      name: "Up",
      options: { baseURL: `${root}/v1`, apiKey: "k" },
      models: { tiny: model(context) },
    },
  },
});
const ENV = {
  OPENCODE_DISABLE_AUTOUPDATE: "1",
  OPENCODE_DISABLE_MODELS_FETCH: "1",
  OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
  OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
};
// It would install this package from the registry, unless its folder looks as if it had.
const { version } = JSON.parse(readFileSync(installed("opencode-linux-x64/package.json"), "utf8"));
const PLUGIN = { packages: { "": { dependencies: { "@opencode-ai/plugin": version } } } };
const DOTFILES = {
  ".config/opencode/package-lock.json": JSON.stringify(PLUGIN),
  ".config/opencode/node_modules/.keep": "",
};
const VOLATILE = new Set(["time", "snapshot"]);

async function run(root, context = 100_000) {
  const env = { ...ENV, OPENCODE_CONFIG_CONTENT: JSON.stringify(config(root, context)) };
  const args = ["run", "--format", "json", TASK];
  const { stdout, files } = await work(program, args, env, DOTFILES, SHOWN);
  const text = JSON.stringify(told(lines(stdout)), (key, value) => (VOLATILE.has(key) ? 0 : value));
  return { files, events: JSON.parse(text) };
}

/**
 * The events of each step in the order in which the model said them. It runs a tool while the
 * stream still goes on, and tells of the tool when that is done but of text at the end of the
 * stream: which is first is a matter of milliseconds.
 */
function told(events) {
  const order = ["step_start", "reasoning", "text", "tool_use", "step_finish"];
  const steps = events.map(({ part }) => part?.messageID);
  const rank = ({ type, part }) => [steps.indexOf(part?.messageID), order.indexOf(type)];
  const after = (one, other) => rank(one)[0] - rank(other)[0] || rank(one)[1] - rank(other)[1];
  return events.sort(after);
}

const word = { turns: [look("I look.", WORD_FILE), { text: DONE }] };

// It has each conversation titled.
export const cases = {
  run: { script: { turns }, run, kinds: { auxiliary: 1, main: 3 } },
  subagent: {
    script: { turns: delegating, aside },
    run,
    kinds: { auxiliary: 1, main: 3, subagent: 1 },
    rows: ["auxiliary 1", "main 3", "subagent 1"],
    // What the helper said comes back under the name of its session.
    ignored: ["ids"],
  },
  reading: {
    script: { turns: reading },
    run,
    kinds: { auxiliary: 1, main: 5 },
    rows: ["auxiliary 1", "main 5"],
  },
  compaction: {
    script: compacting,
    run: (root) => run(root, WINDOW),
    kinds: { auxiliary: 1, compaction: 1, main: 4 },
    rows: ["auxiliary 1", "compaction", "main 2", "main 2 after compaction"],
    // The long listing lies in a file that has a new name each time.
    ignored: ["ids"],
  },
  "other-world": { script: word, run, alone: true },
};
