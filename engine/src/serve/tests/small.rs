//! The routes beside generation.

use super::*;

#[tokio::test]
async fn the_small_routes_answer() {
    let server = Server::plain().await;
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let models = server.get("/v1/models").await;
    assert!(models.head.contains("server: rolltape"));
    let card = &models.json()["data"][0];
    assert_eq!(keys(card), "id object created owned_by root parent max_model_len");
    assert_eq!((&card["id"], &card["max_model_len"]), (&json!("tiny"), &json!(1024)));
    assert_eq!(server.get("/v1/nothing").await.status, 404);
    assert_eq!(server.get("/v1/completions").await.status, 405);
    server.stop().await;
}
