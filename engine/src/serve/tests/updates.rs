//! Updates that are refused, crossed or started twice: the weights are whole and have their label.

use safetensors::Dtype;

use super::adapters::{LOAD, named};
use super::*;
use crate::update::tests::{Named, file_of, folder_of, variant};

const FINISH: &str = "/finish_weight_update";
const UPDATE: &str = "/update_weights";

async fn start(server: &Server) {
    assert_eq!(server.post_text("/start_weight_update", "").await.status, 200);
}

/// Makes a file of the tensors `from..to` of a variant.
fn part(number: u32, range: std::ops::Range<usize>) -> Vec<u8> {
    let (skip, take) = (range.start, range.len());
    let some: Named = variant(number).into_iter().skip(skip).take(take).collect();
    file_of(&some, Dtype::F32)
}

/// Reads the weights back, and checks that their checksum is the reported one.
async fn is_what_it_says(server: &Server) -> Value {
    let info = server.get("/weight_info").await.json();
    let read = server.post("/weight_checker", &json!({"action": "checksum"})).await.json();
    assert_eq!(info["checksum"], read["checksum"]);
    info
}

#[tokio::test]
async fn what_was_refused_is_owed_until_it_comes() {
    let server = Server::plain().await;
    let before = is_what_it_says(&server).await;
    start(&server).await;
    let mut broken: Named = variant(1).into_iter().take(6).collect();
    let name = broken.keys().nth(4).unwrap().clone();
    broken.get_mut(&name).unwrap().1[3] = f32::NAN;
    let refused = server.post_bytes(UPDATE, &file_of(&broken, Dtype::F32)).await;
    assert!(refused.status == 400 && refused.body.contains(&name), "{}", refused.body);
    // As trainers do, whatever they were told.
    let finish = server.post_text(FINISH, "").await;
    assert!(finish.status == 409 && finish.body.contains("was refused"), "{}", finish.body);
    assert_eq!(is_what_it_says(&server).await, before);
    assert_eq!(server.post_bytes(UPDATE, &part(1, 0..4)).await.json()["tensors"], 4);
    assert_eq!(server.post_text(FINISH, "").await.status, 409);
    assert_eq!(server.post_bytes(UPDATE, &part(1, 4..6)).await.json()["tensors"], 6);
    // A call of which nobody can tell what it was to bring: all must come.
    assert_eq!(server.post_bytes(UPDATE, b"nothing").await.status, 400);
    let finish = server.post_text(FINISH, "").await;
    assert!(finish.status == 409 && finish.body.contains("not be read"), "{}", finish.body);
    let all = part(1, 0..variant(1).len());
    assert_eq!(server.post_bytes(UPDATE, &all).await.status, 200);
    let done = server.post_text(FINISH, "").await.json();
    assert_eq!(is_what_it_says(&server).await["checksum"], done["checksum"]);
    server.stop().await;
}

#[tokio::test]
async fn a_finish_that_was_refused_is_never_done_by_coming_again() {
    let server = Server::plain().await;
    start(&server).await;
    assert_eq!(server.post_bytes(UPDATE, &part(1, 0..5)).await.status, 200);
    assert_eq!(server.post_text(FINISH, "").await.json()["weight_version"], "1");
    start(&server).await;
    assert_eq!(server.post_bytes(UPDATE, &part(2, 0..5)).await.status, 200);
    let taken = json!({"weight_version": "default"});
    for _ in 0..2 {
        assert_eq!(server.post(FINISH, &taken).await.status, 409);
    }
    // What has arrived is still there.
    let done = server.post_text(FINISH, "").await.json();
    assert_eq!(done["weight_version"], "2");
    assert_eq!(is_what_it_says(&server).await["checksum"], done["checksum"]);
    // An answer that was lost is given again, until something else is begun.
    assert_eq!(server.post_text(FINISH, "").await.json(), done);
    start(&server).await;
    server.post_text("/shutdown_weight_transfer_engine", "").await;
    assert_eq!(server.post_text(FINISH, "").await.status, 409);
    server.stop().await;
}

