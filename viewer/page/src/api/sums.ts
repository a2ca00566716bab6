/** What the control listener sums up, finds and tells live: the rest of `docs/reading.md`. */

import type { Episode } from "./types";

export interface Bucket {
  at: number;
  calls: number;
  failed: number;
  episodes: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  first_byte_ms: number | null;
  first_byte_p95_ms: number | null;
  duration_ms: number | null;
  duration_p95_ms: number | null;
  staleness: number | null;
  scored: number;
  reward: number | null;
}

export interface VersionStats {
  number: number | null;
  label: string;
  first_seen: number | null;
  calls: number;
  completion_tokens: number | null;
  scored: number;
  reward: number | null;
  solved: number | null;
}

export interface Stats {
  from: number;
  to: number;
  bucket_s: number;
  buckets: Bucket[];
  outcomes: Record<string, number>;
  versions: VersionStats[];
  /** True if there are more calls than the listener adds up. */
  truncated: boolean;
  totals: {
    episodes: number;
    open: number;
    calls: number;
    failed: number;
    prompt_tokens: number | null;
    completion_tokens: number | null;
    scored: number;
    reward: number | null;
  };
}

export interface Hit {
  episode_id: string;
  attempt: number;
  call_id: string;
  number: number;
  /** Null in a message that was sent. */
  choice: number | null;
  role: string;
  before: string;
  match: string;
  after: string;
  started_at: number;
}

export interface Found {
  hits: Hit[];
  /** Attempts that were searched so far, those of earlier questions included. */
  searched: number;
  total: number;
  total_is_least?: boolean;
  next: string | null;
}

/** A call that began or ended, as `/events` tells it. */
export interface CallEvent {
  call_id: string;
  episode_id: string;
  attempt: number;
  group_id: string | null;
  method: string;
  path: string;
  route: string;
  model: string | null;
  client: string | null;
  kind: string;
  agent: string | null;
  started_at: number;
  first_byte_ms: number | null;
  duration_ms: number | null;
  status: number | null;
  outcome: string | null;
  error: string | null;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  finish_reason: string | null;
  version_start: string | null;
  heard?: string | null;
  said?: string | null;
}

export interface RewardEvent {
  episode_id: string;
  attempt: number;
  name: string;
  value: number | null;
  source: string;
  scope: string;
  call_id: string | null;
  given_at: number;
}

export type LiveEvent =
  | { type: "call"; data: CallEvent }
  | { type: "episode"; data: Episode }
  | { type: "reward"; data: RewardEvent };

/** One place that a check is about. */
export interface CheckPlace {
  episode_id: string;
  attempt: number;
  call_id: string | null;
  turn: number | null;
  note: string;
}

export interface Check {
  check: string;
  verdict: string;
  looked_at: number;
  units: string;
  sentence: string;
  thresholds: Record<string, number>;
  examples: CheckPlace[];
  sql: string | null;
}

/** The verdicts on a run. */
export interface Checks {
  total: number;
  total_is_least: boolean;
  verdict: string;
  attempts: number;
  unread: number;
  calls: number;
  sampled_tokens: number;
  checks: Check[];
}

/** Recorded logprobs less scored ones, in nats. */
export interface Gaps {
  tokens: number;
  mean: number;
  mean_abs: number;
  max_abs: number;
  kl: number;
}

export interface AuditCause {
  cause: string;
  proven: boolean;
  sentence: string;
  tokens: number;
  mean_gap: number;
  mean_gap_left: number | null;
  versions: string[];
  engines: string[];
  attempts: string[];
}

/** The audit that is kept. */
export interface Audit {
  audited_at: number;
  of_trainer: boolean;
  verdict: string;
  causes: AuditCause[];
  rows: number;
  tokens: number;
  compared: number;
  left_out: Record<string, number>;
  gaps: Gaps;
  histogram: { below: number | null; tokens: number }[];
  by_version: Record<string, Gaps>;
  by_engine: Record<string, Gaps>;
  by_position: Record<string, Gaps>;
}
