/** The filters of a list. They are part of the address, so that a link has them. */

import { useEffect, useRef, useState } from "preact/hooks";
import { when } from "../words/when";

export interface Filter {
  name: string;
  hint: string;
  /** Most characters that are usual; the field has this width. */
  width: number;
  kind?: "text" | "number" | "time" | "label";
  options?: string[];
}

const TYPING_MS = 250;

interface Props {
  filters: Filter[];
  values: Record<string, string>;
  onChange(name: string, value: string): void;
  onClear(): void;
}

export function Filters({ filters, values, onChange, onClear }: Props) {
  const isUsed = filters.some((filter) => values[filter.name]);
  return (
    <div class="filters" role="search">
      {filters.map((filter) =>
        filter.options ? (
          <Choice
            key={filter.name}
            filter={filter}
            value={values[filter.name] ?? ""}
            onChange={onChange}
          />
        ) : (
          <Field
            key={filter.name}
            filter={filter}
            value={values[filter.name] ?? ""}
            onChange={onChange}
          />
        ),
      )}
      {isUsed && (
        <button class="quiet" onClick={onClear}>
          clear
        </button>
      )}
    </div>
  );
}

interface FieldProps {
  filter: Filter;
  value: string;
  onChange(name: string, value: string): void;
}

function Choice({ filter, value, onChange }: FieldProps) {
  return (
    <select
      class={value ? "used" : ""}
      aria-label={filter.hint}
      value={value}
      onChange={(event) => onChange(filter.name, event.currentTarget.value)}
    >
      <option value="">{filter.hint}</option>
      {filter.options?.map((option) => (
        <option key={option}>{option}</option>
      ))}
    </select>
  );
}

/** A field that takes effect when the reader stops typing. */
function Field({ filter, value, onChange }: FieldProps) {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setText(value), [value]);
  const wrong = !isValid(filter, text);

  const typed = (next: string) => {
    setText(next);
    clearTimeout(timer.current);
    if (isValid(filter, next))
      timer.current = setTimeout(() => onChange(filter.name, next), TYPING_MS);
  };
  return (
    <input
      class={`${value ? "used" : ""} ${wrong ? "wrong" : ""}`}
      type="search"
      size={filter.width}
      placeholder={filter.hint}
      aria-label={filter.hint}
      aria-invalid={wrong}
      title={titleOf(filter)}
      value={text}
      onInput={(event) => typed(event.currentTarget.value)}
    />
  );
}

function isValid(filter: Filter, text: string): boolean {
  if (text === "") return true;
  if (filter.kind === "number") return text.trim() !== "" && Number.isFinite(Number(text));
  if (filter.kind === "time") return when(text) !== undefined;
  return filter.kind === "label" ? text.includes("=") : true;
}

function titleOf(filter: Filter): string {
  if (filter.kind === "time") return `${filter.hint}: 90m, 24h, 7d ago, or 2026-01-31 10:00`;
  if (filter.kind === "label") return "a label, as NAME=VALUE";
  return filter.hint;
}

/** Returns filters as parameters of a question: times in seconds, what cannot be asked left out. */
export function paramsOf(
  filters: Filter[],
  values: Record<string, string>,
): Record<string, string> {
  const params: Record<string, string> = {};
  for (const filter of filters) {
    const value = values[filter.name];
    if (!value || !isValid(filter, value)) continue;
    params[filter.name] = filter.kind === "time" ? String(when(value)) : value;
  }
  return params;
}
