//! Chaos: lines that stall, break and change bytes on both sides of a recorder, `kill -9`, and a
//! disk that takes no more, all at once and by a plan.
//!
//! A plan follows from a seed and the number of a call, not from time. `ROLLTAPE_CHAOS_SEED=N` runs
//! one seed again; `ROLLTAPE_CHAOS_RUNS=N` runs so many seeds. What holds after each run:
//! - a reply that the recorder ended is in the store, byte for byte, with its request and its ids;
//! - no reply is ended that the upstream broke off;
//! - a request of which an agent saw an answer is in the store, at least as a visible hole;
//! - `verify` finds nothing, a further call is answered, and no task or descriptor is left.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use episode::{Call, Outcome};
use kit::{Fault, FaultPlan, Relay, Reply, Seen, Step, Upstream, converse, replies};
use store::{Location, Selection, Snapshot};
use tokio::sync::watch;

use crate::recorder::Recorder;
use crate::wait::until;

/// Seeds in a run of all tests.
const RUNS: u64 = 4;
/// Processes that one store goes through; all but the last are killed.
const LIVES: u64 = 3;
const AGENTS: u64 = 8;
/// Calls of one agent in one life.
const CALLS: u64 = 10;
/// Sampled tokens of a call.
const TOKENS: u32 = 6;
/// Time after which an agent leaves.
const PATIENCE: Duration = Duration::from_secs(4);
/// Bytes that one file may have while the disk is full. The store itself has more: what is written
/// at the beginning of the log still goes through, what is behind does not.
const FULL_BYTES: u64 = 300_000;
/// The command that lets the process outlive a write beyond that bound.
const SETUP: &str = "trap '' XFSZ";
/// The terminal event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Numbers that follow from where they are thrown.
#[derive(Debug, Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn of(parts: &[u64]) -> Self {
        parts.iter().fold(Self(0), |dice, part| Self(dice.0 ^ part).mixed())
    }

    /// A step of splitmix64.
    fn mixed(self) -> Self {
        let mut z = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(z ^ (z >> 31))
    }

    fn below(&mut self, end: u64) -> u64 {
        *self = self.mixed();
        self.0 % end
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }

    fn fault(&mut self) -> Fault {
        let ms = Duration::from_millis;
        match self.below(12) {
            0..3 => Fault::Stall(ms(1 + self.below(40))),
            3 => Fault::Stall(ms(300)),
            4..6 => Fault::Corrupt(1 << self.below(8)),
            6..9 => {
                let (bytes, pieces) = (1 + self.below(50) as usize, 1 + self.below(20) as usize);
                Fault::Trickle { bytes, pieces, pause: ms(1) }
            }
            9 => Fault::HalfClose,
            10 => Fault::Cut,
            _ => Fault::Reset,
        }
    }

    /// The faults of one line. Most are early: there the heads are.
    fn plan(&mut self) -> FaultPlan {
        let mut plan = FaultPlan::default();
        for _ in 0..self.pick(&[0, 0, 1, 1, 2, 3]) {
            let end = self.pick(&[1, 200, 600, 3000]);
            let planned = (self.below(end) as usize, self.fault());
            match self.below(2) {
                0 => plan.asked.push(planned),
                _ => plan.answered.push(planned),
            }
        }
        for faults in [&mut plan.asked, &mut plan.answered] {
            faults.sort_by_key(|(at, _)| *at);
        }
        plan
    }
}

/// A call of an agent: the seed and three numbers, from which all else follows.
#[derive(Debug, Clone, Copy)]
struct Planned {
    seed: u64,
    life: u64,
    agent: u64,
    number: u64,
}

/// The lines of a call.
#[derive(Clone, Copy)]
enum Side {
    Agent,
    Upstream,
}

impl Planned {
    fn dice(&self, what: u64) -> Dice {
        Dice::of(&[self.seed, self.life, self.agent, self.number, what])
    }

    fn name(&self) -> String {
        format!("{}-{}-{}-{}", self.seed, self.life, self.agent, self.number)
    }

    fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.split('-').map(|part| part.parse().ok());
        let mut next = || parts.next().flatten();
        let found = Self { seed: next()?, life: next()?, agent: next()?, number: next()? };
        (found.name() == name).then_some(found)
    }

    /// The faults of one side. A changed byte in a request that is not alone on its connection
    /// would make it part of the next one, so a pair has none there.
    fn plan(&self, side: Side) -> FaultPlan {
        let mut plan = self.dice(side as u64).plan();
        if matches!(side, Side::Agent) && self.is_paired() {
            plan.asked.retain(|(_, fault)| !matches!(fault, Fault::Corrupt(_)));
        }
        plan
    }

    /// Returns true for calls that are sent two at a time, the second before the first is answered.
    fn is_paired(&self) -> bool {
        let first = Self { number: self.number / 2 * 2, ..*self };
        first.dice(2).below(5) == 0
    }

    fn path(&self) -> String {
        let route = self.dice(3).pick(&["chat/completions", "chat/completions", "messages"]);
        format!("/e/{}-{}-{}/v1/{route}", self.seed, self.life, self.agent)
    }

    fn body(&self) -> String {
        let streams = self.dice(4).below(3) > 0;
        // Each call repeats what the ones before it said, as agents do.
        let said: String = (0..=self.number).map(|n| format!("word{n} ")).collect();
        format!(
            "{{\"model\":\"m\",\"max_tokens\":50,\"stream\":{streams},\"messages\":[{{\"role\":\
             \"user\",\"content\":\"{} {said}\"}}]}}",
            self.name(),
        )
    }

    fn request(&self, is_last: bool) -> Vec<u8> {
        let (path, body) = (self.path(), self.body());
        let close = if is_last { "connection: close\r\n" } else { "" };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\n{close}x-chaos: {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.name(),
            body.len(),
        );
        (head + &body).into_bytes()
    }

    fn ids(&self) -> Vec<u32> {
        let first = (self.life * 10_000 + self.agent * 1000 + self.number * 10) as u32;
        (first..first + TOKENS).collect()
    }
}

/// A chat in vLLM's form, whose text and ids are those of the call that the head names.
fn answer(request: &Seen) -> Vec<Step> {
    let named = request.head.lines().find_map(|line| line.strip_prefix("x-chaos: "));
    let call = named.and_then(|name| Planned::of_name(name.trim()));
    let name = call.map_or_else(|| "calm".to_owned(), |call| call.name());
    let ids = call.map_or_else(|| (1..=TOKENS).collect(), |call| call.ids());
    let entry = |token: &str| {
        format!("{{\"token\":\"{token}\",\"logprob\":-0.5,\"bytes\":[120],\"top_logprobs\":[]}}")
    };
    let told = "\"id\":\"c\",\"created\":1,\"model\":\"m\"";
    if !request.body.windows(13).any(|w| w == b"\"stream\":true") {
        let entries = vec![entry("x"); ids.len()].join(",");
        let document = format!(
            "{{{told},\"object\":\"chat.completion\",\"choices\":[{{\"index\":0,\"message\":\
             {{\"role\":\"assistant\",\"content\":\"{name}\"}},\"logprobs\":{{\"content\":\
             [{entries}]}},\"finish_reason\":\"stop\",\"token_ids\":{ids:?}}}],\
             \"prompt_token_ids\":[1,5,9]}}"
        );
        return vec![Step::reply("200 OK", "application/json", document.as_bytes())];
    }

    let mut steps = vec![Step::stream_head()];
    for (index, id) in ids.iter().enumerate() {
        let is_last = index + 1 == ids.len();
        let finish = if is_last { "\"stop\"" } else { "null" };
        let prompt = if index == 0 { ",\"prompt_token_ids\":[1,5,9]" } else { "" };
        let event = format!(
            "data: {{{told},\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\
             \"delta\":{{\"content\":\"{name} {index} \"}},\"logprobs\":{{\"content\":[{}]}},\
             \"finish_reason\":{finish},\"token_ids\":[{id}]}}]{prompt}}}\n\n",
            entry("x")
        );
        steps.push(Step::chunk(event.as_bytes()));
    }
    steps.extend([Step::chunk(DONE), Step::chunk(b"")]);
    steps
}

/// A call, and what came back for it.
struct Observed {
    call: Planned,
    /// True if the request reached the recorder unchanged.
    is_intact: bool,
    reply: Option<Reply>,
}

/// The calls of one agent in one life, until the recorder is gone. Each one that ends is counted.
async fn agent(
    data: std::net::SocketAddr,
    first: Planned,
    ended: watch::Sender<usize>,
) -> Vec<Observed> {
    let mut observed = Vec::new();
    let mut number = 0;
    while number < CALLS {
        let call = Planned { number, ..first };
        let mut calls = vec![call];
        if call.is_paired() && number % 2 == 0 && number + 1 < CALLS {
            calls.push(Planned { number: number + 1, ..first });
        }
        number += calls.len() as u64;
        let request: Vec<u8> = calls
            .iter()
            .enumerate()
            .flat_map(|(at, call)| call.request(at + 1 == calls.len()))
            .collect();
        let plan = call.plan(Side::Agent);
        let Some(exchange) = converse(data, &request, &plan, PATIENCE).await else { break };

        let mut found = replies(&exchange.answered()).into_iter();
        let sent = exchange.asked();
        let mut end = 0;
        for (at, call) in calls.iter().enumerate() {
            let bytes = call.request(at + 1 == calls.len()).len();
            let is_intact = sent.get(end..end + bytes) == request.get(end..end + bytes);
            end += bytes;
            observed.push(Observed { call: *call, is_intact, reply: found.next() });
        }
        ended.send_modify(|ended| *ended += calls.len());
    }
    observed
}

