//! Weights stay in the GPU's memory from their broadcast until they serve, and go to the host where
//! they must.

use std::path::Path;

use super::super::super::hybrid;
use super::*;
use crate::update::tests::mixture;

/// Bytes of the smallest matrix of the tiny model, in bf16. Its vectors and the reports of all
/// tensors are smaller together.
const SMALLEST_MATRIX: i64 = 32 * 96 * 2;

/// Types that take turns.
pub(super) const TYPES: [(Dtype, &str); 3] =
    [(Dtype::F32, "float32"), (Dtype::BF16, "bfloat16"), (Dtype::F16, "torch.float16")];

/// Tensors with their types and bytes as they are broadcast.
pub(super) struct Cargo {
    names: Vec<String>,
    types: Vec<&'static str>,
    shapes: Vec<Vec<usize>>,
    pub(super) tensors: Vec<(Dtype, Vec<u8>)>,
}

impl Cargo {
    /// The tensors in the types `types` in turn.
    pub(super) fn of(named: &Named, types: &[(Dtype, &'static str)]) -> Cargo {
        let mut cargo = Cargo { names: vec![], types: vec![], shapes: vec![], tensors: vec![] };
        for ((name, (shape, values)), (dtype, text)) in named.iter().zip(types.iter().cycle()) {
            cargo.names.push(name.clone());
            cargo.types.push(text);
            cargo.shapes.push(shape.clone());
            cargo.tensors.push((*dtype, bytes(values, *dtype)));
        }
        cargo
    }

    /// The announcement of the tensors, one by one or packed.
    pub(super) fn info(&self, packed: bool) -> Value {
        json!({"names": self.names, "dtype_names": self.types, "shapes": self.shapes,
            "packed": packed})
    }

    /// The broadcasts, one by one or packed.
    pub(super) fn parts(&self, packed: bool) -> Vec<Vec<u8>> {
        let tensors = self.tensors.iter().map(|(_, bytes)| bytes);
        if !packed {
            return tensors.cloned().collect();
        }
        let (mut parts, mut part) = (Vec::new(), Vec::new());
        for bytes in tensors {
            part.extend(bytes);
            if part.len() > PACKED {
                parts.push(std::mem::take(&mut part));
            }
        }
        parts.push(part);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// The same tensors as a file of safetensors.
    pub(super) fn file(&self) -> Vec<u8> {
        let tensors = self.names.iter().zip(&self.shapes).zip(&self.tensors);
        let views = tensors.map(|((name, shape), (dtype, bytes))| {
            let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
            (name, view.unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }
}

impl Trainer {
    /// Makes a call of an update, and returns its answer.
    pub(super) async fn call(
        self,
        server: &Server,
        cargo: &Cargo,
        packed: bool,
    ) -> (Trainer, Answer) {
        let updating = server.begin(UPDATE, &json!({"update_info": cargo.info(packed)}));
        let trainer = self.send(cargo.parts(packed)).await;
        (trainer, said_of(updating).await)
    }

    /// As [`Trainer::call`], while the n-th allocation of the engine fails: those of the trainer,
    /// who uses the same device, are made before.
    pub(super) async fn call_without_room(
        self,
        (server, emulated): (&Server, &ExclusiveGpu),
        cargo: &Cargo,
        n: i64,
    ) -> (Trainer, Answer) {
        let device = self.device.clone();
        let memories: Vec<Memory> =
            cargo.parts(true).iter().map(|part| Memory::of(&device, part).unwrap()).collect();
        emulated.fail_allocation(n);
        let updating = server.begin(UPDATE, &json!({"update_info": cargo.info(true)}));
        let mut trainer = self;
        let sending = spawn_blocking(move || {
            for memory in &memories {
                trainer.member.broadcast(memory, &mut given_up_after(LONG)).unwrap();
            }
            trainer
        });
        (sending.await.unwrap(), said_of(updating).await)
    }
}

pub(super) async fn started(server: &Server) {
    assert_eq!(server.post_text(START, "").await.status, 200);
}

pub(super) async fn finished(server: &Server, label: &str) {
    let finish = server.post(FINISH, &json!({"weight_version": label})).await;
    assert_eq!(finish.status, 200, "{}", finish.body);
}

/// The tensors of a variant in two halves.
pub(super) fn halves(number: u32) -> [Named; 2] {
    let named = variant(number);
    let middle = named.keys().nth(named.len() / 2).unwrap().clone();
    let (mut first, mut second) = (named.clone(), named);
    second.retain(|name, _| *name >= middle);
    first.retain(|name, _| *name < middle);
    [first, second]
}

#[tokio::test]
async fn no_matrix_passes_through_the_host() {
    let emulated = exclusive_gpu_async().await;
    let expected = served_from_a_body(1, Dtype::F32, "a").await;
    let server = Server::start(deterministic()).await;
    let mut trainer = Trainer::join(&server, json!({})).await;
    for (types, packed) in [(&TYPES[..1], true), (&TYPES[1..2], true), (&TYPES[1..2], false)] {
        let before = emulated.get("bytes_to_host");
        trainer = {
            started(&server).await;
            let (trainer, answer) =
                trainer.call(&server, &Cargo::of(&variant(1), types), packed).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            trainer
        };
        finished(&server, if types[0].0 == Dtype::F32 { "a" } else { "b" }).await;
        let copied = emulated.get("bytes_to_host") - before;
        assert!(copied < SMALLEST_MATRIX, "{copied} bytes came to the host");
        if types[0].0 == Dtype::F32 {
            assert_eq!(served(&server).await, expected);
        }
    }
    assert_eq!(emulated.get("faults"), 0);
    drop(trainer);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
}

#[tokio::test]
async fn types_and_packings_mix_in_one_update() {
    let emulated = exclusive_gpu_async().await;
    let [first, second] = halves(3).map(|named| Cargo::of(&named, &TYPES));
    let whole = Cargo::of(&variant(3), &TYPES);
    let server = Server::start(deterministic()).await;
    // The types take turns from the first tensor of each half on.
    assert!(first.tensors.len() % 3 != 0 && whole.file() != first.file());
    started(&server).await;
    for half in [&first, &second] {
        assert_eq!(server.post_bytes(UPDATE, &half.file()).await.status, 200);
    }
    finished(&server, "mixed").await;
    let expected = served(&server).await;
    server.stop().await;

    let server = Server::start(deterministic()).await;
    let trainer = Trainer::join(&server, json!({})).await;
    started(&server).await;
    let before = emulated.get("bytes_to_host");
    let (trainer, answer) = trainer.call(&server, &first, true).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let (trainer, answer) = trainer.call(&server, &second, false).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    finished(&server, "mixed").await;
    let copied = emulated.get("bytes_to_host") - before;
    assert!(copied < SMALLEST_MATRIX, "{copied} bytes came to the host");
    assert_eq!(served(&server).await, expected);
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn an_infinite_element_is_refused_by_name_as_in_a_body() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let before = served(&server).await;
    let mut trainer = Trainer::join(&server, json!({})).await;
    let name = "model.layers.1.mlp.up_proj.weight";
    // The last is finite where it comes from, and too large for bf16.
    for (types, value) in [
        (&TYPES[..1], f32::INFINITY),
        (&TYPES[1..2], f32::NEG_INFINITY),
        (&TYPES[2..], f32::NAN),
        (&TYPES[..1], f32::MAX),
    ] {
        let mut named = variant(1);
        named.get_mut(name).unwrap().1[1000] = value;
        let cargo = Cargo::of(&named, types);
        started(&server).await;
        let body = server.post_bytes(UPDATE, &cargo.file()).await;
        started(&server).await;
        let answer;
        (trainer, answer) = trainer.call(&server, &cargo, true).await;
        assert!(answer.status == 400 && answer.body.contains(name), "{}", answer.body);
        assert_eq!((answer.status, answer.body), (body.status, body.body));
        assert_eq!(server.post_text(FINISH, "").await.status, 409);
        assert_eq!(served(&server).await, before);
    }
    let (trainer, _) = trainer.push(&server, 1, "a").await;
    assert!(served(&server).await.2 != before.2);
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn what_arrived_makes_room_for_what_comes() {
    let emulated = exclusive_gpu_async().await;
    let labels = ["a", "b"];
    let mut expected = Vec::new();
    for (number, label) in (1..).zip(labels) {
        expected.push(served_from_a_body(number, Dtype::F32, label).await);
    }
    let server = Server::start(deterministic()).await;
    let mut trainer = Trainer::join(&server, json!({})).await;
    let mut failed = 0;
    loop {
        // Of two calls the first has room: without it the second could not begin.
        let which = failed as usize % 2;
        let [first, second] = halves(which as u32 + 1).map(|named| Cargo::of(&named, &TYPES[..1]));
        started(&server).await;
        let answer;
        (trainer, answer) = trainer.call(&server, &first, true).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let before = emulated.get("bytes_to_host");
        let answer;
        (trainer, answer) =
            trainer.call_without_room((&server, &emulated), &second, failed + 1).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        if failed == 0 {
            let matrices = 2 * first.tensors.iter().map(|one| one.1.len() as i64 / 4).sum::<i64>();
            assert!(emulated.get("bytes_to_host") - before >= matrices, "nothing made room");
        }
        let finish = server.post(FINISH, &json!({"weight_version": labels[which]})).await;
        let left = emulated.get("fail_allocation");
        emulated.fail_allocation(0);
        assert_eq!(finish.status, 200, "{}", finish.body);
        assert_eq!(checked(&server).await, expected[which].1);
        if left > 0 {
            assert_eq!(served(&server).await, expected[which]);
            break;
        }
        failed += 1;
    }
    assert!(failed > 25, "{failed} allocations failed");
    assert_eq!(emulated.get("faults"), 0);
    drop(trainer);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
}

#[tokio::test]
async fn what_is_given_up_leaves_no_memory_behind_nor_a_sleep() {
    let emulated = exclusive_gpu_async().await;
    let expected = served_from_a_body(2, Dtype::BF16, "b").await;
    let server = Server::start(deterministic()).await;
    served(&server).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let [first, second] = halves(2).map(|named| Cargo::of(&named, &TYPES[1..2]));
    let arriving = first.tensors.iter().map(|one| one.1.len() as i64).sum::<i64>();
    // The first call makes scratch memory, which stays.
    started(&server).await;
    let (trainer, _) = trainer.call(&server, &first, true).await;
    let full = emulated.get("used");
    started(&server).await;
    let empty = emulated.get("used");
    assert!((arriving..2 * arriving).contains(&(full - empty)), "{full} and then {empty}");

    // Asleep there is nothing of an open update, neither of before nor of now.
    server.post_text("/sleep?level=1", "").await;
    let asleep = emulated.get("used");
    server.post_text("/wake_up", "").await;
    let awake = emulated.get("used");
    let (trainer, _) = trainer.call(&server, &first, true).await;
    assert!(emulated.get("used") >= awake + arriving);
    server.post_text("/sleep?level=1", "").await;
    assert_eq!(emulated.get("used"), asleep);
    let (trainer, answer) = trainer.call(&server, &second, true).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(emulated.get("used"), asleep);
    server.post_text("/wake_up", "").await;
    finished(&server, "b").await;
    assert_eq!(served(&server).await, expected);

    // A trainer that dies in the middle of a call takes along what it sent.
    let awake = emulated.get("used");
    started(&server).await;
    let updating = server.begin(UPDATE, &json!({"update_info": first.info(false)}));
    drop(trainer.send(first.parts(false)[..5].to_vec()).await);
    let answer = said_of(updating).await;
    assert_eq!(answer.status, 504, "{}", answer.body);
    assert!(emulated.get("used") <= awake);
    assert_eq!(emulated.get("faults"), 0);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
}

/// Pushes `named` to a model of `folder` by a broadcast, and as a body, and compares.
async fn pushed_both_ways(folder: &Path, options: EngineOptions, named: &Named) -> i64 {
    let emulated = exclusive_gpu_async().await;
    let cargo = Cargo::of(named, &TYPES[1..2]);
    let server = Server::of(folder, options.clone()).await;
    let push = server.post_bytes(&format!("{UPDATE}?weight_version=a"), &cargo.file()).await;
    assert_eq!(push.status, 200, "{}", push.body);
    let expected = served(&server).await;
    server.stop().await;

    let server = Server::of(folder, options).await;
    let trainer = Trainer::join(&server, json!({})).await;
    started(&server).await;
    let before = emulated.get("bytes_to_host");
    let (trainer, answer) = trainer.call(&server, &cargo, true).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    finished(&server, "a").await;
    let copied = emulated.get("bytes_to_host") - before;
    assert_eq!(served(&server).await, expected);
    drop(trainer);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
    copied
}

#[tokio::test]
async fn experts_and_gates_are_cut_apart_where_they_are() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    for named in mixture(0.5) {
        let copied = pushed_both_ways(&models.join("tiny-moe"), deterministic(), &named).await;
        assert!(copied < 64 * 96 * 2, "{copied} bytes came to the host");
    }
    let named = hybrid::weights(0.5);
    let copied = pushed_both_ways(&hybrid::folder(), deterministic(), &named).await;
    let vectors: usize = named.values().filter(|one| one.0.len() != 2).map(|one| one.1.len()).sum();
    let most = (4 * vectors + 64 * named.len()) as i64;
    assert!(copied < most, "{copied} bytes came to the host, of vectors {most}");
}

#[tokio::test]
async fn an_engine_on_the_cpu_takes_what_arrives() {
    let folder = crate::update::tests::tiny();
    let options = EngineOptions { device: DeviceChoice::Cpu, ..deterministic() };
    pushed_both_ways(&folder, options, &variant(1)).await;
}
