/** One attempt of an episode: its turns on the left, its conversation or one call on the right. */

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { askJson } from "../api/client";
import { isGroupHere, isHere } from "../api/file";
import type { Tree } from "../api/types";
import { CallView } from "../call/call";
import { RawContext } from "../call/prose";
import { spanMs } from "../lists/episodes";
import { useKeys, type Keys } from "../parts/keys";
import { useEvents } from "../parts/live";
import { useLoad, useThrottled } from "../parts/load";
import { Failure, Mark, RewardValue, State, Waiting } from "../parts/marks";
import { Copy, Text } from "../parts/text";
import { episodeHref, go, goUp, href, replace, summaryHref } from "../route";
import { duration, number, plural, time } from "../words/format";
import { Comments, ReloadContext } from "./comments";
import { Conversation } from "./conversation";
import { Sampled, VerdictOf } from "./head";
import { ReplayFacts } from "./replay";
import { Summary } from "./summary";
import { lineHref, lineKey, linesOf, TreeView } from "./tree";

const REFRESH_MS = 1000;

interface Props {
  id: string;
  attempt: number;
  /** The call that is open, if one is. */
  call: string | null;
  /** True if the facts are shown in place of the conversation. */
  isSummary: boolean;
  query: Record<string, string>;
}

export function EpisodeView({ id, attempt, call, isSummary, query }: Props) {
  const path = `episodes/${encodeURIComponent(id)}/tree`;
  const {
    data: tree,
    error,
    reload,
  } = useLoad(`${id}/${attempt}`, (signal) => askJson<Tree>(path, { attempt }, signal));
  const refresh = useThrottled(reload, REFRESH_MS);
  useEvents({ episode: id }, refresh, refresh);
  const up = () => (call ? go(episodeHref(id, attempt)) : goUp());
  useKeys({ u: up, Backspace: up });

  if (error && !tree) return <Failure error={error} retry={reload} />;
  if (!tree) return <Waiting />;
  return (
    <ReloadContext.Provider value={reload}>
      <Loaded tree={tree} call={call} isSummary={isSummary} query={query} />
    </ReloadContext.Provider>
  );
}

function Loaded({
  tree,
  call,
  isSummary,
  query,
}: {
  tree: Tree;
  call: string | null;
  isSummary: boolean;
  query: Record<string, string>;
}) {
  const [withOthers, setWithOthers] = useState(false);
  const [text, setText] = useState("");
  const [isRaw, setRaw] = useState(false);
  const lines = useMemo(() => linesOf(tree, withOthers, text), [tree, withOthers, text]);
  const choice = Number(query["choice"] ?? 0);
  const view = query["view"] ?? null;
  const cursor = call ? lines.lines.findIndex((line) => lineKey(line) === `${call}/${choice}`) : -1;

  const { episode_id, attempt } = tree.episode;

  const move = (to: number) => {
    const line = lines.lines[Math.max(0, Math.min(lines.lines.length - 1, to))];
    if (!line) return;
    const target = lineHref(tree, line, view === "fork" ? null : view);
    if (call) replace(target);
    else go(target);
  };
  // A conversation moves by itself.
  const isRead = !call && !isSummary;
  const moves: Keys = {
    j: () => move(cursor + 1),
    k: () => move(cursor - 1),
    Enter: () => move(Math.max(cursor, 0)),
  };
  useKeys({
    ...(isRead ? {} : moves),
    c: () => go(isRead ? summaryHref(episode_id, attempt) : episodeHref(episode_id, attempt)),
  });

  return (
    <RawContext.Provider value={isRaw}>
      <div class="page episode">
        <Header tree={tree} />
        <div class="split">
          <section class="turns">
            <TreeView
              tree={tree}
              lines={lines}
              cursor={cursor}
              view={view === "fork" ? null : view}
            />
            <TurnsBar
              text={text}
              onText={setText}
              hidden={tree.others.filter((other) => other.outcome === "complete").length}
              withOthers={withOthers}
              onOthers={setWithOthers}
              shown={lines.lines.length}
            />
          </section>
          <section class="detail">
            {call ? (
              <CallView key={call} tree={tree} callId={call} query={query} />
            ) : (
              <>
                <Parts tree={tree} isRead={isRead}>
                  {isRead && <RawSwitch isRaw={isRaw} turn={() => setRaw(!isRaw)} />}
                </Parts>
                <div class="detail-body">
                  <Comments tree={tree} call={null} />
                  {isRead ? (
                    <Conversation tree={tree} lines={lines.lines} />
                  ) : (
                    <Summary tree={tree} />
                  )}
                </div>
              </>
            )}
          </section>
        </div>
      </div>
    </RawContext.Provider>
  );
}