/// Bounds what a process may write into one file; `unlimited` takes the bound away.
fn limit_writes(process: u32, bytes: &str) {
    let (process, limit) = (process.to_string(), format!("--fsize={bytes}:"));
    let done = Command::new("prlimit").args(["--pid", &process, &limit]).status();
    assert!(done.unwrap().success());
}

/// Numbers of a recorder at rest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Idle {
    tasks: usize,
    descriptors: usize,
}

impl Idle {
    fn of(recorder: &mut Recorder) -> Self {
        Self { tasks: recorder.tasks(), descriptors: recorder.descriptors() }
    }
}

/// Calls without a fault, all at once. All are answered.
async fn calm(recorder: &Recorder, episode: &str) {
    let calls: Vec<_> = (0..AGENTS)
        .map(|n| {
            let path = format!("/e/{episode}{n}/v1/chat/completions");
            let data = recorder.data;
            tokio::spawn(async move { kit::post(data, &path, "{\"stream\":true}").await })
        })
        .collect();
    for call in calls {
        let reply = call.await.unwrap();
        assert!(reply.status == 200 && reply.whole, "a call without a fault: {}", reply.text());
    }
}

/// One life of a recorder under faults: the calls as their agents saw them. A life that is killed
/// ends in the midst of its calls.
async fn life(recorder: &mut Recorder, seed: u64, number: u64, kills: bool) -> Vec<Observed> {
    let mut dice = Dice::of(&[seed, number, 100]);
    let (ended, mut count) = watch::channel(0);
    let agents: Vec<_> = (0..AGENTS)
        .map(|agent_number| {
            let first = Planned { seed, life: number, agent: agent_number, number: 0 };
            tokio::spawn(agent(recorder.data, first, ended.clone()))
        })
        .collect();
    drop(ended);

    // What befalls the process, each after so many calls.
    let all = AGENTS * CALLS;
    let mut events = Vec::new();
    if dice.below(2) == 0 {
        let full = dice.below(all / 2);
        events.extend([(full, "full"), (full + 1 + dice.below(all / 4), "free")]);
    }
    if kills {
        events.push((all / 4 + dice.below(all / 2), "kill"));
    }
    events.sort_by_key(|(after, _)| *after);
    for (after, event) in events {
        // An error means that all calls have ended.
        let _ = count.wait_for(|ended| *ended as u64 >= after).await;
        match event {
            "full" => limit_writes(recorder.id(), &FULL_BYTES.to_string()),
            "free" => limit_writes(recorder.id(), "unlimited"),
            _ => {
                recorder.kill();
                break;
            }
        }
    }

    let mut observed = Vec::new();
    for agent in agents {
        observed.extend(agent.await.unwrap());
    }
    observed
}

/// Counts over all runs.
#[derive(Debug, Default)]
struct Tally {
    calls: usize,
    acknowledged: usize,
    broken: usize,
    holes: usize,
}

/// Compares the store with what the agents and the relay saw.
async fn compare(at: &Location, relay: &Relay, observed: &[Observed], tally: &mut Tally) {
    let found = store::verify(at).await.unwrap();
    assert!(found.damage.is_empty(), "{:?}", found.damage);
    let mut snapshot = Snapshot::open(at).await.unwrap();
    let mut calls = Vec::new();
    for episode in snapshot.episodes(&Selection::default()).await.unwrap() {
        calls.extend(snapshot.calls(&episode).await.unwrap());
    }
    let mut by_request: HashMap<Bytes, Vec<&Call>> = HashMap::new();
    for call in &calls {
        by_request.entry(call.begun.request.read()).or_default().push(call);
    }
    tally.holes += calls.iter().filter(|call| call.ended.is_none()).count();

    for seen in observed {
        tally.calls += 1;
        let Some(reply) = seen.reply.as_ref().filter(|reply| reply.status == 200) else {
            tally.broken += 1;
            continue;
        };
        let name = seen.call.name();
        let request = seen.call.body();
        let same = by_request.get(request.as_bytes()).map(Vec::as_slice).unwrap_or_default();
        assert!(!seen.is_intact || !same.is_empty(), "{name} was answered and is not recorded");
        if !reply.whole {
            tally.broken += 1;
            continue;
        }
        tally.acknowledged += 1;
        let ends = |call: &Call| call.ended.as_ref().is_some_and(|end| end.reply == reply.body);
        let found = match seen.is_intact {
            true => same.iter().copied().find(|call| ends(call)),
            false => calls.iter().find(|call| ends(call)),
        };
        let found = found.unwrap_or_else(|| {
            panic!("{name} was acknowledged and is lost: {}\n{}", reply.head, reply.text())
        });
        check_content(seen, found, relay);
    }
}

