/** Chooses two attempts of a group: the best and the worst, unless the reader says otherwise. */

import { useState } from "preact/hooks";
import type { Episode } from "../api/types";
import { compareHref } from "../route";
import { decimal } from "../words/format";
import { safe } from "../words/safe";

const keyOf = (episode: Episode): string => `${episode.episode_id}/${episode.attempt}`;

/** `episodes` are ordered by their rewards, the best one first. */
export function Chooser({ episodes }: { episodes: Episode[] }) {
  const [left, setLeft] = useState<string | null>(null);
  const [right, setRight] = useState<string | null>(null);
  const scored = episodes.filter((episode) => episode.reward !== null);
  const ends = scored.length > 1 ? scored : episodes;
  const best = episodes.find((episode) => keyOf(episode) === left) ?? ends[0];
  const worst = episodes.find((episode) => keyOf(episode) === right) ?? ends.at(-1);
  if (!best || !worst || episodes.length < 2) return null;
  return (
    <div class="bar chooser">
      <label>
        compare <Choice episodes={episodes} value={keyOf(best)} onChange={setLeft} />
      </label>
      <label>
        with <Choice episodes={episodes} value={keyOf(worst)} onChange={setRight} />
      </label>
      <a class="button" href={compareHref(best, worst)}>
        compare
      </a>
    </div>
  );
}

interface ChoiceProps {
  episodes: Episode[];
  value: string;
  onChange(key: string): void;
}

function Choice({ episodes, value, onChange }: ChoiceProps) {
  return (
    <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {episodes.map((episode) => (
        <option key={keyOf(episode)} value={keyOf(episode)}>
          {`${decimal(episode.reward)}  ${safe(episode.episode_id)}${
            episode.attempt > 0 ? ` attempt ${episode.attempt}` : ""
          }`}
        </option>
      ))}
    </select>
  );
}
