//! The names of the checks, in the order in which they are told.

/// All checks: the recording, replies, groups and rewards, tools, versions and engines, tokens.
pub(crate) const CHECKS: [&str; 30] = [
    // Is it all there?
    "unreadable_attempts",
    "hollow_episodes",
    "lost_calls",
    "slow_calls",
    "failed_calls",
    "ended_on_failure",
    "ids_missing",
    // What the model said.
    "empty_turns",
    "runaway_replies",
    "loops",
    "duplicate_rollouts",
    "near_duplicates",
    // What it was worth.
    "rewards_missing",
    "rewards_not_finite",
    "failed_tasks",
    "solved_tasks",
    "groups_without_signal",
    "reward_collapsed",
    "component_dominates",
    "reward_follows_length",
    // What it did.
    "tool_error_streaks",
    "tools_not_offered",
    "malformed_arguments",
    "grader_paths",
    // Who sampled it.
    "stale_attempts",
    "truncation_rises",
    "logprob_jumps",
    "entropy_drifts",
    "engines_differ",
    // What its history cost.
    "retokenized_tokens",
];