/// Holds a recorded call against its plan: where no byte was changed, all of it is as it was sent.
fn check_content(seen: &Observed, found: &Call, relay: &Relay) {
    let (call, name) = (seen.call, seen.call.name());
    let ended = found.ended.as_ref().unwrap();
    if !seen.is_intact || call.plan(Side::Upstream).corrupts() {
        return;
    }
    let sent = relay.exchanges(&name);
    // A stream is whole with its terminal event, whether its last chunk came or not.
    let is_whole = |bytes: &[u8]| match &replies(bytes)[..] {
        [reply] => reply.whole || reply.body.ends_with(DONE),
        _ => false,
    };
    let came_whole = sent.iter().any(|exchange| is_whole(&exchange.answered()));
    let plan = call.plan(Side::Upstream);
    assert!(came_whole, "{name} was acknowledged, and its upstream broke off: {plan:?}");
    assert_eq!(ended.outcome, Outcome::Complete, "{name}: {:?}", ended.error);
    assert_eq!(ended.unasked, None, "{name}");
    let reply = ended.reply.read();
    let text = String::from_utf8_lossy(&reply);
    assert!(text.contains(&name), "{name} got the reply of another: {text}");
    assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&call.ids()[..]), "{name}");
    assert_eq!(ended.prompts, [[1, 5, 9]], "{name}");
}

/// One seed, from an empty store to the end of its last process.
async fn run(seed: u64, upstream: &Upstream, tally: &mut Tally) {
    println!("chaos: ROLLTAPE_CHAOS_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("chaos.db");
    let relay = Relay::start(upstream.address, |name| {
        Planned::of_name(name).map(|call| call.plan(Side::Upstream)).unwrap_or_default()
    })
    .await;
    let mode = Dice::of(&[seed, 101]).pick(&["power", "process"]);
    let start = |store: &Path| {
        Recorder::start_under(SETUP, (store, mode), relay.address)
            .unwrap_or_else(|said| panic!("the recorder does not start again: {said}"))
    };

    let mut observed = Vec::new();
    for number in 0..LIVES {
        let mut recorder = start(&store);
        calm(&recorder, &format!("warm{number}-")).await;
        let idle = Idle::of(&mut recorder);
        let kills = number + 1 < LIVES;
        observed.extend(life(&mut recorder, seed, number, kills).await);
        if kills {
            continue;
        }

        limit_writes(recorder.id(), "unlimited");
        until("a call after the faults", async || {
            let path = "/e/after/v1/chat/completions";
            let reply = kit::try_post(recorder.data, path, "{}").await?;
            (reply.status == 200 && reply.whole).then_some(())
        })
        .await;
        let last = AtomicUsize::default();
        until("the end of all tasks and descriptors", async || {
            let now = Idle::of(&mut recorder);
            if last.swap(now.tasks, Ordering::Relaxed) != now.tasks {
                println!("chaos: {now:?}, at rest {idle:?}");
            }
            (now.tasks <= idle.tasks && now.descriptors <= idle.descriptors).then_some(())
        })
        .await;
        recorder.stop();
    }
    compare(&store.display().to_string().parse().unwrap(), &relay, &observed, tally).await;
}

fn number_of(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_made_up_in_chaos() {
    let upstream = Upstream::start("vllm", answer).await;
    let mut tally = Tally::default();
    let seeds = match number_of("ROLLTAPE_CHAOS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let first = u64::from(since.subsec_nanos());
            first..first + number_of("ROLLTAPE_CHAOS_RUNS").unwrap_or(RUNS)
        }
    };
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        run(seed, &upstream, &mut tally).await;
    }
    println!("chaos: {runs} runs, {tally:?}");
    assert!(tally.acknowledged > 0 && tally.broken > 0, "{tally:?}");
}

#[test]
fn a_seed_makes_the_same_faults_again() {
    let call = Planned { seed: 7, life: 1, agent: 2, number: 3 };
    let again = Planned::of_name(&call.name()).unwrap();
    let plans = |call: Planned| [call.plan(Side::Agent), call.plan(Side::Upstream)];
    assert_eq!(plans(call), plans(again));
    assert_eq!(call.request(true), again.request(true));
    let faults = |seed| {
        let calls = (0..100).map(|number| Planned { seed, number, ..call });
        calls.flat_map(plans).collect::<Vec<FaultPlan>>()
    };
    assert_ne!(faults(7), faults(8));
    assert!(Arc::new(faults(7)).iter().any(FaultPlan::corrupts));
}
