//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, and the adapters that requests may name.
//!
//! Answers and refusals are vLLM's, but for what cannot be used, which is refused by name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hyper::Response;

use super::error::ApiError;
use super::fields::Fields;
use super::routes::{ReplyBody, text_reply};
use super::submit::State;
use crate::lora::{self, Adapter, AdapterError, Bounds, LayerAdditions};
use crate::update::{Updates, Version};

/// Characters of the longest name.
const MAX_NAME: usize = 256;

/// The adapters of a server.
pub(super) struct Adapters {
    pub(super) bounds: Bounds,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    /// Those that requests may name, in the order in which they were loaded.
    loaded: Vec<Arc<Adapter>>,
    /// All that somebody may still hold.
    living: Vec<Weak<Adapter>>,
    /// How often each name was loaded.
    loads: HashMap<Arc<str>, u64>,
    /// Adapters that were ever loaded.
    count: u64,
}

impl Adapters {
    pub(super) fn new(bounds: Bounds) -> Adapters {
        Adapters { bounds, shelf: Mutex::default() }
    }

    /// The adapter of a name.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Adapter>> {
        self.shelf().find(name).cloned()
    }

    /// Remembers what all adapters make of new weights of the model.
    pub(super) fn remember_over(&self, base: &Version, updates: &Updates) {
        let label: Arc<str> = Arc::from(base.label.as_str());
        for adapter in self.shelf().living.iter().filter_map(Weak::upgrade) {
            let checksum = adapter.checksum_over(&base.checksum);
            let label = adapter.version_over(&label).to_string();
            updates.remember(&Version { label, checksum });
        }
    }

    /// All that requests may name.
    pub(super) fn list(&self) -> Vec<Arc<Adapter>> {
        self.shelf().loaded.clone()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // Every change is the last thing that is done under the lock.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a name that cannot be loaded now, else nothing changes while the guard is held.
    fn check(&self, name: &str, replace: bool) -> Result<MutexGuard<'_, Shelf>, ApiError> {
        let mut shelf = self.shelf();
        let known = shelf.find(name).is_some();
        if known && !replace {
            return Err(invalid(format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the \
                 adapter in place, set 'load_inplace' to True."
            )));
        }
        let most = self.bounds.adapters;
        if !known && shelf.loaded.len() >= most {
            return Err(invalid(format!(
                "{most} LoRA adapters are loaded, and `--max-loras` allows no more; unload one"
            )));
        }
        shelf.living.retain(|adapter| adapter.strong_count() > 0);
        if shelf.living.len() >= self.bounds.slots() {
            let living = shelf.living.len();
            return Err(ApiError::later(format!(
                "{living} LoRA adapters are loaded or serve requests that began before they were \
                 unloaded; try again when some of these have ended"
            )));
        }
        Ok(shelf)
    }

    /// Makes additions known under a name.
    fn add(
        &self,
        name: &str,
        path: &Path,
        layers: Vec<LayerAdditions>,
        (state, replace): (&State, bool),
    ) -> Result<(), ApiError> {
        let (hash, path) = (lora::hash_of(&layers), path.to_owned());
        // Another call may have been faster.
        let mut shelf = self.check(name, replace)?;
        let shelf = &mut *shelf;
        let name: Arc<str> = Arc::from(name);
        let base = state.gate.board.read().version;
        let loads = shelf.loads.entry(Arc::clone(&name)).or_default();
        let version = loop {
            *loads += 1;
            let label: Arc<str> = match *loads {
                1 => Arc::clone(&name),
                again => format!("{name}#v{again}").into(),
            };
            // One label never stands for two sets of weights.
            if state.updates.checksum_of(&label).is_none() {
                break label;
            }
        };
        shelf.count += 1;
        let number = shelf.count;
        let adapter = Arc::new(Adapter { number, name, version, base, hash, path, layers });
        if let Some(checksum) = state.updates.checksum_of(&adapter.base) {
            let (label, checksum) = (adapter.version.to_string(), adapter.checksum_over(&checksum));
            state.updates.remember(&Version { label, checksum });
        }
        shelf.living.push(Arc::downgrade(&adapter));
        match shelf.loaded.iter_mut().find(|other| other.name == adapter.name) {
            Some(place) => *place = adapter,
            None => shelf.loaded.push(adapter),
        }
        Ok(())
    }
}

