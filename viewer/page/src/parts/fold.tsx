/** What is folded to one line until it is asked for. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Text } from "./text";

const PREVIEW_CHARS = 200;

interface Props {
  /** What is folded: a few words. */
  label: ComponentChildren;
  /** The text whose beginning stands beside the label. */
  preview?: string;
  class?: string;
  children: ComponentChildren;
}

export function Fold({ label, preview = "", class: name = "", children }: Props) {
  const [isOpen, setOpen] = useState(false);
  return (
    <div class={`folded ${name}`}>
      <div class="fold-line">
        <button class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "▾" : "▸"} {label}
        </button>
        {!isOpen && preview && (
          <span class="dim one-line">
            <Text text={preview.trimStart().slice(0, PREVIEW_CHARS)} />
          </span>
        )}
      </div>
      {isOpen && <div class="fold-inner">{children}</div>}
    </div>
  );
}
