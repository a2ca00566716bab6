/** What the documentation says about reasons and causes; the build takes it from its tables. */

declare const REASONS: Record<string, string>;
declare const CAUSES: Record<string, string>;

export const reasons: Record<string, string> = REASONS;
export const causes: Record<string, string> = CAUSES;

export const fidelities: Record<string, string> = {
  exact: "the server reported the ids of these tokens",
  mapped: "the ids were found in the vocabulary by the reported bytes",
  retokenized: "the ids were made from text; the model may have sampled others",
};

export const verdicts: Record<string, string> = {
  exact: "no fault is known",
  usable: "some tokens may be trained; the reasons say why it is not exact",
  unusable: "no token may be trained",
};

export const outcomes: Record<string, string> = {
  complete: "the reply was recorded whole",
  client_gone: "the agent left before the end of the reply",
  upstream_failed: "the upstream failed or cut the reply short",
  capped: "the reply outgrew the recorder's bound",
  refused: "the server declined the call",
  running: "no end is recorded yet",
};

/** Ends of an episode that want a word more. */
export const ends: Record<string, string> = {
  closed: "closed, and nobody said how it ended",
  infrastructure_failed: "the infrastructure failed, which says nothing about the policy",
};
