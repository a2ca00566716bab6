/** Live events. They are read with fetch, because an EventSource cannot send the token. */

import { ask, AskError, pathOf, type Params } from "./client";
import type { LiveEvent } from "./sums";

const WAIT_MIN_MS = 1000;
const WAIT_MAX_MS = 30_000;
/** Longest event that is kept; a longer one is not one of ours. */
const EVENT_CHARS_MAX = 4 << 20;

export interface Listener {
  onEvent(event: LiveEvent): void;
  /** Tells whether the stream is connected now. */
  onState(connected: boolean): void;
}

/** Listens until the returned function is called; a stream that breaks is opened again. */
export function listen(params: Params, listener: Listener): () => void {
  const stop = new AbortController();
  void follow(params, listener, stop.signal);
  return () => stop.abort();
}

async function follow(params: Params, listener: Listener, signal: AbortSignal): Promise<void> {
  let wait_ms = WAIT_MIN_MS;
  while (!signal.aborted) {
    try {
      const response = await ask(pathOf("events", params), signal);
      listener.onState(true);
      wait_ms = WAIT_MIN_MS;
      if (response.body) await read(response.body, listener, signal);
    } catch (error) {
      if (error instanceof AskError && error.status !== null && error.status < 500) return;
    }
    if (signal.aborted) return;
    listener.onState(false);
    await sleep(wait_ms, signal);
    wait_ms = Math.min(wait_ms * 2, WAIT_MAX_MS);
  }
}

async function read(
  body: ReadableStream<Uint8Array>,
  listener: Listener,
  signal: AbortSignal,
): Promise<void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  while (!signal.aborted) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true }).replaceAll("\r\n", "\n");
    const events = rest.split("\n\n");
    rest = events.pop() ?? "";
    if (rest.length > EVENT_CHARS_MAX) return;
    for (const text of events) {
      const event = parse(text);
      if (event) listener.onEvent(event);
    }
  }
}

/** Returns the event of one block of lines; null for comments and events of other names. */
function parse(block: string): LiveEvent | null {
  let type = "";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) type = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5));
  }
  if (!["call", "episode", "reward"].includes(type) || data.length === 0) return null;
  return { type, data: JSON.parse(data.join("\n")) } as LiveEvent;
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done();
    });
  });
}
