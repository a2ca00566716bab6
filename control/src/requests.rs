//! The JSON bodies of requests to the control listener.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An episode before its first call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnnounceBody {
    pub(crate) episode_id: String,
    pub(crate) attempt: Option<u32>,
    pub(crate) group_id: Option<String>,
    pub(crate) group_size: Option<u32>,
    pub(crate) task_id: Option<String>,
    pub(crate) labels: Option<Map<String, Value>>,
    pub(crate) force_sampling: Option<String>,
    #[serde(rename = "continue")]
    pub(crate) continues: Option<String>,
    /// A [`ReplayBody`].
    pub(crate) replay: Option<Map<String, Value>>,
    pub(crate) calls_max: Option<u32>,
    pub(crate) tokens_max: Option<u32>,
    pub(crate) seconds_max: Option<u32>,
}

/// A recording that answers the calls of an episode.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayBody {
    pub(crate) episode_id: String,
    pub(crate) attempt: Option<u32>,
    pub(crate) until: Option<u32>,
    pub(crate) mode: Option<String>,
    pub(crate) ignore: Option<Vec<String>>,
    pub(crate) keeps_time: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody {
    pub(crate) ttl_s: Option<i64>,
    pub(crate) calls_max: Option<u32>,
    pub(crate) tokens_max: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RevokeBody {
    /// One key; all keys of the attempt if it is absent.
    pub(crate) key_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateBody {
    /// Seconds for which keys of the earlier secrets still hold.
    pub(crate) old_keys_s: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseBody {
    pub(crate) status: Option<String>,
}

/// Episodes that are to be deleted: those that fit every field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PruneBody {
    pub(crate) older_than_s: Option<u32>,
    pub(crate) episode_id: Option<String>,
    pub(crate) attempt: Option<u32>,
    /// Attempts that stay, each as `EPISODE/ATTEMPT`.
    pub(crate) keep: Option<Vec<String>>,
    pub(crate) dry_run: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewardBody {
    /// Required; null if the episode could not be scored.
    #[serde(deserialize_with = "number_or_null")]
    pub(crate) value: Option<f64>,
    pub(crate) name: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) call_id: Option<String>,
    pub(crate) choice: Option<u32>,
    pub(crate) start: Option<u32>,
    pub(crate) end: Option<u32>,
}

/// An attempt of those that a lease holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttemptBody {
    pub(crate) episode_id: String,
    pub(crate) attempt: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckBody {
    /// Each is an [`AttemptBody`].
    pub(crate) episodes: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NackBody {
    pub(crate) episodes: Option<Vec<Value>>,
    pub(crate) delay_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewBody {
    pub(crate) episodes: Option<Vec<Value>>,
    pub(crate) lease_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VersionBody {
    /// A label, or a number from 0.
    pub(crate) version: Value,
    pub(crate) checksum: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnnotationsBody {
    /// Each is a [`TrajectoryBody`].
    pub(crate) annotations: Option<Vec<Value>>,
    /// Each is a [`CommentBody`].
    pub(crate) comments: Option<Vec<Value>>,
}

/// A comment of a person on an attempt, or on one call of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommentBody {
    pub(crate) episode_id: String,
    pub(crate) attempt: Option<u32>,
    pub(crate) call_id: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) score: Option<f64>,
    pub(crate) author: Option<String>,
}

/// Streams of numbers for tokens of a trajectory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrajectoryBody {
    pub(crate) trajectory_id: String,
    /// A label, or a number from 0.
    pub(crate) version: Value,
    pub(crate) start: Option<u32>,
    pub(crate) token_ids: Vec<u32>,
    /// Lists of numbers and nulls, by name.
    pub(crate) streams: Map<String, Value>,
}

/// A rule by which attempts may begin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdmissionBody {
    pub(crate) consumer: String,
    pub(crate) batch_attempts: u32,
    pub(crate) max_versions: u32,
    pub(crate) unit: Option<String>,
    pub(crate) group_size: Option<u32>,
    pub(crate) wait_s: Option<u32>,
    pub(crate) idle_s: Option<u32>,
}

/// One of several upstreams.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamBody {
    pub(crate) url: String,
    pub(crate) name: Option<String>,
    pub(crate) dialect: Option<String>,
    pub(crate) weight: Option<u32>,
    pub(crate) calls_max: Option<u32>,
}

/// Makes a nullable field required.
fn number_or_null<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    Option::deserialize(value)
}
