//! A model's chat template, rendered as `transformers` renders it.
//!
//! [`ChatTemplate`] holds the compiled template; [`ChatInput`] has the inputs of one call. Nothing
//! here reads a clock: `strftime_now` is defined only if the caller gives a time. Templates that
//! use it fall back on a fixed date.

mod bounds;
mod files;
mod operators;
mod python;
mod rewrite;
mod text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use minijinja::value::Value as Jinja;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};

use crate::json::exact::{self, Exact};

/// The role between system and user.
const DEVELOPER: &str = "developer";
/// Names of templates, in the environment and in the list of a tokenizer.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// The mark behind a message that the reply continues. It ends with a space, so that a template
/// that trims the message shows it.
const CONTINUED: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// The variable with the tools of a call.
const TOOLS: &str = "tools";

/// Error of loading a chat template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file exists and cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// `tokenizer_config.json` is not JSON.
    #[error("`{path}` is not JSON")]
    Json {
        /// The file.
        path: PathBuf,
        /// Error of the parser, with the place.
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
        /// Error of the parser, with the place.
        #[source]
        source: Error,
    },
}

/// Error of rendering messages. The text is meant for the client.
#[derive(Debug, thiserror::Error)]
#[error("the chat template refused the messages: {reason}")]
pub struct RenderError {
    reason: String,
}

/// The inputs of one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatInput<'a> {
    /// Messages as [`crate::prepare`] returns them.
    pub messages: &'a [Value],
    /// Tool definitions, as the client sent them.
    pub tools: Option<&'a [Value]>,
    /// Ends the prompt with the start of the assistant's reply.
    pub add_generation_prompt: bool,
    /// Documents for templates that quote from them, as the client sent them.
    pub documents: Option<&'a [Value]>,
    /// Further variables, `chat_template_kwargs` of the request.
    pub variables: Option<&'a Map<String, Value>>,
    /// Seconds since 1970, for `strftime_now`; without it the function is not defined.
    pub now: Option<i64>,
}

impl ChatInput<'_> {
    /// Bytes of the texts that the template can see.
    fn text_bytes(&self) -> usize {
        let lists = [Some(self.messages), self.tools, self.documents];
        let of_lists = lists.into_iter().flatten().flatten().map(text_bytes).sum::<usize>();
        let variables = self.variables.into_iter().flatten();
        of_lists + variables.map(|(name, value)| name.len() + text_bytes(value)).sum::<usize>()
    }
}

/// Bytes of the texts in a value, and a few for each other value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + text_bytes(value)).sum()
        }
        _ => size_of::<u64>(),
    }
}

/// A compiled chat template with the special tokens of its tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Value>,
    source: String,
    has_tool_use: bool,
    /// True if it goes through the parts of a content that is a list.
    reads_parts: bool,
    tool_use_reads_parts: bool,
    /// True if it mentions the role; if not, developers' messages become the system's.
    knows_developer: bool,
}

impl ChatTemplate {
    /// Reads the template of a model folder: `chat_template.jinja`, or else the `chat_template`
    /// field of `tokenizer_config.json`. If that has several templates, `default` is used, and
    /// `tool_use` for calls with tools. Returns `None` if the folder has no template.
    ///
    /// # Errors
    /// If a file cannot be read or parsed.
    pub fn load(folder: &Path) -> Result<Option<ChatTemplate>, TemplateError> {
        let files::TemplateSources { default, tool_use, special_tokens } = files::read(folder)?;
        let Some(default) = default else { return Ok(None) };
        let mut template = ChatTemplate::new(&default, special_tokens)?;
        if let Some(source) = tool_use {
            template.add(TOOL_USE, &source)?;
            template.knows_developer |= source.contains(DEVELOPER);
            template.source.push_str(&source);
            template.has_tool_use = true;
            template.tool_use_reads_parts = template.shows_parts(Some(&[]));
        }
        Ok(Some(template))
    }

    /// Compiles a template; `special_tokens` become variables such as `bos_token`.
    ///
    /// # Errors
    /// If the template does not parse.
    pub fn new(
        source: &str,
        special_tokens: Map<String, Value>,
    ) -> Result<ChatTemplate, TemplateError> {
        let mut template = ChatTemplate {
            environment: python::environment(),
            special_tokens,
            source: source.to_owned(),
            has_tool_use: false,
            reads_parts: false,
            tool_use_reads_parts: false,
            knows_developer: source.contains(DEVELOPER),
        };
        template.add(DEFAULT, source)?;
        template.reads_parts = template.shows_parts(None);
        Ok(template)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), TemplateError> {
        rewrite::with_calls(&with_raw_newlines(&without_generation_tags(source)))
            .and_then(|source| self.environment.add_template_owned(name, source))
            .map_err(|source| TemplateError::Syntax { source })
    }

