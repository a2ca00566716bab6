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

async function run(root) {
  const args = ["-p", ...ARGS, "--output-format", "stream-json", TASK];
  const { stdout, files } = await work(program, args, { ...ENV, ANTHROPIC_BASE_URL: root });
  const text = JSON.stringify(lines(stdout), (key, value) => (VOLATILE.test(key) ? 0 : value));
  return { files, events: JSON.parse(text) };
}

export const cases = {
  print: { script: { turns }, run },
  subagent: { script: { turns: delegating }, run, kinds: { main: 3, subagent: 3 } },
};
