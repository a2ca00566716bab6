//! Broadcasts that are written over the weights that serve: their bits, their memory, and what a
//! failure leaves.

use std::path::Path;

use super::super::super::adapters::{LOAD, named as adapter};
use super::super::super::hybrid;
use super::on_device::{Cargo, TYPES, finished, halves, started};
use super::*;
use crate::UpdateMode;
use crate::update::tests::{mixture, tiny};

/// Bytes that an update needs beside one broadcast, its conversion and the trainer's own: reports
/// of tensors and nodes of hashes.
const WORKSPACE: i64 = 64 << 10;

fn with_mode(update_mode: UpdateMode) -> EngineOptions {
    EngineOptions { update_mode, ..deterministic() }
}

/// Pushes tensors one by one, and returns what is served then and the most bytes at once beyond
/// those of before.
async fn pushed(folder: &Path, options: EngineOptions, cargo: &Cargo) -> (impl PartialEq, i64) {
    let emulated = exclusive_gpu_async().await;
    let server = Server::of(folder, options).await;
    // Steps are recorded before, and replayed behind the update.
    served(&server).await;
    let recorded = recordings(&emulated).0;
    let trainer = Trainer::join(&server, json!({})).await;
    let before = emulated.get("used");
    assert!(emulated.set("peak", 0));
    started(&server).await;
    let (trainer, answer) = trainer.call(&server, cargo, false).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    finished(&server, "a").await;
    let most = emulated.get("peak") - before;
    let found = served(&server).await;
    assert_eq!(recordings(&emulated).0, recorded, "steps were recorded anew");
    assert_eq!(emulated.get("faults"), 0);
    drop(trainer);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
    (found, most)
}

/// Pushes tensors staged and in place, and compares what is served and the memory that it took.
async fn compared(folder: &Path, named: &Named) {
    for types in [&TYPES[..1], &TYPES[1..2]] {
        let cargo = Cargo::of(named, types);
        let (staged, copy) = pushed(folder, with_mode(UpdateMode::Staged), &cargo).await;
        let (in_place, bucket) = pushed(folder, with_mode(UpdateMode::InPlace), &cargo).await;
        assert!(staged == in_place, "{} has other bits", folder.display());
        let weights: i64 = named.values().map(|one| 2 * one.1.len() as i64).sum();
        let largest = cargo.tensors.iter().map(|one| one.1.len() as i64).max().unwrap();
        // The trainer's own memory is on the same device.
        assert!(bucket <= 3 * largest + WORKSPACE, "{bucket} bytes for {largest}");
        assert!(copy >= weights && bucket < weights, "{copy} and {bucket} of {weights}");
    }
}

#[tokio::test]
async fn one_broadcast_is_all_the_memory_that_it_takes() {
    compared(&tiny(), &variant(1)).await;
}

#[tokio::test]
async fn experts_and_gates_are_written_where_they_are() {
    compared(&hybrid::folder(), &hybrid::weights(0.5)).await;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let [single, _] = mixture(0.5);
    compared(&models.join("tiny-moe"), &single).await;
}

#[tokio::test]
async fn no_matrix_that_is_written_passes_through_the_host() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(with_mode(UpdateMode::InPlace)).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let before = emulated.get("bytes_to_host");
    started(&server).await;
    let cargo = Cargo::of(&variant(1), &TYPES[..1]);
    let (trainer, answer) = trainer.call(&server, &cargo, true).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    finished(&server, "a").await;
    let copied = emulated.get("bytes_to_host") - before;
    assert!(copied < 32 * 96 * 2, "{copied} bytes came to the host");
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn adapters_are_added_to_weights_that_were_written_over() {
    let _emulated = exclusive_gpu_async().await;
    let body = merged(numbered(1), json!({"model": "policy-v1"}));
    let file = file_of(&variant(1), Dtype::F32);
    let mut found = Vec::new();
    for update_mode in [UpdateMode::Staged, UpdateMode::InPlace] {
        let options = EngineOptions { max_loras: 2, ..with_mode(update_mode) };
        let server = Server::start(options).await;
        assert_eq!(server.post(LOAD, &adapter("policy-v1", "every")).await.status, 200);
        let before = alone(&server, std::slice::from_ref(&body)).await;
        assert_eq!(server.post_bytes(UPDATE, &file).await.status, 200);
        let after = alone(&server, std::slice::from_ref(&body)).await;
        assert_ne!(before, after);
        found.push((before, after));
        server.stop().await;
    }
    assert_eq!(found[0], found[1]);
}

/// Broadcasts tensors while the n-th allocation of the engine fails. The engine may leave the
/// group.
async fn sent_without_room(
    (server, emulated): (&Server, &ExclusiveGpu),
    mut trainer: Trainer,
    cargo: &Cargo,
    n: i64,
) -> Answer {
    let own = |part: &Vec<u8>| Memory::of(&trainer.device, part).unwrap();
    let memories: Vec<Memory> = cargo.parts(false).iter().map(own).collect();
    emulated.fail_allocation(n);
    let updating = server.begin(UPDATE, &json!({"update_info": cargo.info(false)}));
    let sending = spawn_blocking(move || {
        let mut send = |memory| trainer.member.broadcast(memory, &mut given_up_after(LONG));
        memories.iter().all(|memory| send(memory).is_ok())
    });
    sending.await.unwrap();
    said_of(updating).await
}

