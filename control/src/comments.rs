//! Comments and scores that people give attempts.

use episode::{AttemptId, Comment, Provenance};
use http::api::json::parse_value;
use http::api::reply::{JsonReply, bad_request, ok};
use http::clock::now;
use serde_json::{Value, json};

use crate::bounds::COMMENTS_MAX;
use crate::episodes::named_attempt;
use crate::requests::CommentBody;

/// The name of a writer who gives none.
const NO_AUTHOR: &str = "api";

/// Reads the comments of a body, each with the attempt that it is about.
pub(crate) fn read(
    sent: Vec<Value>,
    provenance: &Provenance,
) -> Result<Vec<(AttemptId, Comment)>, JsonReply> {
    if !(1..=COMMENTS_MAX).contains(&sent.len()) {
        return Err(bad_request(&format!("`comments` has 1 to {COMMENTS_MAX} of them")));
    }
    sent.into_iter().map(|value| read_one(value, provenance)).collect()
}

fn read_one(value: Value, provenance: &Provenance) -> Result<(AttemptId, Comment), JsonReply> {
    let body: CommentBody = parse_value(value)?;
    let attempt = named_attempt(&body.episode_id, body.attempt)?;
    let call = body.call_id.map(|call| call.parse()).transpose();

    let comment = Comment {
        call: call.map_err(|error| bad_request(&format!("`call_id`: {error}")))?,
        text: body.text,
        score: body.score,
        author: body.author.unwrap_or_else(|| NO_AUTHOR.to_owned()),
        at: now(),
        provenance: provenance.clone(),
    };
    comment.check().map_err(|error| bad_request(&error))?;
    Ok((attempt, comment))
}

/// The reply once they are on disk.
pub(crate) fn kept(count: usize) -> JsonReply {
    ok(json!({ "status": "ok", "comments": count }))
}
