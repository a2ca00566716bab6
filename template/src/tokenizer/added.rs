//! The tokens of a model folder that stand beside `tokenizer.json`, as `transformers` finds them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::TokenizerError;

/// The fields with a special token each, in the order in which `transformers` adds them.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The fields that list further special tokens, or have them as the members of an object.
const LISTED: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// Reads the tokens of a folder in the order in which they get their ids: those of
/// `added_tokens_decoder`, or else of `added_tokens.json`, by their ids, then the named ones, then
/// the listed ones. Most are in `tokenizer.json`, too.
///
/// # Errors
/// If a file is neither absent nor an object.
pub(super) fn read(folder: &Path) -> Result<Vec<AddedToken>, TokenizerError> {
    let mut config = object(folder.join("tokenizer_config.json"))?;
    let mut by_id = BTreeMap::new();
    if let Some(Value::Object(decoder)) = config.get("added_tokens_decoder") {
        by_id.extend(decoder.iter().filter_map(|(id, token)| {
            let is_special = token.get("special").is_some_and(|special| special == true);
            Some((id.parse().ok()?, of_object(token, is_special)?))
        }));
    } else {
        config.extend(object(folder.join("special_tokens_map.json"))?);
        let special: Vec<AddedToken> = special_tokens(&config).collect();
        for (content, id) in object(folder.join("added_tokens.json"))? {
            let is_special = special.iter().any(|token| token.content == content);
            let id = id.as_u64().unwrap_or(u64::MAX);
            by_id.insert(id, AddedToken::from(content, is_special));
        }
    }
    Ok(by_id.into_values().chain(special_tokens(&config)).collect())
}

fn object(path: PathBuf) -> Result<Map<String, Value>, TokenizerError> {
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(TokenizerError::Load { path, reason: error.to_string() }),
    };
    serde_json::from_str(&text)
        .map_err(|error| TokenizerError::Load { path, reason: error.to_string() })
}

/// The named and the listed tokens.
fn special_tokens(config: &Map<String, Value>) -> impl Iterator<Item = AddedToken> + '_ {
    let named = NAMED.into_iter().filter_map(|name| config.get(name));
    let listed = LISTED.into_iter().filter_map(|name| config.get(name));
    let listed = listed.flat_map(|tokens| match tokens {
        Value::Array(tokens) => tokens.iter().collect(),
        Value::Object(tokens) => tokens.values().collect(),
        _ => Vec::new(),
    });
    named.chain(listed).filter_map(|token| match token {
        Value::String(content) => Some(AddedToken::from(content.as_str(), true)),
        token => of_object(token, true),
    })
}

/// A token as an object with its content.
fn of_object(token: &Value, is_special: bool) -> Option<AddedToken> {
    let flag = |name: &str| token.get(name).and_then(Value::as_bool);
    let content = token.get("content")?.as_str()?;
    Some(
        AddedToken::from(content, is_special)
            .single_word(flag("single_word").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!is_special)),
    )
}
