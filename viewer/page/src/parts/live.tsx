/** Whether the page follows what is recorded, and the events that a view asked for. */

import { createContext } from "preact";
import { useContext, useEffect, useRef } from "preact/hooks";
import { listen } from "../api/events";
import type { Params } from "../api/client";
import type { LiveEvent } from "../api/sums";

export interface Following {
  /** False while the reader has paused the page. */
  on: boolean;
  connected: boolean;
  setOn(on: boolean): void;
  setConnected(connected: boolean): void;
}

export const FollowingContext = createContext<Following>({
  on: false,
  connected: false,
  setOn: () => {},
  setConnected: () => {},
});

/**
 * Listens to events while the component is there, the page is in sight and not paused. `onAgain`
 * runs when the stream is there again after a gap, in which events may have passed.
 */
export function useEvents(
  params: Params,
  onEvent: (event: LiveEvent) => void,
  onAgain: () => void = () => {},
): void {
  const following = useContext(FollowingContext);
  const latest = useRef({ onEvent, onAgain });
  latest.current = { onEvent, onAgain };
  const connections = useRef(0);
  const key = JSON.stringify(params);

  useEffect(() => {
    if (!following.on) return;
    let stop: (() => void) | null = null;
    const start = () => {
      stop?.();
      stop = document.hidden
        ? null
        : listen(params, {
            onEvent: (event) => latest.current.onEvent(event),
            onState: (connected) => {
              following.setConnected(connected);
              if (connected && connections.current++ > 0) latest.current.onAgain();
            },
          });
    };
    start();
    document.addEventListener("visibilitychange", start);
    return () => {
      document.removeEventListener("visibilitychange", start);
      stop?.();
      following.setConnected(false);
    };
  }, [key, following.on]);
}

/** The switch in the bar. */
export function FollowingSwitch() {
  const { on, connected, setOn } = useContext(FollowingContext);
  const word = !on ? "paused" : connected ? "live" : "not connected";
  return (
    <button
      class={`quiet following ${on && connected ? "on" : ""}`}
      aria-pressed={on}
      title={on ? "stop following what is recorded" : "follow what is recorded"}
      onClick={() => setOn(!on)}
    >
      <span class="dot" />
      {word}
    </button>
  );
}
