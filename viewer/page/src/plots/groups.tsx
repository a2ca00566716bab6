/** The rewards of groups in the order in which they began: mean, deviation, range. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Group } from "../api/types";
import { go, href } from "../route";
import { decimal } from "../words/format";
import { safe } from "../words/safe";
import { linear, ticks } from "./scale";

const HEIGHT = 190;
const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;

export function GroupPlot({ groups, total }: { groups: Group[]; total: number }) {
  const scored = groups.filter((group) => group.mean !== null).reverse();
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [index, setIndex] = useState(-1);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) =>
      setWidth(Math.floor(entry?.contentRect.width ?? 0)),
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, [scored.length > 0]);
  const at = scored[index];
  if (scored.length === 0) return null;
  return (
    <figure class="plot wide" ref={box}>
      <figcaption>
        <b>Reward by group</b>{" "}
        <span class="dim">
          {total > groups.length ? `the newest ${groups.length} of ${total}, ` : ""}
          mean, deviation of the sample, range
        </span>
        <span class="readout">
          {at && (
            <>
              <span class="mono">{safe(at.group_id)}</span>
              <b>{decimal(at.mean)}</b>
              {`± ${decimal(at.std)}, ${decimal(at.min)} to ${decimal(at.max)}, ${at.scored} of ${at.episodes} scored`}
            </>
          )}
        </span>
      </figcaption>
      {width > 0 && <Drawing groups={scored} width={width} index={index} onIndex={setIndex} />}
    </figure>
  );
}

interface DrawingProps {
  groups: Group[];
  width: number;
  index: number;
  onIndex(index: number): void;
}

function Drawing({ groups, width, index, onIndex }: DrawingProps) {
  const low = Math.min(0, ...groups.map((group) => group.min ?? 0));
  const high = Math.max(1, ...groups.map((group) => group.max ?? 1));
  const y = linear(low, high, HEIGHT - BOTTOM, TOP);
  const step = (width - LEFT - RIGHT) / groups.length;
  const x = (at: number) => LEFT + (at + 0.5) * step;
  const seek = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    onIndex(
      Math.max(
        0,
        Math.min(groups.length - 1, Math.floor((event.clientX - box.left - LEFT) / step)),
      ),
    );
  };
  const chosen = groups[index];
  return (
    <svg
      class="group-plot"
      width={width}
      height={HEIGHT}
      onMouseMove={seek}
      onMouseLeave={() => onIndex(-1)}
      onClick={() => chosen && go(href(["group", chosen.group_id]))}
      role="img"
      aria-label="reward by group"
    >
      {ticks(low, high, 4).map((value) => (
        <g key={value}>
          <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(value)} y2={y(value)} />
          <text class="tick" x={LEFT - 6} y={y(value) + 4} text-anchor="end">
            {decimal(value)}
          </text>
        </g>
      ))}
      {groups.map((group, at) => {
        const mean = group.mean ?? 0;
        const around = group.std ?? 0;
        return (
          <g key={group.group_id} class={at === index ? "series0 on" : "series0"}>
            <line
              class="range"
              x1={x(at)}
              x2={x(at)}
              y1={y(group.min ?? mean)}
              y2={y(group.max ?? mean)}
            />
            <line
              class="deviation"
              x1={x(at)}
              x2={x(at)}
              y1={y(Math.max(group.min ?? low, mean - around))}
              y2={y(Math.min(group.max ?? high, mean + around))}
            />
            <circle cx={x(at)} cy={y(mean)} r={at === index ? 5 : Math.min(3.4, step / 2)} />
          </g>
        );
      })}
      <text class="tick" x={LEFT} y={HEIGHT - 5}>
        older
      </text>
      <text class="tick" x={width - RIGHT} y={HEIGHT - 5} text-anchor="end">
        newer
      </text>
    </svg>
  );
}
