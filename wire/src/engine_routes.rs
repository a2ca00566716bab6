//! The control routes of engines and of the trainers that change them: pause, new weights, caches.

/// A control route of an engine. Some servers take a GET where it changes something; the method is
/// the one that is forwarded.
#[derive(Debug, PartialEq, Eq)]
pub struct EngineRoute {
    /// The server that has it.
    pub server: EngineServer,
    /// GET or POST. HEAD goes wherever GET goes.
    pub method: &'static str,
    /// The path. A last part in braces stands for the rest of any path.
    pub path: &'static str,
    /// One sentence for the docs.
    pub summary: &'static str,
    /// True if the engine may serve other weights after it.
    pub changes_weights: bool,
}

/// A server that has control routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineServer {
    /// vLLM and rolltape's engine.
    Vllm,
    /// SGLang.
    Sglang,
    /// The servers of trainers.
    Trainer,
}

impl EngineServer {
    /// All servers, in the order of the docs.
    pub const ALL: [Self; 3] = [Self::Vllm, Self::Sglang, Self::Trainer];

    /// The name for the docs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM, rolltape's engine",
            Self::Sglang => "SGLang",
            Self::Trainer => "prime-rl, SkyRL, AReaL",
        }
    }
}

impl EngineRoute {
    const fn new(
        server: EngineServer,
        method: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> Self {
        Self { server, method, path, summary, changes_weights: false }
    }

    /// The same route, after which an engine may serve other weights.
    const fn changing_weights(self) -> Self {
        Self { changes_weights: true, ..self }
    }

    /// True if a request with this method is forwarded.
    pub fn takes(&self, method: &str) -> bool {
        method == self.method || (self.method == GET && method == "HEAD")
    }

    fn names(&self, path: &str) -> bool {
        match self.path.strip_suffix("{name}") {
            None => self.path == path,
            Some(start) => path.starts_with(start),
        }
    }
}

const GET: &str = "GET";
const POST: &str = "POST";

/// The path prefix of servers that have all routes behind it.
const INFERENCE_PREFIX: &str = "/inference/v1";

/// The control route that a path names. The path has no query, no escapes, and no segments that are
/// empty or dots.
pub fn engine_route(path: &str) -> Option<&'static EngineRoute> {
    let path = path.strip_prefix(INFERENCE_PREFIX).unwrap_or(path);
    ENGINE_ROUTES.iter().find(|route| route.names(path))
}

const fn vllm(method: &'static str, path: &'static str, summary: &'static str) -> EngineRoute {
    EngineRoute::new(EngineServer::Vllm, method, path, summary)
}

const fn sglang(method: &'static str, path: &'static str, summary: &'static str) -> EngineRoute {
    EngineRoute::new(EngineServer::Sglang, method, path, summary)
}

const fn trainer(method: &'static str, path: &'static str, summary: &'static str) -> EngineRoute {
    EngineRoute::new(EngineServer::Trainer, method, path, summary)
}

