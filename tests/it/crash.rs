//! `kill -9` at random moments. No call whose end an agent saw is lost, and every call that began
//! is there, whole or as a visible hole.
//!
//! A light load proves little: a recorder that queues calls and answers at once loses its queue,
//! which is empty under a light load. A load that outruns the store finds the loss. The mode
//! `relaxed`, which answers at once, shows it. `ROLLTAPE_TEST_KILLS` sets the number of kills.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use episode::{Call, Outcome};
use kit::{Seen, Step, Upstream, try_post};
use postgres_kit::Server;
use store::{Location, Selection, Snapshot};
use tokio::sync::Notify;

use crate::recorder::Recorder;

const AGENTS: usize = 64;
/// Kills in a run of all tests; `.ci/run kills` has more.
const KILLS: usize = 24;
/// Kills that one store goes through.
const KILLS_PER_STORE: usize = 5;
/// The end that makes a call acknowledged.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// The same of a document.
const DOCUMENT_END: &[u8] = b"\"object\":\"chat.completion\"}";

fn kills() -> usize {
    std::env::var("ROLLTAPE_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

/// The load that the agents put on the store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    /// Little text, and an upstream that takes its time.
    Light,
    /// Much new text on either side, at once.
    Heavy,
    /// Documents of little text, at once: a call's start and end are one row of one commit.
    Documents,
}

impl Load {
    /// The shortest time from the first call to the kill, and the most that is added to it, in ms.
    fn life_ms(self) -> (u64, u64) {
        match self {
            Self::Light => (20, 300),
            Self::Heavy => (300, 700),
            Self::Documents => (100, 300),
        }
    }

    /// The bytes that an acknowledged reply ends with.
    fn end(self) -> &'static [u8] {
        match self {
            Self::Light | Self::Heavy => DONE,
            Self::Documents => DOCUMENT_END,
        }
    }
}

/// A call as an agent saw it.
struct ObservedCall {
    episode: String,
    number: u32,
    request: String,
    reply: Vec<u8>,
    answered: bool,
    done: bool,
}

/// Counts over all kills.
#[derive(Debug, Default)]
struct Tally {
    kills: usize,
    acknowledged: usize,
    lost: usize,
    holes: usize,
    /// Episodes that lost an acknowledged call and do not say so.
    silent: usize,
}

/// Text that does not compress well.
fn noise(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letters = (0..bytes).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state % 26) as u8)
    });
    letters.collect()
}

fn ids(number: u32) -> Vec<u32> {
    (0..6).map(|n| 1000 * number + n).collect()
}

/// A chat in vLLM's form, of six tokens that hold the call's number.
fn chat(request: &Seen) -> Vec<Step> {
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    let number = body["n"].as_u64().unwrap();
    let heavy = body["heavy"].as_bool().unwrap();
    let ids = ids(u32::try_from(number).unwrap());
    if body["stream"] == false {
        return document(&ids);
    }
    let mut steps = vec![Step::stream_head()];

    for (index, id) in ids.iter().enumerate() {
        let text = if heavy { noise(u64::from(*id), 4000) } else { "word ".to_owned() };
        let last = index + 1 == ids.len();
        let finish = if last { "\"stop\"" } else { "null" };
        let prompt = if index == 0 { ",\"prompt_token_ids\":[1,5,9]" } else { "" };
        let event = format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\
             \"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
             \"logprobs\":{{\"content\":[{{\"token\":\"x\",\"logprob\":-0.5,\"bytes\":[120],\
             \"top_logprobs\":[]}}]}},\"finish_reason\":{finish},\"token_ids\":[{id}]}}]\
             {prompt}}}\n\n"
        );
        steps.push(Step::chunk(event.as_bytes()));
        if !heavy {
            steps.push(Step::Pause(Duration::from_millis(4)));
        }
    }

    steps.extend([Step::chunk(DONE), Step::chunk(b"")]);
    steps
}