#[tokio::test]
async fn weights_that_come_by_another_way_end_what_was_begun() {
    let server = Server::plain().await;
    let (one, two) = (folder_of(&variant(1)), folder_of(&variant(2)));
    let pushes = [
        (UPDATE, json!({"weight_dir": one.path(), "weight_version": "12"}), "12"),
        ("/update_weights_from_disk", json!({"model_path": two.path()}), "2"),
    ];
    for (route, push, label) in &pushes {
        start(&server).await;
        assert_eq!(server.post_bytes(UPDATE, &part(3, 0..5)).await.status, 200);
        assert_eq!(server.post(route, push).await.status, 200);
        let info = is_what_it_says(&server).await;
        assert_eq!(info["weight_version"], *label);
        // The other trainer's next part would be weights of nobody.
        let parts = server.post_bytes(UPDATE, &part(3, 5..9)).await;
        assert!(parts.status == 400 && parts.body.contains("/start_weight_update"));
        assert_eq!(server.post_text(FINISH, "").await.status, 409);
        assert_eq!(is_what_it_says(&server).await, info);
    }
    // Without a label a folder is a part of what was begun.
    start(&server).await;
    let taken = server.post(UPDATE, &json!({"weight_dir": one.path()})).await.json();
    assert_eq!(taken["tensors"], variant(1).len());
    assert_eq!(is_what_it_says(&server).await["weight_version"], "2");
    assert_eq!(server.post_text(FINISH, "").await.status, 200);
    let first = server.get("/weight_info?version=12").await.json()["checksum"].clone();
    assert_eq!(is_what_it_says(&server).await["checksum"], first);
    server.stop().await;
}

#[tokio::test]
async fn a_label_of_an_adapter_or_the_model_keeps_its_checksum() {
    let server = Server::plain().await;
    let version = async |model: &str| {
        let asked = json!({"model": model, "max_tokens": 2, "return_weight_versions": true});
        let reply = server.text(asked).await.json();
        reply["choices"][0]["weight_versions"][0]["version"].clone()
    };
    let checksum = async |label: &str| {
        let info = server.get(&format!("/weight_info?version={label}")).await;
        assert_eq!(info.status, 200, "{label}: {}", info.body);
        info.json()["checksum"].as_str().unwrap().to_owned()
    };
    for name in ["default", "a%23v2", "a"] {
        let name = name.replace("%23", "#");
        assert_eq!(server.post(LOAD, &named(&name, "every")).await.status, 200);
    }
    assert_eq!(version("default").await, "default#v2");
    let again = merged(named("a", "some"), json!({"load_inplace": true}));
    assert_eq!(server.post(LOAD, &again).await.status, 200);
    assert_eq!(version("a").await, "a#v3");
    assert_eq!(version("a#v2").await, "a#v2");
    // The weights below change: others sample from now on.
    let folder = folder_of(&variant(1));
    let body = |label: &str| json!({"weight_dir": folder.path(), "weight_version": label});
    assert_eq!(server.post(UPDATE, &body("a#v3")).await.status, 409);
    assert_eq!(server.post(UPDATE, &body("7")).await.status, 200);
    assert_eq!((version("tiny").await, version("a").await), (json!("7"), json!("a#v3@7")));
    let labels = ["default", "7", "default%23v2", "a%23v2", "a%23v3", "a", "a%23v3@7"];
    let mut checksums = Vec::new();
    for label in labels {
        checksums.push(checksum(label).await);
    }
    // The same adapter under two names is the same weights; all others differ.
    assert!(checksums[2] == checksums[3] && checksums[3] == checksums[5]);
    checksums.sort();
    checksums.dedup();
    assert_eq!(checksums.len(), 5);
    server.stop().await;
}
