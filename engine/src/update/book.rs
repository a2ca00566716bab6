//! Which weights had which label, and the update that is under way.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dock::Yard;
use super::ledger::Ledger;
use super::open::Open;
use super::staging::Staging;
use super::{Refused, Transport, Waits};

/// Labels that are remembered with their checksums.
const REMEMBERED: usize = 65_536;

/// Weights that serve or served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) label: String,
    /// Over all tensors, see [`Ledger::checksum`].
    pub(crate) checksum: String,
}

/// What is known of updates.
pub(crate) struct Updates {
    pub(crate) yard: Arc<dyn Yard>,
    /// The type of the weights, as torch spells it.
    pub(crate) dtype: &'static str,
    /// Held as long as an update or anything that must not meet one is under way.
    pub(crate) book: Arc<tokio::sync::Mutex<Book>>,
    /// Held while a group is joined.
    pub(crate) joining: tokio::sync::Mutex<()>,
    /// Waits for trainers.
    pub(crate) waits: Waits,
    /// Newest last.
    versions: Mutex<VecDeque<Version>>,
}

impl Updates {
    pub(crate) fn new(yard: Arc<dyn Yard>, ledger: Ledger, label: &str) -> Updates {
        let dtype = ledger.dtype();
        let version = Version { label: label.to_owned(), checksum: ledger.checksum() };
        let book = Book {
            ledger: Arc::new(ledger),
            version: version.clone(),
            done: 0,
            open: None,
            last: None,
            finished: None,
            transport: None,
        };
        Updates {
            yard,
            dtype,
            book: Arc::new(tokio::sync::Mutex::new(book)),
            joining: tokio::sync::Mutex::default(),
            waits: Waits::default(),
            versions: Mutex::new(VecDeque::from([version])),
        }
    }

    /// What a label stands for. The newest of all labels is the last.
    pub(crate) fn versions(&self) -> MutexGuard<'_, VecDeque<Version>> {
        // A version is there or not whatever happens.
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checksum of the weights that have or had this label.
    pub(crate) fn checksum_of(&self, label: &str) -> Option<String> {
        let versions = self.versions();
        versions.iter().rev().find(|it| it.label == label).map(|it| it.checksum.clone())
    }

    /// Remembers a version before any token is sampled under its label; false if it was known.
    pub(crate) fn remember(&self, version: &Version) -> bool {
        let mut versions = self.versions();
        let before = versions.len();
        versions.retain(|it| it.label != version.label);
        let new = versions.len() == before;
        versions.push_back(version.clone());
        if versions.len() > REMEMBERED {
            versions.pop_front();
        }
        new
    }

    /// Forgets a label under which nothing was sampled.
    pub(crate) fn forget(&self, label: &str) {
        self.versions().retain(|it| it.label != label);
    }

    /// The label of weights with this checksum: the one that is asked for, unless it stands for
    /// other weights; else that of the folder, or the next number, whichever is free first.
    pub(crate) fn label(
        &self,
        (asked, folder): (Option<&str>, Option<&str>),
        done: u64,
        checksum: &str,
    ) -> Result<String, Refused> {
        let other = |label: &str| self.checksum_of(label).filter(|known| known != checksum);
        match asked {
            Some(label) => match other(label) {
                None => Ok(label.to_owned()),
                Some(known) => Err(Refused::Label(format!(
                    "`weight_version` `{label}` is that of other weights already (checksum \
                     {known}, these have {checksum}); give them another label"
                ))),
            },
            None => {
                let mut numbers = (done + 1..).map(|number| number.to_string());
                let named = folder.and_then(numbered).filter(|label| other(label).is_none());
                let label = named.or_else(|| numbers.find(|label| other(label).is_none()));
                label.ok_or_else(|| Refused::Label("there are no numbers left".into()))
            }
        }
    }
}

/// The name of a folder that ends in the number of its version: `step_12`, `checkpoint-7`, `v3`.
fn numbered(folder: &str) -> Option<String> {
    let name = Path::new(folder).file_name()?.to_str()?;
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = word.strip_suffix(['_', '-']).or((word == "v").then_some(word))?;
    let fits = !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_alphabetic());
    (fits && word.len() < name.len()).then(|| name.to_owned())
}

/// The update that is under way, and what is served.
pub(crate) struct Book {
    /// Tensors that are served.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) version: Version,
    /// Updates that were done.
    pub(crate) done: u64,
    pub(crate) open: Option<Open>,
    /// The last update, which may come again if its answer was lost.
    pub(crate) last: Option<Receipt>,
    /// The same, if it ended with a finish and nothing was begun since.
    pub(crate) finished: Option<Receipt>,
    pub(crate) transport: Option<Box<dyn Transport>>,
}

/// An update that was done.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    /// The folder that it came from, if it came from one.
    pub(crate) folder: Option<String>,
    /// The label that was asked for.
    pub(crate) asked: Option<String>,
    pub(crate) version: Version,
    /// Microseconds during which generation stood still for it.
    pub(crate) pause_us: u64,
}

impl Receipt {
    /// Whether an update is this one again.
    pub(crate) fn is_of(&self, folder: Option<&str>, asked: Option<&str>) -> bool {
        self.folder.as_deref() == folder && self.asked.as_deref() == asked
    }
}

impl Book {
    /// Tensors of a new update.
    pub(crate) fn staging(&self) -> Staging {
        Staging::new(Arc::clone(&self.ledger))
    }
}
