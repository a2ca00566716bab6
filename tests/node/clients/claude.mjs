// `claude -p` of `@anthropic-ai/claude-code`: messages.

import { DONE, NOTES, TASK, calling, lines, work } from "./agent.mjs";
import { DOCUMENT, PICTURE, SEARCH, SHOWN, WORD_FILE } from "./shown.mjs";

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
const helper = { ...explore, run_in_background: false };
const delegating = [calling("I ask a helper.", "Agent", helper), write, { text: DONE }];

// It asks for the tool that it may load, and has a call of its own search.
const reading = {
  turns: [
    calling("I see.", "Read", { file_path: PICTURE }),
    calling("I read.", "Read", { file_path: DOCUMENT }),
    calling("I look for a tool.", "ToolSearch", { query: "select:WebSearch" }),
    calling("I search.", "WebSearch", { query: SEARCH.query }),
    ...turns,
  ],
  aside: [{ match: "Perform a web search", text: "Lines are two.", search: SEARCH }],
};

// Its prompt has some 48,000 of the scripted tokens, the listing 29,000. Between the two is what
// it is told to hold; it then sums up what was said, and goes on from there.
const command = `${write.tool_calls[0].arguments.command}; seq 6000`;
const long = { ...write, tool_calls: [shell(command)] };
const COMPACT = {
  CLAUDE_CODE_AUTO_COMPACT_WINDOW: "100000",
  CLAUDE_AUTOCOMPACT_PCT_OVERRIDE: "80",
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
const TIMED = /_ms$|Ms$|Seconds$|^ttft|^total_cost_usd$|^costUSD$|^end_time$/;
const NAMED = /^(task_|run_|agent_?)[iI]d$|^output_file$|_socket_path$/;
const volatile = (key) => TIMED.test(key) || NAMED.test(key);

async function run(root, more) {
  const args = ["-p", ...ARGS, "--output-format", "stream-json", TASK];
  const env = { ...ENV, ...more, ANTHROPIC_BASE_URL: root };
  const { stdout, files } = await work(program, args, env, {}, SHOWN);
  const text = JSON.stringify(lines(stdout), (key, value) => (volatile(key) ? 0 : value));
  return { files, events: JSON.parse(text) };
}

const word = {
  turns: [calling("I look.", "Read", { file_path: WORD_FILE }), { text: DONE }],
};

export const cases = {
  print: { script: { turns }, run },
  compaction: {
    script: compacting,
    run: (root) => run(root, COMPACT),
    kinds: { compaction: 1, main: 4 },
    rows: ["compaction", "main 2", "main 2 after compaction"],
    // Behind a summary it names the file of the session, which has a new name each time.
    ignored: ["ids"],
  },
  subagent: {
    script: { turns: delegating },
    run,
    kinds: { main: 3, subagent: 3 },
    rows: ["main 3", "subagent 3"],
  },
  reading: {
    script: reading,
    run,
    hosted: true,
    kinds: { auxiliary: 1, main: 7 },
    // A search of tools offers another one, and other tools are another prompt.
    rows: ["auxiliary 1", "main 3", "main 4"],
  },
  "other-world": { script: word, run, alone: true },
};
