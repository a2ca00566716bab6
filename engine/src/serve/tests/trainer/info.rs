//! Reports on the weights and on the configuration.

use super::*;

#[tokio::test]
async fn trainers_find_what_they_ask_for() {
    let server = Server::plain().await;
    assert_eq!(
        server.get("/get_world_size?include_dp=true").await.json(),
        json!({"world_size": 1})
    );
    let config = server.get("/server_info?config_format=json").await.json()["vllm_config"].clone();
    assert_eq!(config["model_config"]["dtype"], "torch.float32");
    assert_eq!(config["model_config"]["logprobs_mode"], "processed_logprobs");
    assert_eq!(config["cache_config"], json!({"cache_dtype": "auto"}));
    assert_eq!(config["parallel_config"]["data_parallel_size"], 1);
    assert!(config["weight_transfer_config"].is_object());
    assert!(server.get("/server_info").await.json()["vllm_config"].is_string());
    let reset = server.post_text("/reset_prefix_cache?reset_running_requests=true", "").await;
    assert_eq!(reset.json(), json!({"success": true}));
    for path in ["/reset_mm_cache", "/reset_encoder_cache"] {
        let reset = server.post_text(path, "").await;
        assert_eq!((reset.status, reset.body.as_str()), (200, ""), "{path}");
    }
    assert_eq!(server.get("/kv_event_sources").await.json(), json!({}));
    for path in ["/init_weight_transfer_engine", "/weight_checker", "/update_weight_version"] {
        assert_eq!(server.post_text(path, "").await.status, 400, "{path}");
    }
    let ready = server.post("/init_weight_transfer_engine", &json!({"init_info": {}})).await;
    assert_eq!(ready.json(), json!({"message": "Weight transfer initialized"}));
    let gone = server.post_text("/shutdown_weight_transfer_engine", "").await;
    assert_eq!(gone.json(), json!({"message": "Weight transfer shut down"}));
    let info = json!({"update_info": {"names": [], "dtype_names": [], "shapes": []}});
    assert_eq!(server.post("/update_weights", &info).await.status, 400);
    for (path, body) in
        [("/collective_rpc", json!({})), ("/weight_checker", json!({"action": "reset"}))]
    {
        assert_eq!(server.post(path, &body).await.status, 501);
    }
    assert_eq!(server.post("/weight_checker", &json!({"action": "compare"})).await.status, 400);
    assert_eq!(server.get("/pause").await.status, 405);
    server.stop().await;
}

#[tokio::test]
async fn a_query_names_a_parameter_once_and_a_flag_is_true_or_false() {
    let server = Server::plain().await;
    for (path, status) in [
        ("/reset_prefix_cache?reset_running_requests", 200),
        ("/reset_prefix_cache?reset_running_requests=", 400),
        ("/reset_prefix_cache?reset_running_requests=0", 200),
        ("/reset_prefix_cache?reset_running_requests=yes", 200),
        ("/reset_prefix_cache?reset_running_requests=maybe", 400),
        ("/pause?mode=keep&clear_cache=False", 200),
        ("/resume", 200),
        ("/pause?mode=keep&mode=keep", 400),
        ("/wake_up?tags=kv%5Fcache&tags=weights", 200),
    ] {
        let reply = server.post_text(path, "").await;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
    }
    let wrong = server.get("/pause").await;
    assert!(wrong.status == 405 && wrong.head.contains("allow: POST"), "{}", wrong.head);
    server.stop().await;
}

#[tokio::test]
async fn a_forgotten_prefix_is_computed_again() {
    let server = Server::plain().await;
    let body = merged(long(40, 3), json!({}));
    let cached = async || {
        let reply = server.post("/v1/completions", &body).await.json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached().await, 0);
    assert_eq!(cached().await, 16);
    server.post_text("/reset_prefix_cache", "").await;
    assert_eq!(cached().await, 0);
    assert_eq!(cached().await, 16);
    // Other weights have other keys and values; the same ones under another label do not.
    server.post("/update_weight_version", &json!({"new_version": "x"})).await;
    assert_eq!(cached().await, 16);
    let folder = folder_of(&variant(1));
    server.post("/update_weights", &json!({"weight_dir": folder.path()})).await;
    assert_eq!(cached().await, 0);
    server.stop().await;
}