#[tokio::test]
async fn an_allocation_that_fails_leaves_old_weights_or_none() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(with_mode(UpdateMode::InPlace)).await;
    let [first, _] = halves(1).map(|named| Cargo::of(&named, &TYPES[..1]));
    let whole = file_of(&variant(1), Dtype::F32);
    let (mut failed, mut torn, mut kept) = (0, 0, 0);
    loop {
        let before = served(&server).await;
        let trainer = Trainer::join(&server, json!({"packed": false})).await;
        started(&server).await;
        let answer = sent_without_room((&server, &emulated), trainer, &first, failed + 1).await;
        let left = emulated.get("fail_allocation");
        emulated.fail_allocation(0);
        if left > 0 {
            assert_eq!(answer.status, 200, "{}", answer.body);
            break;
        }
        // What has no room on the device goes through the host, or fails.
        if answer.body.contains("half-way") {
            torn += 1;
            assert_eq!(server.text(json!({})).await.status, 503);
        } else if answer.status != 200 {
            kept += 1;
            assert_eq!(served(&server).await, before);
        }
        server.post_text("/shutdown_weight_transfer_engine", "").await;
        let path = format!("{UPDATE}?weight_version=after{failed}");
        let healed = server.post_bytes(&path, &whole).await;
        assert_eq!(healed.status, 200, "{}", healed.body);
        // Not each of them: all are alike but for the tensor.
        failed += 1 + failed / 3;
        if failed > 1 {
            assert_eq!(served(&server).await.1, before.1);
        }
    }
    assert!(torn > 3 && kept > 0, "up to allocation {failed}, {torn} and {kept} were reported");
    server.post_text("/shutdown_weight_transfer_engine", "").await;
    assert_eq!(emulated.get("faults"), 0);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
}

#[tokio::test]
async fn a_trainer_that_dies_amid_it_leaves_no_weights() {
    let _emulated = exclusive_gpu_async().await;
    let expected = served_from_a_body(1, Dtype::F32, "a").await;
    let server = Server::start(with_mode(UpdateMode::InPlace)).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let named = variant(1);
    let updating = begun(&server, &named, json!({})).await;
    let first = packed(&named, Dtype::F32).remove(0);
    drop(trainer.send(vec![first]).await);
    let answer = said_of(updating).await;
    assert!(answer.status == 504 && answer.body.contains("half-way"), "{}", answer.body);
    assert_eq!(server.post("/v1/completions", &numbered(1)).await.status, 503);
    // The next one brings all.
    let trainer = Trainer::join(&server, json!({})).await;
    let (trainer, _) = trainer.push(&server, 1, "a").await;
    assert_eq!(served(&server).await, expected);
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn an_unknown_name_is_refused_before_anything_is_written() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(with_mode(UpdateMode::InPlace)).await;
    let before = served(&server).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let mut renamed = variant(1);
    let (_, strange) = renamed.pop_last().unwrap();
    renamed.insert("model.strange".to_owned(), strange);
    let updating = begun(&server, &renamed, json!({})).await;
    let trainer = trainer.send(packed(&renamed, Dtype::F32)).await;
    let refused = said_of(updating).await;
    assert!(refused.status == 400 && refused.body.contains("model.strange"), "{}", refused.body);
    assert_eq!(served(&server).await, before);
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn what_an_update_will_take_is_said_before_it_comes() {
    let emulated = exclusive_gpu_async().await;
    let usual = emulated.get("memory");
    let named = variant(1);
    let weights: i64 = named.values().map(|one| 2 * one.1.len() as i64).sum();
    let cargo = Cargo::of(&named, &TYPES[1..2]);
    for (room, mode, way) in [
        (4 * weights, UpdateMode::Staged, "device"),
        (weights / 2, UpdateMode::Staged, "host"),
        (weights / 2, UpdateMode::InPlace, "in_place"),
    ] {
        let server = Server::start(with_mode(mode)).await;
        served(&server).await;
        let trainer = Trainer::join(&server, json!({})).await;
        // The kernels of arrivals are there, so nothing else is allocated.
        let used = emulated.get("used");
        assert!(emulated.set("memory", (used + room) * 32 / 31));
        let said = server.post(INIT, &json!({"init_info": {}})).await.json();
        assert_eq!(said["updates"]["way"], way, "{said}");
        let note = said["updates"]["note"].as_str().unwrap();
        assert_eq!(note.contains("does not fit"), way == "host", "{note}");

        // It is so.
        let before = emulated.get("bytes_to_host");
        started(&server).await;
        let (trainer, answer) = trainer.call(&server, &cargo, false).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        finished(&server, "a").await;
        let copied = emulated.get("bytes_to_host") - before;
        assert_eq!(copied > weights / 4, way == "host", "{way}: {copied} bytes of {weights}");
        assert!(emulated.set("memory", usual));
        drop(trainer);
        server.stop().await;
    }
}

#[tokio::test]
async fn weights_that_sleep_are_written_where_they_are() {
    let emulated = exclusive_gpu_async().await;
    let expected = served_from_a_body(1, Dtype::F32, "a").await;
    for wakes_early in [true, false] {
        let server = Server::start(with_mode(UpdateMode::InPlace)).await;
        served(&server).await;
        assert_eq!(server.post_text("/sleep?level=1", "").await.status, 200);
        let asleep = emulated.get("used");
        let [first, second] = halves(1).map(|named| file_of(&named, Dtype::F32));
        started(&server).await;
        assert_eq!(server.post_bytes(UPDATE, &first).await.status, 200);
        assert_eq!(emulated.get("used"), asleep);
        if wakes_early {
            assert_eq!(server.post_text("/wake_up?tags=weights", "").await.status, 200);
        }
        assert_eq!(server.post_bytes(UPDATE, &second).await.status, 200);
        finished(&server, "a").await;
        assert_eq!(server.post_text("/wake_up", "").await.status, 200);
        assert_eq!(served(&server).await, expected);
        server.stop().await;
    }
    assert_eq!(emulated.get("faults"), 0);
}