    /// The text of the template, or of all templates one after another.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// True if a template reads `tools`; if none does, the model is not told of them.
    pub fn reads_tools(&self) -> bool {
        let reads = |name| {
            let template = self.environment.get_template(name);
            template.is_ok_and(|template| template.undeclared_variables(false).contains(TOOLS))
        };
        [DEFAULT, TOOL_USE].into_iter().any(reads)
    }

    /// Renders the prompt, as text in which special tokens are spelled out.
    ///
    /// # Errors
    /// If the template raises an error, or cannot handle a value.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, RenderError> {
        let name = if self.has_tool_use && input.tools.is_some() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(refused)?;

        // Later entries replace earlier ones: a request may replace a special token, but not the
        // messages.
        let given = input.variables.into_iter().flatten();
        let mut variables: BTreeMap<&str, Jinja> = BTreeMap::new();
        if let Some(now) = input.now {
            let strftime_now = Jinja::from_function(move |format: String| {
                Jinja::from(python::strftime(now, &format))
            });
            variables.insert("strftime_now", strftime_now);
        }
        for (key, value) in self.special_tokens.iter().chain(given) {
            variables.insert(key, Jinja::from_serialize(Exact(value)));
        }

        variables.insert("messages", exact_list(Some(&self.known_roles(input.messages))));
        variables.insert(TOOLS, exact_list(input.tools));
        variables.insert("documents", exact_list(input.documents));
        variables.insert("add_generation_prompt", Jinja::from(input.add_generation_prompt));
        bounds::begin(input.text_bytes());
        template.render(variables).map(exact::shown).map_err(refused)
    }

    /// Renders a prompt that ends inside the last message, for a reply that continues it. A mark at
    /// the end of the message shows the place, as in `transformers`.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and if the last message's text is not in the prompt.
    pub fn render_continuation(&self, input: &ChatInput<'_>) -> Result<String, RenderError> {
        let mut messages = input.messages.to_vec();
        let last = messages.last_mut().and_then(last_text).ok_or_else(no_continuation)?;
        let continued = last.clone();
        last.push_str(CONTINUED);

        let input = ChatInput { messages: &messages, add_generation_prompt: false, ..*input };
        let mut text = self.render(&input)?;
        let mark = CONTINUED.trim_end();
        let end = text.rfind(mark).filter(|_| text.contains(strip(&continued)));
        let end = end.ok_or_else(no_continuation)?;

        // If the template trims the content, the reply continues the trimmed text.
        let keeps_spaces = text[end..].starts_with(CONTINUED);
        text.truncate(end);
        if !keeps_spaces {
            text.truncate(text.trim_end_matches(is_space).len());
        }
        Ok(text)
    }

    /// Returns true if the template for a call goes through the parts of a content that is a list.
    pub fn reads_parts(&self, has_tools: bool) -> bool {
        if self.has_tool_use && has_tools { self.tool_use_reads_parts } else { self.reads_parts }
    }

    /// Returns true if the template goes through the parts of a content that is a list: if a prompt
    /// shows their texts, and not the list itself.
    fn shows_parts(&self, tools: Option<&[Value]>) -> bool {
        const FIRST: &str = "~first~";
        const SECOND: &str = "~second~";
        let parts = [FIRST, SECOND].map(|text| json!({"type": "text", "text": text}));
        let messages = [json!({"role": "user", "content": parts})];
        let input = ChatInput { messages: &messages, tools, now: Some(0), ..ChatInput::default() };

        self.render(&input).is_ok_and(|text| {
            let between = text.split_once(FIRST).and_then(|(_, rest)| rest.split_once(SECOND));
            between.is_some_and(|(between, _)| !between.contains("text"))
        })
    }

    /// Turns developers' messages into the system's, if the template does not know that role.
    fn known_roles<'a>(&self, messages: &'a [Value]) -> Cow<'a, [Value]> {
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

