// What is said, whoever spells it: vLLM on its own Responses route, or rolltape where it asks
// vLLM's chat route and answers for it. `tests/python/spelling.py` says the same of Python clients.

/**
 * Fields of a response object that do not tell of the reply: vLLM says how it would sample, OpenAI
 * repeats its service's defaults, and the chat route knows neither.
 */
const ECHOED = new Set([
  ...["frequency_penalty", "presence_penalty", "temperature", "top_logprobs", "top_p"],
  ...["background", "max_output_tokens", "metadata", "reasoning", "store", "text"],
  ...["truncation", "user"],
]);

/** What one of the two says of nothing and the other leaves out. */
const IDLE = { cache_write_tokens: 0, cacheWriteTokens: 0, tool_output_tokens: 0 };

/** A value in one spelling: a field that is null or an empty list is as good as none. */
export function meant(value) {
  if (Array.isArray(value)) return value.map(meant);
  if (typeof value !== "object" || value === null) return value;

  const echoed = value.object === "response" ? ECHOED : new Set();
  const fields = Object.entries(value)
    .filter(([key]) => !echoed.has(key))
    .map(([key, inner]) => [key, meant(inner)]);
  return Object.fromEntries(fields.filter(([key, inner]) => tells(key, inner)));
}

function tells(key, value) {
  const empty = value === null || value === undefined || (Array.isArray(value) && !value.length);
  return !empty && !(key in IDLE && IDLE[key] === value);
}
