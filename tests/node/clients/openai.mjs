// The `openai` package: chat completions and responses.

import OpenAI from "openai";

import { read } from "./responses.mjs";
import { CITY, PLAIN, QUESTION, SYSTEM, THINKING, TOOL, TWO_TOOLS, weather } from "./weather.mjs";

const open = (root) => new OpenAI({ baseURL: `${root}/v1`, apiKey: "k", maxRetries: 0 });
const question = {
  model: "tiny",
  max_tokens: 200,
  messages: [
    { role: "system", content: SYSTEM },
    { role: "user", content: QUESTION },
  ],
};
const tool = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather in a city.",
    parameters: CITY,
    parse: JSON.parse,
    function: weather,
  },
};
const asked = {
  model: "tiny",
  max_output_tokens: 200,
  instructions: SYSTEM,
  input: [{ role: "user", content: QUESTION }],
};
const responseTool = {
  type: "function",
  name: "weather",
  description: "The weather in a city.",
  parameters: CITY,
  strict: false,
};

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const chat = (root) => open(root).chat.completions.create(question);
const chatStream = async (root) =>
  all(await open(root).chat.completions.create({ ...question, stream: true }));
const chatStreamUsage = async (root) =>
  all(
    await open(root).chat.completions.create({
      ...question,
      stream: true,
      stream_options: { include_usage: true },
    }),
  );

async function chatTools(root, stream) {
  const runner = open(root).chat.completions.runTools({ ...question, stream, tools: [tool] });
  const text = await runner.finalContent();
  return { text, messages: runner.messages, usage: await runner.totalUsage() };
}

const responses = async (root) => open(root).responses.create(asked);
const responsesStream = async (root) =>
  (await all(await open(root).responses.create({ ...asked, stream: true }))).map(read);

/**
 * The loop that the documentation of the package shows: output items go back as input. Not with
 * its helper for streams, which throws at vLLM's `response.reasoning_part.added`.
 */
async function responsesTools(root, stream) {
  const client = open(root);
  const request = { ...asked, tools: [responseTool], input: [...asked.input] };
  const answers = [];
  for (;;) {
    const answer = stream
      ? (await all(await client.responses.create({ ...request, stream }))).at(-1).response
      : await client.responses.create(request);
    answers.push(stream ? read(answer.output) : answer.output);
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (calls.length === 0) return answers;
    request.input.push(...answer.output);
    for (const call of calls) {
      const output = weather(JSON.parse(call.arguments));
      request.input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

export const cases = {
  chat: { script: THINKING, run: chat },
  "chat-stream": { script: PLAIN, run: chatStream },
  "chat-stream-usage": { script: THINKING, run: chatStreamUsage },
  "chat-tools": { script: TOOL, run: (root) => chatTools(root, false) },
  "chat-tools-stream": { script: TWO_TOOLS, run: (root) => chatTools(root, true) },
  responses: { script: THINKING, run: responses },
  "responses-stream": { script: THINKING, run: responsesStream },
  "responses-tools": { script: TOOL, run: (root) => responsesTools(root, false) },
  "responses-tools-stream": { script: TWO_TOOLS, run: (root) => responsesTools(root, true) },
};
