/** The tokens of a choice, loaded in windows as they come into sight. */

import { askJson } from "../api/client";
import type { Tokens } from "../api/types";

/** Tokens of one question. */
export const WINDOW_TOKENS = 10_000;

/** One token with all that is known of it. */
export interface Token {
  at: number;
  id: number;
  text: string | null;
  logprob: number | null;
  mask: number;
  isSampled: boolean;
  /** What trainers said of it: the newest version of each name. */
  annotations: Annotation[];
}

export interface Annotation {
  name: string;
  version: string;
  value: number;
}

function annotationsAt(part: Tokens, index: number): Annotation[] {
  const newest = new Map<string, Annotation>();
  for (const { name, version, values } of part.annotations ?? []) {
    const value = values[index] ?? null;
    if (value !== null) newest.set(name, { name, version, value });
  }
  return [...newest.values()];
}

export class Windows {
  private readonly loaded = new Map<number, Tokens>();
  private readonly asked = new Set<number>();
  private readonly stop = new AbortController();
  /** The newest answer: lengths, versions and fidelity are the same in all of them. */
  newest: Tokens | null = null;
  error: Error | null = null;

  constructor(
    private readonly callId: string,
    private readonly choice: number,
    private readonly changed: () => void,
  ) {}

  /** Asks for the window of a position, if it was not asked for. */
  need(position: number): void {
    const window = Math.floor(position / WINDOW_TOKENS);
    if (this.asked.has(window)) return;
    this.asked.add(window);
    void this.load(window);
  }

  /** Returns the token at a position; null while it is not loaded. */
  token(position: number): Token | null {
    const part = this.loaded.get(Math.floor(position / WINDOW_TOKENS));
    const index = part ? position - part.from : -1;
    const id = part?.ids[index];
    if (!part || id === undefined) return null;
    return {
      at: position,
      id,
      text: part.texts?.[index] ?? null,
      logprob: part.logprobs[index] ?? null,
      mask: part.mask[index] ?? 0,
      isSampled: position >= part.prompt_tokens,
      annotations: annotationsAt(part, index),
    };
  }

  has(position: number): boolean {
    return this.loaded.has(Math.floor(position / WINDOW_TOKENS));
  }

  close(): void {
    this.stop.abort();
  }

  private async load(window: number): Promise<void> {
    const params = { choice: this.choice, from: window * WINDOW_TOKENS, count: WINDOW_TOKENS };
    try {
      const path = `calls/${encodeURIComponent(this.callId)}/tokens`;
      const part = await askJson<Tokens>(path, params, this.stop.signal);
      this.loaded.set(window, part);
      this.newest = part;
      this.error = null;
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.asked.delete(window);
      this.error = error as Error;
    }
    this.changed();
  }
}