/// The control routes of engines.
#[rustfmt::skip]
pub static ENGINE_ROUTES: [EngineRoute; 56] = [
    vllm(POST, "/pause", "Pauses generation."),
    vllm(POST, "/resume", "Resumes generation."),
    vllm(GET, "/is_paused", "Reports whether generation is paused."),
    vllm(POST, "/abort_requests", "Aborts requests."),
    vllm(POST, "/sleep", "Frees GPU memory."),
    vllm(POST, "/wake_up", "Takes GPU memory back."),
    vllm(GET, "/is_sleeping", "Reports whether the engine sleeps."),
    vllm(POST, "/init_weight_transfer_engine", "Connects a transport for weights."),
    vllm(POST, "/start_weight_update", "Starts an update of the weights."),
    vllm(POST, "/update_weights", "Updates weights.").changing_weights(),
    vllm(POST, "/finish_weight_update", "Finishes an update of the weights.").changing_weights(),
    vllm(POST, "/update_weight_version", "Changes the label of the weights.").changing_weights(),
    vllm(POST, "/shutdown_weight_transfer_engine", "Disconnects the transport for weights."),
    vllm(GET, "/weight_info", "Returns the label and checksum of the weights."),
    vllm(POST, "/weight_checker", "Checks the weights."),
    vllm(GET, "/get_world_size", "Returns the number of workers."),
    vllm(GET, "/server_info", "Returns the configuration of the server."),
    vllm(POST, "/reset_prefix_cache", "Empties the prefix cache."),
    vllm(POST, "/close_attempt", "Gives the prefixes of a closed attempt away first."),
    vllm(POST, "/reset_mm_cache", "Empties the multi-modal cache."),
    vllm(POST, "/reset_encoder_cache", "Empties the encoder cache."),
    vllm(POST, "/release_kv_cache_memory", "Frees the memory of the key-value cache."),
    vllm(POST, "/collective_rpc", "Calls a method on every worker."),
    vllm(POST, "/scale_elastic_ep", "Scales expert parallelism."),
    vllm(POST, "/is_scaling_elastic_ep", "Reports whether expert parallelism is being scaled."),
    vllm(POST, "/start_profile", "Starts the profiler."),
    vllm(POST, "/stop_profile", "Stops the profiler."),
    vllm(POST, "/v1/load_lora_adapter", "Loads a LoRA adapter."),
    vllm(POST, "/v1/unload_lora_adapter", "Unloads a LoRA adapter."),

    sglang(POST, "/update_weights_from_disk", "Updates weights from a folder.").changing_weights(),
    sglang(POST, "/update_weights_from_distributed", "Updates weights from a process group.")
        .changing_weights(),
    sglang(POST, "/update_weights_from_tensor", "Updates weights from tensors.").changing_weights(),
    sglang(POST, "/update_weights_from_ipc", "Updates weights from shared memory."),
    sglang(POST, "/init_weights_update_group", "Joins a process group for weights."),
    sglang(POST, "/destroy_weights_update_group", "Leaves the process group for weights."),
    sglang(POST, "/init_weights_send_group_for_remote_instance",
        "Joins a process group to send weights."),
    sglang(POST, "/send_weights_to_remote_instance", "Sends weights to another server."),
    sglang(POST, "/get_weights_by_name", "Returns weights by their name."),
    sglang(POST, "/pause_generation", "Pauses generation."),
    sglang(POST, "/continue_generation", "Resumes generation."),
    sglang(POST, "/abort_request", "Aborts requests."),
    sglang(POST, "/flush_cache", "Empties the prefix cache."),
    sglang(POST, "/clear_hicache_storage_backend",
        "Empties the storage of the hierarchical cache."),
    sglang(POST, "/release_memory_occupation", "Frees GPU memory."),
    sglang(POST, "/resume_memory_occupation", "Takes GPU memory back."),
    sglang(POST, "/load_lora_adapter", "Loads a LoRA adapter."),
    sglang(POST, "/unload_lora_adapter", "Unloads a LoRA adapter."),
    sglang(GET, "/get_server_info", "Returns the configuration of the server."),
    sglang(GET, "/get_internal_state", "Returns the state of the server."),
    sglang(POST, "/set_internal_state", "Sets the state of the server."),
    sglang(GET, "/get_load", "Returns the load of the server."),
    sglang(POST, "/configure_logging", "Configures logging."),
    sglang(POST, "/freeze_gc", "Freezes garbage collection."),

    trainer(POST, "/init_broadcaster", "Joins the broadcast of weights."),
    trainer(POST, "/fetch_weights", "Fetches weights."),
    trainer(POST, "/areal_{name}", "Any control route of AReaL."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_in_the_table_once() {
        let mut paths: Vec<_> = ENGINE_ROUTES.iter().map(|route| route.path).collect();
        paths.sort_unstable();
        let count = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }

    #[test]
    fn a_route_is_known_by_its_prefix_and_the_start_of_its_name() {
        for path in ["/pause", "/inference/v1/pause", "/v1/load_lora_adapter", "/areal_anything"] {
            assert!(engine_route(path).is_some(), "{path}");
        }
        for path in ["", "/", "/health", "/pauses", "/e/pause", "/inference/v1/generate"] {
            assert!(engine_route(path).is_none(), "{path}");
        }
        let [paused, pause] = ["/is_paused", "/pause"].map(|path| engine_route(path).unwrap());
        assert!(paused.takes("GET") && paused.takes("HEAD") && !paused.takes("POST"));
        assert!(pause.takes("POST") && !pause.takes("GET"));
    }
}
