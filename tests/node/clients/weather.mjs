// The small task that the SDKs are given: a question that takes one call of a tool.

export const QUESTION = "What is the weather in Zürich?";
export const SYSTEM = "You are a weather station.";
export const CITY = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

/** The tool. */
export const weather = ({ city }) => `12 degrees and rain in ${city}`;

export const PLAIN = { turns: [{ text: "Rain, 12 degrees, and the wind is naïve – 風. 🌧" }] };
export const THINKING = { turns: [{ reasoning: "A greeting is due.", text: "Grüezi! It rains." }] };
export const TOOL = {
  turns: [
    {
      text: "I ask the station.",
      tool_calls: [{ name: "weather", arguments: { city: "Zürich" } }],
    },
    { text: "It rains in Zürich, at 12 degrees." },
  ],
};
export const TWO_TOOLS = {
  turns: [
    {
      reasoning: "Two cities, two calls.",
      tool_calls: [
        { name: "weather", arguments: { city: "Zürich" } },
        { name: "weather", arguments: { city: "Genève" } },
      ],
    },
    { text: "It rains in both." },
  ],
};
