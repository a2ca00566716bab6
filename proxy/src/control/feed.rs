//! The feed over HTTP: items are handed out under leases, and leases are settled.

use std::time::Duration;

use episode::{AttemptId, EpisodeId, Micros};
use http::api::json::{parse, parse_value};
use http::api::query::Query;
use http::api::reply::{JsonReply, bad_request, done, error, ok};
use http::body::{ReplyBody, full};
use http::clock::now;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use store::{
    Backlog, ConsumerCounts, Disposition, FeedQuery, FeedUnit, GroupLimits, LeasePart, Selection,
    Settlement, WaitingGroup,
};

use crate::bounds::{
    FEED_LIMIT_MAX, FEED_WAIT_S_MAX, GROUP_SIZE_MAX, GROUP_WAIT_S_MAX, LEASE_S_MAX,
};
use crate::control::episodes::named_attempt;
use crate::control::error::{commit_error, snapshot_error};
use crate::control::requests::{AckBody, AttemptBody, NackBody, RenewBody};
use crate::feed::delivery::Delivery;
use crate::feed::rows::FeedError;
use crate::feed::{FeedReply, FeedRequest};
use crate::proxy::Proxy;

const LIMIT: u32 = 16;
/// Length of a lease, in seconds.
const LEASE_S: u32 = 300;
const SECOND: Micros = 1_000_000;

/// Hands out the items that are ready.
pub(super) async fn hand_out(
    proxy: &Proxy,
    query: Option<&str>,
    body: &[u8],
) -> Result<Response<ReplyBody>, JsonReply> {
    if !body.trim_ascii().is_empty() {
        return Err(bad_request(&"the feed takes no body; its parameters stand in the query"));
    }
    let mut query = Query::parse(query)?;
    let mut request = feed_request(&mut query)?;
    let cursor = query.take("cursor");
    let advantage = query.get("advantage");
    if request.wanted.unit == FeedUnit::Episode && advantage.is_some_and(|rule| rule != "none") {
        let message = "`advantage` compares the attempts of a group: give unit=group";
        return Err(bad_request(&message));
    }
    let Some(source) = &proxy.config().rows else {
        return Err(error(StatusCode::NOT_IMPLEMENTED, "this proxy makes no rows"));
    };
    // The source of the rows refuses a parameter that is unknown to it as well.
    let rows = source.stream(query.rest()).map_err(|why| bad_request(&why))?;

    // All parameters are valid: only now is a new consumer written to the store.
    request.wanted.after = start_position(proxy, &request.wanted, cursor.as_deref()).await?;
    let feed_reply = proxy.feed.hand_out(proxy.store(), &proxy.tracker, request, rows).await;
    let mut reply = match feed_reply.map_err(feed_error)? {
        FeedReply::Items(delivery, first) => items_reply(*delivery, first),
        FeedReply::Nothing { cursor, backlog } => nothing_reply(cursor, &backlog),
    };
    if let Some(label) = proxy.tracker.versions.newest() {
        set_header(&mut reply, "x-rolltape-version", &label);
    }
    Ok(reply)
}

/// A reply without rows. Its headers say what waits, and for what.
fn nothing_reply(cursor: i64, backlog: &Backlog) -> Response<ReplyBody> {
    let mut reply = Response::new(full(bytes::Bytes::new()));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    set_header(&mut reply, "x-rolltape-cursor", &cursor.to_string());
    if backlog.waiting > 0 || backlog.ungrouped > 0 {
        set_header(&mut reply, "x-rolltape-waiting", &waiting_json(backlog).to_string());
    }
    reply
}

fn waiting_json(backlog: &Backlog) -> Value {
    json!({
        "attempts": backlog.waiting,
        "groups": backlog.groups,
        "fullest": backlog.fullest.iter().map(group_json).collect::<Vec<_>>(),
        "unrewarded": backlog.unrewarded,
        "delayed": backlog.delayed,
        "ungrouped": backlog.ungrouped,
    })
}

fn group_json(group: &WaitingGroup) -> Value {
    json!({ "group_id": group.group, "have": group.have, "size": group.size })
}

