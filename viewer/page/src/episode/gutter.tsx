/** The lanes of one row, drawn beside it. */

import type { LaneLine, LaneRow } from "./lanes";

const LANE_PX = 14;
/** More lanes than this are drawn on top of each other. */
const LANES_MAX = 14;

export const gutterPx = (lanes: number): number => Math.min(lanes, LANES_MAX) * LANE_PX + 6;

const x = (lane: number): number => Math.min(lane, LANES_MAX - 1) * LANE_PX + LANE_PX / 2 + 3;
const color = (lane: number): string => `lane${lane % 6}`;
const classOf = (line: LaneLine): string => `${color(line.lane)}${line.isLoose ? " loose" : ""}`;

interface PassingProps {
  passing: LaneLine[];
  width: number;
  height: number;
}

/** Draws the lanes that pass beside a call without a turn. */
export function PassingGutter({ passing, width, height }: PassingProps) {
  return (
    <svg class="gutter" width={gutterPx(width)} height={height} aria-hidden="true">
      {passing.map((line) => (
        <path key={line.lane} class={classOf(line)} d={`M${x(line.lane)} 0V${height}`} />
      ))}
    </svg>
  );
}

interface Props {
  row: LaneRow;
  width: number;
  height: number;
}

export function Gutter({ row, width, height }: Props) {
  const middle = height / 2;
  const dot = x(row.lane);
  return (
    <svg class="gutter" width={gutterPx(width)} height={height} aria-hidden="true">
      {row.passing.map((line) => (
        <path key={line.lane} class={classOf(line)} d={`M${x(line.lane)} 0V${height}`} />
      ))}
      {row.above && <path class={classOf(row.above)} d={`M${dot} 0V${middle}`} />}
      {row.leaving.map((line) => (
        <path
          key={`to ${line.lane}`}
          class={classOf(line)}
          d={
            line.lane === row.lane
              ? `M${dot} ${middle}V${height}`
              : curve(dot, x(line.lane), middle, height)
          }
        />
      ))}
      <circle class={`${color(row.lane)} ${dotClass(row)}`} cx={dot} cy={middle} r={4} />
    </svg>
  );
}

function curve(from: number, to: number, middle: number, height: number): string {
  return `M${from} ${middle}C${from} ${height} ${to} ${middle} ${to} ${height}`;
}

/** Returns a filled dot for a turn that was sampled whole, a ring for one without tokens. */
function dotClass(row: LaneRow): string {
  const { outcome, fidelity } = row.turn;
  if (outcome === null) return "running";
  if (outcome !== "complete") return "broken";
  return fidelity === null ? "ring" : "full";
}
