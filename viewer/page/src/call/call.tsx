/** One call: its facts, and its messages, tokens, fork or bytes. */

import { askJson } from "../api/client";
import { FILE } from "../api/file";
import type { Call, Choice, Tree, Turn } from "../api/types";
import { Comments } from "../episode/comments";
import { isTextOnly } from "../episode/head";
import { GivenAgain, GivenFrom } from "../episode/replay";
import { useKeys } from "../parts/keys";
import { useLoad } from "../parts/load";
import { Failure, Fidelity, Mark, Outcome, ReasonMark, Waiting } from "../parts/marks";
import { Copy, Text } from "../parts/text";
import { callHref, replace } from "../route";
import { TokensView } from "../tokens/tokens";
import { decimal, duration, number, plural, time } from "../words/format";
import { ForkView } from "./fork";
import { Messages } from "./messages";
import { Raw } from "./raw";
import { Sampling } from "./sampling";

/** False for a file that was written without the bytes of requests and replies. */
const HAS_BODIES = !FILE || FILE.has_bodies;

interface Props {
  tree: Tree;
  callId: string;
  query: Record<string, string>;
}

export function CallView({ tree, callId, query }: Props) {
  const choice = Number(query["choice"] ?? 0);
  const turn = tree.turns.find((each) => each.call_id === callId && each.choice === choice) ?? null;
  // The answer of a call that runs is not there yet; its end changes the key.
  const end = turn?.outcome ?? tree.others.find((other) => other.call_id === callId)?.outcome ?? "";
  const {
    data: call,
    error,
    reload,
  } = useLoad(`${callId}/${end}`, (signal) =>
    askJson<Call>(`calls/${encodeURIComponent(callId)}`, {}, signal),
  );
  const forks = tree.forks.filter((fork) => fork.call_id === callId);
  const view = query["view"] ?? "messages";

  const to = (next: string, index = choice) => {
    const { episode_id, attempt } = tree.episode;
    replace(callHref(episode_id, attempt, callId, index, next));
  };
  const choices = call?.choices.map((each) => each.index) ?? [];
  const step = (by: number) => {
    const next = choices[choices.indexOf(choice) + by];
    if (next !== undefined) to(view, next);
  };
  useKeys({
    m: () => to("messages"),
    t: () => to(view === "tokens" ? "messages" : "tokens"),
    r: () => HAS_BODIES && to("raw"),
    x: () => forks.length > 0 && to("fork"),
    "[": () => step(-1),
    "]": () => step(1),
  });

  return (
    <div class="call">
      <Head call={call} turn={turn} tree={tree} />
      <Comments tree={tree} call={callId} />
      <div class="bar">
        <Tabs view={view} forks={forks.length} to={to} turn={turn} />
        {choices.length > 1 && (
          <Choices choices={choices} choice={choice} to={(index) => to(view, index)} />
        )}
      </div>
      <div class={`call-body as-${view}`}>
        {error && !call && <Failure error={error} retry={reload} />}
        {view === "fork" &&
          forks.map((fork) => <ForkView key={fork.parent_call_id} tree={tree} fork={fork} />)}
        {view === "tokens" && (
          <TokensView tree={tree} turn={turn} callId={callId} choice={choice} />
        )}
        {view === "messages" &&
          (call ? (
            <Messages call={call} turn={turn} choice={choice} tree={tree} />
          ) : (
            !error && <Waiting />
          ))}
        {view === "raw" && call && <Raw call={call} />}
      </div>
    </div>
  );
}

interface TabsProps {
  view: string;
  forks: number;
  turn: Turn | null;
  to(view: string): void;
}

function Tabs({ view, forks, turn, to }: TabsProps) {
  const tabs: [string, string][] = [["messages", "messages"]];
  if (turn)
    tabs.push([
      "tokens",
      turn.replayed
        ? "tokens"
        : `tokens ${number((turn.prompt_tokens ?? 0) + (turn.sampled_tokens ?? 0))}`,
    ]);
  if (forks > 0) tabs.push(["fork", forks === 1 ? "fork" : `forks ${forks}`]);
  if (HAS_BODIES) tabs.push(["raw", "request and reply"]);
  return (
    <div class="tabs" role="tablist" aria-label="the call as">
      {tabs.map(([name, word]) => (
        <button
          key={name}
          role="tab"
          aria-selected={name === view}
          class={name === view ? "on" : ""}
          onClick={() => to(name)}
        >
          {word}
        </button>
      ))}
    </div>
  );
}

function Choices({
  choices,
  choice,
  to,
}: {
  choices: number[];
  choice: number;
  to(index: number): void;
}) {
  return (
    <div class="tabs small" role="tablist" aria-label="choices">
      {choices.map((index) => (
        <button
          key={index}
          role="tab"
          aria-selected={index === choice}
          class={index === choice ? "on" : ""}
          onClick={() => to(index)}
        >
          {`choice ${index}`}
        </button>
      ))}
    </div>
  );
}

