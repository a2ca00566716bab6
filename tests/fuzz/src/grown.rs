//! JSON that is built from any bytes, with the words that `wire` looks for.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// Deepest nesting: `serde_json` reads no deeper.
const DEPTH_MAX: usize = 100;

/// The words of the fuzzer's dictionary.
static WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let words = include_str!("../words.dict").lines();
    words.filter_map(|line| line.strip_prefix("\"\\\"")?.strip_suffix("\\\"\"")).collect()
});

/// Texts of more than a word.
const TEXTS: [&str; 8] =
    ["", "{}", "{\"input\":\"x\"}", "[1", "\u{e9}\u{2028}\"\\", "0", "m", "\n\n"];
const NUMBERS: [f64; 6] = [-0.5, -9999.0, 1e300, 0.1, 1e-5, 16_777_217.0];

/// Reads `program` as instructions: begin a list or an object, end it, or put a leaf there.
pub fn grown(program: &[u8]) -> Value {
    let mut bytes = program.iter().copied();
    let mut open: Vec<(Option<String>, Value)> = Vec::new();
    let mut root = Value::Object(Map::new());
    let mut key = None;
    while let Some(op) = bytes.next() {
        let mut next = || usize::from(bytes.next().unwrap_or(0));
        let into_object = matches!(open.last().map_or(&root, |(_, value)| value), Value::Object(_));
        if into_object && key.is_none() && op % 8 != 7 {
            key = Some(WORDS[(usize::from(op) + 256 * (next() % 2)) % WORDS.len()].to_owned());
            continue;
        }
        let leaf = match op % 8 {
            0 | 1 if open.len() < DEPTH_MAX => {
                let empty = if op % 8 == 0 { json!({}) } else { json!([]) };
                open.push((key.take(), empty));
                continue;
            }
            2 => json!(WORDS[(usize::from(op) / 8 * 8 + next()) % WORDS.len()]),
            3 => json!(TEXTS[next() % TEXTS.len()]),
            4 => json!(next() % 4),
            5 => match next() {
                odd if odd % 2 == 1 => json!(u64::MAX - odd as u64),
                even => json!(NUMBERS[even / 2 % NUMBERS.len()]),
            },
            6 => [json!(true), json!(false), Value::Null][next() % 3].clone(),
            _ => {
                if let Some((name, value)) = open.pop() {
                    put(open.last_mut().map_or(&mut root, |(_, value)| value), name, value);
                }
                continue;
            }
        };
        put(open.last_mut().map_or(&mut root, |(_, value)| value), key.take(), leaf);
    }
    while let Some((name, value)) = open.pop() {
        put(open.last_mut().map_or(&mut root, |(_, value)| value), name, value);
    }
    root
}

fn put(into: &mut Value, key: Option<String>, value: Value) {
    match into {
        Value::Array(items) => items.push(value),
        Value::Object(members) => {
            members.insert(key.unwrap_or_default(), value);
        }
        _ => {}
    }
}
