//! Control of weights over several engines: the labels and the ranks in requests and replies.

use bytes::Bytes;
use serde_json::{Value, json};

/// Fields that hold the label of weights that are pushed.
const PUSHED: [&str; 3] = ["weight_version", "new_version", "version"];
/// Fields that hold the label of weights that are served.
const SERVED: [&str; 2] = ["weight_version", "version"];

/// The label that a request to push weights names, in its query or in its JSON body.
pub fn pushed_label(query: Option<&str>, body: &[u8]) -> Option<String> {
    let in_query = query.unwrap_or_default().split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        PUSHED.contains(&name).then(|| value.to_owned())
    });
    let in_body = || {
        let body: Value = serde_json::from_slice(body).ok()?;
        label_in(&body, &PUSHED).or_else(|| label_in(body.get("update_info")?, &PUSHED))
    };
    in_query.or_else(in_body)
}

/// The label of the weights in a page that describes an engine.
pub fn served_label(page: &[u8]) -> Option<String> {
    label_in(&serde_json::from_slice(page).ok()?, &SERVED)
}

fn label_in(object: &Value, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| match object.get(*name)? {
        Value::String(label) => Some(label.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// The number of ranks in an engine's reply to `GET /get_world_size`.
pub fn world_size(reply: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(reply).ok()?.get("world_size")?.as_u64()
}

/// A reply to `GET /get_world_size` for engines that have `ranks` together.
pub fn world_size_body(ranks: u64) -> Bytes {
    Bytes::from(json!({ "world_size": ranks }).to_string())
}

/// A request to `POST /close_attempt` of rolltape's own engine.
pub fn close_attempt_body(attempt: &str) -> Bytes {
    Bytes::from(json!({ "attempt": attempt }).to_string())
}

/// A request to join a trainer's group, for an engine whose ranks begin `ranks` after those that
/// the trainer named. `None` if the body names no rank.
pub fn with_rank_offset(body: &[u8], ranks: u64) -> Option<Bytes> {
    let mut whole: Value = serde_json::from_slice(body).ok()?;
    let holder = match whole.get("init_info").is_some_and(Value::is_object) {
        true => whole.get_mut("init_info")?,
        false => &mut whole,
    };
    let first = holder.get("rank_offset")?.as_u64()?;
    *holder.get_mut("rank_offset")? = json!(first + ranks);
    Some(Bytes::from(whole.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_gets_ranks_after_those_before_it() {
        let body = br#"{"init_info":{"master_port":1,"rank_offset":1,"world_size":4}}"#;
        let moved = with_rank_offset(body, 2).unwrap();
        assert_eq!(
            &moved[..],
            br#"{"init_info":{"master_port":1,"rank_offset":3,"world_size":4}}"#
        );
        let flat = with_rank_offset(br#"{"rank_offset":1,"world_size":3}"#, 1).unwrap();
        assert_eq!(&flat[..], br#"{"rank_offset":2,"world_size":3}"#);
        assert_eq!(with_rank_offset(b"{}", 1), None);
    }

    #[test]
    fn a_label_is_found_where_servers_have_it() {
        assert_eq!(pushed_label(Some("a=b&weight_version=7"), b"").as_deref(), Some("7"));
        let body = br#"{"update_info":{"path":"/w"},"weight_version":"step_3"}"#;
        assert_eq!(pushed_label(None, body).as_deref(), Some("step_3"));
        assert_eq!(pushed_label(None, br#"{"new_version":8}"#).as_deref(), Some("8"));
        assert_eq!(pushed_label(None, br#"{"names":[]}"#), None);
        assert_eq!(served_label(br#"{"weight_version":"9"}"#).as_deref(), Some("9"));
        assert_eq!(world_size(&world_size_body(5)), Some(5));
    }
}
