//! The manifest: a list of what an export holds, written after its files.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::input::exported::{ShardList, StoreAttempts};
use crate::input::plan::Numbering;
use crate::notes::Omissions;
use crate::options::encoding::Encoding;
use crate::options::format::Format;
use crate::rows::schema::{SCHEMA_VERSION, created_by};

/// Version of the manifest's own form.
/// Of the first version, all attempts are named.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// Beginning of the field `format`, which tells our manifests from others.
const PREFIX: &str = "rolltape-";
/// Options that the first manifests did not have.
const NEWER_OPTIONS: [&str; 3] = ["encoding", "tokenizer", "group_stats"];

/// The content of a manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// `rolltape-` and the word of the format.
    pub(crate) format: String,
    pub(crate) format_version: u32,
    #[serde(default)]
    pub(crate) schema_version: i32,
    #[serde(default)]
    pub(crate) created_by: String,
    /// Number of rows of all files.
    #[serde(default)]
    pub(crate) rows: u64,
    pub(crate) files: Vec<FileEntry>,
    /// Number of times that `--new` has added files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) additions: u32,
    /// Attempts with a row that have no position, as `EPISODE/ATTEMPT`.
    #[serde(default)]
    pub(crate) episodes: BTreeSet<String>,
    /// Positions of the others, by the name of their store.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) positions: BTreeMap<String, StoreAttempts>,
    /// The list of groups that this shard is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shard_list: Option<ShardList>,
    /// Numbers that were given, where the format has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) numbers: Option<Numbering>,
    #[serde(default)]
    pub(crate) options: Value,
    /// Notes of the last run. They are long where it read many groups, and the next has its own.
    #[serde(default, skip_deserializing)]
    pub(crate) notes: Value,
    /// Counts of what the last run made no record of, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) left_out: BTreeMap<String, u64>,
    /// Tokens of that which `trajectories` trains, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) left_out_tokens: BTreeMap<String, u64>,
}

/// One file of records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Path below the folder of the manifest, with `/` between folders.
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

    /// Reads a manifest; none where the bytes are not one of ours.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let manifest: Self = serde_json::from_slice(bytes).ok()?;
        manifest.format.starts_with(PREFIX).then_some(manifest)
    }

    /// Returns true where rows made with these options may stand beside those that are there.
    /// [`NEWER_OPTIONS`] that an older manifest lacks are not compared; the encoding is compared
    /// with the names of its files.
    pub(crate) fn agrees_with(&self, options: &Value) -> bool {
        let none = Map::new();
        let [before, asked] =
            [&self.options, options].map(|options| options.as_object().unwrap_or(&none));
        let agrees = |key: &String| {
            let is_unknown = NEWER_OPTIONS.contains(&key.as_str()) && !before.contains_key(key);
            is_unknown || before.get(key) == asked.get(key)
        };
        before.keys().chain(asked.keys()).all(agrees) && self.has_encoding(asked.get("encoding"))
    }

    /// Returns true where the names of all files have an ending of this encoding.
    fn has_encoding(&self, word: Option<&Value>) -> bool {
        let Some(encoding) = word.and_then(Value::as_str).and_then(Encoding::from_word) else {
            return true;
        };
        let endings = [encoding.as_str(), encoding.side_table_ending()];
        self.files
            .iter()
            .all(|file| endings.contains(&file.path.rsplit('.').next().unwrap_or_default()))
    }

    /// Sets what the last run made no record of.
    pub(crate) fn set_omissions(&mut self, omissions: &Omissions) {
        let named = || omissions.iter().map(|(reason, omission)| ((*reason).to_owned(), omission));
        self.left_out = named().map(|(reason, omission)| (reason, omission.count)).collect();
        self.left_out_tokens = named()
            .filter(|(_, omission)| omission.trained_tokens > 0)
            .map(|(reason, omission)| (reason, omission.trained_tokens))
            .collect();
    }

    /// Returns the bytes of its file.
    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}
