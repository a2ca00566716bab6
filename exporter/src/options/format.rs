//! Formats: their words on the command line, and what each of them takes.

use episode::TrajectoryKind;

use crate::weigh::model_filter::ModelFilter;

/// Format of the records that an export writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "`Format::doc` describes each of them")]
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
    TrlDistillation,
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
    VerifiersTraces,
    Atif,
    OpenAi,
    OpenAiPreference,
    Mooncake,
}

/// Way in which a format trains the turns of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageTraining {
    /// By their tokens and the loss mask.
    Tokens,
    /// By their tokens, which stand beside their messages.
    Shown,
    /// By their texts, each message with a mark of its own. A cut-off answer is not trained, since
    /// a trainer would end it as if it were finished.
    Texts,
    /// By their texts, where all answers behind the first are trained. A row becomes one record for
    /// each stretch of trained answers.
    Stretches,
    /// By all of their tokens.
    Choices,
}

/// Kinds of conversations that an agent continued to their ends.
const CONVERSATIONS: [TrajectoryKind; 3] =
    [TrajectoryKind::Main, TrajectoryKind::Subagent, TrajectoryKind::Compaction];

impl Format {
    /// All formats.
    pub const ALL: [Self; 25] = [
        Self::Trajectories,
        Self::Calls,
        Self::Turns,
        Self::Sft,
        Self::SftTokens,
        Self::Preference,
        Self::Kto,
        Self::Trl,
        Self::TrlAsync,
        Self::TrlDistillation,
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
        Self::VerifiersTraces,
        Self::Atif,
        Self::OpenAi,
        Self::OpenAiPreference,
        Self::Mooncake,
    ];

    /// Returns the word on the command line and in names of files.
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    /// Returns a description of one record.
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
            Self::TrlDistillation => {
                ("trl-distillation", "TRL: a RolloutSample of AsyncDistillationTrainer")
            }
            Self::Verl => ("verl", "verl: an AgentLoopOutput"),
            Self::PrimeRl => ("prime-rl", "prime-rl: a TrainingSample"),
            Self::SkyRl => ("skyrl", "SkyRL: one element of each list of GeneratorOutput"),
            Self::Slime => ("slime", "slime and miles: a Sample"),
            Self::AReaL => ("areal", "AReaL: the arrays of one trajectory"),
            Self::Art => ("art", "ART: a Trajectory"),
            Self::Tinker => ("tinker", "Tinker: a Datum"),
            Self::Rllm => ("rllm", "rLLM: an Episode"),
            Self::NemoGym => ("nemo-gym", "NeMo Gym: a rollout, as its agents give it back"),
            Self::Verifiers => ("verifiers", "verifiers 0.1: a line of `results.jsonl`"),
            Self::VerifiersTraces => {
                ("verifiers-traces", "verifiers 0.4: a line of `traces.jsonl`")
            }
            Self::Atif => ("atif", "ATIF v1.8: a Trajectory"),
            Self::OpenAi => ("openai", "OpenAI: a line of a fine-tuning file"),
            Self::OpenAiPreference => ("openai-preference", "OpenAI: a line of a preference file"),

            Self::Mooncake => ("mooncake", "Mooncake: a line of a trace of load, without text"),
        }
    }

    /// Returns the format of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == word)
    }

    /// Returns true for formats that trainers read with all rows of an attempt in mind.
    fn is_of_attempts(self) -> bool {
        matches!(self, Self::Rllm | Self::NemoGym | Self::Verifiers | Self::VerifiersTraces)
    }

    /// Returns true where records are made of calls, so also of those in no trajectory.
    pub(crate) fn is_of_calls(self) -> bool {
        matches!(self, Self::Calls | Self::Mooncake)
    }

    /// Returns true where a file is one whole: what is in it is counted from its first record.
    pub(crate) fn is_whole(self) -> bool {
        self == Self::Mooncake
    }

    /// Returns true where a record is a document that has no key for an absent value.
    pub(crate) fn is_document(self) -> bool {
        self.is_of_attempts()
            || matches!(self, Self::Art | Self::Atif | Self::OpenAi | Self::OpenAiPreference)
            || self == Self::Mooncake
    }

    /// Returns true where rows have numbers of groups, attempts or rows, which no two increments or
    /// shards of an export may share.
    pub(crate) fn is_numbered(self) -> bool {
        self.is_of_attempts()
            || matches!(self, Self::TrlAsync | Self::TrlDistillation | Self::Verl)
            || matches!(self, Self::SkyRl | Self::Slime)
    }

    /// Returns true where a record compares several attempts, which an increment does not hold all
    /// of.
    pub(crate) fn is_of_groups(self) -> bool {
        matches!(self, Self::Preference | Self::OpenAiPreference)
    }

    /// Returns the kinds of trajectories that it takes when none are named; empty for all.
    pub(crate) fn kinds(self) -> &'static [TrajectoryKind] {
        match self {
            Self::Sft | Self::Kto | Self::Atif | Self::OpenAi => &CONVERSATIONS,
            Self::Trl => &[TrajectoryKind::Main],
            _ => &[],
        }
    }

    /// Returns the models that it takes when none are named. A trainer has one policy, so it does
    /// not take what a judge or a model that writes titles sampled.
    pub(crate) fn models(self) -> &'static ModelFilter {
        match self {
            Self::Trajectories | Self::Calls | Self::Turns | Self::Atif | Self::Mooncake => {
                &ModelFilter::All
            }
            _ => &ModelFilter::Policy,
        }
    }

    pub(crate) fn message_training(self) -> MessageTraining {
        match self {
            Self::Sft | Self::Kto => MessageTraining::Stretches,
            Self::OpenAi => MessageTraining::Texts,
            Self::Preference | Self::OpenAiPreference | Self::Atif => MessageTraining::Shown,
            Self::Art => MessageTraining::Choices,
            _ => MessageTraining::Tokens,
        }
    }
}
