//! The target of a request in one normal form, so that what is judged, stored and forwarded is the
//! same path.

use std::borrow::Cow;

use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use thiserror::Error;

use crate::path::escapes::decoded;

/// The reason why a path has no normal form, as the end of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Ambiguity {
    /// The path is relative.
    #[error("it does not begin with a slash")]
    NoSlash,
    /// `..` leads out of the path, or out of the segments that it may not leave.
    #[error("its dots climb out of it")]
    Climbs,
    /// A percent sign without two digits.
    #[error("a percent sign begins no escape")]
    BadEscape,
    /// A control character, escaped or not.
    #[error("it has a control character")]
    ControlCharacter,
    /// A backslash, which some servers read as a slash.
    #[error("it has a backslash")]
    Backslash,
    /// A slash that is escaped elsewhere than in the id of a model.
    #[error("it has an escaped slash")]
    EscapedSlash,
    /// An escaped percent sign, which some servers decode twice.
    #[error("it has an escape within an escape")]
    EscapedPercent,
    /// A semicolon, behind which some servers read parameters.
    #[error("it has a semicolon")]
    Semicolon,
    /// Escapes that are no text.
    #[error("its escapes are not UTF-8")]
    NotUtf8,
}

/// Writes the path of `uri` in its normal form. The query stays as it is. Of the segments at the
/// start, `fixed` counts those that dots do not climb out of.
///
/// # Errors
/// [`Ambiguity`] if servers may read the path in different ways.
pub fn normalize(uri: &mut Uri, fixed: impl Fn(&[String]) -> usize) -> Result<(), Ambiguity> {
    // `http://host?query` has an empty path, which stands for a slash.
    let has_slash = uri.path_and_query().is_some_and(|target| target.as_str().starts_with('/'));
    let normal = match normal_path(uri.path(), fixed)? {
        Cow::Borrowed(_) if has_slash => return Ok(()),
        normal => normal.into_owned(),
    };
    let target = match uri.query() {
        Some(query) => format!("{normal}?{query}"),
        None => normal,
    };

    let target = PathAndQuery::try_from(target);
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = target.ok();
    *uri = Uri::from_parts(parts).map_err(|_| Ambiguity::BadEscape)?;
    Ok(())
}

/// The normal form of a path: unreserved characters are not escaped, other escapes are in upper
/// case, and there are no empty, `.` and `..` segments. A slash at the end stays. Of the segments
/// at the start, `fixed` counts those that dots do not climb out of.
///
/// # Errors
/// [`Ambiguity`] if servers may read the path in different ways.
pub fn normal_path(
    path: &str,
    fixed: impl Fn(&[String]) -> usize,
) -> Result<Cow<'_, str>, Ambiguity> {
    let segments = path.strip_prefix('/').ok_or(Ambiguity::NoSlash)?;
    if is_normal(segments) {
        return Ok(Cow::Borrowed(path));
    }

    let mut normal: Vec<String> = Vec::new();
    for segment in segments.split('/') {
        match normal_segment(segment)? {
            segment if segment.is_empty() || segment == "." => {}
            segment if segment == ".." => {
                if normal.len() <= fixed(&normal) {
                    return Err(Ambiguity::Climbs);
                }
                normal.pop();
            }
            segment => normal.push(segment),
        }
    }
    check_escaped_slashes(&normal)?;

    let mut path: String = normal.iter().flat_map(|segment| ["/", segment]).collect();
    if path.is_empty() || segments.ends_with('/') {
        path.push('/');
    }
    Ok(Cow::Owned(path))
}

/// Returns true for segments without escapes, dots at a start, or odd characters.
fn is_normal(segments: &str) -> bool {
    let is_plain = |byte: u8| is_path_character(byte) || byte == b'/';
    segments.bytes().all(is_plain)
        && !segments.starts_with(['/', '.'])
        && !segments.contains("//")
        && !segments.contains("/.")
}

