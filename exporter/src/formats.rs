//! Formats: what the records of an export are and how their columns are called.
//!
//! A format is a list of columns over one kind of record, each in a file of its own, under the
//! names of the trainer that reads it.
//! - `table`: columns as names and getters, made into Arrow arrays.
//! - `maker`: makes records as rows come by.
//! - `sample`: a row with its place, which most formats are columns of.
//! - `taught`: which turns of a row its messages train.
//! - `calls`, `turns`: one record a call, and one a choice of a call.
//! - `sft`, `kto`, `preference`, `openai`: conversations.
//! - `attempts`: one record an attempt.
//! - the others: trainers' own; `replay` is what several of them use again of the sampling.

mod areal;
mod art;
mod atif;
mod attempt;
mod attempts;
mod calls;
#[cfg(test)]
mod conservation;
mod kto;
mod maker;
mod nemo_gym;
mod openai;
mod preference;
mod prime_rl;
mod replay;
mod sample;
mod sft;
mod sft_tokens;
mod skyrl;
mod slime;
mod table;
mod taught;
#[cfg(test)]
mod tests;
mod tinker;
mod trl;
mod turns;
mod verl;

use episode::Kind;

pub(crate) use maker::Maker;
use taught::Teaching;

use crate::weigh::models::Models;

/// What an export writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "`Format::doc` says what each of them is")]
pub enum Format {
    #[default]
    Trajectories,
    Calls,
    Turns,
    Sft,
    SftTokens,
    Preference,
    Kto,
    Trl,
    TrlAsync,
    Verl,
    PrimeRl,
    SkyRl,
    Slime,
    AReaL,
    Art,
    Tinker,
    Rllm,
    NemoGym,
    Verifiers,
    Atif,
    OpenAi,
    OpenAiPreference,
}

/// The kinds that are conversations an agent went on with to their ends.
const CONVERSATIONS: [Kind; 3] = [Kind::Main, Kind::Subagent, Kind::Compaction];

impl Format {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Trajectories,
        Self::Calls,
        Self::Turns,
        Self::Sft,
        Self::SftTokens,
        Self::Preference,
        Self::Kto,
        Self::Trl,
        Self::TrlAsync,
        Self::Verl,
        Self::PrimeRl,
        Self::SkyRl,
        Self::Slime,
        Self::AReaL,
        Self::Art,
        Self::Tinker,
        Self::Rllm,
        Self::NemoGym,
        Self::Verifiers,
        Self::Atif,
        Self::OpenAi,
        Self::OpenAiPreference,
    ];

    /// The word on the command line and in names of files.
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    /// What one record of it is.
    pub fn doc(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Trajectories => ("trajectories", "a trajectory: the contract with trainers"),
            Self::Calls => ("calls", "a call, as recorded"),
            Self::Turns => ("turns", "a choice of a call: its prompt and what was sampled"),
            Self::Sft => ("sft", "a conversation, for supervised training"),
            Self::SftTokens => ("sft-tokens", "tokens with labels, for supervised training"),
            Self::Preference => ("preference", "a better and a worse answer, for DPO"),
            Self::Kto => ("kto", "a conversation and whether it is good, for KTO"),
            Self::Trl => ("trl", "TRL: what a `rollout_func` of GRPOTrainer gives back"),
            Self::TrlAsync => ("trl-async", "TRL: a RolloutSample of AsyncGRPOTrainer"),
            Self::Verl => ("verl", "verl: an AgentLoopOutput"),
            Self::PrimeRl => ("prime-rl", "prime-rl: a TrainingSample"),
            Self::SkyRl => ("skyrl", "SkyRL: one element of each list of GeneratorOutput"),
            Self::Slime => ("slime", "slime and miles: a Sample"),
            Self::AReaL => ("areal", "AReaL: the arrays of one trajectory"),
            Self::Art => ("art", "ART: a Trajectory"),
            Self::Tinker => ("tinker", "Tinker: a Datum"),
            Self::Rllm => ("rllm", "rLLM: an Episode"),
            Self::NemoGym => ("nemo-gym", "NeMo Gym: a rollout, as its agents give it back"),
            Self::Verifiers => ("verifiers", "verifiers: a line of `results.jsonl`"),
            Self::Atif => ("atif", "ATIF v1.7: a Trajectory"),
            Self::OpenAi => ("openai", "OpenAI: a line of a fine-tuning file"),
            Self::OpenAiPreference => ("openai-preference", "OpenAI: a line of a preference file"),
        }
    }

    /// The format of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == word)
    }

    /// Whether a record is a document in which what is not there has no key.
    pub(crate) fn is_document(self) -> bool {
        let of_attempts = matches!(self, Self::Rllm | Self::NemoGym | Self::Verifiers);
        of_attempts
            || matches!(self, Self::Art | Self::Atif | Self::OpenAi | Self::OpenAiPreference)
    }

    /// Whether rows have numbers of groups, attempts or rows, which no two increments or shards of
    /// an export may share.
    pub(crate) fn is_numbered(self) -> bool {
        let of_attempts = matches!(self, Self::Rllm | Self::NemoGym | Self::Verifiers);
        of_attempts || matches!(self, Self::TrlAsync | Self::Verl | Self::SkyRl | Self::Slime)
    }

    /// Whether a record is made of several attempts, which no increment holds all of.
    pub(crate) fn is_of_groups(self) -> bool {
        matches!(self, Self::Preference | Self::OpenAiPreference)
    }

    /// The kinds of trajectories that it takes when none are named; empty for all.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Sft | Self::Kto | Self::Atif | Self::OpenAi => &CONVERSATIONS,
            Self::Trl => &[Kind::Main],
            _ => &[],
        }
    }

    /// The models that it takes when none are named. A trainer has one policy; what a judge or a
    /// model that writes titles said is no part of it.
    pub(crate) fn models(self) -> &'static Models {
        match self {
            Self::Trajectories | Self::Calls | Self::Turns | Self::Atif => &Models::All,
            _ => &Models::Policy,
        }
    }

    /// What it makes of the turns of a row.
    pub(crate) fn teaching(self) -> Teaching {
        match self {
            Self::Sft | Self::Kto => Teaching::Stretches,
            Self::OpenAi => Teaching::Texts,
            Self::Preference | Self::OpenAiPreference | Self::Atif => Teaching::Shown,
            Self::Art => Teaching::Choices,
            _ => Teaching::Tokens,
        }
    }

    /// Whether turns are to say which messages they are.
    pub(crate) fn reads_messages(self) -> bool {
        let of_attempts = matches!(self, Self::Rllm | Self::NemoGym | Self::Verifiers);
        of_attempts || self.teaching() != Teaching::Tokens
    }

    /// Whether it has one row an attempt: TRL has one place for each prompt of a group and counts
    /// its groups off, so that a row too many shifts all that follow.
    pub(crate) fn has_one_row(self) -> bool {
        self == Self::Trl
    }
}
