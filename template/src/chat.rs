//! A model's chat template, rendered as `transformers` renders it.
//!
//! [`ChatTemplate`] holds the compiled template; [`ChatInput`] is what one call puts into it.
//! `strftime_now` is left undefined: with a clock in the prompt, the same messages would give other
//! tokens tomorrow, and templates that use it have a fixed date to fall back on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value};

use crate::json;

/// The role of those who build on a model, between system and user.
const DEVELOPER: &str = "developer";
const NAME: &str = "chat";

/// Why a chat template could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file exists and cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// `tokenizer_config.json` is not JSON.
    #[error("`{path}` is not JSON")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The `chat_template` field is neither a string nor a list with a `default`.
    #[error("`chat_template` of `{path}` is neither a string nor a list with a `default`")]
    Form {
        /// The file.
        path: PathBuf,
    },
    /// The template does not parse.
    #[error("the chat template does not parse")]
    Syntax {
        /// Where and why.
        #[source]
        source: Error,
    },
}

/// Why messages could not be rendered; the text is meant for the caller.
#[derive(Debug, thiserror::Error)]
#[error("the chat template refused the messages: {reason}")]
pub struct RenderError {
    reason: String,
}

/// What one call puts into a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatInput<'a> {
    /// Messages as [`crate::prepare`] returns them.
    pub messages: &'a [Value],
    /// Tool definitions, as the client sent them.
    pub tools: Option<&'a [Value]>,
    /// Whether the reply of the assistant is to be opened.
    pub add_generation_prompt: bool,
    /// Further variables, `chat_template_kwargs` of the request.
    pub variables: Option<&'a Map<String, Value>>,
}

/// A compiled chat template with the special tokens of its tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Value>,
    /// Whether it has a word for what developers say; if not, that counts as the system's.
    knows_developer: bool,
}

impl ChatTemplate {
    /// Reads the template of a model folder: `chat_template.jinja`, or else the `chat_template`
    /// field of `tokenizer_config.json`. A folder without either has no template.
    ///
    /// # Errors
    /// A file that cannot be read or parsed.
    pub fn load(folder: &Path) -> Result<Option<ChatTemplate>, TemplateError> {
        let path = folder.join("tokenizer_config.json");
        let config = match read(&path)? {
            None => Value::Null,
            Some(text) => serde_json::from_str(&text)
                .map_err(|source| TemplateError::Json { path: path.clone(), source })?,
        };
        let source = match read(&folder.join("chat_template.jinja"))? {
            Some(source) => Some(source),
            None => embedded(&config).map_err(|()| TemplateError::Form { path })?,
        };
        source.map(|source| ChatTemplate::new(&source, special_tokens(&config))).transpose()
    }

    /// Compiles a template; `special_tokens` become variables such as `bos_token`.
    ///
    /// # Errors
    /// A template that does not parse.
    pub fn new(
        source: &str,
        special_tokens: Map<String, Value>,
    ) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(format);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|source| TemplateError::Syntax { source })?;
        let knows_developer = source.contains(DEVELOPER);
        Ok(ChatTemplate { environment, special_tokens, knows_developer })
    }

    /// The prompt for the messages, as text in which special tokens are spelled out.
    ///
    /// # Errors
    /// What the template raises, or a value that it cannot handle.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, RenderError> {
        let refused = |error: Error| RenderError {
            reason: error.detail().map_or_else(|| error.to_string(), str::to_owned),
        };
        let template = self.environment.get_template(NAME).map_err(refused)?;
        // Later ones win: a request may replace a special token, but not the messages.
        let given = input.variables.into_iter().flatten();
        let mut variables: BTreeMap<&str, Jinja> = BTreeMap::new();
        for (key, value) in self.special_tokens.iter().chain(given) {
            variables.insert(key, Jinja::from_serialize(value));
        }
        variables.insert("messages", Jinja::from_serialize(self.roles_of(input.messages)));
        variables.insert("tools", Jinja::from_serialize(input.tools));
        variables.insert("documents", Jinja::from(()));
        variables.insert("add_generation_prompt", Jinja::from(input.add_generation_prompt));
        template.render(variables).map_err(refused)
    }

    fn roles_of<'a>(&self, messages: &'a [Value]) -> Cow<'a, [Value]> {
        let is_developer = |message: &Value| message.get("role").is_some_and(|r| r == DEVELOPER);
        if self.knows_developer || !messages.iter().any(is_developer) {
            return Cow::Borrowed(messages);
        }
        let mut renamed = messages.to_vec();
        for message in renamed.iter_mut().filter(|message| is_developer(message)) {
            message["role"] = Value::from("system");
        }
        Cow::Owned(renamed)
    }
}

fn read(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TemplateError::Read { path: path.to_owned(), source }),
    }
}

