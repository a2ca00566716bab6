/** What the control listener answers: the forms of `docs/reading.md`. */

/** The recording that answers the calls of an attempt; those of its first turns if `until` is set. */
export interface Replay {
  episode_id: string;
  attempt: number;
  until: number | null;
  mode: string;
}

/** An attempt that goes on from the same turn of the same recording. */
export interface Sibling {
  episode_id: string;
  attempt: number;
  until?: number | null;
  state: string;
  reward: number | null;
}

export interface Episode {
  episode_id: string;
  attempt: number;
  group_id: string | null;
  task_id: string | null;
  labels: Record<string, string>;
  /** Labels that a list does not have. Absent in documents of earlier versions. */
  labels_left_out?: number;
  source: string;
  state: string;
  opened_at: number;
  closed_at: number | null;
  last_call_at: number | null;
  model: string | null;
  calls: number;
  generations: number;
  with_ids: number;
  incomplete: number;
  refused: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  reward: number | null;
  may_lack_calls: boolean;
  replay?: Replay | null;
  /** Only where words were asked for, and there are any. */
  first_prompt?: string;
  last_answer?: string;
  last_error?: string;
}

export interface EpisodePage {
  total: number;
  /** True if there are more than these. */
  total_is_least?: boolean;
  episodes: Episode[];
}

export interface Group {
  group_id: string;
  task_ids: string[];
  size: number | null;
  episodes: number;
  closed: number;
  scored: number;
  mean: number | null;
  std: number | null;
  min: number | null;
  max: number | null;
  calls: number;
  completion_tokens: number | null;
  opened_at: number;
  last_opened_at: number;
}

export interface GroupPage {
  total: number;
  total_is_least?: boolean;
  groups: Group[];
}

/** The weights that sampled the tokens from `start` to before `end`. */
export interface VersionSpan {
  version: string;
  number: number | null;
  checksum: string | null;
  start: number;
  end: number;
}

export interface TurnKey {
  call_id: string;
  choice: number;
}

/** A call without a turn, or what all turns have as well. */
export interface Exchange {
  number: number;
  call_id: string;
  method?: string;
  path?: string;
  route: string;
  model: string | null;
  client: string | null;
  agent: string | null;
  started_at: number;
  first_byte_ms: number | null;
  duration_ms: number | null;
  status: number | null;
  outcome: string | null;
  error: string | null;
  /** The recorded call whose reply was given again. */
  replayed?: string | null;
}

export interface Turn extends Exchange, TurnKey {
  parent: TurnKey | null;
  kind: string;
  kind_reason: string | null;
  parent_agent: string | null;
  finish_reason: string | null;
  retry: number;
  prompt_tokens: number | null;
  new_prompt_tokens: number | null;
  sampled_tokens: number | null;
  /** The server's count, of a reply without ids. */
  counted_tokens?: number | null;
  trained_tokens: number | null;
  mean_logprob: number | null;
  fidelity: string | null;
  versions: VersionSpan[];
  stamps: (string | null)[];
  messages: number;
  new_from: number;
  heard: string | null;
  said: string | null;
  reasons: string[];
}

export interface Fork {
  call_id: string;
  trajectory_id: string;
  parent_call_id: string;
  parent_trajectory_id: string;
  kind: string;
  position: number | null;
  in_sampled: boolean | null;
  prefill_tokens: number | null;
  lost_tokens: number | null;
  lost_sampled_tokens: number | null;
  cause: string;
  also: string[];
  advice: string;
  text_before: string | null;
  text_known: string | null;
  text_sent: string | null;
  text_source: string;
  ids_known: number[];
  ids_sent: number[];
  continued: string | null;
}

export interface Reward {
  name: string;
  value: number | null;
  source: string;
  scope: string;
  call_id: string | null;
  choice: number | null;
  start: number | null;
  end: number | null;
  given_at: number;
  /** Absent in documents of earlier versions. */
  given_by?: string | null;
  given_from?: string | null;
  key_name?: string | null;
  over_calls?: number | null;
  over_chain?: string | null;
}

/** What a person said, of a call or of the whole attempt. */
export interface Comment {
  call_id: string | null;
  text: string | null;
  score: number | null;
  author: string;
  given_at: number;
  given_by: string | null;
  given_from: string | null;
  key_name: string | null;
}

export interface Reason {
  reason: string;
  calls: string[];
}

export interface Tree {
  episode: Episode;
  attempts: number[];
  verdict: string;
  reasons: Reason[];
  trajectories: number;
  sampled_tokens: number;
  trainable_tokens: number;
  turns: Turn[];
  others: Exchange[];
  forks: Fork[];
  rewards: Reward[];
  /** Absent in documents of earlier versions. */
  comments?: Comment[];
  siblings?: Sibling[];
  replays?: Sibling[];
}

export interface ToolCall {
  id?: string;
  type?: string;
  function?: { name?: string; arguments?: unknown };
}

/** A message in the form of OpenAI's chat; agents may send other fields, too. */
export interface Message {
  role: string;
  content?: unknown;
  name?: string | null;
  reasoning?: string | null;
  reasoning_content?: string | null;
  tool_calls?: ToolCall[] | null;
  tool_call_id?: string | null;
  /** Parts that have no form in chat, as they came. */
  unread_parts?: unknown[];
  /** What stood beside the message and has no form in chat. */
  unread_items?: unknown[];
  [field: string]: unknown;
}

export interface Choice {
  index: number;
  prompt_index: number;
  message: Message | null;
  prompt_tokens: number | null;
  sampled_tokens: number | null;
  trained_tokens: number | null;
  mean_logprob: number | null;
  fidelity: string | null;
  finish_reason: string | null;
  stop_reason: string | null;
  versions: VersionSpan[];
  reasons: string[];
  sides: string[];
}

export interface Call {
  call_id: string;
  episode_id: string;
  attempt: number;
  method: string;
  path: string;
  route: string;
  translated: string | null;
  model: string | null;
  requested_model: string | null;
  status: number | null;
  outcome: string | null;
  error: string | null;
  unasked: string | null;
  continued: { tokens: number; reason: string | null } | null;
  replayed?: string | null;
  started_at: number;
  first_byte_ms: number | null;
  duration_ms: number | null;
  lineage: {
    client: string | null;
    session: string | null;
    agent: string | null;
    parent_agent: string | null;
    kind: string;
    retry: number;
  };
  sampling: Record<string, unknown> | null;
  sampled_with: Record<string, { value?: unknown; source: string }> | null;
  logprob_kind: string | null;
  stamps: (string | null)[];
  messages: Message[];
  tools: unknown[];
  choices: Choice[];
  usage: { prompt_tokens: number | null; completion_tokens: number | null } | null;
  request_bytes: number | null;
  reply_bytes: number | null;
}

export interface Tokens {
  prompt_tokens: number;
  sampled_tokens: number;
  from: number;
  ids: number[];
  texts: (string | null)[] | null;
  text_source: string | null;
  logprobs: (number | null)[];
  mask: number[];
  versions: VersionSpan[];
  fidelity: string | null;
  logprob_kind: string | null;
  reasons: string[];
  annotations?: Stream[];
}

/** What trainers said of the tokens, under one name and version. */
export interface Stream {
  name: string;
  version: string;
  given_at: number;
  values: (number | null)[];
}