interface TurnsBarProps {
  text: string;
  onText(text: string): void;
  /** Calls without a turn that are shown on request. */
  hidden: number;
  withOthers: boolean;
  onOthers(withOthers: boolean): void;
  shown: number;
}

/** Selects what is listed of the turns. */
function TurnsBar({ text, onText, hidden, withOthers, onOthers, shown }: TurnsBarProps) {
  return (
    <div class="turns-bar">
      <input
        type="search"
        class={text ? "used" : ""}
        placeholder="turns with"
        aria-label="turns with"
        value={text}
        onInput={(event) => onText(event.currentTarget.value)}
      />
      {hidden > 0 && (
        <label class="check">
          <input
            type="checkbox"
            checked={withOthers}
            onChange={(event) => onOthers(event.currentTarget.checked)}
          />
          {`show ${plural(hidden, "call")} without a turn`}
        </label>
      )}
      <span class="count">{`${number(shown)} shown`}</span>
    </div>
  );
}

/** Shows all messages as they were recorded, or as they read. */
function RawSwitch({ isRaw, turn }: { isRaw: boolean; turn(): void }) {
  return (
    <button
      aria-pressed={isRaw}
      class={isRaw ? "on" : ""}
      title="all texts as they were recorded, to the character"
      onClick={turn}
    >
      raw
    </button>
  );
}

interface PartsProps {
  tree: Tree;
  isRead: boolean;
  children: ComponentChildren;
}

/** Switches between the conversation and the summary. */
function Parts({ tree, isRead, children }: PartsProps) {
  const { episode_id, attempt } = tree.episode;
  const parts: [string, string, boolean][] = [
    ["conversation", episodeHref(episode_id, attempt), isRead],
    ["summary", summaryHref(episode_id, attempt), !isRead],
  ];
  return (
    <div class="bar">
      <div class="tabs" role="tablist" aria-label="the episode as">
        {parts.map(([word, to, isOn]) => (
          <a key={word} role="tab" aria-selected={isOn} class={isOn ? "on" : ""} href={to}>
            {word}
          </a>
        ))}
      </div>
      {children}
    </div>
  );
}

function Header({ tree }: { tree: Tree }) {
  const { episode } = tree;
  return (
    <header class="bar head">
      <h1>
        <a href={episodeHref(episode.episode_id, episode.attempt)}>
          <Text text={episode.episode_id} />
        </a>
      </h1>
      <Copy text={episode.episode_id} />
      <Attempts tree={tree} />
      <ReplayFacts tree={tree} />
      <VerdictOf tree={tree} />
      <State word={episode.state} />
      <span class="fact" title="newest reward of the episode">
        reward <RewardValue value={episode.reward} />
      </span>
      {episode.group_id && (
        <span class="fact">
          group{" "}
          {isGroupHere(episode.group_id) ? (
            <a href={href(["group", episode.group_id])}>
              <Text text={episode.group_id} />
            </a>
          ) : (
            <b>
              <Text text={episode.group_id} />
            </b>
          )}
        </span>
      )}
      {episode.task_id && (
        <span class="fact">
          task{" "}
          <b>
            <Text text={episode.task_id} />
          </b>
        </span>
      )}
      <Sampled tree={tree} />
      <span class="fact" title={time(episode.opened_at)}>
        {plural(episode.calls, "call")}
        {spanMs(episode) !== null && ` in ${duration(spanMs(episode))}`}
      </span>
      {Object.entries(episode.labels).map(([name, value]) => (
        <Mark key={name} word={`${name}=${value}`} tone="plain" />
      ))}
    </header>
  );
}

function Attempts({ tree }: { tree: Tree }) {
  const { episode_id, attempt } = tree.episode;
  const attempts = tree.attempts.filter((other) => isHere(episode_id, other));
  if (attempts.length < 2) return null;
  return (
    <span class="tabs small" role="tablist" aria-label="attempts">
      {attempts.map((other) => (
        <a
          key={other}
          role="tab"
          aria-selected={other === attempt}
          class={other === attempt ? "on" : ""}
          href={episodeHref(episode_id, other)}
        >
          {`attempt ${other}`}
        </a>
      ))}
    </span>
  );
}
