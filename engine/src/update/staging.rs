//! The exchange of weights between the engine thread and the thread that places new ones.
//!
//! The engine thread lends the weights that serve. Another thread places the new ones beside them
//! and fills in lent tensors where none arrived. The engine thread then takes the result.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::Ops;

use super::error::UpdateError;
use super::incoming::IncomingWeights;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::model::parameters::ModelParameters;
use crate::weights::manifest::{TensorDigest, WeightManifest, convert};
use crate::weights::{Elements, Tensor, TensorSource};

/// A [`WeightStaging`] for any device. All methods block.
pub(crate) trait StagingArea: Send + Sync {
    /// Places the tensors that arrived, and lent ones where none did, for the engine thread.
    fn stage(&self, incoming: IncomingWeights) -> Result<(), UpdateError>;

    /// Reads the lent weights back from the device and returns their manifest. `manifest` names the
    /// tensors.
    fn inspect(&self, manifest: &WeightManifest) -> Result<WeightManifest, UpdateError>;

    /// Returns the free and all bytes of the device's memory; `None` on the CPU.
    fn memory(&self) -> Result<Option<[u64; 2]>, UpdateError>;

    /// Drops the lent and the staged weights.
    fn clear(&self);
}

/// The weights that the engine thread lends, and those that it is to take.
pub(crate) struct WeightStaging<O: Ops> {
    /// A second handle of the device, to place weights while the engine thread computes.
    ops: Mutex<O>,
    config: ModelConfig,
    lent: Mutex<Option<Arc<ModelParameters<O>>>>,
    staged: Mutex<Option<Arc<ModelParameters<O>>>>,
}

/// Locks a mutex. Its contents are whole or absent, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O: Ops> WeightStaging<O> {
    pub(crate) fn new(ops: O, config: ModelConfig) -> WeightStaging<O> {
        WeightStaging {
            ops: Mutex::new(ops),
            config,
            lent: Mutex::new(None),
            staged: Mutex::new(None),
        }
    }

    /// Lends the weights that serve, or takes the loan back.
    pub(crate) fn lend(&self, live: Option<Arc<ModelParameters<O>>>) {
        *lock(&self.lent) = live;
    }

    /// Takes the staged weights, and ends the loan: the lent weights are about to change.
    pub(crate) fn take_staged(&self) -> Option<Arc<ModelParameters<O>>> {
        *lock(&self.lent) = None;
        lock(&self.staged).take()
    }

    /// Leaves the weights that served before, for another thread to drop.
    pub(crate) fn put_back(&self, old: Option<Arc<ModelParameters<O>>>) {
        *lock(&self.staged) = old;
    }
}

impl<O: Ops> StagingArea for WeightStaging<O> {
    fn stage(&self, incoming: IncomingWeights) -> Result<(), UpdateError> {
        let (ops, lent) = (lock(&self.ops), lock(&self.lent).clone());
        let (arrived, manifest) = incoming.into_parts();
        let overlay = Overlay {
            arrived: RefCell::new(arrived),
            ops: &*ops,
            lent: lent.as_deref(),
            config: &self.config,
            manifest: &manifest,
        };
        let parameters = ModelParameters::load(&*ops, &overlay, &self.config)?;
        *lock(&self.staged) = Some(Arc::new(parameters));
        Ok(())
    }

    fn inspect(&self, manifest: &WeightManifest) -> Result<WeightManifest, UpdateError> {
        let ops = lock(&self.ops);
        let Some(lent) = lock(&self.lent).clone() else {
            let reason = "the engine has no weights now";
            return Err(UpdateError::Weights(reason.into()));
        };
        let mut found = WeightManifest::default();
        for (name, digest) in manifest.iter() {
            let values = lent.read(&*ops, &self.config, name)?;
            let tensor = convert(Tensor::F32(values), digest.element_type);
            found.insert(name, TensorDigest::of(name, &digest.shape, &tensor));
        }
        Ok(found)
    }

    fn memory(&self) -> Result<Option<[u64; 2]>, UpdateError> {
        let memory = lock(&self.ops).memory();
        memory.map_err(|error| UpdateError::Device(error.to_string()))
    }

    fn clear(&self) {
        *lock(&self.lent) = None;
        *lock(&self.staged) = None;
    }
}

/// A source that has the tensors that arrived, and the lent ones for all others.
struct Overlay<'a, O: Ops> {
    /// Removed one by one as they are placed, so that none is in memory longer than needed.
    arrived: RefCell<BTreeMap<String, Elements>>,
    ops: &'a O,
    lent: Option<&'a ModelParameters<O>>,
    config: &'a ModelConfig,
    manifest: &'a WeightManifest,
}

impl<O: Ops> TensorSource for Overlay<'_, O> {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        Ok(self.take_elements(name, shape)?.into_host()?)
    }

    fn take_elements(&self, name: &str, _shape: &[usize]) -> Result<Elements, LoadError> {
        if let Some(elements) = self.arrived.borrow_mut().remove(name) {
            return Ok(elements);
        }
        match (self.lent, self.manifest.get(name)) {
            (Some(lent), Some(digest)) => {
                let values = lent.read(self.ops, self.config, name)?;
                Ok(Elements::Host(convert(Tensor::F32(values), digest.element_type)))
            }
            _ => {
                let (name, path) = (name.to_owned(), "the update".into());
                Err(LoadError::MissingTensor { name, path })
            }
        }
    }
}
