// `codex exec` of `@openai/codex`: responses.

import { DONE, NOTES, TASK, calling, lines, work } from "./agent.mjs";
import { PICTURE, SEARCH, SHOWN, WORD_FILE } from "./shown.mjs";

export const program = "codex";

const shell = (cmd) => ({ name: "exec_command", arguments: { cmd } });
const turns = [
  {
    reasoning: "The user wants a file.",
    text: "I write the file.",
    tool_calls: [shell(`printf '${NOTES.replaceAll("\n", "\\n")}' > notes.txt`)],
  },
  { text: "I look at it.", tool_calls: [shell("cat notes.txt")] },
  { text: DONE },
];

// The helper is played the same script, but that it is known by its task and only answers.
const prompt = "How many lines has notes.txt?";
const agents = (name, args) => ({ name: `multi_agent_v1__${name}`, arguments: args });
const delegating = {
  turns: [
    { text: "I ask a helper.", tool_calls: [agents("spawn_agent", { message: prompt })] },
    { text: "I wait.", tool_calls: [agents("wait_agent", { targets: ["$agent_id"] })] },
    turns[0],
    { text: DONE },
  ],
  aside: [{ match: prompt, text: "None yet." }],
};

// OPENAI_BASE_URL is not read; the base is named as an option. What is switched off would call
// its maker, or would differ between two runs.
const OPTIONS = [
  "check_for_update_on_startup=false",
  "analytics.enabled=false",
  'history.persistence="none"',
  "features.shell_snapshot=false",
];

/** The provider that is built in. It tries a WebSocket first. */
const builtIn = (root) => [`openai_base_url="${root}/v1"`];

/** A provider of the user's own, as in most instructions for other backends. */
const own = (root, name = "Up") => [
  'model_provider="up"',
  `model_providers.up.name="${name}"`,
  `model_providers.up.base_url="${root}/v1"`,
  'model_providers.up.wire_api="responses"',
  'model_providers.up.env_key="UP_KEY"',
];

/** The longest context before a summary takes its place, in tokens: shorter than its prompt. */
const COMPACT = ["model_auto_compact_token_limit=12000"];
const aside = [
  { match: "CONTEXT CHECKPOINT COMPACTION", text: "One file was written." },
  { match: "Another language model started to solve this problem", text: DONE },
];

/** By that name a provider is taken for one that folds histories, as the built-in one is. */
const folding = (root) => own(root, "OpenAI");
const SEALED = "gAAAAABsealed";
const folded = [
  { match: "compaction_trigger", text: SEALED },
  { match: SEALED, text: DONE },
];

const reading = {
  turns: [
    calling("I see.", "view_image", { path: PICTURE }),
    { ...turns[0], search: SEARCH },
    ...turns.slice(1),
  ],
};

async function run(provider, more = []) {
  const options = [...OPTIONS, ...provider].flatMap((option) => ["-c", option]);
  const free = "--dangerously-bypass-approvals-and-sandbox";
  const args = ["exec", "--json", "-m", "tiny", free, ...options, ...more, TASK];
  const env = { OPENAI_API_KEY: "k", UP_KEY: "k" };
  const { stdout, files } = await work(program, args, env, {}, SHOWN);
  const events = lines(stdout).filter((event) => !incidental(event));
  // The ids of items count the notes as well.
  for (const { item } of events) delete item?.id;
  return { files, events };
}

/** Its notes on how it gets to the server: a WebSocket ends differently on either road. */
const incidental = ({ type, message, item }) =>
  (type === "error" && message.startsWith("Reconnecting...")) ||
  (type === "item.completed" && item.message?.startsWith("Falling back from WebSockets"));

/** The prompt tells of the helper by a name that is drawn at random, so its length differs. */
function uncounted(result) {
  for (const { usage } of result.events) delete usage?.input_tokens;
  return result;
}

/** What its shell says of a command: a name of what was printed, and the time that it took. */
const ignored = ["clocks", "ids"];

/** It tries again whatever was said, for a quarter of a minute. */
const AT_ONCE = ["model_providers.up.stream_max_retries=0"];
const cat = { text: "I look.", tool_calls: [shell(`cat ${WORD_FILE}`)] };
const word = { turns: [cat, { text: DONE }] };

export const cases = {
  // It asks for thoughts in a form that it can send back.
  "built-in": { script: { turns }, run: (root) => run(builtIn(root)), thinks: true, ignored },
  "own-provider": { script: { turns }, run: (root) => run(own(root)), thinks: true, ignored },
  subagent: {
    script: delegating,
    run: async (root) => uncounted(await run(own(root))),
    kinds: { main: 4, subagent: 1 },
    rows: ["main 4", "subagent 1"],
    ignored,
    // It draws a name for the helper, and the model was to wait for the helper of the recording.
    stopped: /the tool result .*\n.*recorded: .*nickname.*\n.*sent: .*nickname/,
  },
  compaction: {
    script: { turns, aside },
    run: (root) => run([...own(root), ...COMPACT]),
    kinds: { compaction: 1, main: 2 },
    rows: ["compaction", "main 1", "main 1 after compaction"],
    ignored,
  },
  // The server seals the summary.
  folding: {
    script: { turns, aside: folded },
    run: (root) => run([...folding(root), ...COMPACT]),
    hosted: true,
    kinds: { compaction: 1, main: 2 },
    rows: ["compaction", "main 1", "main 1 after compaction"],
    ignored,
  },
  reading: {
    script: reading,
    run: (root) => run(own(root), ["--image", PICTURE, "--"]),
    hosted: true,
    rows: ["main 4"],
    ignored,
  },
  "other-world": {
    script: word,
    run: (root) => run([...own(root), ...AT_ONCE]),
    alone: true,
    ignored,
  },
};
