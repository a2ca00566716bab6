//! What trainers call.

use super::*;

#[tokio::test]
async fn a_label_changes_between_tokens_and_each_token_keeps_its_own() {
    let server = Server::plain().await;
    assert_eq!(server.get("/weight_info").await.json()["weight_version"], "default");
    let renamed = server.post("/update_weight_version", &json!({"new_version": "step_1"})).await;
    assert_eq!(renamed.json(), json!({"success": true, "new_version": "step_1"}));
    assert_eq!(server.get("/weight_info").await.json()["weight_version"], "step_1");
    let reply = server.text(json!({"return_weight_versions": true, "max_tokens": 4})).await.json();
    let spans = &reply["choices"][0]["weight_versions"];
    assert_eq!(*spans, json!([{"version": "step_1", "start": 0, "end": 4}]));
    for body in [json!({}), json!({"new_version": ""}), json!({"new_version": []})] {
        let refused = server.post("/update_weight_version", &body).await;
        assert_eq!((refused.status, refused.body.contains("new_version")), (400, true));
    }
    assert_eq!(server.get("/update_weight_version").await.status, 405);
    server.stop().await;
}
