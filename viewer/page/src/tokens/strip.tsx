/** The sampled tokens of a turn at a glance: how unlikely they were, from the first to the last. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { decimal, number } from "../words/format";
import { WINDOW_TOKENS, type Windows } from "./windows";

const HEIGHT = 30;
const BAR_PX = 3;
/** Longer answers are drawn as far as they were looked at. */
const LOADED_TOKENS_MAX = 50_000;
/** Tokens from which on the strip is worth its place. */
const TOKENS_MIN = 80;
/** A mean logprob that fills the height. */
const DEEPEST = 2.5;

interface Bin {
  from: number;
  mean: number | null;
}

interface Props {
  windows: Windows;
  /** Count of answers so far: more tokens may be there. */
  version: number;
  prompt: number;
  sampled: number;
  onSeek(position: number): void;
}

export function Strip({ windows, version, prompt, sampled, onSeek }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [over, setOver] = useState(-1);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, [sampled < TOKENS_MIN]);
  useEffect(() => {
    if (sampled > LOADED_TOKENS_MAX) return;
    for (let at = prompt; at < prompt + sampled; at += WINDOW_TOKENS) windows.need(at);
  }, [windows]);
  const count = Math.max(1, Math.min(sampled, Math.floor(width / BAR_PX)));
  const bins = useMemo(() => binsOf(windows, prompt, sampled, count), [windows, version, count]);

  if (sampled < TOKENS_MIN) return null;
  const step = width / count;
  const seek = (event: MouseEvent) => {
    const left = (event.currentTarget as Element).getBoundingClientRect().left;
    return Math.max(0, Math.min(count - 1, Math.floor((event.clientX - left) / step)));
  };
  const bin = bins[over];
  const words = bin
    ? `from sampled token ${number(bin.from - prompt)} on: mean logprob ${decimal(bin.mean, 2)}`
    : "mean logprob along the sampled tokens; a click goes there";
  return (
    <div class="strip" ref={box} title={words}>
      <svg
        width={width}
        height={HEIGHT}
        role="img"
        aria-label="mean logprob along the sampled tokens"
        onMouseMove={(event) => setOver(seek(event))}
        onMouseLeave={() => setOver(-1)}
        onClick={(event) => onSeek(bins[seek(event)]?.from ?? prompt)}
      >
        {bins.map(({ from, mean }, at) => {
          const high = Math.min(1, -(mean ?? 0) / DEEPEST) * HEIGHT;
          const name = mean === null ? "missing" : at === over ? "over" : "";
          return (
            <rect
              key={from}
              class={name}
              x={at * step}
              y={HEIGHT - Math.max(1, high)}
              width={Math.max(1, step - 0.6)}
              height={Math.max(1, high)}
            />
          );
        })}
      </svg>
    </div>
  );
}

/** Returns the mean logprobs of parts of one length; null where none is known. */
function binsOf(windows: Windows, prompt: number, sampled: number, count: number): Bin[] {
  return Array.from({ length: count }, (_, bin) => {
    const from = prompt + Math.floor((bin * sampled) / count);
    const to = prompt + Math.floor(((bin + 1) * sampled) / count);
    let sum = 0;
    let known = 0;
    for (let at = from; at < to; at++) {
      const logprob = windows.token(at)?.logprob ?? null;
      if (logprob === null) continue;
      sum += logprob;
      known++;
    }
    return { from, mean: known > 0 ? sum / known : null };
  });
}
