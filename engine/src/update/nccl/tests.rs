//! The rendezvous with a small store, and calls that are refused before any wait.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use safetensors::Dtype;
use serde_json::json;

use super::*;
use crate::update::wait::TrainerWaits;

fn info(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn number<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn text(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; u64::from_le_bytes(number(stream)) as usize];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Serves one client as PyTorch's store does and returns what it asked; the value appears late.
pub(crate) fn store(listener: &TcpListener, value: &[u8]) -> Vec<String> {
    let (mut stream, _) = listener.accept().unwrap();
    let mut asked = Vec::new();
    let mut opcode = [0];
    while stream.read(&mut opcode).unwrap() == 1 {
        match opcode[0] {
            0 => {
                assert_eq!(u32::from_le_bytes(number(&mut stream)), 0x3C85_F7CE);
                asked.push("validate".to_owned());
            }
            13 => {
                let nonce: [u8; 4] = number(&mut stream);
                stream.write_all(&nonce).unwrap();
                asked.push("ping".to_owned());
            }
            4 => {
                let (key, amount) = (text(&mut stream), i64::from_le_bytes(number(&mut stream)));
                stream.write_all(&2_i64.to_le_bytes()).unwrap();
                asked.push(format!("add {key} {amount}"));
            }
            6 => {
                assert_eq!(u64::from_le_bytes(number(&mut stream)), 1);
                asked.push(format!("wait {}", text(&mut stream)));
                thread::sleep(Duration::from_millis(50));
                stream.write_all(&[0]).unwrap();
            }
            3 => {
                asked.push(format!("get {}", text(&mut stream)));
                stream.write_all(&(value.len() as u64).to_le_bytes()).unwrap();
                stream.write_all(value).unwrap();
            }
            other => panic!("opcode {other}"),
        }
    }
    asked
}

fn init_info(port: u16) -> InitInfo {
    let fields = json!({"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1,
        "world_size": 2, "packed": true});
    InitInfo::parse(&info(fields)).unwrap()
}

/// A pickle of protocol 4 that holds `bytes`.
pub(crate) fn pickled(bytes: &[u8; 128]) -> Vec<u8> {
    [b"\x80\x04\x95\x85\x00\x00\x00\x00\x00\x00\x00C\x80".as_slice(), bytes, b"\x94."].concat()
}

/// A wait that is long enough for the test.
fn soon() -> TrainerWait {
    lasting(Duration::from_secs(30))
}

fn lasting(timeout: Duration) -> TrainerWait {
    let mut wait = TrainerWaits::default().take_over();
    wait.restart(timeout);
    wait
}

#[test]
fn the_name_of_the_group_comes_from_the_trainer_s_store() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let id: [u8; 128] = std::array::from_fn(|i| (i * 7) as u8);
    let server = thread::spawn(move || store(&listener, &pickled(&id)));
    assert_eq!(init_info(port).group_id(&soon()), Ok(id));
    let asked = server.join().unwrap();
    let key = "/broadcast_from/0/0";
    let expected =
        ["validate", "ping", "add init/ 1", &format!("wait {key}"), &format!("get {key}")];
    assert_eq!(asked, expected);
}

#[test]
fn a_store_is_waited_for_and_named_if_it_never_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let waiting = thread::spawn(move || init_info(port).group_id(&soon()));
    thread::sleep(Duration::from_millis(250));
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let id = [9; 128];
    let server = thread::spawn(move || store(&listener, &pickled(&id)));
    assert_eq!(waiting.join().unwrap(), Ok(id));
    server.join().unwrap();
    let Err(UpdateError::Trainer(gone)) =
        init_info(port).group_id(&lasting(Duration::from_millis(200)))
    else {
        panic!("nobody is there")
    };
    assert!(gone.starts_with(&format!("cannot read the trainer's store at 127.0.0.1:{port}")));
}

#[test]
fn what_is_no_name_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || store(&listener, b"not a pickle"));
    let Err(UpdateError::Weights(error)) = init_info(port).group_id(&soon()) else {
        panic!("that is no name")
    };
    assert!(error.ends_with("is not the id of an NCCL group"), "{error}");
    server.join().unwrap();
}

#[test]
fn an_invitation_is_checked_before_anybody_is_waited_for() {
    let id = BASE64_STANDARD.encode([5_u8; 128]);
    let known = json!({"nccl_unique_id_b64": id, "rank_offset": 2, "world_size": 4});
    let found = InitInfo::parse(&info(known)).unwrap();
    assert_eq!((found.id, found.rank, found.size), (Some([5; 128]), 2, 4));
    assert_eq!(found.group_id(&soon()), Ok([5; 128]));
    let base = json!({"master_address": "h", "master_port": 1, "rank_offset": 1, "world_size": 2});
    let cases = [
        (json!({"master_address": null}), "`master_address` is missing"),
        (json!({"master_port": null}), "`master_port` is not a number from 1 to 65535"),
        (json!({"master_port": 70000}), "`master_port`"),
        (json!({"rank_offset": 2}), "`rank_offset` is not a number from 1 to 1"),
        (json!({"world_size": 1}), "`world_size` is not a number from 2"),
        (json!({"nccl_unique_id_b64": "AAAA"}), "`nccl_unique_id_b64` is not 128 bytes in base64"),
    ];
    for (changes, expected) in cases {
        let mut fields = info(base.clone());
        fields.extend(info(changes));
        let error = InitInfo::parse(&fields).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn without_a_gpu_the_other_ways_are_named() {
    let fields = json!({"master_address": "127.0.0.1", "master_port": 9});
    // No machine has so many.
    let gpu = DeviceOptions { ordinal: 1 << 20, ..DeviceOptions::default() };
    let Err(UpdateError::Weights(reason)) = connect(&info(fields), &gpu, soon()) else {
        panic!("there is no such GPU")
    };
    assert!(reason.starts_with("no NCCL: "), "{reason}");
    for other in ["`weight_dir`", "a body of safetensors", "a LoRA adapter"] {
        assert!(reason.contains(other), "{reason}");
    }
}

#[test]
fn a_broadcast_is_cut_into_its_tensors() {
    let one = |name: &str, bytes: usize| AnnouncedTensor {
        name: name.to_owned(),
        dtype: Dtype::BF16,
        shape: vec![bytes / 2],
        bytes,
    };
    let part = [one("a", 4), one("b", 0), one("c", 2)];
    let found: Vec<_> =
        cut(&part).into_iter().map(|tensor| (tensor.name, tensor.shape, tensor.bytes)).collect();
    let shapes: [&[usize]; 3] = [&[2], &[0], &[1]];
    assert_eq!(found, [("a", shapes[0], 0..4), ("b", shapes[1], 4..4), ("c", shapes[2], 4..6)]);
}

/// Against PyTorch's own store: give its port, and the bytes that it holds in hexadecimal.
#[test]
#[ignore = "needs a store of PyTorch: see `tests/python/trainers/store.py`"]
fn the_name_comes_from_pytorch_s_own_store() {
    let given = |name: &str| std::env::var(name).unwrap();
    let id =
        init_info(given("ROLLTAPE_TEST_STORE_PORT").parse().unwrap()).group_id(&soon()).unwrap();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, given("ROLLTAPE_TEST_STORE_ID"));
}
