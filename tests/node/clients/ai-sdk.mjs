// The `ai` package with its OpenAI providers: responses, chat, and OpenAI-compatible.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

import { read } from "./responses.mjs";
import { CITY, QUESTION, SYSTEM, TOOL, TWO_TOOLS, weather } from "./weather.mjs";

// Its warnings go to stdout, where the result goes.
globalThis.AI_SDK_LOG_WARNINGS = false;

const STEPS_MAX = 5;
const openai = (root) => createOpenAI({ baseURL: `${root}/v1`, apiKey: "k" });
const models = {
  responses: (root) => openai(root)("tiny"),
  chat: (root) => openai(root).chat("tiny"),
  compatible: (root) =>
    createOpenAICompatible({ name: "up", baseURL: `${root}/v1`, apiKey: "k" })("tiny"),
};
const request = {
  // Without it the responses provider sends references to items that a stateless backend has
  // not kept.
  providerOptions: { openai: { store: false } },
  system: SYSTEM,
  prompt: QUESTION,
  maxRetries: 0,
  maxOutputTokens: 200,
  stopWhen: stepCountIs(STEPS_MAX),
  tools: {
    weather: tool({
      description: "The weather in a city.",
      inputSchema: jsonSchema(CITY),
      execute: async (input) => weather(input),
    }),
  },
};

const step = ({ content, finishReason, usage }) => ({ content, finishReason, usage });

async function generate(model) {
  const { text, steps, totalUsage } = await generateText({ ...request, model });
  return { text, totalUsage, steps: steps.map(step) };
}

async function stream(model) {
  let fault;
  const reply = streamText({ ...request, model, onError: ({ error }) => (fault = error) });
  const parts = [];
  for await (const part of reply.fullStream) parts.push(seen(part));
  if (fault) throw fault;
  return { text: await reply.text, parts, usage: await reply.totalUsage };
}

/** A part without what the package adds to it for its logs: requests, replies and times. */
function seen({ request: _, response, performance, ...part }) {
  return part;
}

export const cases = {};
for (const [name, model] of Object.entries(models)) {
  cases[name] = { script: TOOL, run: (root) => generate(model(root)) };
  const shown = name === "responses" ? read : (reply) => reply;
  const run = async (root) => shown(await stream(model(root)));
  cases[`${name}-stream`] = { script: TWO_TOOLS, run };
}
