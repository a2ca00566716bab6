/**
 * The token: out of the address bar, exchanged for the one that only reads, which all tabs share.
 *
 * A token that is given may do more than read, so it stays in the memory of this tab, for what a
 * person writes there. What is kept where a stolen disk or a later server of this address may find it only
 * reads, and only for a while.
 */

/** Several servers may be behind one address, each below its own path. */
const KEY = `rolltape-read-token:${location.pathname}`;
/** The beginning of tokens that only read. */
const READS = "read-";
/** Time for which the token is kept after its last use. */
const KEPT_MS = 12 * 3600 * 1000;
/** Least time between two renewals. */
const RENEWED_MS = 60 * 1000;

interface Kept {
  token: string;
  /** Milliseconds since 1970. */
  until: number;
}

/** The token that was given, until it is exchanged. */
let given: string | null = null;
let exchange: Promise<void> | null = null;
/** The token that may write, as long as this tab has this page open. */
let writing: string | null = null;
/** The token of a browser that keeps nothing. */
let unkept: string | null = null;

/**
 * Takes a token out of the fragment `#token=TOKEN` or `#token=TOKEN&to=/e/...` and removes it from
 * the address bar, so that it is neither in the history nor on a screenshot.
 */
export function takeToken(): void {
  if (!location.hash.startsWith("#token=")) return;
  const [token = "", to = ""] = location.hash.slice("#token=".length).split("&to=");
  giveToken(decodeURIComponent(token));
  history.replaceState(null, "", `${location.pathname}#${decodeURIComponent(to)}`);
}

/** Uses a token from now on. */
export function giveToken(token: string): void {
  giveWriting(token.startsWith(READS) ? null : token);
  given = token;
  exchange = exchanged(token);
}

/** Returns the header that every question carries; none with an open listener. */
export async function tokenHeader(): Promise<Record<string, string>> {
  if (given) await (exchange ??= exchanged(given));
  return bearer(given ?? kept() ?? unkept);
}

/** Sets the token that carries what is written; null for none. */
export function giveWriting(token: string | null): void {
  writing = token;
}

/** True if this tab has a token to write, or the listener asks for none. */
export function canWrite(): boolean {
  return writing !== null || (given ?? kept() ?? unkept) === null;
}

/** Returns the header of what is written. */
export const writingHeader = (): Record<string, string> => bearer(writing);

/** Calls `handler` when another tab keeps another token. */
export function onShared(handler: () => void): void {
  addEventListener("storage", (event) => {
    const shared = event.key === KEY ? read(event.newValue)?.token : null;
    if (shared && shared !== read(event.oldValue)?.token) handler();
  });
}

/** Exchanges a token. One that is refused is not used again; without an answer it is, as it is. */
async function exchanged(token: string): Promise<void> {
  let read_token: string | null | undefined;
  try {
    const response = await fetch("read-token", { headers: bearer(token), cache: "no-store" });
    if (!response.ok && response.status !== 401) return;
    if (response.ok) ({ read_token } = (await response.json()) as { read_token?: string | null });
  } catch {
    exchange = null;
    return;
  }
  if (read_token) keep(read_token);
  if (given === token) given = null;
}

function bearer(token: string | null): Record<string, string> {
  return token ? { authorization: `Bearer ${token}` } : {};
}

function keep(token: string): void {
  try {
    const until = Date.now() + KEPT_MS;
    localStorage.setItem(KEY, JSON.stringify({ token, until } satisfies Kept));
    unkept = null;
  } catch {
    unkept = token;
  }
}

/** Returns the token that is kept, for longer from now on; none after its time. */
function kept(): string | null {
  try {
    const found = read(localStorage.getItem(KEY));
    const left_ms = found ? found.until - Date.now() : 0;
    if (!found || left_ms <= 0 || left_ms > KEPT_MS) {
      localStorage.removeItem(KEY);
      return null;
    }
    if (left_ms < KEPT_MS - RENEWED_MS) keep(found.token);
    return found.token;
  } catch {
    return null;
  }
}

function read(text: string | null): Kept | null {
  try {
    const found = JSON.parse(text ?? "null") as Partial<Kept> | null;
    const { token, until } = found ?? {};
    return typeof token === "string" && typeof until === "number" ? { token, until } : null;
  } catch {
    return null;
  }
}
