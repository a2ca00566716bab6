/** Answers of the listener as state of a component. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export interface Loaded<T> {
  data: T | null;
  error: Error | null;
  /** Asks again; what is shown stays until the answer is there. */
  reload(): void;
}

/** Loads whenever `key` changes. Answers of an earlier key are dropped. */
export function useLoad<T>(key: string, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string; data: T | null; error: Error | null }>({
    key,
    data: null,
    error: null,
  });
  const [again, setAgain] = useState(0);
  const latest = useRef(load);
  latest.current = load;

  useEffect(() => {
    const stop = new AbortController();
    latest
      .current(stop.signal)
      .then((data) => setState({ key, data, error: null }))
      .catch((error: Error) => {
        if (!stop.signal.aborted) setState({ key, data: null, error });
      });
    return () => stop.abort();
  }, [key, again]);

  const reload = useCallback(() => setAgain((count) => count + 1), []);
  const fresh = state.key === key;
  return { data: fresh ? state.data : null, error: fresh ? state.error : null, reload };
}

/** Returns a function that runs `run` at most once in `ms`, and once more after the last call. */
export function useThrottled(run: () => void, ms: number): () => void {
  const latest = useRef(run);
  latest.current = run;
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEffect(() => () => clearTimeout(timer.current ?? undefined), []);
  return useCallback(() => {
    timer.current ??= setTimeout(() => {
      timer.current = null;
      latest.current();
    }, ms);
  }, [ms]);
}