fn items_reply(delivery: Delivery, first: bytes::Bytes) -> Response<ReplyBody> {
    let mut reply = Response::new(());
    let content_type = HeaderValue::from_static(delivery.content_type());
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    match delivery.lease() {
        Some(lease) => {
            set_header(&mut reply, "x-rolltape-lease", &lease.id);
            let expires = format!("{:.3}", lease.until as f64 / 1e6);
            set_header(&mut reply, "x-rolltape-lease-expires", &expires);
        }
        None => set_header(&mut reply, "x-rolltape-cursor", &delivery.cursor.to_string()),
    }
    reply.map(|()| delivery.send(first).boxed_unsync())
}

fn feed_error(why: FeedError) -> JsonReply {
    match why {
        FeedError::Read(why) => snapshot_error(why),
        FeedError::Write(why) => commit_error(why),
        other => error(StatusCode::SERVICE_UNAVAILABLE, &other.to_string()),
    }
}

/// Sets a header, unless the value has characters that a header cannot hold.
fn set_header<T>(reply: &mut Response<T>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

/// Takes the parameters of the feed from a query. Those about rows remain.
fn feed_request(query: &mut Query) -> Result<FeedRequest, JsonReply> {
    let consumer: Option<EpisodeId> = query.take_id("consumer")?;
    let unit = unit(query)?;
    let drops_late = drops_late(query)?;
    if consumer.is_none() && matches!(unit, FeedUnit::Group(GroupLimits { wait: Some(_), .. })) {
        return Err(bad_request(&"`group_wait_s` needs a `consumer`"));
    }

    let wanted = FeedQuery {
        consumer: consumer.map(|consumer| consumer.to_string()),
        after: 0,
        unit,
        selection: Selection {
            episode: query.take_id("episode")?,
            group: query.take_id("group")?,
            task: query.take_id("task")?,
        },
        rewarded: query.take_flag("rewarded")?,
        limit: query.take_number("limit", 1, FEED_LIMIT_MAX)?.unwrap_or(LIMIT),
        // Set at each look for items.
        now: 0,
        open: Vec::new(),
    };
    let wait_s = query.take_number("wait_s", 0, FEED_WAIT_S_MAX)?.unwrap_or(0);
    let lease_s = query.take_number("lease_s", 1, LEASE_S_MAX)?.unwrap_or(LEASE_S);
    Ok(FeedRequest {
        drop_late: drops_late && wanted.unit != FeedUnit::Episode,
        wanted,
        wait: Duration::from_secs(wait_s.into()),
        lease: Micros::from(lease_s) * SECOND,
    })
}

fn unit(query: &mut Query) -> Result<FeedUnit, JsonReply> {
    let size = query.take_number("group_size", 1, GROUP_SIZE_MAX)?;
    let wait_s = query.take_number("group_wait_s", 0, GROUP_WAIT_S_MAX)?;
    let wait = wait_s.map(|wait_s| Micros::from(wait_s) * SECOND);
    match query.take("unit").as_deref() {
        Some("group") => Ok(FeedUnit::Group(GroupLimits { size, wait })),
        None | Some("episode") if size.is_none() && wait.is_none() => Ok(FeedUnit::Episode),
        None | Some("episode") => {
            Err(bad_request(&"`group_size` and `group_wait_s` need unit=group"))
        }
        Some(_) => Err(bad_request(&"`unit` is not episode or group")),
    }
}

fn drops_late(query: &mut Query) -> Result<bool, JsonReply> {
    match query.take("group_late").as_deref() {
        None | Some("deliver") => Ok(false),
        Some("drop") => Ok(true),
        Some(_) => Err(bad_request(&"`group_late` is not deliver or drop")),
    }
}

/// The position after which a reader begins. A new consumer is written to the store.
async fn start_position(
    proxy: &Proxy,
    wanted: &FeedQuery,
    cursor: Option<&str>,
) -> Result<i64, JsonReply> {
    let mut snapshot = proxy.store().snapshot().await.map_err(snapshot_error)?;
    let position = match cursor {
        None => 0,
        Some("end") => snapshot.last_position().await.map_err(snapshot_error)?,
        Some(text) => text
            .parse()
            .ok()
            .filter(|position| *position >= 0)
            .ok_or_else(|| bad_request(&"`cursor` is not a position from 0, or `end`"))?,
    };
    if let Some(consumer) = &wanted.consumer
        && !snapshot.has_consumer(consumer).await.map_err(snapshot_error)?
    {
        proxy.store().begin_consumer(consumer, position).await.map_err(commit_error)?;
    }
    Ok(position)
}

/// Acknowledges what a lease holds: it is never handed out to this consumer again.
pub(super) async fn ack(proxy: &Proxy, lease: &str, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let AckBody { episodes } = parse(body)?;
    settle(proxy, lease, episodes, Disposition::Acked).await
}

/// Gives back what a lease holds.
pub(super) async fn nack(proxy: &Proxy, lease: &str, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let NackBody { episodes, delay_s } = parse(body)?;
    let delay_s = delay_s.unwrap_or(0);
    if delay_s > LEASE_S_MAX {
        return Err(bad_request(&format!("`delay_s` is not 0 to {LEASE_S_MAX}")));
    }
    settle(proxy, lease, episodes, Disposition::Returned(in_seconds(delay_s))).await
}

/// Extends a lease.
pub(super) async fn renew(proxy: &Proxy, lease: &str, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let RenewBody { episodes, lease_s } = parse(body)?;
    let lease_s = lease_s.unwrap_or(LEASE_S);
    if !(1..=LEASE_S_MAX).contains(&lease_s) {
        return Err(bad_request(&format!("`lease_s` is not 1 to {LEASE_S_MAX}")));
    }
    settle(proxy, lease, episodes, Disposition::Renewed(in_seconds(lease_s))).await
}

fn in_seconds(seconds: u32) -> Micros {
    now() + Micros::from(seconds) * SECOND
}

/// Settles `episodes` of a lease, or all that it holds.
async fn settle(
    proxy: &Proxy,
    lease: &str,
    episodes: Option<Vec<Value>>,
    fate: Disposition,
) -> Result<JsonReply, JsonReply> {
    let held = match episodes {
        None => LeasePart::All,
        Some(episodes) => {
            LeasePart::Attempts(episodes.into_iter().map(attempt).collect::<Result<_, _>>()?)
        }
    };
    let settlement =
        Settlement { lease: lease.to_owned(), part: held, disposition: fate, at: now() };
    proxy.store().settle(settlement).await.map_err(commit_error)?;
    proxy.feed.changed();
    Ok(done())
}

/// One attempt of those that a lease holds.
fn attempt(value: Value) -> Result<AttemptId, JsonReply> {
    let AttemptBody { episode_id, attempt } = parse_value(value)?;
    named_attempt(&episode_id, attempt)
}

/// Lists the consumers, each with its backlog.
pub(super) async fn list_consumers(proxy: &Proxy) -> Result<JsonReply, JsonReply> {
    let counts = proxy.feed.consumers(proxy.store(), &proxy.tracker).await;
    let (counts, at) = (counts.map_err(snapshot_error)?, now());
    let consumers: Vec<Value> = counts.iter().map(|counts| consumer_json(counts, at)).collect();
    Ok(ok(json!({ "consumers": consumers })))
}

/// The number of attempts that an event happened to.
pub(super) fn total(counts: &ConsumerCounts, event: &str) -> u64 {
    counts.tally.get(event).copied().unwrap_or(0)
}

fn consumer_json(counts: &ConsumerCounts, at: Micros) -> Value {
    let dropped: serde_json::Map<_, _> =
        dropped(counts).map(|(reason, count)| (reason.to_owned(), json!(count))).collect();
    json!({
        "consumer": counts.consumer,
        "depth": counts.backlog.ready,
        "oldest_age_s": oldest_age_s(counts, at),
        "waiting": counts.backlog.waiting,
        "leased": counts.leased,
        "acked": total(counts, "acked"),
        "delivered": total(counts, "delivered"),
        "redelivered": total(counts, "redelivered"),
        "nacked": total(counts, "nacked"),
        "dropped": dropped,
    })
}

/// Numbers of dropped attempts, by the reason.
pub(super) fn dropped(counts: &ConsumerCounts) -> impl Iterator<Item = (&str, u64)> {
    let tally = counts.tally.iter();
    tally.filter_map(|(event, count)| Some((event.strip_prefix("dropped:")?, *count)))
}

/// Time since the oldest attempt that is ready was finished, in seconds; 0 if none is.
pub(super) fn oldest_age_s(counts: &ConsumerCounts, at: Micros) -> f64 {
    counts.backlog.oldest.map_or(0.0, |oldest| (at - oldest).max(0) as f64 / 1e6)
}
