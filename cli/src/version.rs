//! The text of `rolltape --version`: the version, the commit, and what this build can do.

use std::sync::LazyLock;

/// The abilities of every build, then those of one that loads libraries.
const FEATURES: [&str; 3] = ["cpu", "sqlite", "postgres"];
const LOADED_FEATURES: [&str; 2] = ["cuda", "nccl"];

/// The line without the command's name.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let loaded = LOADED_FEATURES.iter().filter(|_| engine::gpu::LOADS_LIBRARIES);
        let features: Vec<&str> = FEATURES.iter().chain(loaded).copied().collect();
        let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILD_COMMIT"));
        format!("{version} ({commit}; features: {})", features.join(", "))
    });
    &TEXT
}
