/** Light and dark: the system's choice until the reader makes another. */

const KEY = "rolltape-theme";
const ORDER = ["system", "light", "dark"] as const;
export type Theme = (typeof ORDER)[number];

export function theme(): Theme {
  const kept = storage()?.getItem(KEY);
  return ORDER.find((name) => name === kept) ?? "system";
}

/** Returns what the browser keeps for the page; null where it keeps nothing for a file. */
function storage(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

export function applyTheme(name: Theme): void {
  if (name === "system") {
    storage()?.removeItem(KEY);
    delete document.documentElement.dataset["theme"];
  } else {
    storage()?.setItem(KEY, name);
    document.documentElement.dataset["theme"] = name;
  }
}

export function nextTheme(name: Theme): Theme {
  return ORDER[(ORDER.indexOf(name) + 1) % ORDER.length] ?? "system";
}
