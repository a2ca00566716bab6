/** A text in what was said. */

import { useEffect, useRef, useState } from "preact/hooks";
import { askJson } from "../api/client";
import type { Found, Hit } from "../api/sums";
import { FilterField } from "../lists/field";
import { paramsOf, type Filter } from "../lists/filter";
import { useKeys } from "../parts/keys";
import { Failure } from "../parts/marks";
import { Text } from "../parts/text";
import { callHref, go, href, replace } from "../route";
import { ago, counted, number, plural, time } from "../words/format";

const FILTERS: Filter[] = [
  { name: "name", hint: "episodes whose name contains this", isPlain: true },
  { name: "group", hint: "attempts of a group" },
  { name: "task", hint: "attempts at a task" },
  { name: "since", hint: "began since: 90m, 24h, 7d ago, or a date", kind: "time" },
  { name: "until", hint: "began before", kind: "time" },
];

/** Hits after which the search waits until the reader asks for more. */
const HITS_STEP = 100;

interface State {
  hits: Hit[];
  searched: number;
  total: number;
  isLeast: boolean;
  next: string | null;
  isRunning: boolean;
  error: Error | null;
}

const NOTHING: State = {
  hits: [],
  searched: 0,
  total: 0,
  isLeast: false,
  next: null,
  isRunning: false,
  error: null,
};

export function SearchView({ query }: { query: Record<string, string> }) {
  const [state, setState] = useState<State>(NOTHING);
  const [cursor, setCursor] = useState(-1);
  const stop = useRef<AbortController | null>(null);
  const text = query["q"] ?? "";
  const key = JSON.stringify(query);

  /** Searches from `from` on until there are enough hits, or nothing is left. */
  const run = async (before: State, from: string | null) => {
    stop.current?.abort();
    const mine = new AbortController();
    stop.current = mine;
    let state: State = { ...before, isRunning: true, error: null };
    const enough = before.hits.length + HITS_STEP;
    let next = from;
    setState(state);
    try {
      do {
        const params = { ...paramsOf(FILTERS, query), q: text, cursor: next };
        const found = await askJson<Found>("search", params, mine.signal);
        next = found.next;
        const { searched, total } = found;
        const isLeast = found.total_is_least ?? false;
        state = { ...state, hits: [...state.hits, ...found.hits], searched, total, isLeast, next };
        setState(state);
      } while (next !== null && state.hits.length < enough && !mine.signal.aborted);
      setState({ ...state, isRunning: false });
    } catch (error) {
      if (!mine.signal.aborted) setState({ ...state, isRunning: false, error: error as Error });
    }
  };

  useEffect(() => {
    setCursor(-1);
    if (text) void run(NOTHING, null);
    else setState(NOTHING);
    return () => stop.current?.abort();
  }, [key]);

  const set = (changes: Record<string, string>) =>
    replace(href(["search"], { ...query, ...changes }));
  useKeys({
    j: () => setCursor((at) => Math.min(state.hits.length - 1, at + 1)),
    k: () => setCursor((at) => Math.max(0, at - 1)),
    Enter: () => state.hits[cursor] && go(hitHref(state.hits[cursor])),
  });
  return (
    <div class="page search">
      <div class="bar">
        <SearchField text={text} onSearch={(next) => set({ q: next })} />
        <FilterField label="filter episodes" filters={FILTERS} values={query} onChange={set} />
      </div>
      <div class="scroll">
        {state.error && <Failure error={state.error} />}
        {state.hits.map((hit, at) => (
          <HitLine key={at} hit={hit} isCursor={at === cursor} />
        ))}
        <Progress text={text} state={state} onMore={() => void run(state, state.next)} />
      </div>
    </div>
  );
}

function SearchField({ text, onSearch }: { text: string; onSearch(text: string): void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  useKeys({ "/": () => field.current?.select() });
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onSearch(field.current?.value ?? "");
        field.current?.blur();
      }}
    >
      <input
        ref={field}
        type="search"
        size={36}
        defaultValue={text}
        placeholder="a text that was said"
        aria-label="a text that was said"
      />
      <button>search</button>
    </form>
  );
}

const hitHref = (hit: Hit): string =>
  callHref(hit.episode_id, hit.attempt, hit.call_id, hit.choice ?? 0);

function HitLine({ hit, isCursor }: { hit: Hit; isCursor: boolean }) {
  return (
    <a class={`hit ${isCursor ? "cursor" : ""}`} href={hitHref(hit)}>
      <span class="hit-place">
        <span class="id">
          <Text text={hit.episode_id} />
        </span>
        <span class="dim">
          {hit.attempt > 0 ? ` attempt ${hit.attempt}` : ""}
          {` #${hit.number}`}
        </span>
      </span>
      <span class="hit-role dim">
        <Text text={hit.role} />
      </span>
      <span class="hit-text">
        <Text text={hit.before} />
        <mark>
          <Text text={hit.match} />
        </mark>
        <Text text={hit.after} />
      </span>
      <span class="dim right" title={time(hit.started_at)}>
        {ago(hit.started_at)}
      </span>
    </a>
  );
}

function Progress({ text, state, onMore }: { text: string; state: State; onMore(): void }) {
  if (!text)
    return (
      <div class="empty">
        Searches answers, and messages that were new when they were sent, regardless of case.
      </div>
    );
  const words = `${plural(state.hits.length, "hit")}, searched ${number(state.searched)} of ${counted(state.total, state.isLeast, "episode")}`;
  return (
    <div class="note">
      {state.isRunning ? `searching: ${words}` : words}
      {!state.isRunning && state.next !== null && <button onClick={onMore}>go on</button>}
    </div>
  );
}
