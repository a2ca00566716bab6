//! Chain: requests that send only what is new and name the response that they go on from.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use episode::{Call, CallId};

/// For each call that names a recorded response, its request with the whole conversation: what was
/// sent and answered before, then what it sent itself. `calls` are in the order in which they
/// began; a response that is not among those before is left as a name.
pub(crate) fn whole_requests(calls: &[&Call]) -> BTreeMap<CallId, Bytes> {
    let mut whole: BTreeMap<CallId, Bytes> = BTreeMap::new();
    let previous = |call: &Call| wire::previous_response(call.begun.route, &call.begun.request);
    let named: BTreeSet<String> = calls.iter().filter_map(|call| previous(call)).collect();
    if named.is_empty() {
        return whole;
    }

    let mut answered: BTreeMap<String, &Call> = BTreeMap::new();
    for call in calls {
        let before = previous(call).and_then(|id| answered.get(&id));
        if let Some((before, ended)) = before.and_then(|b| Some((b, b.ended.as_ref()?))) {
            let asked = whole.get(&before.begun.call_id).unwrap_or(&before.begun.request);
            if let Some(body) = wire::whole_request(&call.begun.request, asked, &ended.reply) {
                whole.insert(call.begun.call_id, body.into());
            }
        }
        let reply = call.ended.as_ref().map(|ended| &ended.reply[..]);
        let id = reply.and_then(|reply| wire::response_id(call.begun.route, reply));
        answered.extend(id.filter(|id| named.contains(id)).map(|id| (id, *call)));
    }
    whole
}

#[cfg(test)]
mod tests {
    use episode::Route;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{call, episode, reply, rows_of};

    /// A call of the Responses route that sends one message and names another response.
    fn responded(n: u32, ids: (&[u32], &[u32]), before: Option<&str>, says: &str) -> Call {
        let mut call = call(n, ids.0, &[ids.1]);
        call.begun.route = Route::Responses;
        let mut sent = json!({ "instructions": "be brief", "input": says });
        if let Some(before) = before {
            sent["previous_response_id"] = json!(before);
        }
        call.begun.request = sent.to_string().into();
        let text = json!([{ "type": "output_text", "text": format!("answer {n}") }]);
        let item = json!({ "type": "message", "role": "assistant", "content": text });
        reply(&mut call).reply =
            json!({ "id": format!("r{n}"), "output": [item] }).to_string().into();
        call
    }

    fn said(messages: &[crate::rows::messages::Message]) -> Vec<(&str, &str)> {
        messages.iter().map(|m| (m.role.as_str(), m.content.as_deref().unwrap())).collect()
    }

    #[test]
    fn a_conversation_that_the_server_keeps_is_whole_in_its_row() {
        let calls = vec![
            responded(1, (&[1], &[2]), None, "a"),
            responded(2, (&[1, 2, 3], &[4]), Some("r1"), "b"),
            responded(3, (&[1, 2, 3, 4, 5], &[6]), Some("r2"), "c"),
        ];
        let rows = rows_of(&episode(calls));
        assert_eq!(rows.len(), 1);
        let dialogue = &rows[0].dialogue;
        assert_eq!(said(&dialogue.prompt), [("system", "be brief"), ("user", "a")]);
        let expected = [
            ("assistant", "answer 1"),
            ("user", "b"),
            ("assistant", "answer 2"),
            ("user", "c"),
            ("assistant", "answer 3"),
        ];
        assert_eq!(said(&dialogue.completion), expected);
        let answers: Vec<_> = rows[0].turns.iter().map(|turn| turn.message).collect();
        assert_eq!(answers, [Some(2), Some(4), Some(6)]);
    }

    #[test]
    fn a_response_that_nobody_recorded_is_left_out_and_nothing_else() {
        let calls = [
            responded(1, (&[1], &[2]), Some("r9"), "a"),
            responded(2, (&[1, 2, 3], &[4]), Some("r1"), "b"),
        ];
        let whole = whole_requests(&calls.iter().collect::<Vec<_>>());
        assert_eq!(whole.keys().collect::<Vec<_>>(), [&calls[1].begun.call_id]);
        let body: Value = serde_json::from_slice(&whole[&calls[1].begun.call_id]).unwrap();
        assert_eq!(body["input"].as_array().unwrap().len(), 3);
    }
}