fn document(ids: &[u32]) -> Vec<Step> {
    let entry = "{\"token\":\"x\",\"logprob\":-0.5,\"bytes\":[120],\"top_logprobs\":[]}";
    let entries = vec![entry; ids.len()].join(",");
    let mut body = format!(
        "{{\"id\":\"c\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"message\":\
         {{\"role\":\"assistant\",\"content\":\"words\"}},\"logprobs\":{{\"content\":[{entries}]}},\
         \"finish_reason\":\"stop\",\"token_ids\":{ids:?}}}],\"prompt_token_ids\":[1,5,9],"
    )
    .into_bytes();
    body.extend_from_slice(DOCUMENT_END);
    vec![Step::reply("200 OK", "application/json", &body)]
}

/// Calls in one episode until the recorder is gone.
async fn agent(
    data: SocketAddr,
    episode: String,
    (load, seed): (Load, u64),
    heard: Arc<Notify>,
) -> Vec<ObservedCall> {
    let path = format!("/e/{episode}/v1/chat/completions");
    let mut observed = Vec::new();
    for number in 0.. {
        let heavy = load == Load::Heavy;
        let text = noise(seed + u64::from(number), if heavy { 24_000 } else { 200 });
        let request = format!(
            "{{\"n\":{number},\"heavy\":{heavy},\"stream\":{},\"messages\":[{{\"role\":\"user\",\
             \"content\":\"{text}\"}}]}}",
            load != Load::Documents,
        );
        let Some(reply) = try_post(data, &path, &request).await else { break };
        assert!(matches!(reply.status, 0 | 200), "{}", reply.text());
        let done = reply.body.ends_with(load.end());
        let answered = reply.status == 200;
        let episode = episode.clone();
        observed.push(ObservedCall { episode, number, request, reply: reply.body, answered, done });
        if !done {
            break;
        }
        heard.notify_one();
    }
    observed
}

/// One life of a recorder, ended at a random moment, or with `hurries` as soon after it as an agent
/// has a whole reply.
async fn life(
    recorder: &mut Recorder,
    name: &str,
    (load, lives_ms): (Load, u64),
    hurries: bool,
) -> Vec<ObservedCall> {
    let heard = Arc::new(Notify::new());
    let agents: Vec<_> = (0..AGENTS)
        .map(|n| {
            let seed = (lives_ms + 1) * 1_000_003 * (n as u64 + 1);
            let (data, heard) = (recorder.data, Arc::clone(&heard));
            tokio::spawn(agent(data, format!("{name}-a{n}"), (load, seed), heard))
        })
        .collect();
    // The moment of the kill must not depend on the state of the recorder.
    tokio::time::sleep(Duration::from_millis(lives_ms)).await;
    if hurries {
        let _ = tokio::time::timeout(Duration::from_secs(10), async {
            // The first may be of a reply before.
            heard.notified().await;
            heard.notified().await;
        })
        .await;
    }
    recorder.kill();
    let mut observed = Vec::new();
    for agent in agents {
        observed.extend(agent.await.unwrap());
    }
    observed
}

/// Compares the store with the agents' views.
async fn compare(store: &Location, name: &str, observed: &[ObservedCall], tally: &mut Tally) {
    let found = store::verify(store).await.unwrap();
    assert!(found.damage.is_empty(), "{:?}", found.damage);
    let mut snapshot = Snapshot::open(store).await.unwrap();
    let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
    let mut found = std::collections::HashMap::new();

    for episode in episodes.into_iter().filter(|e| e.id.as_str().starts_with(name)) {
        let calls = snapshot.calls(&episode).await.unwrap();
        tally.holes += calls.iter().filter(|call| call.ended.is_none()).count();
        found.insert(episode.id.to_string(), (episode.may_lack_calls, calls));
    }

    for call_seen in observed {
        let (marked, calls) =
            found.get(&call_seen.episode).map_or((false, &[][..]), |(m, c)| (*m, c));
        let call = calls.iter().find(|call| call.begun.request == call_seen.request.as_bytes());
        tally.acknowledged += usize::from(call_seen.done);
        let is_there = match call {
            None => !call_seen.answered,
            Some(call) => !call_seen.done || is_whole(call, call_seen),
        };
        if !is_there {
            tally.lost += 1;
            let hole = call.is_some_and(|call| call.ended.is_none());
            tally.silent += usize::from(!marked && !hole);
        }
    }
}

