/** What comes into sight. */

import { useEffect, useState } from "preact/hooks";

/** Returns true from the moment on at which an element comes near to what is in sight. */
export function useNear(place: { current: HTMLElement | null }, near: string): boolean {
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    if (!place.current || isNear) return;
    const watcher = new IntersectionObserver(
      (seen) => seen.some((entry) => entry.isIntersecting) && setNear(true),
      { rootMargin: near },
    );
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, [isNear]);
  return isNear;
}
