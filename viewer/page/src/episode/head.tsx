/** What the head of an episode says of its tokens. */

import type { Tree } from "../api/types";
import { Mark, Verdict } from "../parts/marks";
import { number, plural } from "../words/format";

/** True for a recording of what was said alone: its server told no ids. */
export const isTextOnly = ({ episode, sampled_tokens, turns }: Tree): boolean =>
  episode.with_ids === 0 &&
  sampled_tokens === 0 &&
  turns.some((turn) => (turn.counted_tokens ?? null) !== null);

/** The verdict on the tokens, unless only texts were recorded. */
export function VerdictOf({ tree }: { tree: Tree }) {
  if (!isTextOnly(tree)) return <Verdict word={tree.verdict} />;
  return <Mark word="text only" tone="plain" title="the server told no token ids" />;
}

/** The number of sampled tokens; without ids that of the server. */
export function Sampled({ tree }: { tree: Tree }) {
  if (isTextOnly(tree)) {
    return (
      <span class="fact" title="the server told no token ids">
        {`${plural(tree.episode.completion_tokens ?? 0, "sampled token")}, by the server's count`}
      </span>
    );
  }
  return (
    <span class="fact" title="sampled tokens; those that may be trained">
      <b>{number(tree.trainable_tokens)}</b>
      {` of ${plural(tree.sampled_tokens, "sampled token")} trainable`}
    </span>
  );
}
