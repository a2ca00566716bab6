/**
 * The filters of a list: one field, and a chip for each filter that is set. They are part of the
 * address, so that a link has them.
 */

import { useEffect, useRef, useState } from "preact/hooks";
import { Text } from "../parts/text";
import { safe } from "../words/safe";
import {
  completed,
  formOf,
  isValid,
  read,
  remembered,
  suggestions,
  wordOf,
  written,
  type Filter,
} from "./filter";

const TYPING_MS = 250;
const LIST_ID = "filter-suggestions";

type Values = Record<string, string>;

interface Props {
  /** What the field is for those who do not see it. */
  label: string;
  filters: Filter[];
  values: Values;
  /** Sets some filters; an empty value takes one away. */
  onChange(changes: Values): void;
}

export function FilterField({ label, filters, values, onChange }: Props) {
  const plain = filters.find((filter) => filter.isPlain)?.name ?? "";
  const chips = filters.filter((filter) => !filter.isPlain && values[filter.name]);
  const line = useLine(filters, values[plain] ?? "", (changes) => onChange(changes));
  const clear = () => {
    line.setText("");
    onChange(Object.fromEntries(filters.map((filter) => [filter.name, ""])));
  };
  const takeBack = (filter: Filter) => {
    line.setText(written(filter, values[filter.name] ?? ""));
    onChange({ [filter.name]: "" });
  };
  return (
    <div class="filters" role="search">
      {chips.map((filter) => (
        <Chip
          key={filter.name}
          filter={filter}
          value={values[filter.name] ?? ""}
          onRemove={() => onChange({ [filter.name]: "" })}
        />
      ))}
      <Entry
        label={label}
        filters={filters}
        line={line}
        onBackspace={() => {
          const last = chips.at(-1);
          if (last) takeBack(last);
        }}
      />
      {(chips.length > 0 || values[plain]) && (
        <button class="quiet" onClick={clear}>
          clear
        </button>
      )}
    </div>
  );
}

interface TypedLine {
  text: string;
  wrong: string | null;
  setText(text: string): void;
  type(text: string): void;
  /** Takes all that is there. */
  finish(): void;
}

/** The text of the field, which takes effect when the reader stops typing. */
function useLine(filters: Filter[], plain: string, onChange: (values: Values) => void): TypedLine {
  const [text, setText] = useState(plain);
  const [wrong, setWrong] = useState<string | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const latest = useRef(onChange);
  latest.current = onChange;
  const name = filters.find((filter) => filter.isPlain)?.name ?? "";
  useEffect(() => {
    if (read(text, filters, false).plain !== plain) setText(plain);
  }, [plain]);
  useEffect(() => () => clearTimeout(timer.current), []);

  const take = (next: string, isDone: boolean) => {
    clearTimeout(timer.current);
    const said = read(next, filters, isDone);
    setWrong(said.wrong);
    const isWhole = Object.keys(said.fields).length > 0;
    setText(isWhole ? said.rest : next);
    const changes = { ...said.fields, [name]: said.plain };
    if (isWhole || (isDone && said.plain !== plain)) onChange(changes);
    else if (said.plain !== plain)
      timer.current = setTimeout(() => latest.current(changes), TYPING_MS);
  };
  return {
    text,
    wrong,
    setText,
    type: (next) => take(next, false),
    finish: () => take(text, true),
  };
}

interface ChipProps {
  filter: Filter;
  value: string;
  onRemove(): void;
}

function Chip({ filter, value, onRemove }: ChipProps) {
  const words = safe(written(filter, value));
  const isWrong = !isValid(filter, value);
  return (
    <span
      class={isWrong ? "chip wrong" : "chip"}
      title={isWrong ? `not ${formOf(filter)}` : filter.hint}
    >
      <Text text={written(filter, value)} />
      <button aria-label={`remove ${words}`} onClick={onRemove}>
        ×
      </button>
    </span>
  );
}

interface EntryProps {
  label: string;
  filters: Filter[];
  line: TypedLine;
  /** Takes the last chip back into the field. */
  onBackspace(): void;
}

/** The field itself, with what its last word may become. */
function Entry({ label, filters, line, onBackspace }: EntryProps) {
  const [isOpen, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const found = isOpen ? suggestions(line.text, filters, remembered) : [];
  const accept = (index: number) => {
    const suggestion = found[index];
    if (!suggestion) return;
    setAt(-1);
    line.type(completed(line.text, suggestion));
  };
  const close = () => {
    setOpen(false);
    setAt(-1);
  };
  const onKey = (event: KeyboardEvent) => {
    const move = (by: number) => {
      setOpen(true);
      setAt((from) => Math.min(found.length - 1, Math.max(-1, from + by)));
    };
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter" && at >= 0) accept(at);
    else if (event.key === "Enter") {
      line.finish();
      close();
    } else if (event.key === "Escape" && found.length > 0) {
      event.stopPropagation();
      close();
    } else if (event.key === "Backspace" && line.text === "") onBackspace();
    else return;
    event.preventDefault();
  };
  const hint = filters.filter((filter) => !filter.isPlain).map(wordOf);
  return (
    <div class="entry">
      <input
        class={line.wrong ? "wrong" : ""}
        role="combobox"
        aria-label={label}
        aria-expanded={found.length > 0}
        aria-controls={LIST_ID}
        aria-autocomplete="list"
        aria-activedescendant={at >= 0 ? `${LIST_ID}-${at}` : undefined}
        aria-invalid={line.wrong !== null}
        autocomplete="off"
        spellcheck={false}
        placeholder={`${label}: a name, ${hint.slice(0, 3).join(" ")} ...`}
        title={line.wrong ? wrongWords(line.wrong, filters) : undefined}
        value={line.text}
        onInput={(event) => {
          setOpen(true);
          setAt(-1);
          line.type(event.currentTarget.value);
        }}
        onFocus={() => setOpen(true)}
        onClick={() => setOpen(true)}
        onBlur={() => {
          close();
          line.finish();
        }}
        onKeyDown={onKey}
      />
      <ul
        id={LIST_ID}
        class="suggestions"
        role="listbox"
        aria-label="suggestions"
        hidden={!found.length}
      >
        {found.map((suggestion, index) => (
          <li
            key={suggestion.word}
            id={`${LIST_ID}-${index}`}
            role="option"
            aria-selected={index === at}
            onMouseDown={(event) => {
              event.preventDefault();
              accept(index);
            }}
          >
            <b>
              <Text text={suggestion.word} />
            </b>
            <span class="dim">{suggestion.hint}</span>
          </li>
        ))}
      </ul>
      {line.wrong && (
        <span class="wrong-words" role="alert">
          {wrongWords(line.wrong, filters)}
        </span>
      )}
    </div>
  );
}

function wrongWords(word: string, filters: Filter[]): string {
  const filter = filters.find((one) => !one.isPlain && word.startsWith(wordOf(one)));
  return filter ? `${wordOf(filter)} takes ${formOf(filter)}` : "";
}
