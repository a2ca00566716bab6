//! Fields by which a request chooses its place in a server's queue.

use crate::request::Request;

/// Fields that name a priority, a worker, a slot or another server. Only the user decides these.
const FIELDS: [&str; 14] = [
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
    // Dynamo: priorities, workers, ids in place of the prompt, an address for what is computed.
    "nvext",
];

/// Headers of the same meaning, in lower case.
const HEADERS: [&str; 19] = [
    // vLLM, SGLang and Dynamo: the worker of a data-parallel server.
    "x-data-parallel-rank",
    "x-dp-rank",
    "x-prefill-dp-rank",
    // Dynamo.
    "x-worker-instance-id",
    "x-prefill-instance-id",
    "x-epp-inject-nvext-token-data",
    // SGLang's router.
    "x-sglang-routing-key",
    // llm-d: servers of the parts of a call, and how urgent it is.
    "x-prefiller-host-port",
    "x-prefiller-url",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-slo-ttft-ms",
    "x-slo-tpot-ms",
    // AIBrix.
    "target-pod",
    "routing-strategy",
    "external-filter",
    // vLLM's semantic router.
    "x-vsr-destination-endpoint",
    "x-selected-model",
];

/// Beginnings of the names of such headers that a router has as a family.
const HEADER_FAMILIES: [&str; 7] = [
    // SGLang's model gateway.
    "x-smg-",
    // Envoy: addresses, times, and how often a request is sent again.
    "x-envoy-",
    // The inference extension of the Gateway API, and llm-d.
    "x-gateway-destination-",
    "x-gateway-inference-",
    "x-gateway-model-name",
    "x-llm-d-",
    // Dynamo.
    "x-dynamo-",
];

/// True for a header, in lower case, by which a request chooses its place in a server's queue, or
/// the server behind a router.
pub fn is_scheduling_header(name: &str) -> bool {
    HEADERS.contains(&name) || HEADER_FAMILIES.iter().any(|family| name.starts_with(family))
}

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
        assert_eq!(cut(r#"{"nvext":{"backend_instance_id":7},"a":1}"#), r#"{"a":1}"#);
        assert_eq!(without(r#"{"messages":[{"priority":1}],"Priority":1}"#), None);
    }

    #[test]
    fn headers_of_routers_are_known() {
        for name in ["x-data-parallel-rank", "x-smg-target-worker", "x-envoy-original-dst-host"] {
            assert!(is_scheduling_header(name), "{name}");
        }
        for name in ["x-session-id", "x-request-id", "x-gateway-key", "traceparent", "x-smg"] {
            assert!(!is_scheduling_header(name), "{name}");
        }
    }
}
