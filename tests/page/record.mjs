// Records what a game does not show: sub-agents, a fork, tries, several choices, an agent that
// leaves, versions, and text that would like to be HTML. All of it goes through a real server.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import http from "node:http";
import path from "node:path";
import { ROOT, rolltape } from "./kit.mjs";

const MODEL = path.join(ROOT, "engine/models/tiny");
/** Text that must be shown as text, with its hidden characters in sight. */
export const HOSTILE =
  '</script><!--<script>document.title=1</script><img src=x onerror="document.title=1"><b>bold</b>' +
  " \u202egnp.exe \u0007\u200b";
/** A prompt of the system that is longer than a line. */
export const SYSTEM = `You are a careful engineer.
Never commit without running the tests.
${"Say what you did, and why. ".repeat(12)}
The last rule.`;
/** Markdown of a model that would like to be more than text. */
export const MARKDOWN = `## Summary

I **kept** the \`rest\`:

1. one
2. two

\`\`\`python
x = "<b>"
\`\`\`

| a | b |
|---|---|
| 1 | 2 |

[docs](https://example.com/a), [no](javascript:alert(1)), ![pixel](https://example.com/p.png)
<img src=x onerror="document.title=1">`;
export const LISTING = "total 24\n-rw-r--r-- 1 root root 220 reader.py\n";
const GUESS = {
  type: "function",
  function: {
    name: "guess",
    parameters: { type: "object", properties: { n: { type: "integer" } }, required: ["n"] },
  },
};
const AGENT = { "user-agent": "claude-cli/2.1", "x-claude-code-session-id": "session-1" };

/** A server that records into a store, and what a client and a trainer send to it. */
export class Server {
  static async start(store) {
    const args = [
      "serve",
      "--model",
      MODEL,
      "--store",
      store,
      "--listen",
      "127.0.0.1:0",
      "--control",
      "127.0.0.1:0",
    ];
    const running = await rolltape(args, "stderr", /^listening on (\S+), control on (\S+),/);
    return new Server(running, readFileSync(`${store}-token`, "utf8").trim());
  }

  constructor(running, token) {
    [, this.data, this.control] = running.match;
    this.token = token;
    this.stop = running.stop;
  }

