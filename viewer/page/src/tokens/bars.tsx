/** What stands between the tokens of a turn, and above them. */

import type { Tree, Turn } from "../api/types";
import { CallLink } from "../episode/summary";
import { plural } from "../words/format";
import type { Fold, Heading } from "./layout";
import { LEGEND } from "./shown";

interface BarProps {
  tree: Tree;
  turn: Turn | null;
  item: Fold | Heading;
  isOpen: boolean;
  onToggle(name: string): void;
}

/** Shows the button of a folded part, or the heading of the sampled tokens. */
export function Bar({ tree, turn, item, isOpen, onToggle }: BarProps) {
  const count = item.to - item.from;
  if (item.kind === "heading") {
    return <h3 class="token-heading">{plural(count, "sampled token")}</h3>;
  }
  const words =
    item.name === "known" ? plural(count, "prompt token") : plural(count, "new prompt token");
  return (
    <div class="token-fold">
      <button class="fold" aria-expanded={isOpen} onClick={() => onToggle(item.name)}>
        {isOpen ? "▾" : "▸"} {words}
      </button>
      {item.name === "known" && turn?.parent && (
        <span class="dim">
          {" known from "}
          <CallLink tree={tree} call={turn.parent.call_id} view="tokens" />
        </span>
      )}
    </div>
  );
}

/** Shows what the colors mean. */
export function Legend() {
  return (
    <span class="legend" title="the probability of the sampled token, from its logprob">
      <span class="dim">at least</span>
      {LEGEND.map(([name, word]) => (
        <span key={name} class={`tok ${name}`}>
          {word}
        </span>
      ))}
      <span class="tok p0 masked">not trained</span>
      <span class="tok unknown">no logprob</span>
    </span>
  );
}
