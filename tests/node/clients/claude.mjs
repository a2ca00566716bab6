// `claude -p` of `@anthropic-ai/claude-code`: messages.

import { DONE, NOTES, TASK, lines, work } from "./agent.mjs";

export const program = "claude";

const shell = (command) => ({ name: "Bash", arguments: { command, description: "Work" } });
const write = {
  reasoning: "The user wants a file.",
  text: "I write the file.",
  tool_calls: [shell(`printf '${NOTES.replaceAll("\n", "\\n")}' > notes.txt`)],
};
const read = { name: "Read", arguments: { file_path: "notes.txt" } };
const turns = [write, { text: "I look at it.", tool_calls: [read] }, { text: DONE }];

const prompt = "How many lines has notes.txt?";
// The helper is played the same script. It has no Agent tool, so its first call is refused.
const explore = { description: "Count", prompt, subagent_type: "Explore" };
const delegating = [
  { text: "I ask a helper.", tool_calls: [{ name: "Agent", arguments: explore }] },
  write,
  { text: DONE },
];

// Its prompt has some 75,000 of the scripted tokens, the listing 29,000. Between the two is what
// it is told to hold; it then sums up what was said, and goes on from there.
const command = `${write.tool_calls[0].arguments.command}; seq 6000`;
const long = { ...write, tool_calls: [shell(command)] };
const COMPACT = {
  CLAUDE_CODE_AUTO_COMPACT_WINDOW: "120000",
  CLAUDE_AUTOCOMPACT_PCT_OVERRIDE: "90",
};
const summary = "<summary>One file was written.</summary>";
const compacting = {
  turns: [long, ...turns.slice(1)],
  aside: [{ match: "detailed summary of the conversation", text: summary }],
};

const ENV = {
  ANTHROPIC_API_KEY: "k",
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  DISABLE_AUTOUPDATER: "1",
  DISABLE_TELEMETRY: "1",
  DISABLE_ERROR_REPORTING: "1",
  // The model of its small helpers.
  ANTHROPIC_DEFAULT_HAIKU_MODEL: "tiny",
  // It refuses to work as root without a question, unless it is told that it is boxed in.
  IS_SANDBOX: "1",
};
const ARGS = ["--model", "tiny", "--permission-mode", "bypassPermissions", "--verbose"];
const VOLATILE = /_ms$|Ms$|^ttft|^total_cost_usd$|^costUSD$|^end_time$|^(task_|agent)[iI]d$/;

async function run(root, more) {
  const args = ["-p", ...ARGS, "--output-format", "stream-json", TASK];
  const env = { ...ENV, ...more, ANTHROPIC_BASE_URL: root };
  const { stdout, files } = await work(program, args, env);
  const text = JSON.stringify(lines(stdout), (key, value) => (VOLATILE.test(key) ? 0 : value));
  return { files, events: JSON.parse(text) };
}

export const cases = {
  print: { script: { turns }, run },
  compaction: {
    script: compacting,
    run: (root) => run(root, COMPACT),
    kinds: { compaction: 1, main: 4 },
  },
  subagent: { script: { turns: delegating }, run, kinds: { main: 3, subagent: 3 } },
};
