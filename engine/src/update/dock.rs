//! Where weights are handed over between the engine thread and whoever stages new ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::Ops;

use super::Refused;
use super::ledger::{Entry, Ledger, served_as};
use super::staging::Staging;
use crate::config::ModelConfig;
use crate::load::LoadError;
use crate::parameters::Parameters;
use crate::weights::{Tensor, Tensors};

/// A dock, whatever the device. All of it blocks.
pub(crate) trait Yard: Send + Sync {
    /// Lays out what arrived, and beside it those of the lent weights that did not; leaves it for
    /// the engine thread.
    fn stage(&self, staging: Staging) -> Result<(), Refused>;

    /// Reads the lent weights and writes down what they are.
    fn inspect(&self, ledger: &Ledger) -> Result<Ledger, Refused>;

    /// Drops what is lent and what is left.
    fn clear(&self);
}

/// The weights that the engine thread lends, and those that it is to take.
pub(crate) struct Dock<O: Ops> {
    /// The device, for laying out while the engine thread computes.
    ops: Mutex<O>,
    config: ModelConfig,
    live: Mutex<Option<Arc<Parameters<O>>>>,
    staged: Mutex<Option<Arc<Parameters<O>>>>,
}

/// Weights are whole or absent whatever happens.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O: Ops> Dock<O> {
    pub(crate) fn new((ops, config): (O, ModelConfig)) -> Dock<O> {
        Dock { ops: Mutex::new(ops), config, live: Mutex::new(None), staged: Mutex::new(None) }
    }

    /// Lets others read the weights, until they are asked back.
    pub(crate) fn lend(&self, live: Option<Arc<Parameters<O>>>) {
        *lock(&self.live) = live;
    }

    /// What the engine thread is to take.
    pub(crate) fn take_staged(&self) -> Option<Arc<Parameters<O>>> {
        // Nobody may read what is about to change.
        *lock(&self.live) = None;
        lock(&self.staged).take()
    }

    /// Leaves weights that nobody needs any more.
    pub(crate) fn leave(&self, old: Option<Arc<Parameters<O>>>) {
        *lock(&self.staged) = old;
    }
}

impl<O: Ops> Yard for Dock<O> {
    fn stage(&self, staging: Staging) -> Result<(), Refused> {
        let (ops, live) = (lock(&self.ops), lock(&self.live).clone());
        let (arrived, ledger) = staging.into_parts();
        let live = live.as_deref().map(|live| (live, &self.config));
        let overlay = Overlay { arrived: RefCell::new(arrived), ops: &*ops, live, ledger: &ledger };
        let parameters = Parameters::load(&*ops, &overlay, &self.config)?;
        *lock(&self.staged) = Some(Arc::new(parameters));
        Ok(())
    }

    fn inspect(&self, ledger: &Ledger) -> Result<Ledger, Refused> {
        let (ops, live) = (lock(&self.ops), lock(&self.live).clone());
        let Some(live) = live else {
            return Err(Refused::Weights("the engine has no weights while it sleeps".into()));
        };
        let mut found = Ledger::default();
        for (name, entry) in ledger.iter() {
            let values = live.read(&*ops, &self.config, name)?;
            let tensor = served_as(Tensor::F32(values), entry.kind);
            found.insert(name, Entry::of(name, &entry.shape, &tensor));
        }
        Ok(found)
    }

    fn clear(&self) {
        *lock(&self.live) = None;
        *lock(&self.staged) = None;
    }
}

/// What arrived, above what is there already.
struct Overlay<'a, O: Ops> {
    /// Taken out as they are laid out, so that no tensor is in memory longer than it must be.
    arrived: RefCell<BTreeMap<String, Tensor>>,
    ops: &'a O,
    live: Option<(&'a Parameters<O>, &'a ModelConfig)>,
    ledger: &'a Ledger,
}

impl<O: Ops> Tensors for Overlay<'_, O> {
    fn take(&self, name: &str, _shape: &[usize]) -> Result<Tensor, LoadError> {
        if let Some(tensor) = self.arrived.borrow_mut().remove(name) {
            return Ok(tensor);
        }
        match (self.live, self.ledger.get(name)) {
            (Some((live, config)), Some(entry)) => {
                let values = live.read(self.ops, config, name)?;
                Ok(served_as(Tensor::F32(values), entry.kind))
            }
            _ => {
                let (name, path) = (name.to_owned(), "the update".into());
                Err(LoadError::MissingTensor { name, path })
            }
        }
    }
}
