/** Keys. The view that was mounted last is asked first. */

import { useLayoutEffect, useRef } from "preact/hooks";

export type Keys = Record<string, () => void>;

const stack: { current: Keys }[] = [];

/** Handles keys while the component is there; names are those of `KeyboardEvent.key`. */
export function useKeys(keys: Keys): void {
  const held = useRef(keys);
  held.current = keys;
  useLayoutEffect(() => {
    stack.push(held);
    return () => {
      stack.splice(stack.indexOf(held), 1);
    };
  }, []);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input, select, textarea");
}

/** Listens for as long as the page is open. */
export function listenForKeys(): void {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    const onControl =
      event.target instanceof HTMLElement && event.target.matches("a, button, summary");
    if (event.key === "Enter" && onControl) return;
    for (let at = stack.length - 1; at >= 0; at--) {
      const run = stack[at]?.current[event.key];
      if (!run) continue;
      event.preventDefault();
      run();
      return;
    }
  });
}

/** What `?` shows. */
export const HELP: [string, string][] = [
  ["j, k", "the next row, the one before; in an episode the next turn"],
  ["Enter", "open the row"],
  ["u, Backspace", "one level up"],
  ["/", "search in what was said"],
  ["f", "to the field of filters"],
  ["e, g, n, h, l", "episodes, groups, numbers, health, live calls"],
  ["c", "an episode's conversation; its summary"],
  ["m, t, r", "a turn as messages, as tokens, as raw bytes"],
  ["x", "the fork of a turn"],
  [". ,", "the next token that was unlikely, the one before"],
  ["[, ]", "the choice before, the next one"],
  ["?", "this list"],
  ["Escape", "close, leave a field"],
];
