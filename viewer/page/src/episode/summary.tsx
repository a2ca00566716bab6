/** What is known of an episode as a whole: verdict, rewards, forks, tokens. */

import type { ComponentChildren } from "preact";
import type { Fork, Reward, Tree } from "../api/types";
import { ForkMark, Mark, RewardValue, Verdict } from "../parts/marks";
import { Text } from "../parts/text";
import { callHref } from "../route";
import { reasons as meanings, verdicts } from "../words/meanings";
import { safe } from "../words/safe";
import { decimal, duration, number, plural, time } from "../words/format";
import { isTextOnly } from "./head";
import { Siblings } from "./replay";
import { timesOf } from "./times";

export function Summary({ tree }: { tree: Tree }) {
  const { siblings = [], replays = [] } = tree;
  return (
    <div class="summary">
      <VerdictPart tree={tree} />
      <Part title="Tokens">
        <Facts tree={tree} />
      </Part>
      {tree.forks.length > 0 && <Forks tree={tree} />}
      <Rewards tree={tree} />
      {siblings.length > 0 && (
        <Part title="Branches from the same turn">
          <Siblings tree={tree} siblings={siblings} />
        </Part>
      )}
      {replays.length > 0 && (
        <Part title="Replays and branches">
          <Siblings tree={tree} siblings={replays} hasTurns />
        </Part>
      )}
    </div>
  );
}

export function Part({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="part">
      <h2>{title}</h2>
      {children}
    </section>
  );
}

/** Links to a call by its number in the episode. */
export function CallLink({ tree, call, view }: { tree: Tree; call: string; view?: string }) {
  const { episode_id, attempt } = tree.episode;
  const found =
    tree.turns.find((turn) => turn.call_id === call) ??
    tree.others.find((other) => other.call_id === call);
  return (
    <a class="call-link" href={callHref(episode_id, attempt, call, 0, view ?? null)}>
      {found ? `#${found.number}` : call.slice(0, 13)}
    </a>
  );
}

function VerdictPart({ tree }: { tree: Tree }) {
  if (isTextOnly(tree)) {
    return (
      <Part title="Recorded">
        <p>What was said. The server told no token ids, so there is nothing to train on.</p>
      </Part>
    );
  }
  return (
    <Part title="Verdict">
      <p>
        <Verdict word={tree.verdict} /> {verdicts[tree.verdict]}
      </p>
      {tree.reasons.length > 0 && (
        <ul class="reasons">
          {tree.reasons.map(({ reason, calls }) => (
            <li key={reason}>
              <Mark word={reason} tone="fair" /> <Text text={meanings[reason] ?? ""} />{" "}
              {calls.slice(0, 20).map((call) => (
                <CallLink key={call} tree={tree} call={call} />
              ))}
              {calls.length > 20 && <span class="dim">{` and ${calls.length - 20} more`}</span>}
            </li>
          ))}
        </ul>
      )}
    </Part>
  );
}

function Facts({ tree }: { tree: Tree }) {
  const { episode } = tree;
  const times = timesOf(tree);
  const facts: [string, string][] = [
    [
      "sampled",
      isTextOnly(tree)
        ? `${number(episode.completion_tokens)}, by the server's count`
        : number(tree.sampled_tokens),
    ],
    ["trainable", number(tree.trainable_tokens)],
    ["prompt, over all calls", number(episode.prompt_tokens)],
    ["paths from a first turn to a last one", number(tree.trajectories)],
    ["time in calls", duration(times.calls)],
    ["time between them, for tools", duration(times.tools)],
    [
      "calls with ids, of those that sample",
      `${number(episode.with_ids)} of ${number(episode.generations)}`,
    ],
    ["model", episode.model ?? "–"],
    ["name given by", episode.source],
    ["opened", time(episode.opened_at)],
    ["closed", time(episode.closed_at)],
  ];
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <Text text={value} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Forks({ tree }: { tree: Tree }) {
  const prefill = tree.forks.reduce((sum, fork) => sum + (fork.prefill_tokens ?? 0), 0);
  return (
    <Part title={`Forks: ${tree.forks.length}, ${plural(prefill, "token")} prefilled again`}>
      <ul class="forks">
        {tree.forks.map((fork) => (
          <ForkItem key={`${fork.call_id}/${fork.parent_call_id}`} tree={tree} fork={fork} />
        ))}
      </ul>
    </Part>
  );
}

function ForkItem({ tree, fork }: { tree: Tree; fork: Fork }) {
  return (
    <li>
      <CallLink tree={tree} call={fork.call_id} view="fork" /> <ForkMark cause={fork.cause} />{" "}
      <span class="dim">{`left the history of `}</span>
      <CallLink tree={tree} call={fork.parent_call_id} />
      <span class="dim">
        {fork.prefill_tokens !== null &&
          `, ${plural(fork.prefill_tokens, "token")} prefilled again`}
        {fork.lost_sampled_tokens
          ? `, ${plural(fork.lost_sampled_tokens, "sampled token")} left`
          : ""}
      </span>
      <div class="advice">
        <Text text={fork.advice} />
      </div>
    </li>
  );
}

function Rewards({ tree }: { tree: Tree }) {
  if (tree.rewards.length === 0)
    return (
      <Part title="Rewards">
        <p class="dim">None was given.</p>
      </Part>
    );
  return (
    <Part title="Rewards">
      <table class="plain">
        <thead>
          <tr>
            <th class="right">value</th>
            <th>name</th>
            <th>of</th>
            <th>said by</th>
            <th>given</th>
            <th>at</th>
          </tr>
        </thead>
        <tbody>
          {tree.rewards.map((reward, at) => (
            <tr key={at}>
              <td class="right">
                {reward.value === null ? "not scored" : <RewardValue value={reward.value} />}
              </td>
              <td>
                <Text text={reward.name} />
              </td>
              <td>
                <Scope tree={tree} reward={reward} />
              </td>
              <td>
                <Text text={reward.source} />
              </td>
              <td>
                <Giver reward={reward} />
              </td>
              <td class="dim">{time(reward.given_at)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Part>
  );
}

function Scope({ tree, reward }: { tree: Tree; reward: Reward }) {
  return (
    <>
      <Text text={reward.scope} />{" "}
      {reward.call_id && <CallLink tree={tree} call={reward.call_id} />}
      {reward.choice ? ` choice ${reward.choice}` : ""}
      {reward.start !== null && ` [${decimal(reward.start)}, ${decimal(reward.end)})`}
    </>
  );
}

const WAYS: Record<string, string> = {
  control_token: "under the token",
  control_open: "without a token",
  command: "with rolltape reward, on the store",
};

/** How a reward came into the store: under which key, from where, over how many calls. */
function Giver({ reward }: { reward: Reward }) {
  const { given_by, given_from, key_name, over_calls, over_chain } = reward;
  if (!given_by) return <span class="dim">not recorded</span>;
  return (
    <span class="giver" title={over_chain ? `chain ${over_chain}` : ""}>
      {WAYS[given_by] ?? given_by} {key_name && <code>{safe(key_name)}</code>}
      {given_from && given_by !== "command" && ` from ${safe(given_from)}`}
      {over_calls != null && <span class="dim">{`, over ${plural(over_calls, "call")}`}</span>}
    </span>
  );
}
