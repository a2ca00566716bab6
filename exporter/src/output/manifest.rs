//! Manifest: what an export holds, written after its files.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::formats::Format;
use crate::input::plan::Numbers;
use crate::notes::Lefts;
use crate::output::encode::Encoding;
use crate::rows::schema::SCHEMA_VERSION;
use crate::rows::schema::created_by;

/// Version of the manifest's own form.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// What the first word of a manifest begins with; tells our files from others.
const PREFIX: &str = "rolltape-";
/// Options that the first manifests did not have.
const SAID_LATER: [&str; 3] = ["encoding", "tokenizer", "group_stats"];

/// What stands in a manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// `rolltape-` and the word of the format.
    pub(crate) format: String,
    pub(crate) format_version: u32,
    #[serde(default)]
    pub(crate) schema_version: i32,
    #[serde(default)]
    pub(crate) created_by: String,
    /// Over all files.
    #[serde(default)]
    pub(crate) rows: u64,
    pub(crate) files: Vec<FileEntry>,
    /// How often `--new` has added files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) additions: u32,
    /// The attempts with a row, as `EPISODE/ATTEMPT`.
    #[serde(default)]
    pub(crate) episodes: BTreeSet<String>,
    /// The numbers that were given, where the format has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) numbers: Option<Numbers>,
    #[serde(default)]
    pub(crate) options: Value,
    /// What the last run kept, left out, and why.
    #[serde(default)]
    pub(crate) notes: Value,
    /// What the last run made no record of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) left_out: BTreeMap<String, u64>,
    /// Tokens of that which `trajectories` trains.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) left_out_tokens: BTreeMap<String, u64>,
}

/// One file of records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Below the folder of the manifest, with `/` between folders.
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) rows: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Manifest {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format: format!("{PREFIX}{}", format.as_str()),
            format_version: FORMAT_VERSION,
            schema_version: SCHEMA_VERSION,
            created_by: created_by(),
            ..Self::default()
        }
    }

    /// Reads one; none where the bytes are not a manifest of ours.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        read.format.starts_with(PREFIX).then_some(read)
    }

    /// Whether rows made with these options may stand beside those that are there. What an older
    /// manifest does not say of [`SAID_LATER`] is compared with its files, or not at all.
    pub(crate) fn agrees_with(&self, asked: &Value) -> bool {
        let no_options = Map::new();
        let [before, asked] = [&self.options, asked].map(|o| o.as_object().unwrap_or(&no_options));
        let is_unsaid = |key: &str| SAID_LATER.contains(&key) && !before.contains_key(key);
        let mut keys = before.keys().chain(asked.keys());
        let encoding = asked.get("encoding").and_then(Value::as_str).unwrap_or_default();
        let endings = Encoding::from_word(encoding).map(|e| [e.as_str(), e.beside()]);
        let has_encoding = |file: &FileEntry| {
            let ending = file.path.rsplit('.').next().unwrap_or_default();
            endings.is_none_or(|endings| endings.contains(&ending))
        };
        keys.all(|key| is_unsaid(key) || before.get(key) == asked.get(key))
            && self.files.iter().all(has_encoding)
    }

    /// Says what the last run made no record of.
    pub(crate) fn leave(&mut self, left: &Lefts) {
        let name = |why: &&str| (*why).to_owned();
        let tokens = left.iter().filter(|(_, left)| left.trained_tokens > 0);
        self.left_out = left.iter().map(|(why, left)| (name(why), left.count)).collect();
        self.left_out_tokens = tokens.map(|(why, left)| (name(why), left.trained_tokens)).collect();
    }

    /// The bytes of its file.
    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}
