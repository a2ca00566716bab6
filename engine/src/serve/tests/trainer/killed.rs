//! The engine's process dies.

use std::io::{BufRead, Write};

use super::*;

/// The variable with the model folder of the process below.
const MODEL: &str = "ROLLTAPE_TEST_ENGINE_MODEL";

/// The text in front of the process' address once it listens.
const READY: &str = "engine at ";

/// Runs an engine until it is killed. This is the process of the test below and no test of its own:
/// a test program can only run tests. It is ignored unless it is named, and ends at once without
/// the variable of the model.
#[tokio::test]
#[ignore = "the process of another test, which starts it"]
async fn process() {
    let Some(model) = std::env::var_os(MODEL) else { return };
    let engine = Engine::load(Path::new(&model), EngineOptions::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "\n{READY}{}", listener.local_addr().unwrap()).unwrap();
    out.flush().unwrap();
    crate::serve(listener, engine, crate::Access::open(), std::future::pending()).await.unwrap();
}

/// The process and its address.
fn engine_process(model: &Path) -> (std::process::Child, std::net::SocketAddr) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["serve::tests::trainer::killed::process", "--exact", "--ignored", "--nocapture"])
        .env(MODEL, model)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = |line: std::io::Result<String>| line.unwrap().strip_prefix(READY)?.parse().ok();
    let address = lines.into_iter().find_map(ready).unwrap();
    (child, address)
}

#[tokio::test]
async fn after_a_kill_in_an_update_the_folder_s_weights_serve() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(tiny()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
    let post = |path: &str, body: &[u8]| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             content-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let (mut child, address) = engine_process(folder.path());
    let before = send(address, get("/weight_info").into_bytes()).await.json();
    send(address, post("/start_weight_update", b"")).await;
    let all = variant(1);
    let half: Named = all.iter().take(20).map(|(name, it)| (name.clone(), it.clone())).collect();
    let piece = file_of(&half, safetensors::Dtype::F32);
    let taken = send(address, post("/update_weights", &piece)).await;
    assert_eq!(taken.json()["tensors"], 20, "{}", taken.body);
    // The rest is on its way when the process dies.
    let rest = post("/update_weights", &file_of(&all, safetensors::Dtype::F32));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&rest[..rest.len() / 2]).await.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut child, address) = engine_process(folder.path());
    assert_eq!(send(address, get("/weight_info").into_bytes()).await.json(), before);
    // The trainer begins its update anew.
    let whole = post("/update_weights?weight_version=7", &file_of(&all, safetensors::Dtype::F32));
    assert_eq!(send(address, whole).await.json()["weight_version"], "7");
    child.kill().unwrap();
    child.wait().unwrap();
}