  /** Sends a call of an episode, and returns its first answer. */
  async ask(episode, messages, { headers = {}, ...more } = {}) {
    const body = {
      model: "tiny",
      messages,
      tools: [GUESS],
      temperature: 1,
      max_tokens: 24,
      seed: messages.length,
      ...more,
    };
    const response = await fetch(`${this.data}/e/${episode}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
    return (await response.json()).choices[0].message;
  }

  /** Sends a call on the Messages wire whose history has a block that chat has no form for. */
  async askSealed(episode) {
    const sealed = [
      { type: "redacted_thinking", data: "sealed" },
      { type: "text", text: "I guess 5." },
    ];
    const messages = [
      { role: "user", content: "Guess." },
      { role: "assistant", content: sealed },
      { role: "user", content: "Too low." },
    ];
    const response = await fetch(`${this.data}/e/${episode}/v1/messages`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "tiny", max_tokens: 24, messages }),
    });
    if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  }

  /**
   * Sends a call with a long answer, and leaves when the first bytes are there. The socket is reset
   * at once: the tiny model answers in a blink.
   */
  async leave(episode, messages, headers) {
    const more = { max_tokens: 700, stream: true, ignore_eos: true };
    const costly = { logprobs: true, top_logprobs: 20 };
    const request = http.request(`${this.data}/e/${episode}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
    });
    request.on("error", () => {});
    request.end(JSON.stringify({ model: "tiny", messages, tools: [GUESS], ...more, ...costly }));
    const [response] = await once(request, "response");
    response.on("error", () => {});
    await once(response, "data");
    request.socket.resetAndDestroy();
  }

  async read(route) {
    const headers = { authorization: `Bearer ${this.token}` };
    const response = await fetch(`${this.control}/${route}`, { headers });
    if (!response.ok) throw new Error(`${route}: ${response.status}: ${await response.text()}`);
    return response.json();
  }

  async tell(route, body) {
    const response = await fetch(`${this.control}/${route}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${this.token}` },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${route}: ${response.status}: ${await response.text()}`);
  }
}

/** Returns the messages that follow an answer: its own, and what its tools gave. */
function after(answer, said) {
  const results = (answer.tool_calls ?? []).map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: said,
  }));
  return [answer, ...(results.length > 0 ? results : [{ role: "user", content: said }])];
}

/** One agent with sub-agents, whose history forks because a clock in it moves. */
async function playForks(server) {
  const system = (time) => ({
    role: "system",
    content: `Find the number. The time is 2026-11-24 10:0${time}.`,
  });
  let messages = [system(4), { role: "user", content: "It is from 1 to 7." }];
  for (const said of ["higher", "lower"]) {
    messages = [
      ...messages,
      ...after(await server.ask("forks", messages, { headers: AGENT }), said),
    ];
  }
  const helper = {
    headers: {
      ...AGENT,
      "x-claude-code-agent-id": "halves",
      "x-claude-code-parent-agent-id": "main",
    },
  };
  const task = [{ role: "user", content: "Which number halves 1 to 7?" }];
  await server.ask(
    "forks",
    [...task, ...after(await server.ask("forks", task, helper), "so which one?")],
    helper,
  );

  messages = [
    ...messages,
    ...after(await server.ask("forks", messages, { headers: AGENT }), "higher"),
  ];
  const moved = [system(5), ...messages.slice(1)];
  const answer = await server.ask("forks", moved, { headers: AGENT });
  const next = [...moved, ...after(answer, "lower")];
  await server.leave("forks", next, AGENT);
  const last = await server.ask("forks", next, {
    headers: { ...AGENT, "x-stainless-retry-count": "1" },
  });
  await server.ask("forks", [...next, ...after(last, "once more")], { headers: AGENT, n: 2 });
  await fetch(`${server.data}/e/forks/v1/models`);
  await server.tell("episodes/forks/rewards", { value: 0, source: "judge" });
  await server.tell("episodes/forks/rewards", { value: 0.5, source: "tests" });
  await server.tell("episodes/forks/close", { status: "completed" });
}

/** An answer, then a call that the server declines: the episode failed. */
async function playFailed(server) {
  const messages = [{ role: "user", content: "Guess a number\nfrom 1 to 7." }];
  const answer = await server.ask("declined", messages);
  const next = [...messages, ...after(answer, "higher")];
  const declined = server.ask("declined", next, { temperature: -1 });
  await declined.then(
    () => Promise.reject(new Error("it was not declined")),
    (error) => error.message.startsWith("400") || Promise.reject(error),
  );
  await server.tell("episodes/declined/close", { status: "failed" });
}

/** A history in which a tool wrote a file: its argument has several lines. */
async function playFiles(server) {
  const given = JSON.stringify({ path: "a.py", content: "def f():\n    return '<b>'\n", n: "7" });
  const call = { id: "call-1", type: "function", function: { name: "write", arguments: given } };
  await server.ask("files", [
    { role: "user", content: "Write a file." },
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "call-1", content: "written" },
  ]);
}

/** A session of a coding agent: a long prompt of the system, reminders, a tool, Markdown. */
async function playCoding(server) {
  const reminder = "<system-reminder>\nAlways run the tests.\n</system-reminder>\n";
  const given = JSON.stringify({ description: "List", command: "ls -la" });
  const call = { id: "call-1", type: "function", function: { name: "bash", arguments: given } };
  const messages = [
    { role: "system", content: SYSTEM },
    { role: "user", content: `${reminder}Mend the reader.` },
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "call-1", content: LISTING },
    { role: "assistant", content: MARKDOWN },
    { role: "user", content: "Thank you." },
  ];
  await server.ask("coding", messages);
}

/** Two attempts at one task: another word in their prompts, and a turn that only one has. */
async function playPair(server) {
  const asides = { left: [], right: ["Stop for a moment, and tell me which numbers are left."] };
  for (const [episode, aside] of Object.entries(asides)) {
    let messages = [
      { role: "system", content: `Find the number. Attempt ${episode}.` },
      { role: "user", content: "It is from 1 to 7." },
    ];
    for (const said of [...aside, "Now guess again, please: higher than the one before!"]) {
      const answer = await server.ask(episode, messages, { seed: 1 });
      messages = [...messages, answer, { role: "user", content: said }];
    }
    await server.ask(episode, messages, { seed: 1 });
  }
}

/** A recording of three turns, and two branches that go on from its second one. */
async function playBranches(server) {
  const first = { role: "user", content: "Find the number from 1 to 7." };
  const play = async (name, last) => {
    let messages = [first];
    for (const said of ["Too low: guess again.", last]) {
      const answer = await server.ask(name, messages, { seed: 1 });
      messages = [...messages, answer, { role: "user", content: said }];
    }
    await server.ask(name, messages, { seed: 1 });
  };
  await play("trunk", "Too high: guess again.");
  for (const attempt of [0, 1]) {
    const replay = { episode_id: "trunk", until: 2 };
    await server.tell("episodes", { episode_id: "branch", attempt, replay });
    await play(`branch/a/${attempt}`, `Branch ${attempt}: which numbers are left?`);
    await server.tell(`episodes/branch/rewards?attempt=${attempt}`, { value: attempt });
    await server.tell(`episodes/branch/close?attempt=${attempt}`, { status: "completed" });
  }
}

/** Plays a guessing game of three turns, and rewards it. */
async function playGame(server, group, number) {
  const episode = `game-${group}-e${number}`;
  const headers = {
    "x-group-id": `game-${group}`,
    "x-task-id": "guess",
    "x-episode-tag": "split=train",
  };
  const secret = ((group * 3) % 7) + 1;
  let messages = [
    { role: "user", content: "Find the secret number from 1 to 7. You have 3 guesses." },
  ];
  let reward = 0;
  for (let turn = 0; turn < 3 && reward < 1; turn++) {
    const seed = group * 1000 + number * 10 + turn;
    const answer = await server.ask(episode, messages, { headers, seed });
    const said = answer.tool_calls?.[0]?.function.arguments ?? answer.content ?? "";
    const guessed = Number(/\d/.exec(said)?.[0] ?? 0);
    if (guessed === secret) reward = 1;
    messages = [...messages, ...after(answer, guessed < secret ? "higher" : "lower")];
  }
  await server.tell(`episodes/${episode}/rewards`, { value: reward, source: "game" });
  await server.tell(`episodes/${episode}/close`, { status: reward ? "completed" : "truncated" });
  if (number === 0) await annotate(server, episode);
}

/** Says of the first call what a trainer would say. */
async function annotate(server, episode) {
  const { turns } = await server.read(`episodes/${episode}/tree`);
  const tokens = await server.read(`calls/${turns[0].call_id}/tokens`);
  const streams = { trainer_logprobs: tokens.ids.map((_, at) => -at / 8) };
  const said = { trajectory_id: `${episode}/0/0`, token_ids: tokens.ids, streams };
  const annotations = [
    { ...said, version: 3 },
    { ...said, version: 4, streams: { entropies: tokens.ids.map(() => 0.25) } },
  ];
  await server.tell("annotations", { annotations });
}

/** Times that a recording is begun: the agent that leaves may be slower than the tiny model. */
const TRIES = 8;
/** What lies beside a store, by the end of its name. */
const PARTS = ["", "-wal", "-shm", "-writer", "-token", "-keys"];

/** Records into a store, and returns when all of it is on disk. */
export async function record(store, sizes = {}) {
  for (let tried = 0; tried < TRIES; tried++) {
    if (await recordOnce(store, sizes)) return;
    for (const part of PARTS) await rm(store + part, { force: true });
  }
  throw new Error("the agent that leaves was too slow each time");
}

/** Records, unless the agent that leaves was too slow. */
async function recordOnce(store, { groups = 3, size = 4 }) {
  const server = await Server.start(store);
  try {
    await playForks(server);
    const { turns } = await server.read("episodes/forks/tree");
    if (!turns.some((turn) => turn.outcome === "client_gone")) return false;

    await playFailed(server);
    await playFiles(server);
    await playCoding(server);
    await playPair(server);
    await playBranches(server);
    await server.ask("hostile", [{ role: "user", content: HOSTILE }]);
    await server.askSealed("sealed");
    const long = { max_tokens: 240, ignore_eos: true };
    await server.ask("long", [{ role: "user", content: "Guess on and on." }], long);
    for (let group = 0; group < groups; group++) {
      await server.tell("update_weights", { weight_dir: MODEL, weight_version: String(group + 1) });
      const games = Array.from({ length: size }, (_, number) => playGame(server, group, number));
      await Promise.all(games);
    }
    return true;
  } finally {
    await server.stop();
  }
}
