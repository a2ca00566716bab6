/**
 * Questions to the control listener. All of them are GETs, and carry the token; so does what is
 * said to it. A page that is a file answers the questions itself.
 */

import { bodyInFile, documentInFile, FILE } from "./file";
import { tokenHeader, writingHeader } from "./token";

/** An answer that is not a 200, or none. */
export class AskError extends Error {
  constructor(
    readonly status: number | null,
    message: string,
  ) {
    super(message);
  }
}

export type Params = Record<string, string | number | null | undefined>;

let refused: () => void = () => {};

/** Names what is done after a 401: the form that asks for the token. */
export function onRefused(handler: () => void): void {
  refused = handler;
}

/** Returns a path relative to the page, so that it also works behind a prefix. */
export function pathOf(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Asks, and returns the answer whatever its body is; anything but a 200 is an `AskError`. */
export async function ask(path: string, signal?: AbortSignal): Promise<Response> {
  if (FILE) return new Response(bodyInFile(path) ?? notInFile());
  let response: Response;
  try {
    response = await fetch(path, {
      headers: await tokenHeader(),
      signal: signal ?? null,
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new AskError(null, "rolltape does not answer. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 401) refused();
  throw new AskError(response.status, await messageOf(response));
}

export async function askJson<T>(path: string, params?: Params, signal?: AbortSignal): Promise<T> {
  if (FILE) return (documentInFile(pathOf(path, params)) ?? notInFile()) as T;
  const response = await ask(pathOf(path, params), signal);
  return (await response.json()) as T;
}

/** Says something to the listener; anything but a 200 is an `AskError`. */
export async function say(path: string, body: unknown): Promise<void> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { ...writingHeader(), "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new AskError(null, "rolltape does not answer. Is it still running?");
  }
  if (!response.ok) throw new AskError(response.status, await messageOf(response));
}

function notInFile(): never {
  throw new AskError(404, `This file has no such thing: it holds ${FILE?.title} alone.`);
}

/** Returns the sentence of an error in OpenAI's form, else the beginning of the body. */
async function messageOf(response: Response): Promise<string> {
  const text = (await response.text()).slice(0, 2000);
  try {
    const parsed = JSON.parse(text) as { error?: { message?: string } | string };
    const error = parsed.error;
    if (typeof error === "string") return error;
    if (error?.message) return error.message;
  } catch {
    // Not JSON: the text says what there is to say.
  }
  return text || `status ${response.status}`;
}
