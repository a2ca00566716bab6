//! Requests that send only new messages and name a previous response, made whole again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use episode::{Body, Call, CallId, KeptBody};

/// Longest chain of turns that is put before a request.
const TURNS_MAX: usize = 10_000;

/// A request with the conversation that it names before it. It is put together when it is read.
#[derive(Clone)]
struct WholeRequest {
    own: Body,
    previous: Arc<KnownTurn>,
}

/// A turn of a conversation: what was sent and what came back.
struct KnownTurn {
    request: Body,
    reply: Body,
    previous: Option<Arc<KnownTurn>>,
    /// Number of turns up to this one.
    count: usize,
}

/// Restores the whole conversation of each call that names a recorded response.
///
/// `calls` are in the order in which they began. The request becomes the previous conversation, its
/// reply, and then the messages that the call itself sent. A response that no earlier call has is
/// left as a name. Calls that name no response are not in the result.
pub(crate) fn whole_requests(calls: &[&Call]) -> BTreeMap<CallId, Body> {
    let mut whole: BTreeMap<CallId, WholeRequest> = BTreeMap::new();
    let named: BTreeSet<String> = calls.iter().filter_map(|call| previous_response(call)).collect();
    // Most episodes name none, and then no reply needs to be read for its id.
    if named.is_empty() {
        return BTreeMap::new();
    }

    let mut call_of_response: BTreeMap<String, &Call> = BTreeMap::new();
    for call in calls {
        let previous = previous_response(call).and_then(|id| call_of_response.get(&id));
        if let Some(request) = previous.and_then(|previous| joined(previous, call, &whole)) {
            whole.insert(call.begun.call_id, request);
        }

        if let Some(id) = response_id(call).filter(|id| named.contains(id)) {
            call_of_response.insert(id, call);
        }
    }
    whole.into_iter().map(|(call, request)| (call, Body::kept(Arc::new(request)))).collect()
}

fn previous_response(call: &Call) -> Option<String> {
    wire::previous_response(call.begun.route, &call.begun.request.read())
}

fn response_id(call: &Call) -> Option<String> {
    wire::response_id(call.begun.route, &call.ended.as_ref()?.reply.read())
}

/// Returns the request of `call` behind the conversation of `previous`. Gives none where one of
/// them cannot be read.
fn joined(
    previous: &Call,
    call: &Call,
    whole: &BTreeMap<CallId, WholeRequest>,
) -> Option<WholeRequest> {
    let before = whole.get(&previous.begun.call_id).map(|whole| Arc::clone(&whole.previous));
    let turn = KnownTurn {
        request: previous.begun.request.clone(),
        reply: previous.ended.as_ref()?.reply.clone(),
        count: before.as_ref().map_or(0, |turn| turn.count) + 1,
        previous: before,
    };
    let own = call.begun.request.clone();
    wire::prepend_turn(&own.read(), &turn.request.read(), &turn.reply.read())?;
    (turn.count <= TURNS_MAX).then(|| WholeRequest { own, previous: Arc::new(turn) })
}

impl KeptBody for WholeRequest {
    fn length(&self) -> usize {
        self.read().len()
    }

    fn shared_bytes(&self) -> usize {
        self.own.shared_bytes()
    }

    fn read(&self) -> Bytes {
        let newest_first =
            std::iter::successors(Some(&*self.previous), |turn| turn.previous.as_deref());
        let mut turns: Vec<_> =
            newest_first.map(|turn| (turn.request.read(), turn.reply.read())).collect();
        turns.reverse();
        let turns: Vec<_> = turns.iter().map(|(request, reply)| (&**request, &**reply)).collect();
        // Each turn was read before.
        wire::prepend_turns(&self.own.read(), &turns).unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use episode::Route;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fixture::{call, episode, reply, rows_of};

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

    fn said(messages: &[crate::rows::messages::RowMessage]) -> Vec<(&str, &str)> {
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
        let body: Value = serde_json::from_slice(&whole[&calls[1].begun.call_id].read()).unwrap();
        assert_eq!(body["input"].as_array().unwrap().len(), 3);
    }
}
