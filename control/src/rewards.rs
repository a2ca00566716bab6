//! Rewards: what is said, by whom, and within which range.

use episode::{AttemptId, Provenance, Reward, RewardRange, RewardScope, ScopeParts};
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done};
use http::clock::now;
use proxy::Recorder;

use crate::error::{commit_error, snapshot_error};
use crate::requests::RewardBody;

/// Appends a reward.
pub(crate) async fn add(
    recorder: &Recorder,
    attempt: AttemptId,
    reward: Reward,
) -> Result<JsonReply, JsonReply> {
    if let RewardScope::Tokens { .. } = reward.scope {
        let mut snapshot = recorder.store().reading().await.map_err(snapshot_error)?;
        let sampled = snapshot.sampled(reward.scope).await.map_err(snapshot_error)?;
        reward.scope.within(sampled).map_err(|error| bad_request(&error))?;
    }
    recorder.reward(attempt, reward).await.map_err(commit_error)?;
    Ok(done())
}

/// Reads the reward of a request. Its value must be within the ranges of its name.
pub(crate) fn read(
    body: &[u8],
    ranges: &[RewardRange],
    provenance: Provenance,
) -> Result<Reward, JsonReply> {
    let body: RewardBody = parse(body)?;
    let call = body.call_id.map(|call| call.parse()).transpose();
    let parts = ScopeParts {
        word: body.scope.as_deref(),
        call: call.map_err(|error| bad_request(&format!("`call_id`: {error}")))?,
        choice: body.choice,
        tokens: (body.start, body.end),
    };

    let reward = Reward {
        scope: RewardScope::new(&parts).map_err(|error| bad_request(&error))?,
        name: body.name.unwrap_or_else(|| "reward".to_owned()),
        value: body.value,
        source: body.source.unwrap_or_else(|| "api".to_owned()),
        at: now(),
        provenance,
    };
    reward.check(ranges).map_err(|error| bad_request(&error))?;
    Ok(reward)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_its_range_is_refused_with_the_range() {
        let ranges = ["reward=0..1", "style=-1..1"].map(|text| text.parse().unwrap());
        let refused = |body: &str| {
            let read = read(body.as_bytes(), &ranges, Provenance::default());
            read.err().map(|reply| (reply.status.as_u16(), reply.body.to_string()))
        };
        for body in [
            r#"{"value": 1}"#,
            r#"{"value": null}"#,
            r#"{"value": -1.0, "name": "style"}"#,
            r#"{"value": 1e300, "name": "other"}"#,
        ] {
            assert_eq!(refused(body), None, "{body}");
        }
        for (body, why) in [
            (r#"{"value": 1.5}"#, "`reward` is 1.5, which is not in its range 0..1"),
            (r#"{"value": -2, "name": "style"}"#, "not in its range -1..1"),
            (r#"{"value": NaN}"#, "expected value"),
            (r#"{"value": Infinity}"#, "expected value"),
            (r#"{"value": -Infinity, "name": "other"}"#, "the body is not a JSON object"),
            (r#"{"value": 1e999, "name": "other"}"#, "number out of range"),
            (r#"{"value": "NaN"}"#, "expected a number"),
        ] {
            let (status, said) = refused(body).unwrap_or_else(|| panic!("{body} is taken"));
            assert_eq!(status, 400);
            assert!(said.contains(why), "{body}: {said}");
        }
    }
}