fn is_whole(call: &Call, call_seen: &ObservedCall) -> bool {
    let Some(ended) = &call.ended else { return false };
    assert_eq!(ended.outcome, Outcome::Complete);
    assert_eq!(ended.reply, call_seen.reply, "the bytes that the agent saw");
    assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&ids(call_seen.number)[..]));
    assert_eq!(ended.prompts, [[1, 5, 9]]);
    true
}

/// Kills recorders of one mode under one load, which record into files or into databases.
async fn kill_all(server: Option<&Server>, mode: &str, load: Load, kills: usize) -> Tally {
    let upstream = Upstream::start("vllm", chat).await;
    let mut tally = Tally::default();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut moments = u64::from(since.subsec_nanos());

    // Nothing is acknowledged late enough to be lost but where no reply waits for the disk.
    let loses = mode == "relaxed";
    // On a busy machine nothing may have ended before the first kills; later lives are longer.
    let lacks = |tally: &Tally| tally.acknowledged == 0 || (loses && tally.lost == 0);
    while tally.kills < kills || (lacks(&tally) && tally.kills < 5 * kills) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("killed.db").display().to_string();
        let store = server.map_or(file, Server::database);
        let at: Location = store.parse().unwrap();
        let mut recorder = Recorder::start(&store, mode, upstream.address);
        for round in 0..KILLS_PER_STORE.min(kills.saturating_sub(tally.kills).max(1)) {
            moments = (moments * 7919 + 104_729) % 1_000_003;
            let name = format!("r{round}");
            let (least, more) = load.life_ms();
            let lives = (least + moments % more) * (1 + tally.kills / kills) as u64;
            let observed = life(&mut recorder, &name, (load, lives), loses).await;
            tally.kills += 1;
            recorder = Recorder::start(&store, mode, upstream.address);
            compare(&at, &name, &observed, &mut tally).await;
        }
    }

    let place = if server.is_some() { "database" } else { "file" };
    println!("{place} {mode} {load:?}: {tally:?}");
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_kill_9() {
    for mode in ["power", "process"] {
        for load in [Load::Light, Load::Heavy, Load::Documents] {
            let tally = kill_all(None, mode, load, kills() / 6).await;
            assert_eq!((tally.lost, tally.silent), (0, 0), "{mode} {load:?}: {tally:?}");
            let has_holes = tally.holes > 0 || load == Load::Documents;
            assert!(tally.acknowledged > 0 && has_holes, "{mode} {load:?}: {tally:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_relaxed_loses_is_marked() {
    let tally = kill_all(None, "relaxed", Load::Heavy, kills() / 8).await;
    assert!(tally.lost > 0, "the load does not outrun the store: {tally:?}");
    assert_eq!(tally.silent, 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_in_a_database() {
    let Some(server) = Server::shared() else { return };
    for (mode, load) in [("power", Load::Heavy), ("process", Load::Light)] {
        let tally = kill_all(Some(server), mode, load, kills() / 8).await;
        assert_eq!((tally.lost, tally.silent), (0, 0), "{mode} {load:?}: {tally:?}");
        assert!(tally.acknowledged > 0 && tally.holes > 0, "{mode} {load:?}: {tally:?}");
    }
    let tally = kill_all(Some(server), "relaxed", Load::Heavy, kills() / 8).await;
    assert_eq!(tally.silent, 0, "{tally:?}");
}
