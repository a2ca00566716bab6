//! As much of HTTP/1.1 as a load generator needs.

/// The end of the headers.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// The end of a chunked body.
const CHUNKED_END: &[u8] = b"\r\n0\r\n\r\n";

/// The length of the message that `received` starts with; none if it is not whole.
pub(crate) fn message(received: &[u8]) -> Option<usize> {
    let head = head_end(received)?;
    match content_length(&received[..head]) {
        Some(length) => (received.len() >= head + length).then_some(head + length),
        None if is_chunked(&received[..head]) => {
            let tail = received.len().checked_sub(CHUNKED_END.len())?;
            received[tail..].eq(CHUNKED_END).then_some(received.len())
        }
        None => Some(head),
    }
}

/// The position after the headers.
pub(crate) fn head_end(received: &[u8]) -> Option<usize> {
    received.windows(HEAD_END.len()).position(|at| at == HEAD_END).map(|at| at + HEAD_END.len())
}

/// Returns true if a reply is a 200.
pub(crate) fn is_ok(received: &[u8]) -> bool {
    received.starts_with(b"HTTP/1.1 200")
}

/// Number of chunks of an event stream.
pub(crate) fn events(received: &[u8]) -> usize {
    received.windows(7).filter(|at| at == b"\ndata: ").count()
}

/// The turn of a request, which it says in a header.
pub(crate) fn turn(request: &[u8]) -> usize {
    let Some(head) = head_end(request) else { return 0 };
    header(&request[..head], "x-bench-turn").and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn content_length(head: &[u8]) -> Option<usize> {
    header(head, "content-length").and_then(|value| value.parse().ok())
}

fn is_chunked(head: &[u8]) -> bool {
    header(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let lines = std::str::from_utf8(head).ok()?.split("\r\n");
    lines.skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
