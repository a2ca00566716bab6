//! An update that comes in several calls.
//!
//! The tensors of a call are taken all or none. A refused tensor is still owed: an update can
//! finish only with everything that its trainer tried to send. Some trainers, TRL's clients among
//! them, finish an update whatever the answers to its calls were.

use std::collections::BTreeSet;

use super::error::UpdateError;
use super::incoming::IncomingWeights;

/// An update that was begun.
#[derive(Debug)]
pub(crate) struct OpenUpdate {
    incoming: IncomingWeights,
    /// Tensors that were refused and have not come since.
    owed: BTreeSet<String>,
    /// True if a refused call could not be read, so that its tensors are unknown.
    has_unread_call: bool,
}

impl OpenUpdate {
    pub(crate) fn new(incoming: IncomingWeights) -> OpenUpdate {
        OpenUpdate { incoming, owed: BTreeSet::new(), has_unread_call: false }
    }

    /// Returns true once a tensor may have been written over one that served.
    pub(crate) fn has_written(&self) -> bool {
        self.incoming.has_written()
    }

    /// The tensors so far.
    pub(crate) fn incoming(&self) -> &IncomingWeights {
        &self.incoming
    }

    /// The tensors of the whole update.
    pub(crate) fn into_incoming(self) -> IncomingWeights {
        self.incoming
    }

    /// An empty collection for the tensors of one call.
    pub(crate) fn new_batch(&self) -> IncomingWeights {
        self.incoming.empty()
    }

    /// Adds the tensors of one call, all or none. `names` are the tensors that the call announced,
    /// if they are known.
    pub(crate) fn add(
        &mut self,
        batch: Result<IncomingWeights, UpdateError>,
        names: Option<Vec<String>>,
    ) -> Result<(), UpdateError> {
        let error = match batch.and_then(|batch| self.absorb(batch)) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match names {
            Some(names) => {
                let served = |name| self.incoming.served_names(name);
                let needed: Vec<String> = names.into_iter().flat_map(served).collect();
                self.owed.extend(needed);
            }
            None => self.has_unread_call = true,
        }
        Err(error)
    }

    fn absorb(&mut self, batch: IncomingWeights) -> Result<(), UpdateError> {
        let arrived: Vec<String> = batch.names().map(str::to_owned).collect();
        self.incoming.absorb(batch)?;
        self.owed.retain(|name| !arrived.contains(name));
        Ok(())
    }

    /// Describes the refused tensors that have not come since, if there are any.
    pub(crate) fn missing(&self) -> Option<String> {
        const REMEDY: &str = "send it again, or start over with `POST /start_weight_update`";
        if let Some(name) = self.owed.first() {
            let more = match self.owed.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return Some(format!(
                "`{name}`{more} was refused and has not been sent again; {REMEDY}"
            ));
        }
        if self.has_unread_call && !self.incoming.is_whole() {
            return Some(format!(
                "a call could not be read, and not all tensors have been sent since; {REMEDY}"
            ));
        }
        None
    }
}
