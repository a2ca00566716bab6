//! Large bodies, and the memory that they need.
//!
//! Memory is counted for a whole process, so each measurement has one of its own: this binary, run
//! again with one ignored test.

use std::process::Command;

use episode::Outcome;
use http_body_util::BodyExt;
use hyper::Response;
use kit::{Agent, Answer, Manner, Server, World, ask, exchange, sending, spaces};
use proxy::Config;
use wire::Dialect;

const MIB: u64 = 1 << 20;
const FORM: &str = "TEST_BODY";

async fn server() -> Server {
    Server::start(Manner::default(), |heard| match heard.path.split_once("?bytes=") {
        Some((_, bytes)) => Answer::Spaces(bytes.parse().unwrap()),
        None => Answer::Whole(Response::new(answer(heard.bytes).into())),
    })
    .await
}

/// An answer that tells how many bytes were asked with.
fn answer(bytes: u64) -> String {
    format!(r#"{{"choices":[{{"text":"{bytes}","finish_reason":"stop"}}]}}"#)
}

fn config(server: &Server) -> Config {
    let mut config = Config::new(format!("http://{}", server.address).parse().unwrap());
    config.dialect = Some(Dialect::OpenAi);
    config
}

#[tokio::test]
async fn fifty_megabytes_pass_and_are_recorded_whole() {
    let server = server().await;
    let world = World::start_with(config(&server)).await;
    let mut body = vec![b'x'; 50 << 20];
    let head = b"{\"messages\":[{\"role\":\"user\",\"content\":\"";
    body[..head.len()].copy_from_slice(head);
    let end = body.len() - 4;
    body[end..].copy_from_slice(b"\"}]}");
    let reply = exchange(world.data, ("POST", "/e/a/v1/chat/completions"), &[], &body).await;
    assert_eq!(reply.text(), answer(body.len() as u64));
    let call = world.calls().await.pop().unwrap();
    assert!(call.begun.request == body);
    assert_eq!(call.ended.unwrap().outcome, Outcome::Complete);
    world.stop().await;
}

/// Peak memory, in MiB, of a process with a proxy that passes on a body of `form`.
fn peak(form: &str) -> u64 {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "large::in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env(FORM, form)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    let peak = said.split("peak ").nth(1).and_then(|rest| rest.split(' ').next());
    peak.unwrap().parse().unwrap()
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "memory is read from /proc")]
fn two_hundred_megabytes_pass_in_bounded_memory() {
    let (small, large) = (peak("chunked 2 kept 1"), peak("chunked 200 kept 1"));
    assert!(large < small + 16, "{small} MiB became {large} MiB");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "memory is read from /proc")]
fn a_gigabyte_passes_in_bounded_memory() {
    // Of a long body 64 MiB are held: read, compressed, and on their way to the disk. Beside them
    // is what the process takes, with all that it links.
    let peak = peak("sized 1024 kept 64");
    assert!(peak < 272, "{peak} MiB");
}

#[tokio::test]
#[ignore = "run by the others, in a process of its own"]
async fn in_a_process_of_its_own() {
    let form = std::env::var(FORM).unwrap_or_else(|_| "chunked 2 kept 1".to_owned());
    let words: Vec<&str> = form.split(' ').collect();
    let bytes = words[1].parse::<u64>().unwrap() * MIB;
    let kept = words[3].parse::<usize>().unwrap() << 20;
    let server = server().await;
    let mut config = config(&server);
    (config.request_bytes_kept, config.reply_bytes_max) = (kept, kept);
    let world = World::start_with(config).await;

    for path in ["/e/a/v1/chat/completions", "/e/a/v1/score"] {
        let mut agent = Agent::http1(world.data).await;
        let body = spaces(bytes, words[0] == "sized");
        let got = agent.call(ask("POST", path).body(body).unwrap()).await;
        assert_eq!(got.body, answer(bytes));
    }

    // A reply is longer than what is kept of it, too.
    let mut agent = Agent::http1(world.data).await;
    let request = ask("GET", &format!("/e/a/v1/models/m?bytes={bytes}"));
    let mut reply = agent.send(request.body(sending("")).unwrap()).await.unwrap();
    let mut got = 0;

    while let Some(frame) = reply.body_mut().frame().await {
        got += frame.unwrap().into_data().unwrap().len() as u64;
    }

    assert_eq!(got, bytes);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024;
    println!("peak {peak} MiB");

    for call in world.calls().await {
        let (recorded, ended) = (call.begun.request.len(), call.ended.unwrap());
        if call.begun.method == "GET" {
            assert_eq!(ended.outcome, Outcome::Capped);
            assert!(ended.reply.len() <= kept && ended.reply.len() + (1 << 20) > kept);
            continue;
        }
        assert!(recorded >= kept && recorded < kept + (1 << 20), "{recorded}");
        assert_eq!(ended.outcome, Outcome::Complete);
    }
    world.stop().await;
}
