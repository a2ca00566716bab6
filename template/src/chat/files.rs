//! Where a model folder keeps its chat template.

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::{DEFAULT, TOOL_USE, TemplateError};

/// What a folder has.
pub(super) struct Sources {
    pub(super) default: Option<String>,
    pub(super) tool_use: Option<String>,
    pub(super) special_tokens: Map<String, Value>,
}

/// Reads `chat_template.jinja` with `additional_chat_templates/tool_use.jinja` beside it, or else
/// what `tokenizer_config.json` holds, as `transformers` does.
pub(super) fn read(folder: &Path) -> Result<Sources, TemplateError> {
    let path = folder.join("tokenizer_config.json");
    let config = match text(&path)? {
        None => Value::Null,
        Some(text) => serde_json::from_str(&text)
            .map_err(|source| TemplateError::Json { path: path.clone(), source })?,
    };
    let beside = folder.join("additional_chat_templates").join(format!("{TOOL_USE}.jinja"));
    let (default, tool_use) = match text(&folder.join("chat_template.jinja"))? {
        Some(source) => (Some(source), text(&beside)?),
        None => embedded(&config).map_err(|()| TemplateError::Form { path })?,
    };
    Ok(Sources { default, tool_use, special_tokens: special_tokens(&config) })
}

fn text(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TemplateError::Read { path: path.to_owned(), source }),
    }
}

/// The templates in `tokenizer_config.json`: a string, or a list of named ones.
fn embedded(config: &Value) -> Result<(Option<String>, Option<String>), ()> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok((None, None)),
        Some(Value::String(source)) => Ok((Some(source.clone()), None)),
        Some(Value::Array(named)) => {
            let named = |name: &str| {
                let entry = named.iter().find(|entry| entry["name"] == name)?;
                entry["template"].as_str().map(str::to_owned)
            };
            Ok((Some(named(DEFAULT).ok_or(())?), named(TOOL_USE)))
        }
        Some(_) => Err(()),
    }
}

/// The `*_token` fields; each is a string or an object with `content`.
fn special_tokens(config: &Value) -> Map<String, Value> {
    let mut tokens = Map::new();
    for (key, value) in config.as_object().into_iter().flatten() {
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        if let (true, Some(text)) = (key.ends_with("_token"), text) {
            tokens.insert(key.clone(), text.into());
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn named_templates_are_found() {
        let config = json!({"chat_template": [{"name": "tool_use", "template": "t"},
                                              {"name": "default", "template": "d"}]});
        assert_eq!(embedded(&config), Ok((Some("d".to_owned()), Some("t".to_owned()))));
        assert_eq!(embedded(&json!({"chat_template": 3})), Err(()));
        let unnamed = json!({"chat_template": [{"name": "tool_use", "template": "t"}]});
        assert_eq!(embedded(&unnamed), Err(()));
    }
}