fn normal_segment(segment: &str) -> Result<String, Ambiguity> {
    let (mut normal, mut bytes) = (String::new(), Vec::new());
    for (byte, is_escaped) in decoded(segment) {
        bytes.push(byte);
        match byte {
            0..0x20 | 0x7f => return Err(Ambiguity::ControlCharacter),
            b'\\' => return Err(Ambiguity::Backslash),
            b';' => return Err(Ambiguity::Semicolon),
            b'%' if is_escaped => return Err(Ambiguity::EscapedPercent),
            b'%' => return Err(Ambiguity::BadEscape),
            _ if is_unreserved(byte) || !is_escaped && is_path_character(byte) => {
                normal.push(char::from(byte));
            }
            _ => normal.push_str(&format!("%{byte:02X}")),
        }
    }
    match std::str::from_utf8(&bytes) {
        Ok(_) => Ok(normal),
        Err(_) => Err(Ambiguity::NotUtf8),
    }
}

/// Checks that a slash is escaped only in the id of a model, such as `org%2Fname`, where it makes
/// no difference whether a server decodes it.
fn check_escaped_slashes(segments: &[String]) -> Result<(), Ambiguity> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    for (at, segment) in segments.iter().enumerate().filter(|(_, s)| s.contains("%2F")) {
        let is_model_id = at + 1 == segments.len() && at > 0 && segments[at - 1] == "models";
        if !is_model_id || !segment.split("%2F").all(is_part) {
            return Err(Ambiguity::EscapedSlash);
        }
    }
    Ok(())
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Returns true for the characters that a segment may hold as they are, less the semicolon.
fn is_path_character(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,=:@".contains(&byte)
}

/// Ends and whole names of query parameters that hold a secret, in lower case and without `-`, `_`
/// and `.`.
const SECRET_ENDS: [&str; 9] =
    ["key", "token", "secret", "password", "passwd", "pwd", "signature", "credential", "auth"];
const SECRET_NAMES: [&str; 6] = ["authorization", "bearer", "credentials", "jwt", "pass", "sig"];

/// The value that stands for a secret.
const REDACTED: &str = "redacted";

/// A path and query in which the values of parameters that hold secrets are replaced.
pub fn redacted(path: &str) -> Cow<'_, str> {
    let Some((bare, query)) = path.split_once('?') else { return Cow::Borrowed(path) };
    if !query.split(['&', ';']).any(is_secret) {
        return Cow::Borrowed(path);
    }

    let mut kept = format!("{bare}?");
    for parameter in query.split_inclusive(['&', ';']) {
        let end = parameter.len() - usize::from(parameter.ends_with(['&', ';']));
        let (text, separator) = parameter.split_at(end);
        match text.split_once('=') {
            Some((name, _)) if is_secret(text) => {
                kept.extend([name, "=", REDACTED, separator]);
            }
            _ => kept.push_str(parameter),
        }
    }
    Cow::Owned(kept)
}

