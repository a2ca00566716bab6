//! The adapters of a server, loaded and in use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::bounds::ADAPTERS_MAX;
use crate::lora;
use crate::lora::Adapter;
use crate::lora::LoraLayer;
use crate::lora::LoraLimits;
use crate::serve::calls::ApiError;
use crate::serve::engine_client::EngineClient;
use crate::update::WeightUpdates;
use crate::update::WeightVersion;

/// The adapters of a server.
pub(crate) struct AdapterRegistry {
    pub(crate) bounds: LoraLimits,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// The adapters in memory that requests may name. The one that was not used for longest is
    /// first.
    loaded: Vec<Arc<Adapter>>,
    /// The adapters that made room for others, without their matrices.
    parked: Vec<Arc<Adapter>>,
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

/// An adapter that a request names.
pub(crate) enum FoundAdapter {
    Loaded(Arc<Adapter>),
    /// Its files have to be read again.
    Parked(Arc<Adapter>),
}

impl AdapterRegistry {
    pub(crate) fn new(bounds: LoraLimits) -> AdapterRegistry {
        AdapterRegistry { bounds, entries: Mutex::default() }
    }

    /// Finds an adapter that requests may name. Its matrices may be absent.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Adapter>> {
        self.lock().find(name).cloned()
    }

    /// Finds an adapter for a request, which counts as its use.
    pub(crate) fn find_to_use(&self, name: &str) -> Option<FoundAdapter> {
        self.lock().find_to_use(name, self.bounds.adapters)
    }

    /// Lists the adapters that requests may name, in the order in which they were loaded first.
    pub(crate) fn list(&self) -> Vec<Arc<Adapter>> {
        let entries = self.lock();
        let mut all: Vec<_> = entries.loaded.iter().chain(&entries.parked).cloned().collect();
        all.sort_by_key(|adapter| adapter.number);
        all
    }

    /// Records the labels and checksums that all adapters in use have over new weights of the
    /// model.
    pub(crate) fn record_versions_over(&self, base: &WeightVersion, updates: &WeightUpdates) {
        let base_label: Arc<str> = Arc::from(base.label.as_str());
        let entries = self.lock();
        let living = entries.living.iter().filter_map(Weak::upgrade);
        for adapter in living.chain(entries.parked.iter().cloned()) {
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
        entries.insert(adapter, self.bounds.adapters);
        Ok(())
    }

    /// Gives an adapter that was parked its matrices again, which were read from its folder.
    ///
    /// # Errors
    /// The files are others by now, the adapter was unloaded meanwhile, or there is no room.
    pub(crate) fn restore(
        &self,
        parked: &Arc<Adapter>,
        layers: Vec<LoraLayer>,
    ) -> Result<Arc<Adapter>, ApiError> {
        let (name, path) = (&parked.name, parked.path.display());
        if lora::checksum(&layers) != parked.hash {
            return Err(ApiError::conflict(format!(
                "the files of the LoRA adapter '{name}' in {path} have changed since it was \
                 loaded; load it again with 'load_inplace'"
            )));
        }

        let mut entries = self.lock();
        self.check_living(&mut entries)?;
        match entries.find_to_use(name, self.bounds.adapters) {
            // Another request was faster, or the name was loaded in place.
            Some(FoundAdapter::Loaded(adapter)) => return Ok(adapter),
            Some(FoundAdapter::Parked(other)) if other.number == parked.number => {}
            _ => {
                let message = format!("The lora adapter '{name}' was unloaded meanwhile.");
                return Err(ApiError::not_found(message));
            }
        }
        let adapter = Arc::new(Adapter { layers, ..parked.without_layers() });
        entries.insert(Arc::clone(&adapter), self.bounds.adapters);
        Ok(adapter)
    }

    /// Removes an adapter; false if there is none of this name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let mut entries = self.lock();
        let Entries { loaded, parked, .. } = &mut *entries;
        let before = loaded.len() + parked.len();
        loaded.retain(|adapter| *adapter.name != *name);
        parked.retain(|adapter| *adapter.name != *name);
        loaded.len() + parked.len() < before
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

        let known = entries.loaded.len() + entries.parked.len();
        if !is_loaded && known >= ADAPTERS_MAX {
            let message = format!("{known} LoRA adapters are loaded; unload one");
            return Err(ApiError::invalid_input(message));
        }
        self.check_living(&mut entries)?;
        Ok(entries)
    }

    /// Refuses a further adapter in memory while too many are: the device has slots for a fixed
    /// number.
    fn check_living(&self, entries: &mut Entries) -> Result<(), ApiError> {
        // Adapters that were unloaded take memory until the last call with them ends.
        entries.living.retain(|adapter| adapter.strong_count() > 0);
        let living = entries.living.len();
        if living >= self.bounds.slots() {
            return Err(ApiError::unavailable(format!(
                "{living} LoRA adapters are loaded or serve requests that began before they were \
                 unloaded; try again when some of these have ended"
            )));
        }
        Ok(())
    }
}

impl Entries {
    fn find(&self, name: &str) -> Option<&Arc<Adapter>> {
        self.loaded.iter().chain(&self.parked).find(|adapter| *adapter.name == *name)
    }

    /// Finds an adapter and notes its use. One that was parked while replies go on with it is in
    /// memory still.
    fn find_to_use(&mut self, name: &str, most: usize) -> Option<FoundAdapter> {
        if let Some(index) = self.loaded.iter().position(|adapter| *adapter.name == *name) {
            let adapter = self.loaded.remove(index);
            self.loaded.push(Arc::clone(&adapter));
            return Some(FoundAdapter::Loaded(adapter));
        }
        let parked = self.parked.iter().find(|adapter| *adapter.name == *name).cloned()?;
        let mut living = self.living.iter().filter_map(Weak::upgrade);
        match living.find(|adapter| adapter.number == parked.number) {
            Some(adapter) => {
                self.place(Arc::clone(&adapter), most);
                Some(FoundAdapter::Loaded(adapter))
            }
            None => Some(FoundAdapter::Parked(parked)),
        }
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

    /// Adds an adapter that was just read, in the place of one of the same name.
    fn insert(&mut self, adapter: Arc<Adapter>, most: usize) {
        self.living.push(Arc::downgrade(&adapter));
        self.place(adapter, most);
    }

    /// Puts an adapter among those in memory. While there are more than `most`, the one that was
    /// not used for longest is parked, if possible one that no reply uses.
    fn place(&mut self, adapter: Arc<Adapter>, most: usize) {
        self.loaded.retain(|other| other.name != adapter.name);
        self.parked.retain(|other| other.name != adapter.name);
        while self.loaded.len() >= most.max(1) {
            let idle = self.loaded.iter().position(|other| Arc::strong_count(other) == 1);
            let old = self.loaded.remove(idle.unwrap_or(0));
            self.parked.push(Arc::new(old.without_layers()));
        }
        self.loaded.push(adapter);
    }
}
