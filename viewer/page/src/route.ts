/** The place in the page, as the fragment of its address: `#/e/ID/ATTEMPT?view=tokens`. */

import { useEffect, useState } from "preact/hooks";
import { FILE } from "./api/file";
import { takeToken } from "./api/token";

export interface Route {
  /** Parts of the path, decoded. */
  path: string[];
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function href(
  path: (string | number)[],
  query: Record<string, string | number | null> = {},
): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

export function go(to: string): void {
  location.hash = to;
}

/** Changes the address without a step in the history: for filters and cursors. */
export function replace(to: string): void {
  history.replaceState(null, "", to);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Returns where the page begins: the list of episodes, or what a file holds. */
export function home(): string {
  if (FILE?.group) return href(["group", FILE.group]);
  const first = FILE?.attempts[0];
  return first ? href(["e", first.episode_id, first.attempt]) : href(["episodes"]);
}

/** The list or group that was seen last. */
let upper = home();

/** Goes from an episode to where the reader came from. */
export function goUp(): void {
  go(upper);
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => {
      takeToken();
      setHash(location.hash);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  if (!hash.startsWith("#/e/")) upper = hash;
  return parse(hash);
}

export const episodeHref = (id: string, attempt: number): string => href(["e", id, attempt]);

/** The facts of an episode: verdict, tokens, forks, rewards. An episode opens as a conversation. */
export const summaryHref = (id: string, attempt: number): string =>
  href(["e", id, attempt, "summary"]);

/** An attempt of an episode. */
export interface Attempt {
  episode_id: string;
  attempt: number;
}

export const compareHref = (left: Attempt, right: Attempt): string =>
  href(["compare", left.episode_id, left.attempt, right.episode_id, right.attempt]);

export function callHref(
  id: string,
  attempt: number,
  call: string,
  choice = 0,
  view: string | null = null,
): string {
  const shown = { choice: choice === 0 ? null : choice, view: view === "messages" ? null : view };
  return href(["e", id, attempt, "call", call], shown);
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
