/** The control listener's token: out of the address bar, kept for this tab. */

const KEY = "rolltape-token";

/**
 * Takes a token out of the fragment `#token=TOKEN` or `#token=TOKEN&to=/e/...` and removes it from
 * the address bar, so that it is neither in the history nor on a screenshot.
 */
export function takeToken(): void {
  if (!location.hash.startsWith("#token=")) return;
  const [token = "", to = ""] = location.hash.slice("#token=".length).split("&to=");
  keepToken(decodeURIComponent(token));
  history.replaceState(null, "", `${location.pathname}#${decodeURIComponent(to)}`);
}

export function keepToken(token: string): void {
  sessionStorage.setItem(KEY, token);
}

/** Returns the header that every question carries; none with an open listener. */
export function tokenHeader(): Record<string, string> {
  const token = sessionStorage.getItem(KEY);
  return token ? { authorization: `Bearer ${token}` } : {};
}
