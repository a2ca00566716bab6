//! The adapters of a server, loaded and in use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::lora;
use crate::lora::Adapter;
use crate::lora::LoraLayer;
use crate::lora::LoraLimits;
use crate::serve::engine_client::EngineClient;
use crate::serve::http::ApiError;
use crate::update::WeightUpdates;
use crate::update::WeightVersion;

/// The adapters of a server.
pub(crate) struct AdapterRegistry {
    pub(crate) bounds: LoraLimits,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// The adapters that requests may name, in the order in which they were loaded.
    loaded: Vec<Arc<Adapter>>,
    /// All adapters that some call may still hold.
    living: Vec<Weak<Adapter>>,
    /// Number of times that each name was loaded.
    loads: HashMap<Arc<str>, u64>,
    /// Number of adapters that were ever loaded.
    count: u64,
}

/// An adapter that was read and is to be registered.
pub(crate) struct NewAdapter {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) layers: Vec<LoraLayer>,
    /// True if it may take the place of a loaded adapter of this name.
    pub(crate) replaces: bool,
}

impl AdapterRegistry {
    pub(crate) fn new(bounds: LoraLimits) -> AdapterRegistry {
        AdapterRegistry { bounds, entries: Mutex::default() }
    }

    /// Finds a loaded adapter by name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Adapter>> {
        self.lock().find(name).cloned()
    }

    /// Lists the loaded adapters.
    pub(crate) fn list(&self) -> Vec<Arc<Adapter>> {
        self.lock().loaded.clone()
    }

    /// Records the labels and checksums that all adapters in use have over new weights of the
    /// model.
    pub(crate) fn record_versions_over(&self, base: &WeightVersion, updates: &WeightUpdates) {
        let base_label: Arc<str> = Arc::from(base.label.as_str());
        for adapter in self.lock().living.iter().filter_map(Weak::upgrade) {
            let checksum = adapter.checksum_over(&base.checksum);
            let label = adapter.version_over(&base_label).to_string();
            updates.remember(&WeightVersion { label, checksum });
        }
    }

    /// Refuses a name that cannot be loaded now.
    pub(crate) fn check(&self, name: &str, replaces: bool) -> Result<(), ApiError> {
        self.lock_for(name, replaces).map(drop)
    }

    /// Registers an adapter under its name.
    ///
    /// # Errors
    /// As [`AdapterRegistry::check`]: another call may have loaded the name meanwhile.
    pub(crate) fn register(
        &self,
        new: NewAdapter,
        engine: &EngineClient,
        updates: &WeightUpdates,
    ) -> Result<(), ApiError> {
        let NewAdapter { name, path, layers, replaces } = new;
        // Hashing takes long, so it is done before the lock is taken.
        let hash = lora::checksum(&layers);
        let mut entries = self.lock_for(&name, replaces)?;

        let base = engine.status().version;
        let name: Arc<str> = Arc::from(name);
        let version = entries.next_version(&name, updates);
        entries.count += 1;
        let number = entries.count;
        let adapter = Arc::new(Adapter { number, name, version, base, hash, path, layers });

        // Tokens that are sampled with it have this label, so its checksum must be known by then.
        if let Some(base_checksum) = updates.checksum_of(&adapter.base) {
            let checksum = adapter.checksum_over(&base_checksum);
            updates.remember(&WeightVersion { label: adapter.version.to_string(), checksum });
        }
        entries.insert(adapter);
        Ok(())
    }

    /// Removes a loaded adapter; false if there is none of this name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let mut entries = self.lock();
        let index = entries.loaded.iter().position(|adapter| *adapter.name == *name);
        index.map(|index| entries.loaded.remove(index)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Every change is the last thing that is done under the lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the entries if the name can be loaded now.
    fn lock_for(&self, name: &str, replaces: bool) -> Result<MutexGuard<'_, Entries>, ApiError> {
        let mut entries = self.lock();
        let is_loaded = entries.find(name).is_some();
        if is_loaded && !replaces {
            return Err(ApiError::invalid_input(format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the \
                 adapter in place, set 'load_inplace' to True."
            )));
        }

        // The device has slots for a fixed number of adapters.
        let most = self.bounds.adapters;
        if !is_loaded && entries.loaded.len() >= most {
            return Err(ApiError::invalid_input(format!(
                "{most} LoRA adapters are loaded, and `--max-loras` allows no more; unload one"
            )));
        }

        // Adapters that were unloaded take memory until the last call with them ends.
        entries.living.retain(|adapter| adapter.strong_count() > 0);
        let living = entries.living.len();
        if living >= self.bounds.slots() {
            return Err(ApiError::unavailable(format!(
                "{living} LoRA adapters are loaded or serve requests that began before they were \
                 unloaded; try again when some of these have ended"
            )));
        }
        Ok(entries)
    }
}

impl Entries {
    fn find(&self, name: &str) -> Option<&Arc<Adapter>> {
        self.loaded.iter().find(|adapter| *adapter.name == *name)
    }

    /// Returns the label of the next adapter of this name: the name, then `NAME#v2` and so on. A
    /// label that stands for other weights is left out.
    fn next_version(&mut self, name: &Arc<str>, updates: &WeightUpdates) -> Arc<str> {
        let loads = self.loads.entry(Arc::clone(name)).or_default();
        loop {
            *loads += 1;
            let label: Arc<str> = match *loads {
                1 => Arc::clone(name),
                load => format!("{name}#v{load}").into(),
            };
            if updates.checksum_of(&label).is_none() {
                return label;
            }
        }
    }

    /// Adds an adapter, in the place of a loaded one of the same name.
    fn insert(&mut self, adapter: Arc<Adapter>) {
        self.living.push(Arc::downgrade(&adapter));
        match self.loaded.iter_mut().find(|other| other.name == adapter.name) {
            Some(loaded) => *loaded = adapter,
            None => self.loaded.push(adapter),
        }
    }
}
