/** A plot of numbers over time or over versions, with the values under the pointer. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { linear, ticks, timeLabel, timeTicks } from "./scale";
import { time } from "../words/format";

const HEIGHT = 170;
const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;

export interface Series {
  name: string;
  /** Number of the color. */
  color: number;
  values: (number | null)[];
  shape: "line" | "bar" | "dots";
}

interface Props {
  title: string;
  /** Unit or meaning of the values. */
  note?: string;
  /** Places on the horizontal axis: times, or the indexes of `labels`. */
  at: number[];
  labels?: string[];
  series: Series[];
  format(value: number): string;
  /** The axis always has these values. */
  include?: number[];
  /** True for a plot that takes twice the place. */
  isWide?: boolean;
  /** What stands beside the values under the pointer. */
  detail?(index: number): ComponentChildren;
}

export function Plot(props: Props) {
  const isEmpty = props.series.every((series) => series.values.every((value) => value === null));
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
  }, [isEmpty]);
  if (isEmpty) return null;
  return (
    <figure class={props.isWide ? "plot two" : "plot"} ref={box}>
      <figcaption>
        <b>{props.title}</b> <span class="dim">{props.note}</span>
        <Readout {...props} index={index} />
      </figcaption>
      {width > 0 && <Drawing {...props} width={width} index={index} onIndex={setIndex} />}
    </figure>
  );
}

/** Shows the names of the lines, with their values where the pointer is. */
function Readout({ series, at, labels, format, index, detail }: Props & { index: number }) {
  return (
    <span class="readout">
      {index >= 0 && <span class="dim">{labels ? labels[index] : time(at[index])}</span>}
      {series.map(({ name, color, values }) => {
        const value = values[index];
        return (
          <span key={name}>
            <i class={`swatch series${color}`} />
            {name}
            {index >= 0 && (
              <b>{value === null || value === undefined ? " –" : ` ${format(value)}`}</b>
            )}
          </span>
        );
      })}
      {index >= 0 && detail?.(index)}
    </span>
  );
}

type DrawingProps = Props & { width: number; index: number; onIndex(index: number): void };

function Drawing({
  title,
  at,
  labels,
  series,
  format,
  include = [],
  width,
  index,
  onIndex,
}: DrawingProps) {
  const values = series.flatMap((each) => each.values.filter((value) => value !== null));
  const low = Math.min(
    ...values,
    ...include,
    ...(series.some((each) => each.shape === "bar") ? [0] : []),
  );
  const high = Math.max(...values, ...include);
  const y = linear(low, high === low ? low + 1 : high, HEIGHT - BOTTOM, TOP);
  const step = (width - LEFT - RIGHT) / Math.max(1, at.length);
  const first = at[0] ?? 0;
  const last = at.at(-1) ?? 1;
  const x = linear(first, last, LEFT + step / 2, width - RIGHT - step / 2);

  const seek = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    onIndex(
      Math.max(0, Math.min(at.length - 1, Math.floor((event.clientX - box.left - LEFT) / step))),
    );
  };
  return (
    <svg
      width={width}
      height={HEIGHT}
      onMouseMove={seek}
      onMouseLeave={() => onIndex(-1)}
      role="img"
      aria-label={title}
    >
      {ticks(low, high === low ? low + 1 : high, 4).map((value) => (
        <g key={value}>
          <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(value)} y2={y(value)} />
          <text class="tick" x={LEFT - 6} y={y(value) + 4} text-anchor="end">
            {format(value)}
          </text>
        </g>
      ))}
      <AcrossTicks at={at} labels={labels} x={x} width={width} />
      {index >= 0 && (
        <line
          class="cross"
          x1={x(at[index] ?? 0)}
          x2={x(at[index] ?? 0)}
          y1={TOP}
          y2={HEIGHT - BOTTOM}
        />
      )}
      {series.map((each, order) => (
        <Shape
          key={each.name}
          series={each}
          at={at}
          x={x}
          y={y}
          step={step}
          side={order}
          sides={series.length}
          index={index}
        />
      ))}
    </svg>
  );
}

interface AcrossProps {
  at: number[];
  labels: string[] | undefined;
  x(value: number): number;
  width: number;
}

function AcrossTicks({ at, labels, x, width }: AcrossProps) {
  const first = at[0] ?? 0;
  const last = at.at(-1) ?? 1;
  const most = Math.max(2, Math.floor(width / 70));
  if (!labels) {
    return (
      <>
        {timeTicks(first, last, most).map((value) => (
          <text key={value} class="tick" x={x(value)} y={HEIGHT - 5} text-anchor="middle">
            {timeLabel(value, last - first)}
          </text>
        ))}
      </>
    );
  }
  const every = Math.max(1, Math.ceil(at.length / most));
  return (
    <>
      {at.map((value, index) =>
        index % every === 0 ? (
          <text key={value} class="tick" x={x(value)} y={HEIGHT - 5} text-anchor="middle">
            {labels[index]?.slice(0, 14)}
          </text>
        ) : null,
      )}
    </>
  );
}

interface ShapeProps {
  series: Series;
  at: number[];
  x(value: number): number;
  y(value: number): number;
  step: number;
  side: number;
  sides: number;
  index: number;
}

function Shape({ series, at, x, y, step, side, sides, index }: ShapeProps) {
  const color = `series${series.color}`;
  if (series.shape === "bar") {
    const width = Math.max(1, (step * 0.8) / sides);
    return (
      <g class={`bars ${color}`}>
        {series.values.map((value, each) => {
          if (!value) return null;
          const left = x(at[each] ?? 0) - step * 0.4 + side * width;
          const top = Math.min(y(value), y(0));
          return (
            <rect
              key={each}
              x={left}
              y={top}
              width={width}
              height={Math.max(0.5, Math.abs(y(0) - y(value)))}
            />
          );
        })}
      </g>
    );
  }
  const points = series.values.map((value, each) =>
    value === null ? null : ([x(at[each] ?? 0), y(value)] as const),
  );
  return (
    <g class={color}>
      {series.shape === "line" && <path class="line" d={pathOf(points)} />}
      {points.map((point, each) =>
        point && (series.shape === "dots" || each === index || isAlone(points, each)) ? (
          <circle key={each} cx={point[0]} cy={point[1]} r={each === index ? 4 : 2.6} />
        ) : null,
      )}
    </g>
  );
}

type Point = readonly [number, number] | null;

/** Returns true for a point without a neighbor, which no line would show. */
const isAlone = (points: Point[], at: number): boolean => !points[at - 1] && !points[at + 1];

/** Returns lines through points; a value that is not known leaves a gap. */
function pathOf(points: Point[]): string {
  let path = "";
  points.forEach((point, at) => {
    if (point) path += `${points[at - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
  });
  return path;
}
