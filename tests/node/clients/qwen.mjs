// `qwen` of `@qwen-code/qwen-code`: chat completions.

import { DONE, NOTES, TASK, calling, lines, work } from "./agent.mjs";
import { DOCUMENT, LIST, PICTURE, SHOWN, WORD_FILE } from "./shown.mjs";

export const program = "qwen";

// It takes no path that is relative.
const at = (file) => `/proc/self/cwd/${file}`;
const look = (text, file) => calling(text, "read_file", { file_path: at(file) });
const written = { file_path: at("notes.txt"), content: NOTES };
const turns = [
  { reasoning: "The user wants a file.", ...calling("I write it.", "write_file", written) },
  look("I look at it.", "notes.txt"),
  { text: DONE },
];

const prompt = "How many lines has notes.txt?";
const helper = { prompt, description: "Count", subagent_type: "general-purpose" };
const delegating = {
  turns: [
    calling("I ask a helper.", "agent", { ...helper, run_in_background: false }),
    turns[0],
    { text: DONE },
  ],
  aside: [{ match: prompt, text: "None yet." }],
};

const reading = [look("I see.", PICTURE), look("I read.", DOCUMENT), ...turns];

// Its prompt has some 77,000 of the scripted tokens, the list 21,000. It may hold 90,000.
const WINDOW = 200_000;
const COMPACT = { context: { autoCompactThreshold: 0.45 } };
const summary = "<state_snapshot>One file was written.</state_snapshot>";
const compacting = {
  turns: [turns[0], look("I look around.", LIST), ...turns.slice(1)],
  aside: [{ match: "the component that summarizes", text: `<analysis>It.</analysis>${summary}` }],
};

const settings = (more) => ({
  model: {
    name: "tiny",
    generationConfig: { contextWindowSize: WINDOW, modalities: { image: true, pdf: true } },
  },
  privacy: { usageStatisticsEnabled: false },
  general: { enableAutoUpdate: false },
  ...more,
});

async function run(root, more = {}) {
  const server = ["--openai-base-url", `${root}/v1`, "--openai-api-key", "k"];
  const args = ["--auth-type", "openai", ...server, "--model", "tiny", "--yolo"];
  args.push("--output-format", "stream-json", TASK);
  const dotfiles = { ".qwen/settings.json": JSON.stringify(settings(more)) };
  const { stdout, files } = await work(program, args, {}, dotfiles, SHOWN);
  const zeroed = (key, value) => (/_ms$/.test(key) ? 0 : value);
  return { files, events: JSON.parse(JSON.stringify(lines(stdout), zeroed)) };
}

const word = { turns: [look("I look.", WORD_FILE), { text: DONE }] };

export const cases = {
  reading: { script: { turns: reading }, run, rows: ["main 5"] },
  subagent: { script: delegating, run, rows: ["main 3", "subagent 1"] },
  compaction: {
    script: compacting,
    run: (root) => run(root, COMPACT),
    kinds: { compaction: 1, main: 5 },
    // It leaves its reminders out of the first prompt after a summary: the next one begins anew.
    rows: ["compaction", "main 1 after compaction", "main 1 after compaction", "main 3"],
  },
  "other-world": { script: word, run, alone: true },
};
