//! The fields that prescribe the form of a reply: `response_format`, vLLM's `structured_outputs`
//! and its older `guided_*`, and the names of SGLang and llama.cpp.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::encode::run_blocking;
use crate::grammar::Grammar;
use crate::grammar::GrammarCompiler;
use crate::grammar::GrammarError;
use crate::grammar::GrammarSpec;
use crate::grammar::JsonWhitespace;
use crate::grammar::LeadingThought;
use crate::info::ModelInfo;
use crate::serve::calls::{ApiError, Fields};

/// The forms of `structured_outputs`.
const KINDS: [&str; 5] = ["json", "json_object", "regex", "choice", "grammar"];

/// Fields that are a form, with its kind: vLLM's older ones, SGLang's and llama.cpp's.
const GUIDED: [(&str, &str); 8] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("regex", "regex"),
    ("ebnf", "grammar"),
    ("grammar", "grammar"),
];

/// A form, and the field that prescribes it.
#[derive(Clone, Debug)]
pub(crate) struct PrescribedForm {
    pub(crate) field: &'static str,
    pub(crate) form: GrammarSpec,
}

impl PrescribedForm {
    /// Reads the form that a request prescribes, if any.
    ///
    /// # Errors
    /// 400 for two forms, or for a malformed one.
    pub(crate) fn parse(fields: &Fields) -> Result<Option<PrescribedForm>, ApiError> {
        let prescribed = [
            parse_response_format(fields)?,
            parse_structured_outputs(fields)?,
            parse_guided(fields)?,
        ];
        let mut forms = prescribed.into_iter().flatten();
        match (forms.next(), forms.next()) {
            (_, Some(second)) => Err(second_form(second.field)),
            (form, None) => Ok(form),
        }
    }

    /// Compiles the form of replies that may think first.
    ///
    /// A large form takes a second, and so does the first one of a large vocabulary.
    ///
    /// # Errors
    /// 400 if the form cannot be used.
    pub(crate) fn compile(
        self,
        model: &ModelInfo,
        thought: LeadingThought,
    ) -> Result<Arc<Grammar>, ApiError> {
        let PrescribedForm { field, form } = self;
        run_blocking(|| grammars(model)?.compile(form, thought))
            .map(Arc::new)
            .map_err(|error| ApiError::bad_field(field, format!("cannot be used: {error}")))
    }
}

/// Returns the vocabulary in the layout that grammars need, which is made with the first of them.
fn grammars(model: &ModelInfo) -> Result<&GrammarCompiler, GrammarError> {
    if let Some(grammars) = model.grammars.get() {
        return Ok(grammars);
    }
    let grammars = GrammarCompiler::new(&model.tokenizer, model.vocab, &model.eos)?;
    Ok(model.grammars.get_or_init(|| grammars))
}

fn second_form(field: &str) -> ApiError {
    ApiError::bad_field(field, "prescribes a second form; a reply can have only one")
}

fn parse_response_format(fields: &Fields) -> Result<Option<PrescribedForm>, ApiError> {
    const FIELD: &str = "response_format";
    let Some(format) = fields.object(FIELD)? else { return Ok(None) };

    let form = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        // llama.cpp takes a schema here, too.
        Some("json_object") => match is_given(format.get("schema")) {
            Some(schema) => json_form(FIELD, schema)?,
            None => GrammarSpec::object(JsonWhitespace::Any),
        },
        Some("json_schema") => {
            let schema = format.get("json_schema").and_then(|outer| outer.get("schema"));
            let Some(schema) = is_given(schema) else {
                let message = "needs `json_schema.schema` for this type";
                return Err(ApiError::bad_field(FIELD, message));
            };
            json_form(FIELD, schema)?
        }
        Some(other) => {
            return Err(ApiError::bad_field(FIELD, format!("of type `{other}` is not supported")));
        }
        None => return Err(ApiError::bad_field(FIELD, "needs a `type`")),
    };
    Ok(Some(PrescribedForm { field: FIELD, form }))
}

fn json_form(field: &str, schema: &Value) -> Result<GrammarSpec, ApiError> {
    Ok(GrammarSpec::Json { schema: parse_schema(field, schema)?, spacing: JsonWhitespace::Any })
}

