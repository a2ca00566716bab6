/** The frame of the page: the bar, and the view that the address names. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { onRefused } from "./api/client";
import { FILE, type FileFacts } from "./api/file";
import { giveToken, onShared } from "./api/token";
import { CompareView } from "./compare/compare";
import { EpisodeView } from "./episode/episode";
import { Episodes } from "./lists/episodes";
import { Groups } from "./lists/groups";
import { HELP, useKeys, type Keys } from "./parts/keys";
import { FollowingContext, FollowingSwitch } from "./parts/live";
import { Text } from "./parts/text";
import { applyTheme, nextTheme, theme } from "./parts/theme";
import { go, home, href, useRoute, type Route } from "./route";
import { time } from "./words/format";
import { CallsView } from "./views/calls";
import { GroupView } from "./views/group";
import { HealthView } from "./views/health";
import { SearchView } from "./views/search";
import { StatsView } from "./views/stats";

/** Lists, which only a listener can answer. */
const PLACES: [string, string][] = FILE
  ? []
  : [
      ["episodes", "Episodes"],
      ["groups", "Groups"],
      ["stats", "Numbers"],
      ["health", "Health"],
      ["calls", "Live calls"],
      ["search", "Search"],
    ];

export function App() {
  const route = useRoute();
  const [needsToken, setNeedsToken] = useState(false);
  const [session, setSession] = useState(0);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const [on, setOn] = useState(!FILE);
  const [connected, setConnected] = useState(false);
  const following = useMemo(() => ({ on, connected, setOn, setConnected }), [on, connected]);

  useEffect(() => {
    onRefused(() => setNeedsToken(true));
    onShared(() => {
      setNeedsToken(false);
      setSession((count) => count + 1);
    });
  }, []);
  useEffect(() => {
    document.title = ["rolltape", ...route.path.slice(0, 2).filter((part) => part !== "e")].join(
      " · ",
    );
  }, [route.path.join("/")]);
  const toLists: Keys = {
    e: () => go(href(["episodes"])),
    g: () => go(href(["groups"])),
    n: () => go(href(["stats"])),
    h: () => go(href(["health"])),
    l: () => go(href(["calls"])),
    "/": () => go(href(["search"])),
  };
  useKeys({
    ...(FILE ? {} : toLists),
    "?": () => setHelpOpen((isOpen) => !isOpen),
    Escape: () => setHelpOpen(false),
  });

  const entered = (token: string) => {
    giveToken(token);
    setNeedsToken(false);
    setSession((count) => count + 1);
  };
  return (
    <FollowingContext.Provider value={following}>
      <Bar route={route} onHelp={() => setHelpOpen(true)} />
      <main>
        {!needsToken && <Heading place={route.path[0]} />}
        {needsToken ? <TokenForm onToken={entered} /> : <View key={session} route={route} />}
      </main>
      {isHelpOpen && <Help onClose={() => setHelpOpen(false)} />}
    </FollowingContext.Provider>
  );
}

/** The tab that a place belongs to; a tab's word is an address as well. */
const TABS: Record<string, string> = {
  e: "episodes",
  group: "groups",
  compare: "groups",
  numbers: "stats",
  live: "calls",
};

function tabOf(place = "episodes"): string {
  return TABS[place] ?? place;
}

/** The heading of a list, for those who do not see which tab is lit. */
function Heading({ place }: { place: string | undefined }) {
  const isOne = place === "e" || place === "group" || place === "compare";
  const word = isOne ? undefined : PLACES.find(([name]) => name === tabOf(place))?.[1];
  return word ? <h1 class="unseen">{word}</h1> : null;
}

/** What a file can hold. */
const PLACES_OF_FILES = ["e", "group", "compare"];

function View({ route }: { route: Route }) {
  const [place = "episodes", id = "", attempt = "0", part = null, call = null] = route.path;
  if (FILE && !PLACES_OF_FILES.includes(place)) return <Unknown />;
  switch (place) {
    case "groups":
      return <Groups query={route.query} />;
    case "group":
      return <GroupView key={id} id={id} query={route.query} />;
    case "e":
      return (
        <EpisodeView
          key={`${id}/${attempt}`}
          id={id}
          attempt={Number(attempt)}
          call={call}
          isSummary={part === "summary"}
          query={route.query}
        />
      );
    case "compare":
      return <CompareView key={route.path.join("/")} path={route.path.slice(1)} />;
    case "stats":
    case "numbers":
      return <StatsView query={route.query} />;
    case "health":
      return <HealthView query={route.query} />;
    case "calls":
    case "live":
      return <CallsView />;
    case "search":
      return <SearchView query={route.query} />;
    case "episodes":
      return <Episodes query={route.query} />;
    default:
      return <Unknown />;
  }
}

function Unknown() {
  return (
    <div class="empty">
      <h1>There is no such page</h1>
      <a href={home()}>{FILE ? FILE.title : "all episodes"}</a>
    </div>
  );
}

function Bar({ route, onHelp }: { route: Route; onHelp(): void }) {
  const [chosen, setChosen] = useState(theme());
  const place = route.path[0] ?? "episodes";
  const shown = tabOf(place);
  const turn = () => {
    applyTheme(nextTheme(chosen));
    setChosen(nextTheme(chosen));
  };
  return (
    <nav class="top">
      <a class="brand" href={home()}>
        rolltape
      </a>
      {PLACES.map(([name, word]) => (
        <a
          key={name}
          class={shown === name ? "on" : ""}
          href={href([name])}
          aria-current={shown === name ? "page" : undefined}
        >
          {word}
        </a>
      ))}
      {FILE && <Written file={FILE} />}
      <span class="grow" />
      {!FILE && place !== "search" && place !== "health" && <FollowingSwitch />}
      <button
        class="quiet"
        title="light, dark, or as the system says"
        onClick={turn}
      >{`theme: ${chosen}`}</button>
      <button class="quiet" title="keys" aria-label="keys" onClick={onHelp}>
        ?
      </button>
    </nav>
  );
}

/** Says what the file is. */
function Written({ file }: { file: FileFacts }) {
  return (
    <span class="written" title={`rolltape ${file.version}`}>
      <Text
        text={`${file.title}, written ${time(file.written_at)} by rolltape ${file.version.split(" ")[0]}`}
      />
    </span>
  );
}

function TokenForm({ onToken }: { onToken(token: string): void }) {
  const [token, setToken] = useState("");
  return (
    <form
      class="token-form"
      onSubmit={(event) => {
        event.preventDefault();
        if (token.trim()) onToken(token.trim());
      }}
    >
      <h1>The control listener's token</h1>
      <p>
        <code>rolltape view</code> prints a link that has it. Or paste the content of the file
        beside the store: <code>rolltape.db-token</code> for <code>rolltape.db</code>.
      </p>
      <input
        type="password"
        autocomplete="off"
        aria-label="token"
        placeholder="token"
        value={token}
        onInput={(event) => setToken(event.currentTarget.value)}
      />
      <button disabled={!token.trim()}>open</button>
      <p class="dim">
        The page keeps a token that only reads, for all its tabs, until 12 hours after its last use.
      </p>
    </form>
  );
}

function Help({ onClose }: { onClose(): void }) {
  return (
    <div class="veil" onClick={onClose}>
      <div class="help" role="dialog" aria-label="keys">
        <h2>Keys</h2>
        <dl>
          {HELP.map(([keys, meaning]) => (
            <div key={keys}>
              <dt>
                {keys.split(/,? (?=.)/).map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
      </div>
    </div>
  );
}
