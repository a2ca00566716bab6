//! The feed over HTTP: what is handed out, and what became of it.

use std::time::Duration;

use episode::{EpisodeId, Micros};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use store::{ConsumerCounts, Cut, Fate, Held, Selection, Settlement, Unit, Wanted};

use super::answers::{Answer, bad, done, error, fields, number, only, parameters, refused, unread};
use super::episodes::named;
use crate::fault::whole;
use crate::feed::{FeedFault, Order};
use crate::open_call::now;
use crate::proxy::Proxy;
use crate::tee::ReplyBody;

/// Items at most that one reply hands out.
const LIMIT_MAX: u32 = 1024;
const LIMIT: u32 = 16;
/// Longest wait, in seconds.
const WAIT_S_MAX: u32 = 600;
/// How long a lease lasts unless told, and at most, in seconds.
const LEASE_S: u32 = 300;
const LEASE_S_MAX: u32 = 86_400;
const GROUP_WAIT_S_MAX: u32 = 31_536_000;
/// Attempts in a group at most.
const GROUP_MAX: u32 = 100_000;
const SECOND: Micros = 1_000_000;

/// The parameters of a query, taken out as they are read.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    fn id<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, Answer> {
        let id = self.take(name).map(|id| id.parse()).transpose();
        id.map_err(|e: T::Err| bad(&format!("`{name}`: {e}")))
    }

    fn count(&mut self, name: &str, range: (u32, u32)) -> Result<Option<u32>, Answer> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let (least, most) = range;
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| bad(&format!("`{name}` is not {least} to {most}")))
    }

    fn flag(&mut self, name: &str) -> Result<bool, Answer> {
        match self.take(name).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => Err(bad(&format!("`{name}` is not true or false"))),
        }
    }
}

/// Hands out what is ready.
pub(super) async fn hand_out(
    proxy: &Proxy,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, Answer> {
    let mut asked = Parameters(parameters(query)?);
    let (mut order, cursor) = order(&mut asked)?;
    let advantage = asked.0.iter().find(|(name, _)| name == "advantage");
    if order.wanted.unit == Unit::Episode && advantage.is_some_and(|(_, rule)| rule != "none") {
        return Err(bad(&"`advantage` compares the attempts of a group: give unit=group"));
    }
    let Some(source) = &proxy.config().rows else {
        return Err(error(StatusCode::NOT_IMPLEMENTED, "this proxy makes no rows"));
    };
    let rows = source.stream(&asked.0).map_err(|why| bad(&why))?;
    order.wanted.after = start(proxy, &order.wanted, cursor.as_deref()).await?;
    let of = (proxy.store(), &proxy.watch);
    let mut reply = match proxy.feed.hand_out(of, order, rows).await {
        Ok(Ok((out, first))) => {
            let mut reply = Response::new(());
            let headers = reply.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(out.content_type()));
            match out.lease() {
                Some(lease) => {
                    tell(&mut reply, "x-rolltape-lease", &lease.id);
                    let until = format!("{:.3}", lease.until as f64 / 1e6);
                    tell(&mut reply, "x-rolltape-lease-expires", &until);
                }
                None => tell(&mut reply, "x-rolltape-cursor", &out.cursor.to_string()),
            }
            reply.map(|()| out.send(first).boxed_unsync())
        }
        Ok(Err(cursor)) => {
            let mut none = Response::new(whole(bytes::Bytes::new()));
            *none.status_mut() = StatusCode::NO_CONTENT;
            tell(&mut none, "x-rolltape-cursor", &cursor.to_string());
            none
        }
        Err(FeedFault::Read(error)) => return Err(unread(error)),
        Err(FeedFault::Write(error)) => return Err(refused(error)),
        Err(fault) => return Err(error(StatusCode::SERVICE_UNAVAILABLE, &fault.to_string())),
    };
    if let Some(label) = proxy.watch.versions.newest() {
        tell(&mut reply, "x-rolltape-version", &label);
    }
    Ok(reply)
}