/// The template in `tokenizer_config.json`: a string, or a list of named ones.
fn embedded(config: &Value) -> Result<Option<String>, ()> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|entry| entry["name"] == "default").ok_or(())?;
            default["template"].as_str().map(|source| Some(source.to_owned())).ok_or(())
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

/// Turns the `generation` tags, which mark text for training and which only `transformers` knows,
/// into tags that do nothing and treat the space around them alike.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        for (keyword, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
            let lead = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
            let Some(after) = tag[lead..].strip_prefix(keyword) else { continue };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                out.extend([&tag[..lead], plain]);
                rest = after;
            }
        }
    }
    out + rest
}

fn raise_exception(message: String) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps` with `ensure_ascii=False`; unlike the built-in filter it escapes nothing for HTML.
fn tojson(value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // `ensure_ascii`, `separators` and `sort_keys` are accepted, as templates pass the defaults.
    for known in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Jinja> = options.get(known)?;
    }
    options.assert_all_used()?;
    let text = match indent {
        Some(indent) => json::dumps_indented(value, indent),
        None => json::dumps(value),
    };
    let text = text.map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "cannot write as JSON").with_source(error)
    })?;
    Ok(Jinja::from_safe_string(text))
}

/// Prints constants as Python does.
fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Jinja) -> Result<(), Error> {
    let constant = match value {
        value if value.is_undefined() => "",
        value if value.is_none() => "None",
        value if *value == Jinja::from(true) && value.kind() == BOOL => "True",
        value if value.kind() == BOOL => "False",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(constant).map_err(Error::from)
}

const BOOL: minijinja::value::ValueKind = minijinja::value::ValueKind::Bool;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, input: &ChatInput<'_>) -> Result<String, RenderError> {
        let tokens = json!({"bos_token": "<s>"}).as_object().unwrap().clone();
        ChatTemplate::new(source, tokens).unwrap().render(input)
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let messages = [json!({"role": "user", "content": " hi<b> "})];
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if true %}\n\
                      {{ m.content.strip() }}|{{ m['role'].upper() }}\n  {% endif %}\n{% endfor %}";
        let input = ChatInput { messages: &messages, ..ChatInput::default() };
        assert_eq!(render(source, &input).unwrap(), "<s>\nhi<b>|USER\n");
    }

    #[test]
    fn what_developers_say_is_the_systems_where_the_template_has_no_word_for_it() {
        let messages = [json!({"role": "developer", "content": "a"})];
        let input = ChatInput { messages: &messages, ..ChatInput::default() };
        assert_eq!(render("{{ messages[0].role }}", &input).unwrap(), "system");
        let knows = "{% if messages[0].role == 'developer' %}yes{% endif %}";
        assert_eq!(render(knows, &input).unwrap(), "yes");
    }

    #[test]
    fn tojson_is_that_of_python() {
        let tools = [json!({"z": "<'&>", "a": [1.0, null]})];
        let input = ChatInput { tools: Some(&tools), ..ChatInput::default() };
        let expected = r#"{"z": "<'&>", "a": [1.0, null]}"#;
        assert_eq!(render("{{ tools[0] | tojson }}", &input).unwrap(), expected);
        let indented = render("{{ tools[0].a | tojson(indent=4) }}", &input).unwrap();
        assert_eq!(indented, "[\n    1.0,\n    null\n]");
    }

    #[test]
    fn tools_are_none_when_absent_and_constants_print_as_in_python() {
        let source = "{{ tools }} {{ true }} {{ 1 == 2 }} {{ nothing }}|{{ 1 }}";
        assert_eq!(render(source, &ChatInput::default()).unwrap(), "None True False |1");
    }

    #[test]
    fn variables_reach_the_template_and_do_not_replace_the_messages() {
        let variables = json!({"enable_thinking": false, "messages": [], "bos_token": "B"});
        let messages = [json!({"role": "user", "content": "x"})];
        let input = ChatInput {
            messages: &messages,
            variables: variables.as_object(),
            ..ChatInput::default()
        };
        let source = "{{ enable_thinking }} {{ messages | length }} {{ bos_token }}";
        assert_eq!(render(source, &input).unwrap(), "False 1 B");
    }

    #[test]
    fn generation_tags_vanish() {
        let source = "a\n{%- generation -%}\n b {{ '{%' }}\n{% endgeneration %}\nc";
        assert_eq!(render(source, &ChatInput::default()).unwrap(), "ab {%\nc");
    }

    #[test]
    fn what_a_template_raises_is_the_reason() {
        let error = render("{{ raise_exception('no system') }}", &ChatInput::default());
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "the chat template refused the messages: no system");
    }

    #[test]
    fn a_named_default_is_found() {
        let config = json!({"chat_template": [{"name": "tool_use", "template": "t"},
                                              {"name": "default", "template": "d"}]});
        assert_eq!(embedded(&config), Ok(Some("d".to_owned())));
        assert_eq!(embedded(&json!({"chat_template": 3})), Err(()));
    }
}