/// Returns a value that is neither absent nor null.
fn is_given(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

fn parse_structured_outputs(fields: &Fields) -> Result<Option<PrescribedForm>, ApiError> {
    const FIELD: &str = "structured_outputs";
    let Some(outputs) = fields.object(FIELD)? else { return Ok(None) };
    for name in ["structural_tag", "disable_additional_properties"] {
        if is_set(outputs, name).is_some() {
            return Err(ApiError::bad_field(FIELD, format!(".{name} is not supported")));
        }
    }

    let mut given = KINDS.into_iter().filter_map(|kind| Some((kind, is_set(outputs, kind)?)));
    let (Some((kind, value)), None) = (given.next(), given.next()) else {
        let message = format!("must have exactly one of {}", KINDS.join(", "));
        return Err(ApiError::bad_field(FIELD, message));
    };
    let form = parse_form(FIELD, kind, value, parse_spacing(outputs))?;
    Ok(Some(PrescribedForm { field: FIELD, form }))
}

fn parse_spacing(outputs: &Map<String, Value>) -> JsonWhitespace {
    if outputs.get("disable_any_whitespace").is_some_and(|value| value == true) {
        return JsonWhitespace::None;
    }
    match outputs.get("whitespace_pattern").and_then(Value::as_str) {
        Some(pattern) => JsonWhitespace::Pattern(pattern.to_owned()),
        None => JsonWhitespace::Any,
    }
}

fn parse_guided(fields: &Fields) -> Result<Option<PrescribedForm>, ApiError> {
    let spacing = match fields.text("guided_whitespace_pattern")? {
        Some(pattern) => JsonWhitespace::Pattern(pattern.to_owned()),
        None => JsonWhitespace::Any,
    };

    let mut prescribed = None;
    for (field, kind) in GUIDED {
        let Some(value) = fields.get(field) else { continue };
        let form = parse_form(field, kind, value, spacing.clone())?;
        if prescribed.is_some() {
            return Err(second_form(field));
        }
        prescribed = Some(PrescribedForm { field, form });
    }
    Ok(prescribed)
}

/// Returns a value that is neither absent, nor null, nor false.
fn is_set<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null() && *value != false)
}

/// Reads a form of the kind `kind` (see [`KINDS`]) from the value in `field`.
fn parse_form(
    field: &str,
    kind: &str,
    value: &Value,
    spacing: JsonWhitespace,
) -> Result<GrammarSpec, ApiError> {
    match kind {
        "json" => Ok(GrammarSpec::Json { schema: parse_schema(field, value)?, spacing }),
        "json_object" => Ok(GrammarSpec::object(spacing)),
        "regex" => parse_text(field, kind, value).map(GrammarSpec::Regex),
        "choice" => parse_choice(field, value).map(GrammarSpec::Choice),
        _ => parse_text(field, kind, value).map(GrammarSpec::Rules),
    }
}

fn parse_text(field: &str, kind: &str, value: &Value) -> Result<String, ApiError> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(ApiError::bad_field(field, format!("needs a string for `{kind}`"))),
    }
}

/// Reads a JSON schema, or the text of one.
fn parse_schema(field: &str, value: &Value) -> Result<Value, ApiError> {
    let schema = match value {
        Value::String(text) => serde_json::from_str(text).map_err(|error| {
            ApiError::bad_field(field, format!("holds a schema that is not JSON: {error}"))
        })?,
        other => other.clone(),
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        _ => Err(ApiError::bad_field(field, "needs an object as its schema")),
    }
}

/// Reads the texts of a choice.
fn parse_choice(field: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    let texts: Option<Vec<&str>> =
        value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    match texts {
        Some(texts) if is_choice(&texts) => Ok(texts.into_iter().map(str::to_owned).collect()),
        _ => {
            let message = "needs a list of texts, none of them empty, to choose from";
            Err(ApiError::bad_field(field, message))
        }
    }
}

fn is_choice(texts: &[&str]) -> bool {
    !texts.is_empty() && !texts.contains(&"")
}
