/** A fork: what the history has, what was sent in its place, why, what it costs, what to change. */

import type { Fork, Tree } from "../api/types";
import { CallLink } from "../episode/summary";
import { ForkMark } from "../parts/marks";
import { Text } from "../parts/text";
import { diff, type Run } from "../words/diff";
import { causes } from "../words/meanings";
import { number, plural } from "../words/format";

const SOURCES: Record<string, string> = {
  tokenizer: "the texts are those of the token ids",
  messages: "the texts are those of the messages",
  logprobs: "the texts are those that the reply named beside its logprobs",
  ids: "no text is known; the ids are shown",
};

export function ForkView({ tree, fork }: { tree: Tree; fork: Fork }) {
  const [known, sent] = diff(fork.text_known ?? "", fork.text_sent ?? "");
  return (
    <div class="fork">
      <p class="fork-cause">
        <ForkMark cause={fork.cause} /> {causes[fork.cause]}.
        {fork.also.length > 0 && <span class="dim">{` Also: ${fork.also.join(", ")}.`}</span>}
      </p>
      <p class="fork-fix">
        <b>What to change:</b> <Text text={fork.advice} />.
      </p>
      <Cost tree={tree} fork={fork} />
      {fork.text_before && (
        <div class="fork-before">
          <h3>both have</h3>
          <pre>
            <Text text={fork.text_before} />
          </pre>
        </div>
      )}
      <div class="sides">
        <Side
          title="then the history has"
          tree={tree}
          call={fork.parent_call_id}
          runs={known}
          tone="known"
        />
        <Side title="then this call sent" tree={tree} call={fork.call_id} runs={sent} tone="sent" />
      </div>
      <p class="dim">{SOURCES[fork.text_source] ?? ""}</p>
      <div class="sides">
        <Ids title="ids of the history" ids={fork.ids_known} other={fork.ids_sent} />
        <Ids title="ids that were sent" ids={fork.ids_sent} other={fork.ids_known} />
      </div>
    </div>
  );
}

function Cost({ tree, fork }: { tree: Tree; fork: Fork }) {
  const where = fork.in_sampled ? "in an answer of the model" : "in a prompt";
  return (
    <dl class="facts">
      <div>
        <dt>leaves the history of</dt>
        <dd>
          <CallLink tree={tree} call={fork.parent_call_id} />
        </dd>
      </div>
      <div>
        <dt>first token that differs</dt>
        <dd>
          {number(fork.position)}
          {fork.in_sampled !== null && <span class="dim">{` ${where}`}</span>}
        </dd>
      </div>
      <div>
        <dt>prefilled again</dt>
        <dd>{fork.prefill_tokens === null ? "–" : plural(fork.prefill_tokens, "token")}</dd>
      </div>
      <div>
        <dt>left behind</dt>
        <dd>
          {fork.lost_tokens === null ? "–" : plural(fork.lost_tokens, "token")}
          {fork.lost_sampled_tokens !== null && (
            <span class="dim">{`, ${number(fork.lost_sampled_tokens)} of them sampled`}</span>
          )}
        </dd>
      </div>
    </dl>
  );
}

interface SideProps {
  title: string;
  tree: Tree;
  call: string;
  runs: Run[];
  tone: string;
}

function Side({ title, tree, call, runs, tone }: SideProps) {
  return (
    <div class={`side ${tone}`}>
      <h3>
        {title} <CallLink tree={tree} call={call} />
      </h3>
      <pre>
        {runs.length === 0 && <span class="none">nothing</span>}
        {runs.map((run, at) =>
          run.same ? (
            <Text key={at} text={run.text} />
          ) : (
            <mark key={at}>
              <Text text={run.text} />
            </mark>
          ),
        )}
      </pre>
    </div>
  );
}

function Ids({ title, ids, other }: { title: string; ids: number[]; other: number[] }) {
  if (ids.length === 0) return null;
  return (
    <div class="side">
      <h3>{title}</h3>
      <pre class="ids">
        {ids.map((id, at) => (id === other[at] ? `${id} ` : <mark key={at}>{`${id} `}</mark>))}
      </pre>
    </div>
  );
}
