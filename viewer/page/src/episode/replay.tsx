/** The recording that an attempt goes on from, and the branches beside it. */

import { isHere } from "../api/file";
import type { Call, Episode, Replay, Sibling, Tree } from "../api/types";
import { Mark, RewardValue, State } from "../parts/marks";
import { Text } from "../parts/text";
import { callHref, compareHref, episodeHref, summaryHref, type Attempt } from "../route";
import { plural } from "../words/format";

type Turns = Pick<Sibling, "until">;

const kindOf = ({ until }: Turns): string => (typeof until === "number" ? "branch" : "replay");

/** Returns the first turn of a branch that no recording answers, in words. */
const liveFrom = ({ until }: Turns): string =>
  typeof until === "number" ? `, live from turn ${until + 1}` : "";

const nameOf = ({ episode_id, attempt }: Attempt): string =>
  attempt > 0 ? `${episode_id} attempt ${attempt}` : episode_id;

function AttemptLink({ of, to }: { of: Attempt; to?: string }) {
  if (!isHere(of.episode_id, of.attempt)) {
    return (
      <b>
        <Text text={nameOf(of)} />
      </b>
    );
  }
  return (
    <a class="in-text" href={to ?? episodeHref(of.episode_id, of.attempt)}>
      <Text text={nameOf(of)} />
    </a>
  );
}

/** Marks a row of a list whose calls a recording answers. */
export function ReplayMark({ replay }: { replay: Replay | null | undefined }) {
  if (!replay) return null;
  const title = `${kindOf(replay)} of ${nameOf(replay)}${liveFrom(replay)}`;
  return <Mark word={kindOf(replay)} tone="kind-auxiliary" title={title} />;
}

/** Marks a turn whose reply is a recorded one. */
export const GivenAgain = () => (
  <Mark word="given again" tone="plain" title="the reply is a recorded one; nothing was sampled" />
);

/** Links to the source of an attempt, and to the branches beside it. */
export function ReplayFacts({ tree }: { tree: Tree }) {
  const { episode, siblings = [], replays = [] } = tree;
  const { replay } = episode;
  const toSummary = summaryHref(episode.episode_id, episode.attempt);
  const behind = replays.length > 0 && (
    <span class="fact">
      <a href={toSummary}>{plural(replays.length, "attempt goes", "attempts go")} on from it</a>
    </span>
  );
  if (!replay) return behind;
  return (
    <>
      {behind}
      <span class="fact">
        {`${kindOf(replay)} of `}
        <AttemptLink of={replay} />
        {liveFrom(replay)}
      </span>
      {isHere(replay.episode_id, replay.attempt) && (
        <span class="fact">
          <a href={compareHref(replay, episode)}>beside its source</a>
        </span>
      )}
      {siblings.length > 0 && (
        <span class="fact">
          <a href={toSummary}>{plural(siblings.length, "other branch", "other branches")}</a>
        </span>
      )}
    </>
  );
}

interface SiblingsProps {
  tree: Tree;
  siblings: Sibling[];
  /** True if they go on from several turns. */
  hasTurns?: boolean;
}

/** Lists attempts that go on from a recording. */
export function Siblings({ tree, siblings, hasTurns = false }: SiblingsProps) {
  return (
    <table class="plain siblings">
      <thead>
        <tr>
          <th>attempt</th>
          {hasTurns && <th>kind</th>}
          <th>state</th>
          <th class="right">reward</th>
          <th>side by side</th>
        </tr>
      </thead>
      <tbody>
        {siblings.map((sibling) => (
          <tr key={nameOf(sibling)}>
            <td>
              <AttemptLink of={sibling} />
            </td>
            {hasTurns && <td>{`${kindOf(sibling)}${liveFrom(sibling)}`}</td>}
            <td>
              <State word={sibling.state} />
            </td>
            <td class="right">
              <RewardValue value={sibling.reward} />
            </td>
            <td>
              {isHere(sibling.episode_id, sibling.attempt) && (
                <a href={compareHref(tree.episode, sibling)}>compare</a>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Says which recorded call a reply is that of. */
export function GivenFrom({ call, episode }: { call: Call; episode: Episode }) {
  const { replay } = episode;
  if (!call.replayed) return null;
  return (
    <div class="note">
      {"The reply was given again, and nothing was sampled. "}
      {replay && (
        <>
          {"It was recorded in "}
          <AttemptLink
            of={replay}
            to={callHref(replay.episode_id, replay.attempt, call.replayed)}
          />
          {"."}
        </>
      )}
    </div>
  );
}
