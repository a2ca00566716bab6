// What is read of a streamed response.
//
// rolltape asks vLLM's chat route for these, because vLLM's own Responses route loses logprobs of
// a stream. It answers in OpenAI's spelling, where vLLM has one of its own. What says the same is
// made the same here; all else is compared as it comes.

/** Fields of the response object that do not tell of the reply: vLLM says how it would sample and
 * what it was not asked for, OpenAI repeats its service's defaults, and chat knows neither. */
const ECHOED = new Set([
  ...["frequency_penalty", "presence_penalty", "temperature", "top_logprobs", "top_p"],
  ...["background", "metadata", "reasoning", "store", "text", "truncation", "user"],
]);

/** What one of the two says of nothing and the other leaves out. */
const IDLE = {
  ...{ service_tier: "auto", serviceTier: "auto" },
  ...{ cache_write_tokens: 0, cacheWriteTokens: 0, tool_output_tokens: 0 },
};

/** An event, or a part of one, as its reader takes it. */
export const read = (event) =>
  JSON.parse(JSON.stringify(event), function (key, value) {
    // vLLM's own name for the part of a thought.
    if (key === "type") return value.replace("response.reasoning_part.", "response.content_part.");
    // A list of nothing is as good as none, and a field that is null as one that is not there.
    const absent = value === null || value === IDLE[key] || (Array.isArray(value) && !value.length);
    return absent || (this.object === "response" && ECHOED.has(key)) ? undefined : value;
  });
