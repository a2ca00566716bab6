// Episodes, trees and tokens in the forms of docs/reading.md, made from their numbers.

import { HEARD, piece, random, SAID } from "./words.mjs";

export const NOW = Math.floor(Date.now() / 1000);
const STATES = [
  "completed",
  "completed",
  "completed",
  "completed",
  "truncated",
  "failed",
  "aborted",
];
const MODEL = "qwen3-30b-a3b";
/** Lengths of the long turn. */
export const LONG = { prompt: 379_120, fresh: 220, sampled: 20_880 };

/** Returns the entry of the list for an episode by its number, 0 the newest. */
export function episode(index) {
  const next = random(index + 7);
  const group = Math.floor(index / 8);
  const solved = next() < 0.25 + 0.5 * (1 - group / 3200) * random(group)();
  const state = index < 3 ? "open" : STATES[Math.floor(next() * STATES.length)];
  const calls = 3 + Math.floor(next() * 22);
  const opened = NOW - index * 31 - next() * 20;
  const sampled = calls * Math.floor(60 + next() * 700);
  const isSpecial = index === 1 || index === 5;
  return {
    episode_id:
      index === 1
        ? "long-context-0"
        : `swe-${String(Math.floor(group / 40)).padStart(4, "0")}-g${group}-e${index % 8}`,
    attempt: index % 61 === 60 ? 1 : 0,
    group_id: `step-${3125 - group}`,
    task_id: `repo-${group % 120}`,
    labels: index % 9 === 0 ? { split: "eval" } : { split: "train" },
    source: "path",
    state,
    opened_at: opened,
    closed_at: state === "open" ? null : opened + calls * 4.1,
    last_call_at: opened + calls * 4,
    model: MODEL,
    calls,
    generations: calls,
    with_ids: isSpecial ? calls - 1 : calls,
    incomplete: isSpecial ? 1 : 0,
    refused: 0,
    prompt_tokens: sampled * 14,
    completion_tokens: sampled,
    reward:
      state === "open"
        ? null
        : state === "completed"
          ? solved
            ? 1
            : 0
          : state === "truncated"
            ? 0.2
            : next() < 0.5
              ? 0
              : null,
    may_lack_calls: index === 12,
    first_prompt: HEARD[index % HEARD.length].replace(/^\w+: /, ""),
    last_answer: SAID[index % SAID.length],
    ...(state === "failed" && { last_error: "503: the engine has no room for the prompt" }),
  };
}

export const callId = (index, number) =>
  `01993a${index.toString(16).padStart(6, "0")}-7b2e-${String(number).padStart(4, "0")}`;
export const numbersOf = (id) => [parseInt(id.slice(6, 12), 16), Number(id.split("-")[2])];

// What a rich episode consists of: [kind, parent, agent, more].
const SCRIPT = [
  ["main", 0],
  ["main", 1],
  ["subagent", 0, "explore", { parent_agent: "main" }],
  ["main", 2],
  ["subagent", 3, "explore", { parent_agent: "main" }],
  ["subagent", 0, "review", { parent_agent: "main" }],
  ["subagent", 5, "explore", { parent_agent: "main", finish_reason: "length" }],
  ["main", 4],
  ["subagent", 6, "review", { parent_agent: "main" }],
  ["fork", 4, null, { fork: true }],
  ["fork", 10],
  [
    "retry",
    10,
    null,
    {
      retry: 1,
      outcome: "client_gone",
      error: "the client closed the connection after 212 tokens",
      reasons: ["client_gone"],
    },
  ],
  ["fork", 11, null, { retry: 2 }],
  ["auxiliary", 0, "title"],
  ["compaction", 13],
  ["main", 0, null, { kind_reason: "summary" }],
  ["main", 16, null, { choices: 2 }],
  ["main", 17],
  ["main", 18, null, { fidelity: "mapped", reasons: ["mapped"] }],
  ["main", 19, null, { finish_reason: "stop" }],
];

