// The `@anthropic-ai/sdk` package: messages.

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

import { CITY, PLAIN, QUESTION, SYSTEM, THINKING, TOOL, TWO_TOOLS, weather } from "./weather.mjs";

const open = (root) => new Anthropic({ baseURL: root, apiKey: "k", maxRetries: 0 });
const question = {
  model: "tiny",
  max_tokens: 200,
  system: SYSTEM,
  messages: [{ role: "user", content: QUESTION }],
};
const tool = betaTool({
  name: "weather",
  description: "The weather in a city.",
  inputSchema: CITY,
  run: weather,
});

/**
 * A reply as it is read, not as it is written: vLLM leaves out what is null or an empty signature,
 * Anthropic and rolltape, where it translates, say it.
 */
const read = (reply) =>
  JSON.parse(JSON.stringify(reply), (name, value) =>
    value === null || (name === "signature" && value === "") ? undefined : value,
  );

const create = async (root) => read(await open(root).messages.create(question));

async function stream(root) {
  const events = [];
  const stream = open(root).messages.stream(question);
  // Read at once: the package goes on to build the reply inside the first event.
  for await (const event of stream) events.push(read(event));
  return { events, final: read(await stream.finalMessage()) };
}

async function tools(root, more) {
  const request = { ...question, tools: [tool], ...more };
  const runner = open(root).beta.messages.toolRunner(request);
  const answers = [];
  for await (const answer of runner) {
    answers.push(read(more.stream ? await answer.finalMessage() : answer));
  }
  return answers;
}

/** What an agent does that watches its context: it counts before it asks. */
async function counted(root) {
  const { max_tokens: _, ...countable } = question;
  const count = await open(root).messages.countTokens(countable);
  return { counted: count.input_tokens > 0, answer: await create(root) };
}

export const cases = {
  create: { script: THINKING, run: create },
  stream: { script: THINKING, run: stream },
  "stream-text": { script: PLAIN, run: stream },
  // `thread: false`: by default the runner leaves its history to the server (a beta that sends
  // the id of the last reply instead), which no stateless backend keeps.
  tools: { script: TOOL, run: (root) => tools(root, { thread: false }) },
  "tools-stream": {
    script: TWO_TOOLS,
    run: (root) => tools(root, { thread: false, stream: true }),
  },
  threads: { script: TOOL, run: (root) => tools(root, {}), alone: true },
  counted: { script: PLAIN, run: counted },
};