interface HeadProps {
  call: Call | null;
  turn: Turn | null;
  tree: Tree;
}

function Head({ call, turn, tree }: HeadProps) {
  if (!call) return <header class="call-head" />;
  const { episode } = tree;
  // What the head of the episode says of all calls.
  const textOnly = isTextOnly(tree);
  const told = (reason: string) => !textOnly || reason !== "no_token_ids";
  const choice = call.choices.find((each) => each.index === (turn?.choice ?? 0)) ?? null;
  return (
    <header class="call-head">
      <div class="facts-line">
        <b class="big">{turn ? `#${turn.number}` : call.route}</b>
        {call.replayed && <GivenAgain />}
        <Outcome word={call.outcome} error={call.error} />
        {choice && !textOnly && <Fidelity word={choice.fidelity} />}
        {choice && !call.replayed && <Trained choice={choice} />}
        {reasonsOf(call, choice)
          .filter(told)
          .map((reason) => (
            <ReasonMark key={reason} word={reason} />
          ))}
        <Versions call={call} choice={choice} />
        <span class="grow" />
        <span class="fact">
          <span class="mono">{call.call_id}</span>
          <Copy text={call.call_id} />
        </span>
      </div>
      <div class="facts-line">
        <span class="mono">
          <Text text={`${call.method} ${call.path}`} />
        </span>
        {call.translated && <Mark word={`translated to ${call.translated}`} />}
        <span>{call.status ?? "no status"}</span>
        <span>
          <Text text={call.model} />
        </span>
        {call.requested_model !== call.model && call.requested_model && (
          <span class="dim">
            <Text text={`asked for ${call.requested_model}`} />
          </span>
        )}
        <span title="to the first byte; to the end">
          {duration(call.first_byte_ms)} / {duration(call.duration_ms)}
        </span>
        <span class="dim">{time(call.started_at)}</span>
        <Lineage call={call} />
      </div>
      {call.error && (
        <div class="call-error">
          <Text text={call.error} />
        </div>
      )}
      <GivenFrom call={call} episode={episode} />
      {call.unasked && (
        <div class="note">
          <Text text={`The upstream was not asked for everything: ${call.unasked}`} />
        </div>
      )}
      {call.continued && (
        <div class="note">
          <Text text={continuedText(call.continued)} />
        </div>
      )}
      <Sampling call={call} />
    </header>
  );
}

/** Returns the reasons of a choice but the one that the mark of a reply given again says. */
const reasonsOf = (call: Call, choice: Choice | null): string[] =>
  (choice?.reasons ?? []).filter((reason) => !call.replayed || reason !== "replayed");

function Trained({ choice }: { choice: Choice }) {
  if (choice.sampled_tokens === null) return null;
  return (
    <span class="fact" title="tokens that may be trained, of those sampled; their mean logprob">
      <b>{number(choice.trained_tokens)}</b>
      {` of ${plural(choice.sampled_tokens, "token")} trainable, logprob ${decimal(choice.mean_logprob)}`}
      {choice.finish_reason ? `, ${choice.finish_reason}` : ""}
      {choice.stop_reason ? <Text text={` (${choice.stop_reason})`} /> : ""}
    </span>
  );
}

/** Returns the name of a version: `v3` for a number, else its label. */
function continuedText({ tokens, reason }: { tokens: number; reason: string | null }): string {
  const begins =
    tokens > 0
      ? `The prompt began with ${tokens} recorded ids`
      : "The upstream encoded the prompt itself";
  return reason === null ? `${begins}.` : `${begins}: ${reason}.`;
}

const versionName = (label: string): string =>
  /^\d/.test(label) ? `v${label}` : `version ${label}`;

function Versions({ call, choice }: { call: Call; choice: Choice | null }) {
  if (choice && choice.versions.length > 0) {
    return (
      <>
        {choice.versions.map((span) => (
          <Mark
            key={span.start}
            word={
              choice.versions.length > 1
                ? `${versionName(span.version)} [${span.start}, ${span.end})`
                : versionName(span.version)
            }
            title={`policy version ${span.version}, checksum ${span.checksum ?? "not reported"}`}
            tone="plain"
          />
        ))}
      </>
    );
  }
  const stamp = call.stamps.find((each) => each !== null);
  if (!stamp) return null;
  return (
    <Mark
      word={versionName(stamp)}
      title="the version that was current when the call began; the server named none"
      tone="plain"
    />
  );
}

function Lineage({ call }: { call: Call }) {
  const { client, session, agent, parent_agent, kind, retry } = call.lineage;
  const words = [
    client,
    kind !== "main" && kind,
    agent && `agent ${agent}`,
    retry > 0 && `try ${retry + 1}`,
  ];
  const title = `session ${session ?? "–"}, started by ${parent_agent ?? "–"}`;
  return (
    <span class="dim" title={title}>
      <Text text={words.filter(Boolean).join(", ")} />
    </span>
  );
}