/// The text that a continued message ends with: its content, or the last part that has a text.
fn last_text(message: &mut Value) -> Option<&mut String> {
    match message.get_mut("content")? {
        Value::String(text) => Some(text),
        Value::Array(parts) => {
            parts.iter_mut().rev().find_map(|part| match part.get_mut("text")? {
                Value::String(text) => Some(text),
                _ => None,
            })
        }
        _ => None,
    }
}

/// `str.strip` of Python.
fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.isspace` of Python, which has four more characters than Unicode's white space.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&letter)
}

fn no_continuation() -> RenderError {
    let reason = "the last message, which the reply is to go on with, is not in the prompt";
    RenderError { reason: reason.to_owned() }
}

/// A list of JSON values for a template, or none.
fn exact_list(values: Option<&[Value]>) -> Jinja {
    Jinja::from_serialize(values.map(|values| values.iter().map(Exact).collect::<Vec<_>>()))
}

fn is_developer(message: &Value) -> bool {
    message.get("role").is_some_and(|role| role == DEVELOPER)
}

/// The error of a template that refused its input.
fn refused(error: Error) -> RenderError {
    if is_out_of_steps(&error) {
        let reason = format!("the template takes more than {} steps", bounds::STEPS_MAX);
        return RenderError { reason };
    }
    RenderError { reason: error.detail().map_or_else(|| error.to_string(), str::to_owned) }
}

/// True if a rendering was ended for its steps, in a macro too.
fn is_out_of_steps(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let found = error.downcast_ref::<Error>().map(Error::kind);
        if found == Some(ErrorKind::OutOfFuel) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Replaces the `generation` tags, which mark text for training and which only `transformers`
/// knows, by tags that do nothing and treat the white space around them in the same way.
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

/// Doubles the newline at the start of each `raw` block: Jinja2 keeps it, while `minijinja` removes
/// one there as after any other tag.
fn with_raw_newlines(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let name = tag.trim_start_matches(['-', '+']).trim_start();
        let closed = name.strip_prefix("raw").map(str::trim_start);
        let text = closed.and_then(|closed| closed.strip_prefix("%}"));
        if let Some(text) = text.filter(|text| text.starts_with('\n')) {
            out.extend([&tag[..tag.len() - text.len()], "\n"]);
            rest = text;
        }
    }
    out + rest
}

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
    fn a_template_reads_tools_or_leaves_them_out() {
        let reads = |source| ChatTemplate::new(source, Map::new()).unwrap().reads_tools();
        assert!(reads("{%- if tools %}{{ tools | tojson }}{% endif %}"));
        assert!(reads("{% if not tools is defined %}{% set tools = none %}{% endif %}"));
        assert!(reads("{% macro all() %}{{ tools | length }}{% endmacro %}{{ all() }}"));
        assert!(!reads("{% for m in messages %}{{ m.content }}{% endfor %}You have no tools."));
        assert!(!reads("{% set tools = 1 %}{{ tools }}"));

        let mut named = ChatTemplate::new("{{ messages[0].content }}", Map::new()).unwrap();
        named.add(TOOL_USE, "{{ tools }}").unwrap();
        assert!(named.reads_tools());
    }

    #[test]
    fn a_developer_message_is_the_systems_if_it_has_no_role() {
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
        let source = "{{ tools[0] | tojson(separators=(',', ':'), sort_keys=true) }}";
        assert_eq!(render(source, &input).unwrap(), r#"{"a":[1.0,null],"z":"<'&>"}"#);
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

    const CHATML: &str = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + \
                          (m.content or '') + '<|im_end|>\n' }}{%- endfor %}";

    /// The prompts are those of `transformers`.
    #[test]
    fn a_continuation_ends_behind_the_last_message() {
        let trimming = CHATML.replace("(m.content or '')", "(m.content | trim)");
        let continued = |source: &str, last: &str| {
            let messages = [
                json!({"role": "user", "content": "Hi"}),
                json!({"role": "assistant", "content": last}),
            ];
            let input = ChatInput { messages: &messages, ..ChatInput::default() };
            let template = ChatTemplate::new(source, Map::new()).unwrap();
            let text = template.render_continuation(&input).unwrap();
            let start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant";
            text.strip_prefix(start).unwrap().to_owned()
        };
        for last in ["Sure, ", "", "d", "end", "im_end", "|", "\n", " ", " Hi", "<|im_end|>"] {
            assert_eq!(continued(CHATML, last), format!("\n{last}"));
            let kept = format!("\n{}", last.trim());
            assert_eq!(continued(&trimming, last), kept.trim_end(), "{last:?}");
        }

        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]);
        let messages = [json!({"role": "assistant", "content": parts})];
        let input = ChatInput { messages: &messages, ..ChatInput::default() };
        let source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}\
                      {% endfor %}";
        let template = ChatTemplate::new(source, Map::new()).unwrap();
        assert!(template.reads_parts(false));
        assert_eq!(template.render_continuation(&input).unwrap(), "[a][b ");
        let of_calls = "{% for m in messages %}{% if m.calls is defined %}{% set c = m.content %}\
                        {% for call in c %}{{ call.name }}{% endfor %}{% else %}\
                        {{ '[' + m.content }}{% endif %}{% endfor %}";
        assert!(!ChatTemplate::new(of_calls, Map::new()).unwrap().reads_parts(false));
        let got = "{% for m in messages %}{% for p in m.get('content') %}{{ p['text'] }}{% endfor %}\
                   {% endfor %}";
        assert!(ChatTemplate::new(got, Map::new()).unwrap().reads_parts(false));
        let listing = "{% for m in messages %}{{ m.content }}{% endfor %}";
        assert!(!ChatTemplate::new(listing, Map::new()).unwrap().reads_parts(false));
        let dropping = ChatTemplate::new("x", Map::new()).unwrap();
        assert!(dropping.render_continuation(&input).is_err());
    }

    #[test]
    fn integers_keep_their_digits() {
        let long = "9".repeat(50);
        let arguments = format!("{{\"a\": 123456789012345678901234567890, \"b\": [-{long}]}}");
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let messages = crate::prepare(&[message], false).unwrap();
        let input = ChatInput { messages: &messages, ..ChatInput::default() };
        let source = "{% set a = messages[0].tool_calls[0].function.arguments %}\
                      {{ a | tojson }} {{ a }} {{ a.b[0] }} {{ a.b[0] | string }}";
        let expected = format!("{arguments} {} -{long} -{long}", arguments.replace('"', "'"));
        assert_eq!(render(source, &input).unwrap(), expected);

        let tools = [exact::parse("{\"maximum\": 18446744073709551616}").unwrap()];
        let input = ChatInput { tools: Some(&tools), ..input };
        let source = "{% set call = messages[0].tool_calls[0].function %}\
                      {% for a in [call.arguments.a, tools[0].maximum] %}\
                      {{ 'text' if a is string else a - 1 }} {% endfor %}";
        let expected = "123456789012345678901234567889 18446744073709551615 ";
        assert_eq!(render(source, &input).unwrap(), expected);
    }

    /// Templates that would take a process down.
    const BOMBS: [&str; 13] = [
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}\
         {% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}\
         {% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}\
         {% set t %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = t %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}\
         {% set n.x = n.x.replace('a', 'aaaa') %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}\
         {% set n.x = n.x | replace('a', 'aaaa') %}{% endfor %}",
        "{{ ([1] * 9999999999) | join('a') }}",
        "{{ 'a'.join(['b'] * 9999999999) }}",
        "{{ ([1] * 9999999999) | list | length }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(64) %}\
         {% set n.x = n.x + n.x %}{% endfor %}",
        "{{ ('a\\n' * 9999) | indent(99999999) }}",
        "{{ ('a\\n' * 9999) | indent(width=99999999) }}",
        "{{ [1] | batch(999999999999, 1) }}",
        "{{ [1] | tojson(indent=999999999999) }}",
    ];

    #[test]
    fn a_template_that_makes_too_much_is_refused() {
        for bomb in BOMBS {
            let error = render(bomb, &ChatInput::default()).unwrap_err().to_string();
            let is_named = ["more text than 64 MiB", "more than 100"];
            assert!(is_named.iter().any(|bound| error.contains(bound)), "{bomb}: {error}");
        }
        let raw = "a".repeat(100_000);
        let bomb = format!("{{% for a in range(99999) %}}{raw}{{% endfor %}}");
        let error = render(&bomb, &ChatInput::default()).unwrap_err().to_string();
        assert!(error.contains("more text than 64 MiB"), "{error}");
    }

    #[test]
    fn a_template_without_an_end_is_refused() {
        let source = "{% macro m() %}{% for a in range(99999) %}{% endfor %}{% endmacro %}\
                      {% for b in range(99999) %}{{ m() }}{% endfor %}";
        let mut template = ChatTemplate::new(source, Map::new()).unwrap();
        assert_eq!(template.environment.fuel(), Some(bounds::STEPS_MAX));
        template.environment.set_fuel(Some(100_000));
        let error = template.render(&ChatInput::default()).unwrap_err().to_string();
        assert!(error.contains("more than 50000000 steps"), "{error}");
    }

    #[test]
    fn a_long_conversation_takes_a_small_part_of_the_steps() {
        let source = include_str!("../../engine/models/tiny/chat_template.jinja");
        let call = json!([{"function": {"name": "f", "arguments": {"path": "a", "n": 1}}}]);
        let turn = [
            json!({"role": "user", "content": "read a file"}),
            json!({"role": "assistant", "content": "<think>\nso\n</think>\nI do", "tool_calls": call}),
            json!({"role": "tool", "content": "what it holds"}),
            json!({"role": "assistant", "content": "done"}),
        ];
        let messages: Vec<Value> = turn.iter().cycle().take(2_000).cloned().collect();
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let tools = vec![tool; 100];
        let input = ChatInput { messages: &messages, tools: Some(&tools), ..ChatInput::default() };
        let mut template = ChatTemplate::new(source, Map::new()).unwrap();
        template.environment.set_fuel(Some(bounds::STEPS_MAX / 50));
        assert!(template.render(&input).unwrap().len() > 40_000);
    }

    #[test]
    fn products_are_those_of_python() {
        let source = "{{ 'ab' * 2 }} {{ 2 * [1] }} {{ 3 * 1.5 }} {{ true * 4 }} {{ 'a' * -1 }}|";
        assert_eq!(render(source, &ChatInput::default()).unwrap(), "abab [1, 1] 4.5 4 |");
        assert!(render("{{ 'a' * 'b' }}", &ChatInput::default()).is_err());
    }

    #[test]
    fn generation_tags_vanish() {
        let source = "a\n{%- generation -%}\n b {{ '{%' }}\n{% endgeneration %}\nc";
        assert_eq!(render(source, &ChatInput::default()).unwrap(), "ab {%\nc");
    }

    #[test]
    fn a_raw_block_keeps_the_newline_inside_not_the_one_behind() {
        let source = "a{% raw %}\n{{ b }}\n{% endraw %}\nc{%- raw -%}\n d{% endraw %}";
        assert_eq!(render(source, &ChatInput::default()).unwrap(), "a\n{{ b }}\ncd");
    }

    #[test]
    fn what_a_template_raises_is_the_reason() {
        let error = render("{{ raise_exception('no system') }}", &ChatInput::default());
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "the chat template refused the messages: no system");
    }

    #[test]
    fn calls_with_tools_take_the_template_for_tools() {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"chat_template": [{"name": "tool_use", "template": "t {{ tools[0] }}"},
                                              {"name": "default", "template": "d"}]});
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let template = ChatTemplate::load(folder.path()).unwrap().unwrap();
        assert_eq!(template.render(&ChatInput::default()).unwrap(), "d");
        let tools = [json!({"a": "b"})];
        let input = ChatInput { tools: Some(&tools), ..ChatInput::default() };
        assert_eq!(template.render(&input).unwrap(), "t {'a': 'b'}");
    }

    #[test]
    fn the_time_is_what_the_caller_says() {
        let source = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'no clock' }}";
        let input = ChatInput { now: Some(86_400), ..ChatInput::default() };
        assert_eq!(render(source, &input).unwrap(), "02 Jan 1970");
        assert_eq!(render(source, &ChatInput::default()).unwrap(), "no clock");
    }

    #[test]
    fn a_reply_can_go_on_with_the_last_message() {
        let open = |source: &str, last: &str| {
            let messages = [json!({"content": "Hi"}), json!({"content": last})];
            let input = ChatInput { messages: &messages, ..ChatInput::default() };
            ChatTemplate::new(source, Map::new()).unwrap().render_continuation(&input)
        };
        let plain = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
        assert_eq!(open(plain, " So ").unwrap(), "<Hi>< So ");
        let trimmed = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
        assert_eq!(open(trimmed, " So ").unwrap(), "<Hi><So");
        assert!(open("nothing", "So").is_err());
    }
}
