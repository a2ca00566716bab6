//! The labels of weights, and the update that is under way.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::UpdateError;
use super::incoming::IncomingWeights;
use super::open::OpenUpdate;
use super::staging::StagingArea;
use super::transport::Transport;
use super::wait::TrainerWaits;
use crate::bounds::LABELS_MAX;
use crate::weights::manifest::WeightManifest;

/// A label with the checksum of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WeightVersion {
    pub(crate) label: String,
    /// The checksum over all tensors, from [`WeightManifest::checksum`].
    pub(crate) checksum: String,
}

/// The updates of an engine's weights.
pub(crate) struct WeightUpdates {
    pub(crate) staging: Arc<dyn StagingArea>,
    /// The type of the weights, in torch's spelling.
    pub(crate) dtype: &'static str,
    /// Locked during an update, and during anything that must not overlap with one.
    pub(crate) state: Arc<tokio::sync::Mutex<UpdateState>>,
    /// Locked while a trainer's group is joined.
    pub(crate) joining: tokio::sync::Mutex<()>,
    /// The waits for trainers.
    pub(crate) waits: TrainerWaits,
    /// Newest last.
    versions: Mutex<VecDeque<WeightVersion>>,
}

/// The wishes for a label: the one that was asked for, and the folder of the weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelWish<'a> {
    pub(crate) asked: Option<&'a str>,
    pub(crate) folder: Option<&'a str>,
}

impl WeightUpdates {
    pub(crate) fn new(
        staging: Arc<dyn StagingArea>,
        manifest: WeightManifest,
        label: &str,
    ) -> WeightUpdates {
        let dtype = manifest.dtype();
        let version = WeightVersion { label: label.to_owned(), checksum: manifest.checksum() };
        let state = UpdateState {
            manifest: Arc::new(manifest),
            version: version.clone(),
            done: 0,
            open: None,
            last: None,
            finished: None,
            transport: None,
            is_torn: false,
        };

        WeightUpdates {
            staging,
            dtype,
            state: Arc::new(tokio::sync::Mutex::new(state)),
            joining: tokio::sync::Mutex::default(),
            waits: TrainerWaits::default(),
            versions: Mutex::new(VecDeque::from([version])),
        }
    }

    fn versions(&self) -> MutexGuard<'_, VecDeque<WeightVersion>> {
        // A version is present or absent as a whole, also after a panic.
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checksum of the weights that have or had this label.
    pub(crate) fn checksum_of(&self, label: &str) -> Option<String> {
        let versions = self.versions();
        versions.iter().rev().find(|known| known.label == label).map(|known| known.checksum.clone())
    }

    /// Remembers a version, before any token is sampled under its label. Returns false if the label
    /// was known.
    pub(crate) fn remember(&self, version: &WeightVersion) -> bool {
        let mut versions = self.versions();
        let before = versions.len();
        versions.retain(|known| known.label != version.label);
        let is_new = versions.len() == before;
        versions.push_back(version.clone());
        if versions.len() > LABELS_MAX {
            versions.pop_front();
        }
        is_new
    }

    /// Forgets a label under which nothing was sampled.
    pub(crate) fn forget(&self, label: &str) {
        self.versions().retain(|known| known.label != label);
    }

    /// Chooses the label of weights with this checksum: the one that was asked for, else the name
    /// of the folder if it ends in a number, else the next number after `done` updates. A label of
    /// other weights is never chosen.
    ///
    /// # Errors
    /// The label that was asked for belongs to other weights.
    pub(crate) fn choose_label(
        &self,
        wish: LabelWish<'_>,
        done: u64,
        checksum: &str,
    ) -> Result<String, UpdateError> {
        if let Some(label) = wish.asked {
            return match self.other_checksum(label, checksum) {
                None => Ok(label.to_owned()),
                Some(known) => Err(UpdateError::Label(format!(
                    "`weight_version` `{label}` belongs to other weights already (checksum \
                     {known}, these have {checksum}); use another label"
                ))),
            };
        }

        let is_free = |label: &String| self.other_checksum(label, checksum).is_none();
        let mut numbers = (done + 1..).map(|number| number.to_string());
        wish.folder
            .and_then(numbered_name)
            .filter(is_free)
            .or_else(|| numbers.find(is_free))
            .ok_or_else(|| UpdateError::Label("no version number is left".into()))
    }

    /// The checksum of other weights with this label.
    fn other_checksum(&self, label: &str, checksum: &str) -> Option<String> {
        self.checksum_of(label).filter(|known| known != checksum)
    }
}

/// The name of a folder that ends in a version number: `step_12`, `checkpoint-7`, `v3`.
fn numbered_name(folder: &str) -> Option<String> {
    let name = Path::new(folder).file_name()?.to_str()?;
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = word.strip_suffix(['_', '-']).or((word == "v").then_some(word))?;
    let is_word = !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_alphabetic());
    (is_word && word.len() < name.len()).then(|| name.to_owned())
}

/// The weights that serve, and the update that is under way.
pub(crate) struct UpdateState {
    /// The manifest of the weights that serve.
    pub(crate) manifest: Arc<WeightManifest>,
    pub(crate) version: WeightVersion,
    /// The number of updates that were done.
    pub(crate) done: u64,
    pub(crate) open: Option<OpenUpdate>,
    /// The last update, which a caller may repeat if it did not get the answer.
    pub(crate) last: Option<UpdateReceipt>,
    /// The same, if it ended with a finish and nothing was begun since.
    pub(crate) finished: Option<UpdateReceipt>,
    pub(crate) transport: Option<Box<dyn Transport>>,
    /// True after an update in place ended half-way: the next one must be of all tensors.
    pub(crate) is_torn: bool,
}

/// An update that was done.
#[derive(Clone, Debug)]
pub(crate) struct UpdateReceipt {
    /// The folder of the weights, if they came from one.
    pub(crate) folder: Option<String>,
    /// The label that was asked for.
    pub(crate) asked: Option<String>,
    pub(crate) version: WeightVersion,
    /// Microseconds during which generation stopped for it.
    pub(crate) pause_us: u64,
}

impl UpdateReceipt {
    /// Returns true if an update from this folder with this label is a repetition.
    pub(crate) fn is_of(&self, folder: Option<&str>, asked: Option<&str>) -> bool {
        self.folder.as_deref() == folder && self.asked.as_deref() == asked
    }
}

impl UpdateState {
    /// An empty collection for the tensors of a new update.
    pub(crate) fn new_incoming(&self) -> IncomingWeights {
        IncomingWeights::new(Arc::clone(&self.manifest))
    }
}
