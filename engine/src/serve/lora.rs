//! LoRA adapters: those that requests may name, and the routes that load and unload them.

mod handlers;
mod registry;

pub(super) use handlers::{
    LOAD_FIELDS, UNLOAD_FIELDS, load, load_adapter, restore, unload, unload_adapter,
};
pub(super) use registry::{AdapterRegistry, FoundAdapter};
