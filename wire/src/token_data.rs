//! Data that servers report of each token beside its id, read out of the servers' own spellings.
//!
//! - [`alternatives`]: the likeliest tokens beside each sampled one.
//! - [`sampling_mask`]: the tokens that truncated sampling left to choose from.
//! - [`routing`]: the experts that each token was routed to ([`Routing`]).
//!
//! Each takes the JSON text of an [`episode::TokenColumn`]: a list with one element for each token,
//! or with whatever the server sent instead. Each returns `None` for a text that it cannot read.

use serde_json::Value;

mod routing;

pub(crate) use routing::{ExpertRows, expert_rows};
pub use routing::{Routing, routing};

/// A token beside the sampled one.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// Its id, if the server reports it.
    pub id: Option<u32>,
    /// Its text, if the server reports it.
    pub token: Option<String>,
    /// Its logprob.
    pub logprob: f32,
}

/// For each sampled token the likeliest ones, in the server's order.
pub fn alternatives(json: &str) -> Option<Vec<Vec<Alternative>>> {
    let tokens: Vec<Value> = serde_json::from_str(json).ok()?;
    tokens.iter().map(of_token).collect()
}

fn of_token(token: &Value) -> Option<Vec<Alternative>> {
    match token {
        Value::Null => Some(Vec::new()),
        // Chat: objects. SGLang's own: triples of logprob, id and text.
        Value::Array(entries) => entries.iter().map(of_entry).collect(),
        // Completions: one object, token to logprob.
        Value::Object(entries) => {
            entries.iter().map(|(name, logprob)| of_name(name, logprob)).collect()
        }
        _ => None,
    }
}

fn of_entry(entry: &Value) -> Option<Alternative> {
    if let Value::Array(triple) = entry {
        let [logprob, id, ..] = triple.as_slice() else { return None };
        let token = triple.get(2).and_then(Value::as_str).map(str::to_owned);
        return Some(Alternative { id: as_id(id), token, logprob: as_logprob(logprob)? });
    }
    let mut found = of_name(entry.get("token")?.as_str()?, entry.get("logprob")?)?;
    found.id = found.id.or_else(|| entry.get("id").and_then(as_id));
    Some(found)
}

/// The alternative of this name, which is the token's text, or its id as `token_id:N`.
fn of_name(name: &str, logprob: &Value) -> Option<Alternative> {
    let id = name.strip_prefix("token_id:").and_then(|id| id.parse().ok());
    let token = id.is_none().then(|| name.to_owned());
    Some(Alternative { id, token, logprob: as_logprob(logprob)? })
}

/// A logprob; JSON spells an infinity as null.
fn as_logprob(number: &Value) -> Option<f32> {
    match number {
        Value::Null => Some(f32::NEG_INFINITY),
        number => number.as_f64().map(|number| number as f32),
    }
}

fn as_id(id: &Value) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// For each sampled token the ids that could have been sampled; an empty list if the server reports
/// none.
pub fn sampling_mask(json: &str) -> Option<Vec<Vec<u32>>> {
    let tokens: Vec<Option<Vec<u32>>> = serde_json::from_str(json).ok()?;
    Some(tokens.into_iter().map(Option::unwrap_or_default).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(id: Option<u32>, token: Option<&str>, logprob: f32) -> Alternative {
        Alternative { id, token: token.map(str::to_owned), logprob }
    }

    #[test]
    fn alternatives_are_read_in_each_spelling() {
        let cases = [
            (
                concat!(
                    r#"[[{"token":"a","logprob":-0.5,"bytes":[97]},"#,
                    r#"{"token":"token_id:7","logprob":-1}]]"#
                ),
                vec![other(None, Some("a"), -0.5), other(Some(7), None, -1.0)],
            ),
            (r#"[[{"token":"a","id":3,"logprob":-0.5}]]"#, vec![other(Some(3), Some("a"), -0.5)]),
            (r#"[{"token_id:7":-0.5,"b":-1.0}]"#, {
                vec![other(Some(7), None, -0.5), other(None, Some("b"), -1.0)]
            }),
            (r#"[[[-0.5,7,"a"],[-1.0,8,null]]]"#, {
                vec![other(Some(7), Some("a"), -0.5), other(Some(8), None, -1.0)]
            }),
            (r#"[[{"token":"a","logprob":null}]]"#, {
                vec![other(None, Some("a"), f32::NEG_INFINITY)]
            }),
            ("[null]", vec![]),
        ];
        for (json, expected) in cases {
            assert_eq!(alternatives(json), Some(vec![expected]), "{json}");
        }
        for json in ["[7]", "[[7]]", r#"[[{"token":"a"}]]"#, r#"["YWJj"]"#, "{"] {
            assert_eq!(alternatives(json), None, "{json}");
        }
    }

    #[test]
    fn kept_sets_are_lists_of_ids() {
        assert_eq!(sampling_mask("[[7,8],null,[9]]"), Some(vec![vec![7, 8], vec![], vec![9]]));
        assert_eq!(sampling_mask(r#"["AAAA"]"#), None);
        assert_eq!(sampling_mask("[[-1]]"), None);
    }
}
