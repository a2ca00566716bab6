/** The rewards of one group on a line: least, mean, greatest, and the deviation around the mean. */

import type { Group } from "../api/types";

const WIDTH = 100;
const HEIGHT = 14;
const EDGE = 4;

/** Draws the range on a scale from 0 to 1, or a wider one where rewards are outside. */
export function Spread({ row }: { row: Group }) {
  const { min, max, mean } = row;
  if (min === null || max === null || mean === null) return <span class="none">–</span>;
  const low = Math.min(0, min);
  const high = Math.max(1, max);
  const x = (value: number) => EDGE + ((value - low) / (high - low)) * (WIDTH - 2 * EDGE);
  const around = row.std ?? 0;
  const middle = HEIGHT / 2;
  return (
    <svg
      class="spread"
      width={WIDTH}
      height={HEIGHT}
      role="img"
      aria-label={`${min} to ${max}, mean ${mean}`}
    >
      <line class="axis" x1={EDGE} x2={WIDTH - EDGE} y1={middle} y2={middle} />
      <line class="range" x1={x(min)} x2={x(max)} y1={middle} y2={middle} />
      <line
        class="deviation"
        x1={x(Math.max(low, mean - around))}
        x2={x(Math.min(high, mean + around))}
        y1={middle}
        y2={middle}
      />
      <circle class="mean" cx={x(mean)} cy={middle} r={3.2} />
    </svg>
  );
}
