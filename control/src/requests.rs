//! The JSON bodies of requests to the control listener.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An episode before its first call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnnounceBody {
    pub(super) episode_id: String,
    pub(super) attempt: Option<u32>,
    pub(super) group_id: Option<String>,
    pub(super) group_size: Option<u32>,
    pub(super) task_id: Option<String>,
    pub(super) labels: Option<Map<String, Value>>,
    pub(super) force_sampling: Option<String>,
    pub(super) calls_max: Option<u32>,
    pub(super) tokens_max: Option<u32>,
    pub(super) seconds_max: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyBody {
    pub(super) ttl_s: Option<i64>,
    pub(super) calls_max: Option<u32>,
    pub(super) tokens_max: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokeBody {
    /// One key; all keys of the attempt if it is absent.
    pub(super) key_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateBody {
    /// Seconds for which keys of the earlier secrets still hold.
    pub(super) old_keys_s: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CloseBody {
    pub(super) status: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RewardBody {
    /// Required; null if the episode could not be scored.
    #[serde(deserialize_with = "number_or_null")]
    pub(super) value: Option<f64>,
    pub(super) name: Option<String>,
    pub(super) source: Option<String>,
    pub(super) scope: Option<String>,
    pub(super) call_id: Option<String>,
    pub(super) choice: Option<u32>,
    pub(super) start: Option<u32>,
    pub(super) end: Option<u32>,
}

/// An attempt of those that a lease holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttemptBody {
    pub(super) episode_id: String,
    pub(super) attempt: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AckBody {
    /// Each is an [`AttemptBody`].
    pub(super) episodes: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NackBody {
    pub(super) episodes: Option<Vec<Value>>,
    pub(super) delay_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewBody {
    pub(super) episodes: Option<Vec<Value>>,
    pub(super) lease_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionBody {
    /// A label, or a number from 0.
    pub(super) version: Value,
    pub(super) checksum: Option<String>,
}

/// A rule by which attempts may begin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdmissionBody {
    pub(super) consumer: String,
    pub(super) batch_attempts: u32,
    pub(super) max_versions: u32,
    pub(super) unit: Option<String>,
    pub(super) group_size: Option<u32>,
    pub(super) wait_s: Option<u32>,
    pub(super) idle_s: Option<u32>,
}

/// One of several upstreams.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpstreamBody {
    pub(super) url: String,
    pub(super) name: Option<String>,
    pub(super) dialect: Option<String>,
    pub(super) weight: Option<u32>,
    pub(super) calls_max: Option<u32>,
}

/// Makes a nullable field required.
fn number_or_null<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    Option::deserialize(value)
}
