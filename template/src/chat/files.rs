//! The chat templates in the files of a model folder.

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::{DEFAULT, TOOL_USE, TemplateError};

/// The chat templates and special tokens of a folder.
pub(super) struct TemplateSources {
    pub(super) default: Option<String>,
    pub(super) tool_use: Option<String>,
    pub(super) special_tokens: Map<String, Value>,
}

/// Reads `chat_template.jinja` and `additional_chat_templates/tool_use.jinja`, or else the
/// templates in `tokenizer_config.json`, as `transformers` does.
pub(super) fn read(folder: &Path) -> Result<TemplateSources, TemplateError> {
    let path = folder.join("tokenizer_config.json");
    let config = match text(&path)? {
        None => Value::Null,
        Some(text) => serde_json::from_str(&text)
            .map_err(|source| TemplateError::Json { path: path.clone(), source })?,
    };

    let tool_use = folder.join("additional_chat_templates").join(format!("{TOOL_USE}.jinja"));
    let (default, tool_use) = match text(&folder.join("chat_template.jinja"))? {
        Some(source) => (Some(source), text(&tool_use)?),
        None => embedded(&config).map_err(|()| TemplateError::Form { path })?,
    };
    Ok(TemplateSources { default, tool_use, special_tokens: special_tokens(&config) })
}

/// Reads a file; `None` if it is absent.
fn text(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TemplateError::Read { path: path.to_owned(), source }),
    }
}

/// Returns the default template and the one for tools in `tokenizer_config.json`, which has a
/// string or a list of named templates.
fn embedded(config: &Value) -> Result<(Option<String>, Option<String>), ()> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok((None, None)),
        Some(Value::String(source)) => Ok((Some(source.clone()), None)),
        Some(Value::Array(entries)) => {
            Ok((Some(named(entries, DEFAULT).ok_or(())?), named(entries, TOOL_USE)))
        }
        Some(_) => Err(()),
    }
}

fn named(entries: &[Value], name: &str) -> Option<String> {
    let entry = entries.iter().find(|entry| entry["name"] == name)?;
    entry["template"].as_str().map(str::to_owned)
}

/// Returns the `*_token` fields. Each is a string or an object with `content`.
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