/// Returns true if a parameter has the name of a secret and a value.
fn is_secret(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    let letters = decoded(name).map(|(byte, _)| byte.to_ascii_lowercase());
    let letters: Vec<u8> = letters.filter(u8::is_ascii_alphanumeric).collect();
    let name = String::from_utf8_lossy(&letters);
    !value.is_empty()
        && (SECRET_NAMES.contains(&&*name) || SECRET_ENDS.iter().any(|end| name.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> String {
        normal_path(path, no_segment).unwrap_or_else(|why| panic!("{path}: {why:?}")).into_owned()
    }

    fn no_segment(_: &[String]) -> usize {
        0
    }

    #[test]
    fn an_empty_path_is_a_slash() {
        for (target, expected) in [("http://host?a=b", "/?a=b"), ("http://host", "/")] {
            let mut uri: Uri = target.parse().unwrap();
            normalize(&mut uri, no_segment).unwrap();
            assert_eq!(uri.path_and_query().unwrap().as_str(), expected, "{target}");
        }
    }

    #[test]
    fn a_path_has_one_normal_form() {
        for path in ["/", "/v1/models", "/v1/models/", "/e/run:1/a/2/v1/x@y", "/a..b/c."] {
            let normal = normal_path(path, no_segment);
            assert!(matches!(normal, Ok(Cow::Borrowed(same)) if same == path), "{path}");
        }
        for (path, expected) in [
            ("//v1/chat/completions", "/v1/chat/completions"),
            ("/v1//chat/completions/", "/v1/chat/completions/"),
            ("/v1/%63hat/completion%73", "/v1/chat/completions"),
            ("/v1/./chat/./completions", "/v1/chat/completions"),
            ("/v1/x/../chat/completions", "/v1/chat/completions"),
            ("/v1/%2e/chat/%2E%2e/messages", "/v1/messages"),
            ("/e/a/v1/../pause", "/e/a/pause"),
            ("/v1/..", "/"),
            ("///", "/"),
            ("/v1/models/org%2fname", "/v1/models/org%2Fname"),
            ("/v1/models/a%20b%3a", "/v1/models/a%20b%3A"),
            ("/v1/models/{x}|\"", "/v1/models/%7Bx%7D%7C%22"),
            ("/v1/models/Z\u{fc}rich", "/v1/models/Z%C3%BCrich"),
            ("/v1/models/Z%c3%bcrich", "/v1/models/Z%C3%BCrich"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
            assert_eq!(normal(expected), expected, "{path}: again");
        }
    }

    #[test]
    fn a_path_that_servers_may_read_in_different_ways_has_none() {
        for (path, why) in [
            ("*", Ambiguity::NoSlash),
            ("", Ambiguity::NoSlash),
            ("/..", Ambiguity::Climbs),
            ("/v1/../../pause", Ambiguity::Climbs),
            ("/v1/%zz", Ambiguity::BadEscape),
            ("/v1/%4", Ambiguity::BadEscape),
            ("/v1/%+1", Ambiguity::BadEscape),
            ("/v1/models%00", Ambiguity::ControlCharacter),
            ("/v1/%0d%0ax", Ambiguity::ControlCharacter),
            ("/v1\\models", Ambiguity::Backslash),
            ("/v1/..%5c..%5Cpause", Ambiguity::Backslash),
            ("/v1/chat%2fcompletions", Ambiguity::EscapedSlash),
            ("/v1/models/..%2f..%2fpause", Ambiguity::EscapedSlash),
            ("/v1/models/a%2F", Ambiguity::EscapedSlash),
            ("/v1/models/a%2Fb/c", Ambiguity::EscapedSlash),
            ("/%252e%252e/pause", Ambiguity::EscapedPercent),
            ("/v1/chat;x=1/completions", Ambiguity::Semicolon),
            ("/v1/chat/completions%3bx", Ambiguity::Semicolon),
            ("/%c0%ae%c0%ae/pause", Ambiguity::NotUtf8),
            ("/v1/models/%ff", Ambiguity::NotUtf8),
        ] {
            assert_eq!(normal_path(path, no_segment).map(|_| ()), Err(why), "{path}");
        }
    }

    #[test]
    fn dots_do_not_climb_out_of_fixed_segments() {
        let normal = |path, fixed: usize| normal_path(path, |_| fixed).map(Cow::into_owned);
        assert_eq!(normal("/a/b/../c", 1), Ok("/a/c".to_owned()));
        assert_eq!(normal("/a/b/../c", 2), Err(Ambiguity::Climbs));
    }

    #[test]
    fn only_the_path_of_a_target_changes() {
        let mut uri: Uri = "http://h:1//v1/%6dodels?a=%2e./x".parse().unwrap();
        normalize(&mut uri, no_segment).unwrap();
        assert_eq!(uri, "http://h:1/v1/models?a=%2e./x");
    }

    #[test]
    fn secrets_of_a_query_are_replaced() {
        for name in [
            "api_key",
            "api-key",
            "apikey",
            "key",
            "token",
            "access_token",
            "X-Goog-Api-Key",
            "subscription-key",
            "%61pi%5Fkey",
            "KEY",
            "sig",
            "client_secret",
            "password",
            "X-Amz-Signature",
            "auth",
            "authorization",
            "x-amz-security-token",
        ] {
            let path = format!("/v1/models?a=b&{name}=s3cret&c=d");
            assert_eq!(redacted(&path), format!("/v1/models?a=b&{name}=redacted&c=d"));
            assert_eq!(redacted(&format!("/?{name}=s3cret;x=1")), format!("/?{name}=redacted;x=1"));
        }
        for path in ["/v1/models", "/?max_tokens=5&keyword=a&beta=true", "/?key=", "/?key&a=1"] {
            assert!(matches!(redacted(path), Cow::Borrowed(same) if same == path), "{path}");
        }
    }
}