function turn(index, number, choice, [kind, parent, agent = null, more = {}]) {
  const next = random(index * 1000 + number * 10 + choice);
  const said = SAID[(number + index) % SAID.length];
  const isLong = index === 1 && number === 6;
  const fresh = isLong ? LONG.fresh : 40 + Math.floor(next() * 300);
  const sampled = isLong ? LONG.sampled : 30 + Math.floor(next() * 260);
  const version = 40 + Math.floor(number / 9);
  const { choices, fork, ...fields } = more;
  return {
    number,
    call_id: callId(index, number),
    choice,
    parent: parent ? { call_id: callId(index, parent), choice: 0 } : null,
    kind,
    kind_reason: kind === "main" ? "first" : `the agent says ${kind}`,
    agent,
    parent_agent: null,
    client: "claude-code",
    route: "messages",
    model: MODEL,
    started_at: episode(index).opened_at + number * 4,
    first_byte_ms: 80 + next() * 200,
    duration_ms: 900 + next() * 6000,
    status: 200,
    outcome: "complete",
    error: null,
    finish_reason: "tool_calls",
    retry: 0,
    prompt_tokens: isLong ? LONG.prompt : parent === 0 ? fresh : fresh + number * 420,
    new_prompt_tokens: isLong ? LONG.fresh : fresh,
    sampled_tokens: sampled,
    trained_tokens: fields.outcome === "client_gone" ? 0 : sampled,
    mean_logprob: -0.05 - next() * 0.5,
    fidelity: "exact",
    versions:
      number === 9
        ? [
            { version: "40", number: 40, checksum: "9f2c", start: 0, end: 20 },
            { version: "41", number: 41, checksum: "a07d", start: 20, end: sampled },
          ]
        : [
            {
              version: String(version),
              number: version,
              checksum: "9f2c77aa",
              start: 0,
              end: sampled,
            },
          ],
    stamps: [null, null],
    messages: parent === 0 ? 2 : 2 + number * 2,
    new_from: parent === 0 ? 0 : number * 2 + 1,
    heard: HEARD[(number + index) % HEARD.length],
    said: choice ? "Perhaps the chunk size matters. I will try it with one of 3 bytes." : said,
    reasons: [],
    ...fields,
  };
}

const plain = (index, count) => Array.from({ length: count }, (_, at) => ["main", at]);

/** Returns the scripted turns of an episode, with their numbers. */
function script(index) {
  return index % 8 === 0 || index < 8 ? SCRIPT : plain(index, episode(index).calls);
}

function fork(index) {
  return {
    call_id: callId(index, 10),
    trajectory_id: `${episode(index).episode_id}/0/1`,
    parent_call_id: callId(index, 8),
    parent_trajectory_id: `${episode(index).episode_id}/0/0`,
    kind: "fork",
    position: 1204,
    in_sampled: false,
    prefill_tokens: 3841,
    lost_tokens: 812,
    lost_sampled_tokens: 377,
    cause: "nonce_or_date",
    also: ["tools_changed"],
    advice:
      "fix the date for the episode, or put what changes into the newest message; for Claude Code set CLAUDE_CODE_ATTRIBUTION_HEADER=0",
    text_before: "You are a careful engineer.\nWorking directory: /repo\nToday is ",
    text_known: "Monday, 24 November 2026, 10:04.\nNever commit without running the tests.",
    text_sent: "Monday, 24 November 2026, 10:05.\nNever commit without running the tests.",
    text_source: "tokenizer",
    ids_known: [20, 25, 15, 19, 13, 198, 26155],
    ids_sent: [20, 25, 15, 20, 13, 198, 26155],
  };
}

/** Returns the tree of an episode by its number. */
export function tree(index) {
  const listed = episode(index);
  const rows = script(index);
  const turns = rows.flatMap((row, at) =>
    Array.from({ length: row[3]?.choices ?? 1 }, (_, choice) => turn(index, at + 1, choice, row)),
  );
  const isRich = rows === SCRIPT;
  const failed = {
    number: rows.length + 1,
    call_id: callId(index, rows.length + 1),
    method: "POST",
    path: "/v1/messages",
    route: "messages",
    model: MODEL,
    client: "claude-code",
    agent: null,
    started_at: listed.opened_at + 90,
    first_byte_ms: null,
    duration_ms: 30_012,
    status: 502,
    outcome: "upstream_failed",
    error: "the upstream closed the connection before its first byte",
  };
  const models = {
    ...failed,
    number: 0,
    call_id: callId(index, 0),
    method: "GET",
    path: "/v1/models",
    route: "models",
    status: 200,
    outcome: "complete",
    error: null,
    duration_ms: 2.1,
  };
  const sum = (field) => turns.reduce((total, each) => total + each[field], 0);
  return {
    episode: listed,
    attempts: listed.attempt ? [0, 1] : [0],
    verdict: isRich ? "usable" : "exact",
    reasons: isRich
      ? [
          { reason: "client_gone", calls: [callId(index, 12)] },
          { reason: "mapped", calls: [callId(index, 19)] },
        ]
      : [],
    trajectories: isRich ? 7 : 1,
    sampled_tokens: sum("sampled_tokens"),
    trainable_tokens: sum("trained_tokens"),
    turns,
    others: isRich ? [models, failed] : [],
    forks: isRich ? [fork(index)] : [],
    rewards:
      listed.reward === null
        ? []
        : [
            {
              name: "reward",
              value: 0,
              source: "judge",
              scope: "episode",
              call_id: null,
              choice: null,
              start: null,
              end: null,
              given_at: listed.closed_at,
              given_by: "command",
              given_from: "file",
              key_name: null,
              over_calls: 1,
              over_chain: "00".repeat(16),
            },
            {
              name: "reward",
              value: listed.reward,
              source: "tests",
              scope: "episode",
              call_id: null,
              choice: null,
              start: null,
              end: null,
              given_at: listed.closed_at + 2,
            },
            {
              name: "style",
              value: -0.25,
              source: "linter",
              scope: "tokens",
              call_id: callId(index, 2),
              choice: 0,
              start: 0,
              end: 12,
              given_at: listed.closed_at + 3,
            },
          ],
  };
}

