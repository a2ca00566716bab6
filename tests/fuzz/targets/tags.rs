//! Any request is tagged or refused; what is tagged can be said again as a path, no tag and no key
//! goes on to the upstream, and nobody makes a key.
#![no_main]

use fuzz::parts;
use libfuzzer_sys::fuzz_target;
use proxy::fuzzing::{opens, read_tag, sign_key};

/// The place of a signed key in an input.
const KEY: &str = "$KEY";
const EPISODE: &str = "a";
const ATTEMPT: u32 = 0;
const NOW: i64 = 1_000_000;
const EXPIRES: i64 = 2_000_000;
/// Headers that are for rolltape alone.
const TAGS: [&str; 5] = ["x-episode-id", "x-attempt", "x-group-id", "x-task-id", "x-episode-tag"];

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let Ok(text) = str::from_utf8(text) else { return };
    let key = sign_key(EPISODE, ATTEMPT, EXPIRES).expect("it is a good name");
    forged(text, &key);

    // A late request comes with a key that has expired.
    let now = if knobs.flag(0, 0) { NOW } else { EXPIRES };
    let text = text.replace(KEY, &key);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    let (method, target) = first.split_once(' ').unwrap_or(("POST", first));
    let headers: Vec<(&[u8], &[u8])> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.as_bytes(), value.trim().as_bytes()))
        .collect();
    let read = read_tag((method.as_bytes(), target), &headers, body.as_bytes(), now);
    let tag = match read {
        None => return,
        Some(Err(status)) => return assert!((400..500).contains(&status), "{status}"),
        Some(Ok(tag)) => tag,
    };

    assert!(!tag.episode.is_empty() && tag.episode.len() <= 200);
    assert!(tag.path.starts_with('/'), "{}", tag.path);
    for (name, value) in &tag.headers {
        assert!(!TAGS.contains(&name.as_str()), "{name}");
        assert!(!holds(value, &key), "{name}: {value:?}");
    }
    assert!(!holds(tag.path.as_bytes(), &key), "{}", tag.path);
    if tag.is_auto {
        return;
    }
    let again = format!("/e/{}/a/{}{}", tag.episode, tag.attempt, tag.path);
    let again = read_tag((method.as_bytes(), &again), &[], body.as_bytes(), now);
    let again = again.expect("a path that was read").expect("a tag that was read");
    let names = |tag: &proxy::fuzzing::ReadTag| (tag.episode.clone(), tag.attempt);
    assert_eq!(names(&again), names(&tag));
    assert_eq!(again.path, tag.path);
});

/// True if a key stands in a value as a word of its own: not behind a letter that a key may have.
fn holds(value: &[u8], key: &str) -> bool {
    let may_have = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let starts = (0..value.len()).filter(|at| value[*at..].starts_with(key.as_bytes()));
    starts.into_iter().any(|at| at == 0 || !may_have(value[at - 1]))
}

/// No word of a text is a key but the one that was signed, and that one until it expires.
fn forged(text: &str, key: &str) {
    assert!(opens(key, NOW) && !opens(key, EXPIRES));
    for word in text.split_whitespace() {
        assert!(word == key || !opens(word, NOW), "{word}");
        let changed = word.replace(KEY, key);
        assert!(changed == key || !opens(&changed, NOW), "{changed}");
    }
    // The text changes a letter of the key.
    let (at, letter) = (text.len() % key.len(), text.chars().next().unwrap_or('x'));
    let changed = format!("{}{letter}{}", &key[..at], &key[at + 1..]);
    assert!(changed == key || !opens(&changed, NOW), "{changed}");
}
