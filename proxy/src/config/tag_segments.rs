//! The segments of a path that tag a call.

/// The number of segments at the start that tag a call, `e/EPISODE/a/ATTEMPT`. Dots do not climb
/// out of them.
pub(crate) fn tag_length(segments: &[String]) -> usize {
    let is = |at: usize, name: &str| segments.get(at).is_some_and(|segment| segment == name);
    match (is(0, "e"), is(2, "a")) {
        (true, true) => segments.len().min(4),
        (true, false) => segments.len().min(2),
        (false, _) => 0,
    }
}