impl Shelf {
    fn find(&self, name: &str) -> Option<&Arc<Adapter>> {
        self.loaded.iter().find(|adapter| *adapter.name == *name)
    }
}

/// `/v1/load_lora_adapter`: requests may name the adapter once this is answered.
pub(super) async fn load(
    state: &Arc<State>,
    fields: &Fields,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = load_named(state, fields).await?;
    Ok(text_reply(format!("Success: LoRA adapter '{name}' added successfully.")))
}

/// Loads what the fields name, and returns the name.
pub(super) async fn load_named(state: &Arc<State>, fields: &Fields) -> Result<String, ApiError> {
    let given = |field| Ok::<_, ApiError>(fields.text(field)?.filter(|text| !text.is_empty()));
    let (Some(name), Some(path)) = (given("lora_name")?, given("lora_path")?) else {
        return Err(invalid("Both 'lora_name' and 'lora_path' must be provided."));
    };
    if name == state.card.name || name.len() > MAX_NAME {
        let message = format!("must be another name than the model's, of at most {MAX_NAME} bytes");
        return Err(ApiError::bad("lora_name", message));
    }
    if fields.flag("is_3d_lora_weight", false)? {
        return Err(ApiError::bad("is_3d_lora_weight", "is not supported"));
    }
    if state.adapters.bounds.adapters == 0 {
        return Err(invalid("the engine was started with `--max-loras 0`, so it loads no adapter"));
    }
    let replace = fields.flag("load_inplace", false)?;
    drop(state.adapters.check(name, replace)?);
    let (name, folder) = (name.to_owned(), PathBuf::from(path));
    let (state, named) = (Arc::clone(state), name.clone());
    let loading = tokio::task::spawn_blocking(move || {
        let rank = state.adapters.bounds.rank;
        let layers = lora::read(&folder, &state.card.config, rank);
        let layers = layers.map_err(|error| refusal(&named, &error))?;
        state.adapters.add(&named, &folder, layers, (&state, replace))
    });
    loading.await.map_err(|_| ApiError::internal())??;
    tracing::info!(name, "loaded a LoRA adapter");
    Ok(name)
}

/// `/v1/unload_lora_adapter`: requests that run with the adapter go on with it.
pub(super) fn unload(state: &State, fields: &Fields) -> Result<Response<ReplyBody>, ApiError> {
    let name = unload_named(state, fields)?;
    Ok(text_reply(format!("Success: LoRA adapter '{name}' removed successfully.")))
}

/// Unloads what the fields name, and returns the name.
pub(super) fn unload_named<'a>(state: &State, fields: &'a Fields) -> Result<&'a str, ApiError> {
    let Some(name) = fields.text("lora_name")?.filter(|name| !name.is_empty()) else {
        return Err(invalid("'lora_name' needs to be provided to unload a LoRA adapter."));
    };
    let mut shelf = state.adapters.shelf();
    let place = shelf.loaded.iter().position(|adapter| *adapter.name == *name);
    let message = || format!("The lora adapter '{name}' cannot be found.");
    let place = place.ok_or_else(|| ApiError::not_found(message()))?;
    shelf.loaded.remove(place);
    tracing::info!(name, "unloaded a LoRA adapter");
    Ok(name)
}

/// As vLLM refuses what the caller got wrong.
fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::invalid(message.into())
}

fn refusal(name: &str, error: &AdapterError) -> ApiError {
    let mut message = format!("Loading lora {name} failed: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let text = error.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = error.source();
    }
    match error {
        AdapterError::Absent { .. } => ApiError::not_found(message),
        _ => invalid(message),
    }
}
