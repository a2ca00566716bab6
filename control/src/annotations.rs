//! Numbers that a trainer computed for the tokens that it trained on, and what people say.

use std::collections::BTreeMap;

use episode::{Annotation, AttemptId, Comment, Micros, Provenance};
use exporter::{NumberStream, PlacedStreams, TrajectoryStreams, place_streams};
use http::api::json::{parse, parse_value};
use http::api::reply::{JsonReply, bad_request, ok};
use http::clock::now;
use proxy::Recorder;
use serde_json::{Map, Value, json};
use store::{CommitError, Location, Selection, Snapshot, SnapshotError, StoreEditor};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::bounds::ANNOTATION_TEXT_BYTES_MAX;
use crate::comments;
use crate::error::{broken, commit_error, snapshot_error};
use crate::requests::{AnnotationsBody, TrajectoryBody};
use crate::versions::label;

/// Streams of the trajectories of some attempts.
type StreamsOf = BTreeMap<AttemptId, Vec<TrajectoryStreams>>;

/// The statements of a body: those of a trainer, or those of people.
enum Statements {
    Streams(StreamsOf),
    Comments(Vec<(AttemptId, Comment)>),
}

/// Appends the statements of a body, all of them or none.
pub(crate) async fn add(
    recorder: &Recorder,
    body: &[u8],
    provenance: &Provenance,
) -> Result<JsonReply, JsonReply> {
    match statements(body, provenance)? {
        Statements::Streams(streams) => add_streams(recorder, streams).await,
        Statements::Comments(comments) => {
            let count = comments.len();
            recorder.store().comment(comments).await.map_err(commit_error)?;
            Ok(comments::kept(count))
        }
    }
}

/// Appends the comments of a body to a store that this process does not record to.
pub(crate) async fn add_beside(
    store: &Location,
    body: &[u8],
    provenance: &Provenance,
) -> Result<JsonReply, JsonReply> {
    let Statements::Comments(comments) = statements(body, provenance)? else {
        return Err(bad_request(&"this listener takes `comments`; `rolltape serve` has the rest"));
    };
    let count = comments.len();
    let editor = StoreEditor::open(store).await;
    let editor = editor.map_err(|why| snapshot_error(SnapshotError::Open(why)))?;
    editor.comment(comments).await.map_err(commit_error)?;
    Ok(comments::kept(count))
}

fn statements(body: &[u8], provenance: &Provenance) -> Result<Statements, JsonReply> {
    let AnnotationsBody { annotations, comments } = parse(body)?;
    match (annotations, comments) {
        (Some(annotations), None) => streams_of(annotations).map(Statements::Streams),
        (None, Some(sent)) => comments::read(sent, provenance).map(Statements::Comments),
        _ => Err(bad_request(&"the body has `annotations` or `comments`, and one of them only")),
    }
}

async fn add_streams(recorder: &Recorder, sent: StreamsOf) -> Result<JsonReply, JsonReply> {
    let snapshot = recorder.store().reading().await.map_err(snapshot_error)?;
    let mut snapshot = snapshot.in_room(recorder.reading_room());
    // Reading a file keeps a thread busy, and so does putting turns together.
    let placing =
        spawn_blocking(move || Handle::current().block_on(place(&mut snapshot, &sent, now())));
    let placed = placing.await.map_err(|why| broken(&why))??;

    let annotations: Vec<Annotation> =
        placed.iter().flat_map(|placed| placed.annotations.iter().cloned()).collect();
    if !annotations.is_empty() {
        recorder.store().annotate(annotations).await.map_err(commit_error)?;
    }
    let sum = |of: fn(&PlacedStreams) -> u64| placed.iter().map(of).sum::<u64>();
    let (kept, not_sampled) = (sum(|placed| placed.kept), sum(|placed| placed.not_sampled));
    Ok(ok(json!({ "status": "ok", "kept": kept, "not_sampled": not_sampled })))
}

/// Puts the streams on the choices of their attempts.
async fn place(
    snapshot: &mut Snapshot,
    sent: &StreamsOf,
    at: Micros,
) -> Result<Vec<PlacedStreams>, JsonReply> {
    let mut placed = Vec::with_capacity(sent.len());
    for (attempt, streams) in sent {
        let selection =
            Selection { episode: Some(attempt.episode.clone()), ..Selection::default() };
        let records = snapshot.episodes(&selection).await.map_err(snapshot_error)?;
        let record = records
            .into_iter()
            .find(|record| record.attempt == attempt.attempt)
            .ok_or_else(|| commit_error(CommitError::Unknown(attempt.clone())))?;
        let calls = snapshot.calls(&record).await.map_err(snapshot_error)?;
        let of_attempt = place_streams(&calls, streams, at);
        placed.push(of_attempt.map_err(|error| bad_request(&format!("`{attempt}`: {error}")))?);
        drop(calls);
        snapshot.give_back();
    }
    Ok(placed)
}

fn streams_of(annotations: Vec<Value>) -> Result<StreamsOf, JsonReply> {
    let mut all = StreamsOf::new();
    for value in annotations {
        let body: TrajectoryBody = parse_value(value)?;
        let (attempt, trajectory) = named_trajectory(&body.trajectory_id)?;
        let streams = TrajectoryStreams {
            trajectory,
            version: label(&body.version)?,
            start: body.start.unwrap_or(0) as usize,
            token_ids: body.token_ids,
            streams: streams(body.streams)?,
        };
        all.entry(attempt).or_default().push(streams);
    }
    Ok(all)
}

/// The attempt and the number of a trajectory, from an id as rows have it.
fn named_trajectory(id: &str) -> Result<(AttemptId, usize), JsonReply> {
    let parts = id.rsplit_once('/').and_then(|(attempt, number)| {
        Some((attempt.parse::<AttemptId>().ok()?, number.parse::<usize>().ok()?))
    });
    parts.ok_or_else(|| {
        bad_request(&format!(
            "`trajectory_id` is not EPISODE/ATTEMPT/NUMBER, as rows have it: {id}"
        ))
    })
}

fn streams(told: Map<String, Value>) -> Result<Vec<(String, NumberStream)>, JsonReply> {
    let mut streams = Vec::with_capacity(told.len());
    for (name, values) in told {
        if name.is_empty() || name.len() > ANNOTATION_TEXT_BYTES_MAX {
            let message = format!("a stream's name has 1 to {ANNOTATION_TEXT_BYTES_MAX} bytes");
            return Err(bad_request(&message));
        }
        let numbers = match values {
            Value::Array(values) => values.iter().map(number).collect(),
            _ => None,
        };
        let wrong = || bad_request(&format!("`{name}` is not a list of numbers and nulls"));
        let numbers = numbers.ok_or_else(wrong)?;
        streams.push((name, numbers));
    }
    match streams.is_empty() {
        true => Err(bad_request(&"`streams` names no stream")),
        false => Ok(streams),
    }
}

/// A number that 32 bits hold, or none of null; none at all of anything else.
fn number(value: &Value) -> Option<Option<f32>> {
    if value.is_null() {
        return Some(None);
    }
    let number = value.as_f64()? as f32;
    number.is_finite().then_some(Some(number))
}