fn tell<T>(reply: &mut Response<T>, name: &'static str, value: &str) {
    // A label that no header can hold is not told.
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

/// What the parameters ask for, and where the reader begins. Those about rows are left.
fn order(asked: &mut Parameters) -> Result<(Order, Option<String>), Answer> {
    let consumer: Option<EpisodeId> = asked.id("consumer")?;
    let (unit, drop_late) = unit(asked)?;
    let selection = Selection {
        episode: asked.id("episode")?,
        group: asked.id("group")?,
        task: asked.id("task")?,
    };
    if consumer.is_none() && matches!(unit, Unit::Group(Cut { wait: Some(_), .. })) {
        return Err(bad(&"`group_wait_s` needs a `consumer`"));
    }
    let wanted = Wanted {
        consumer: consumer.map(|consumer| consumer.to_string()),
        after: 0,
        unit,
        selection,
        rewarded: asked.flag("rewarded")?,
        limit: asked.count("limit", (1, LIMIT_MAX))?.unwrap_or(LIMIT),
        now: 0,
        open: Vec::new(),
    };
    let wait = asked.count("wait_s", (0, WAIT_S_MAX))?.unwrap_or(0);
    let lease = asked.count("lease_s", (1, LEASE_S_MAX))?.unwrap_or(LEASE_S);
    let cursor = asked.take("cursor");
    let wait = Duration::from_secs(wait.into());
    Ok((Order { wanted, wait, lease: Micros::from(lease) * SECOND, drop_late }, cursor))
}

fn unit(asked: &mut Parameters) -> Result<(Unit, bool), Answer> {
    let word = asked.take("unit");
    let size = asked.count("group_size", (1, GROUP_MAX))?;
    let wait = asked.count("group_wait_s", (0, GROUP_WAIT_S_MAX))?;
    let drop_late = match asked.take("group_late").as_deref() {
        None | Some("deliver") => false,
        Some("drop") => true,
        Some(_) => return Err(bad(&"`group_late` is not deliver or drop")),
    };
    match word.as_deref() {
        Some("group") => {
            let wait = wait.map(|wait| Micros::from(wait) * SECOND);
            Ok((Unit::Group(Cut { size, wait }), drop_late))
        }
        None | Some("episode") if size.is_none() && wait.is_none() => Ok((Unit::Episode, false)),
        None | Some("episode") => Err(bad(&"`group_size` and `group_wait_s` need unit=group")),
        Some(_) => Err(bad(&"`unit` is not episode or group")),
    }
}

/// The position behind which a reader begins; makes a consumer known that is new.
async fn start(proxy: &Proxy, wanted: &Wanted, cursor: Option<&str>) -> Result<i64, Answer> {
    let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
    let position = match cursor {
        None => 0,
        Some("end") => snapshot.last_position().await.map_err(unread)?,
        Some(text) => text
            .parse()
            .ok()
            .filter(|position| *position >= 0)
            .ok_or_else(|| bad(&"`cursor` is not a position from 0, or `end`"))?,
    };
    if let Some(consumer) = &wanted.consumer
        && !snapshot.has_consumer(consumer).await.map_err(unread)?
    {
        proxy.store().begin_consumer(consumer, position).await.map_err(refused)?;
    }
    Ok(position)
}

/// Says what becomes of what a lease holds.
pub(super) async fn settle(
    proxy: &Proxy,
    (lease, word): (&str, &str),
    body: &[u8],
) -> Result<Answer, Answer> {
    let at = now();
    let known: &[&str] = match word {
        "ack" => &["episodes"],
        "nack" => &["episodes", "delay_s"],
        _ => &["episodes", "lease_s"],
    };
    let fields = fields(body, known)?;
    let seconds = |name: &'static str, default: u32, range: (u32, u32)| {
        let seconds = number(&fields, name)?.unwrap_or(default);
        let wrong = || bad(&format!("`{name}` is not {} to {}", range.0, range.1));
        let found = (range.0..=range.1).contains(&seconds).then_some(seconds);
        found.map(|s| at + Micros::from(s) * SECOND).ok_or_else(wrong)
    };
    let fate = match word {
        "ack" => Fate::Acked,
        "nack" => Fate::Returned(seconds("delay_s", 0, (0, LEASE_S_MAX))?),
        "renew" => Fate::Renewed(seconds("lease_s", LEASE_S, (1, LEASE_S_MAX))?),
        _ => return Err(error(StatusCode::NOT_FOUND, "no such page; see docs/feed.md")),
    };
    let held = match fields.get("episodes") {
        None | Some(Value::Null) => Held::All,
        Some(Value::Array(list)) => {
            Held::Episodes(list.iter().map(held).collect::<Result<_, _>>()?)
        }
        Some(_) => return Err(bad(&"`episodes` is not a list")),
    };
    let lease = lease.to_owned();
    proxy
        .store()
        .settle(Settlement { lease, part: held, disposition: fate, at })
        .await
        .map_err(refused)?;
    proxy.feed.changed();
    Ok(done())
}

/// One attempt of those that a lease holds.
fn held(named_so: &Value) -> Result<(EpisodeId, u32), Answer> {
    only(named_so, &["episode_id", "attempt"])?;
    named(named_so)
}

/// What waits for each consumer.
pub(super) async fn consumers(proxy: &Proxy) -> Result<Answer, Answer> {
    let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
    let at = now();
    let counts = snapshot.consumers(at).await.map_err(unread)?;
    let one = |counts: &ConsumerCounts| {
        let of = |what: &str| counts.tally.get(what).copied().unwrap_or(0);
        let dropped: serde_json::Map<_, _> =
            dropped(counts).map(|(why, count)| (why.to_owned(), json!(count))).collect();
        json!({
            "consumer": counts.consumer,
            "depth": counts.depth,
            "oldest_age_s": age(counts, at),
            "leased": counts.leased,
            "acked": of("acked"),
            "delivered": of("delivered"),
            "redelivered": of("redelivered"),
            "nacked": of("nacked"),
            "dropped": dropped,
        })
    };
    Ok((StatusCode::OK, json!({ "consumers": counts.iter().map(one).collect::<Vec<_>>() })))
}

/// What was dropped, by the reason.
pub(super) fn dropped(counts: &ConsumerCounts) -> impl Iterator<Item = (&str, u64)> {
    let tally = counts.tally.iter();
    tally.filter_map(|(what, count)| Some((what.strip_prefix("dropped:")?, *count)))
}

/// How long the oldest attempt that waits has been finished, in seconds; 0 where none waits.
pub(super) fn age(counts: &ConsumerCounts, at: Micros) -> f64 {
    counts.oldest.map_or(0.0, |oldest| (at - oldest).max(0) as f64 / 1e6)
}
