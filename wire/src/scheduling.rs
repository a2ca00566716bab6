//! Fields by which a request chooses its place in a server's queue.

use crate::request::Request;

/// Fields that name a priority, a worker, a slot or another server. Only the user decides these.
const FIELDS: [&str; 13] = [
    // vLLM, SGLang and rolltape's own engine.
    "priority",
    // SGLang: workers, and the servers that hold a prompt's state.
    "data_parallel_rank",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "data_parallel_rank_decode",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    // vLLM: the servers that hold a prompt's state.
    "kv_transfer_params",
    "ec_transfer_params",
    // llama.cpp: the slot that computes.
    "id_slot",
    "slot_id",
];

/// Headers of the same meaning, in lower case.
pub const SCHEDULING_HEADERS: [&str; 1] = ["x-data-parallel-rank"];

/// The request without the fields by which it chooses its place; `None` if it has none of them.
/// Every other byte stays.
pub fn without_scheduling(request: &Request) -> Option<Request> {
    let has_any = request.raw_fields().any(|(name, _)| FIELDS.contains(&name));
    if !has_any {
        return None;
    }
    Request::read(&request.without(&FIELDS))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn without(body: &'static str) -> Option<String> {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        without_scheduling(&request).map(|left| String::from_utf8(left.body().to_vec()).unwrap())
    }

    #[test]
    fn a_place_in_the_queue_is_cut_and_nothing_else() {
        let cut = |body| without(body).unwrap();
        assert_eq!(cut(r#"{"a": 1, "priority":-9 ,"b":2}"#), r#"{"a": 1, "b":2}"#);
        assert_eq!(cut(r#"{"priority":-9,"pr\u0069ority":1,"a":[ ]}"#), r#"{"a":[ ]}"#);
        assert_eq!(cut(r#"{"id_slot":0}"#), "{}");
        assert_eq!(without(r#"{"messages":[{"priority":1}],"Priority":1}"#), None);
    }
}
