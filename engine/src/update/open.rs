//! An update that comes in several calls.
//!
//! What a call brings is taken whole or not at all. What was refused is owed: an update is finished
//! with all that its trainer wanted in it, or not at all, also where a trainer finishes whatever it
//! was told before, as TRL's clients do.

use std::collections::BTreeSet;

use super::Refused;
use super::staging::Staging;

/// An update that was begun.
#[derive(Debug)]
pub(crate) struct Open {
    staging: Staging,
    /// Tensors that came, were refused, and have not come since.
    owed: BTreeSet<String>,
    /// A call was refused of which nobody knows what it was to bring.
    unread: bool,
}

impl Open {
    pub(crate) fn new(staging: Staging) -> Open {
        Open { staging, owed: BTreeSet::new(), unread: false }
    }

    /// What has arrived.
    pub(crate) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(crate) fn into_staging(self) -> Staging {
        self.staging
    }

    /// A place for what one call brings.
    pub(crate) fn scratch(&self) -> Staging {
        self.staging.empty()
    }

    /// Takes in what a call brought: `read`, which was to be `names` if these are known.
    pub(crate) fn settle(
        &mut self,
        read: Result<Staging, Refused>,
        names: Option<Vec<String>>,
    ) -> Result<(), Refused> {
        let taken = read.and_then(|brought| {
            let came: Vec<String> = brought.names().map(str::to_owned).collect();
            self.staging.absorb(brought).map(|()| came)
        });
        match (taken, names) {
            (Ok(came), _) => {
                self.owed.retain(|name| !came.contains(name));
                Ok(())
            }
            (Err(refused), Some(names)) => {
                let wanted = |name: &String| !self.staging.is_computed(name);
                self.owed.extend(names.into_iter().filter(wanted));
                Err(refused)
            }
            (Err(refused), None) => {
                self.unread = true;
                Err(refused)
            }
        }
    }

    /// What is still missing of what was refused.
    pub(crate) fn debt(&self) -> Option<String> {
        const AGAIN: &str = "send it again, or begin anew with `POST /start_weight_update`";
        if let Some(name) = self.owed.first() {
            let more = match self.owed.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return Some(format!(
                "`{name}`{more} came, was refused, and has not come since; {AGAIN}"
            ));
        }
        let missing = self.unread && !self.staging.is_whole();
        missing.then(|| {
            format!("a call could not be read, and not all tensors have come since; {AGAIN}")
        })
    }
}