const TOOL = {
  type: "function",
  function: {
    name: "read_file",
    description: "Reads a file.",
    parameters: {
      type: "object",
      properties: { path: { type: "string" }, limit: { type: "integer" } },
      required: ["path"],
    },
  },
};

function message(at) {
  if (at === 0)
    return {
      role: "system",
      content: "You are a careful engineer.\nNever commit without running the tests.\n".repeat(30),
    };
  if (at === 1)
    return {
      role: "user",
      content: `${HEARD[0].slice(6)} <script>alert(1)</script> \u202egnp.exe`,
    };
  if (at % 2 === 0) return answer(at);
  return {
    role: "tool",
    tool_call_id: `call_${at - 1}`,
    content:
      at % 4 === 1
        ? JSON.stringify({ path: "reader.py", lines: 120, text: HEARD[2] })
        : HEARD[at % 5].slice(6),
  };
}

function answer(at) {
  return {
    role: "assistant",
    reasoning:
      "The reader is given chunks. If a chunk ends inside a line, the rest is lost. ".repeat(6),
    content: SAID[at % 5],
    tool_calls: [
      {
        id: `call_${at}`,
        type: "function",
        function: {
          name: "read_file",
          arguments: JSON.stringify({ path: "src/reader.py", limit: 40 + at }),
        },
      },
    ],
  };
}

/** Returns a call by its id. */
export function call(id) {
  const [index, number] = numbersOf(id);
  const built = tree(index);
  const turns = built.turns.filter((each) => each.number === number);
  const it = turns[0] ?? built.others.find((each) => each.number === number);
  if (!it) return null;
  return {
    call_id: id,
    episode_id: built.episode.episode_id,
    attempt: built.episode.attempt,
    method: "POST",
    path: it.path ?? "/v1/messages",
    route: it.route,
    translated: turns[0] ? "chat" : null,
    model: it.model,
    requested_model: "claude-sonnet",
    status: it.status,
    outcome: it.outcome,
    error: it.error,
    unasked: null,
    started_at: it.started_at,
    first_byte_ms: it.first_byte_ms,
    duration_ms: it.duration_ms,
    lineage: {
      client: "claude-code",
      session: "5b1c",
      agent: it.agent,
      parent_agent: it.parent_agent ?? null,
      kind: it.kind ?? "main",
      retry: it.retry ?? 0,
    },
    sampling: { max_tokens: 4096, temperature: 1 },
    sampled_with: {
      temperature: { value: 1, source: "request" },
      top_p: { value: 0.95, source: "server" },
      top_k: { value: 20, source: "server" },
    },
    logprob_kind: "processed",
    stamps: [null, null],
    messages: turns[0] ? Array.from({ length: it.messages }, (_, at) => message(at)) : [],
    tools: turns[0] ? [TOOL, { ...TOOL, function: { ...TOOL.function, name: "run_tests" } }] : [],
    choices: turns.map((each) => ({
      index: each.choice,
      prompt_index: 0,
      message: { ...answer(number), content: each.said },
      prompt_tokens: each.prompt_tokens,
      sampled_tokens: each.sampled_tokens,
      trained_tokens: each.trained_tokens,
      mean_logprob: each.mean_logprob,
      fidelity: each.fidelity,
      finish_reason: each.finish_reason,
      stop_reason: null,
      versions: each.versions,
      reasons: each.reasons,
      sides: [],
    })),
    usage: null,
    request_bytes: 48_211,
    reply_bytes: 9120,
  };
}

/** Returns tokens [from, from + count) of a choice. */
export function tokens(id, choice, from, count) {
  const [index, number] = numbersOf(id);
  const it = tree(index).turns.find((each) => each.number === number && each.choice === choice);
  if (!it) return null;
  const total = it.prompt_tokens + it.sampled_tokens;
  const end = Math.min(total, from + (count ?? total));
  const out = {
    prompt_tokens: it.prompt_tokens,
    sampled_tokens: it.sampled_tokens,
    from,
    ids: [],
    texts: [],
    text_source: "tokenizer",
    logprobs: [],
    mask: [],
    versions: it.versions.map((span) => ({
      ...span,
      start: span.start + it.prompt_tokens,
      end: span.end + it.prompt_tokens,
    })),
    fidelity: it.fidelity,
    logprob_kind: "processed",
    reasons: it.reasons,
  };
  for (let at = from; at < end; at++) {
    const next = random(at * 31 + number);
    const isSampled = at >= it.prompt_tokens;
    out.ids.push(Math.floor(next() * 151_000));
    out.texts.push(
      at === total - 1
        ? "<|im_end|>"
        : at === it.prompt_tokens + 7
          ? " 日本"
          : at === it.prompt_tokens + 9
            ? "\u202e"
            : piece(at, number),
    );
    out.logprobs.push(isSampled ? -Math.pow(next(), 9) * 6 : null);
    out.mask.push(isSampled && it.trained_tokens > 0 ? 1 : 0);
  }
  return out;
}
