//! The feed over HTTP: items are handed out under leases, and leases are settled.

mod asked;
pub(crate) mod delivery;
mod error;
pub(crate) mod parameters;
pub(crate) mod readers;

use std::sync::Arc;

use bytes::Bytes;
use episode::{AttemptId, Micros};
use exporter::Encoding;
use http::api::json::{parse, parse_value};
use http::api::query::Query;
use http::api::reply::{JsonReply, bad_request, done, error, ok};
use http::body::{ReplyBody, full};
use http::clock::now;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use proxy::Recorder;
use serde_json::{Value, json};
use store::{Backlog, ConsumerCounts, Disposition, FeedQuery, LeasePart, Settlement, WaitingGroup};

use crate::bounds::LEASE_S_MAX;
use crate::episodes::named_attempt;
use crate::error::{commit_error, snapshot_error};
use crate::feed::delivery::Delivery;
use crate::feed::error::FeedError;
use crate::feed::parameters::{Cursor, FeedRequest, LEASE_S};
use crate::feed::readers::{FeedReaders, FeedReply};
use crate::requests::{AckBody, AttemptBody, NackBody, RenewBody};

const SECOND: Micros = 1_000_000;

/// Hands out the items that are ready.
pub(crate) async fn hand_out(
    recorder: &Recorder,
    readers: &Arc<FeedReaders>,
    query: Option<&str>,
    body: &[u8],
) -> Result<Response<ReplyBody>, JsonReply> {
    if !body.trim_ascii().is_empty() {
        return Err(bad_request(&"the feed takes no body; its parameters stand in the query"));
    }
    let query = Query::parse(query)?;
    let mut request = FeedRequest::read(query.pairs()).map_err(|why| bad_request(&why))?;
    let content_type = content_type(request.rows.encoding);
    let rows = readers.rows(request.rows.clone()).map_err(|why| bad_request(&why))?;

    // All parameters are valid: only now is a new consumer written to the store.
    request.wanted.after = start_position(recorder, &request.wanted, request.cursor).await?;
    let feed_reply = readers.hand_out(recorder, request, rows).await;
    let mut reply = match feed_reply.map_err(feed_error)? {
        FeedReply::Items(delivery, first) => items_reply(*delivery, first, content_type),
        FeedReply::Nothing { cursor, backlog } => nothing_reply(cursor, &backlog),
    };
    if let Some(label) = recorder.newest_version() {
        set_header(&mut reply, "x-rolltape-version", &label);
    }
    Ok(reply)
}

fn content_type(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Arrow => "application/vnd.apache.arrow.stream",
        _ => "application/x-ndjson",
    }
}

/// A reply without rows. Its headers say what waits, and for what.
fn nothing_reply(cursor: i64, backlog: &Backlog) -> Response<ReplyBody> {
    let mut reply = Response::new(full(Bytes::new()));
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

fn items_reply(
    delivery: Delivery,
    first: Bytes,
    content_type: &'static str,
) -> Response<ReplyBody> {
    let mut reply = Response::new(());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
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

/// The position after which a reader begins. A new consumer is written to the store.
async fn start_position(
    recorder: &Recorder,
    wanted: &FeedQuery,
    cursor: Option<Cursor>,
) -> Result<i64, JsonReply> {
    let mut snapshot = recorder.store().reading().await.map_err(snapshot_error)?;
    let position = match cursor {
        None => 0,
        Some(Cursor::End) => snapshot.last_position().await.map_err(snapshot_error)?,
        Some(Cursor::After(position)) => position,
    };
    if let Some(consumer) = &wanted.consumer
        && !snapshot.has_consumer(consumer).await.map_err(snapshot_error)?
    {
        recorder.store().begin_consumer(consumer, position).await.map_err(commit_error)?;
    }
    Ok(position)
}

/// Acknowledges what a lease holds: it is never handed out to this consumer again.
pub(crate) async fn ack(
    recorder: &Recorder,
    lease: &str,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let AckBody { episodes } = parse(body)?;
    settle(recorder, lease, episodes, Disposition::Acked).await
}

/// Gives back what a lease holds.
pub(crate) async fn nack(
    recorder: &Recorder,
    lease: &str,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let NackBody { episodes, delay_s } = parse(body)?;
    let delay_s = delay_s.unwrap_or(0);
    if delay_s > LEASE_S_MAX {
        return Err(bad_request(&format!("`delay_s` is not 0 to {LEASE_S_MAX}")));
    }
    settle(recorder, lease, episodes, Disposition::Returned(in_seconds(delay_s))).await
}

/// Extends a lease.
pub(crate) async fn renew(
    recorder: &Recorder,
    lease: &str,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let RenewBody { episodes, lease_s } = parse(body)?;
    let lease_s = lease_s.unwrap_or(LEASE_S);
    if !(1..=LEASE_S_MAX).contains(&lease_s) {
        return Err(bad_request(&format!("`lease_s` is not 1 to {LEASE_S_MAX}")));
    }
    settle(recorder, lease, episodes, Disposition::Renewed(in_seconds(lease_s))).await
}

fn in_seconds(seconds: u32) -> Micros {
    now() + Micros::from(seconds) * SECOND
}

/// Settles `episodes` of a lease, or all that it holds.
async fn settle(
    recorder: &Recorder,
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
    recorder.store().settle(settlement).await.map_err(commit_error)?;
    recorder.note_change();
    Ok(done())
}

/// One attempt of those that a lease holds.
fn attempt(value: Value) -> Result<AttemptId, JsonReply> {
    let AttemptBody { episode_id, attempt } = parse_value(value)?;
    named_attempt(&episode_id, attempt)
}

/// Lists the consumers, each with its backlog.
pub(crate) async fn list_consumers(
    recorder: &Recorder,
    readers: &FeedReaders,
) -> Result<JsonReply, JsonReply> {
    let counts = readers.consumers(recorder).await;
    let (counts, at) = (counts.map_err(snapshot_error)?, now());
    let consumers: Vec<Value> = counts.iter().map(|counts| consumer_json(counts, at)).collect();
    Ok(ok(json!({ "consumers": consumers })))
}

/// The number of attempts that an event happened to.
pub(crate) fn total(counts: &ConsumerCounts, event: &str) -> u64 {
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
pub(crate) fn dropped(counts: &ConsumerCounts) -> impl Iterator<Item = (&str, u64)> {
    let tally = counts.tally.iter();
    tally.filter_map(|(event, count)| Some((event.strip_prefix("dropped:")?, *count)))
}

/// Time since the oldest attempt that is ready was finished, in seconds; 0 if none is.
pub(crate) fn oldest_age_s(counts: &ConsumerCounts, at: Micros) -> f64 {
    counts.backlog.oldest.map_or(0.0, |oldest| (at - oldest).max(0) as f64 / 1e6)
}
