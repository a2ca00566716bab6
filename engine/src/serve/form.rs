//! The fields of a request that prescribe the form of a reply: `response_format`, vLLM's
//! `structured_outputs`, and the `guided_*` fields that those were before.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::encode::aside;
use super::error::ApiError;
use super::fields::Fields;
use crate::Card;
use crate::grammar::{Form, Grammar, GrammarError, Grammars, Spacing};

/// The grammar of a request, if it prescribes a form.
pub(super) fn grammar(fields: &Fields, card: &Card) -> Result<Option<Arc<Grammar>>, ApiError> {
    let mut forms = Vec::new();
    forms.extend(response_format(fields)?);
    forms.extend(structured_outputs(fields)?);
    forms.extend(guided(fields)?);
    if let [_, (field, _), ..] = forms.as_slice() {
        return Err(ApiError::bad(field, "prescribes a second form; a reply can have only one"));
    }
    match forms.pop() {
        Some((field, form)) => compile(card, field, form).map(Some),
        None => Ok(None),
    }
}

/// Makes a form ready; `field` is the one to blame if that cannot be done.
///
/// A large form takes a second, and so does the first of a large vocabulary.
pub(super) fn compile(card: &Card, field: &str, form: Form) -> Result<Arc<Grammar>, ApiError> {
    let grammar = aside(|| grammars(card)?.compile(form));
    let grammar = grammar.map_err(|error| ApiError::bad(field, format!("cannot be used: {error}")));
    grammar.map(Arc::new)
}

/// The vocabulary, laid out when it is first needed.
fn grammars(card: &Card) -> Result<&Grammars, GrammarError> {
    if let Some(grammars) = card.grammars.get() {
        return Ok(grammars);
    }
    let grammars = Grammars::new(&card.tokenizer, card.vocab, &card.eos)?;
    Ok(card.grammars.get_or_init(|| grammars))
}

type Named = (&'static str, Form);

fn response_format(fields: &Fields) -> Result<Option<Named>, ApiError> {
    const FIELD: &str = "response_format";
    let Some(format) = fields.object(FIELD)? else { return Ok(None) };
    let form = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => Form::object(Spacing::Any),
        Some("json_schema") => {
            let schema = format.get("json_schema").and_then(|outer| outer.get("schema"));
            let Some(schema) = schema.filter(|schema| !schema.is_null()) else {
                return Err(ApiError::bad(FIELD, "needs `json_schema.schema` for this type"));
            };
            Form::Json { schema: json(FIELD, schema)?, spacing: Spacing::Any }
        }
        Some(other) => {
            return Err(ApiError::bad(FIELD, format!("of type `{other}` is not supported")));
        }
        None => return Err(ApiError::bad(FIELD, "needs a `type`")),
    };
    Ok(Some((FIELD, form)))
}

fn structured_outputs(fields: &Fields) -> Result<Option<Named>, ApiError> {
    const FIELD: &str = "structured_outputs";
    let Some(outputs) = fields.object(FIELD)? else { return Ok(None) };
    for name in ["structural_tag", "disable_additional_properties"] {
        if outputs.get(name).is_some_and(|value| !value.is_null() && value != false) {
            return Err(ApiError::bad(FIELD, format!(".{name} is not supported")));
        }
    }
    let tight = outputs.get("disable_any_whitespace").is_some_and(|value| value == true);
    let pattern = outputs.get("whitespace_pattern").and_then(Value::as_str);
    let spacing = match (tight, pattern) {
        (true, _) => Spacing::None,
        (false, Some(pattern)) => Spacing::Pattern(pattern.to_owned()),
        (false, None) => Spacing::Any,
    };
    let kinds = ["json", "json_object", "regex", "choice", "grammar"];
    let mut given = kinds.into_iter().filter_map(|kind| Some((kind, some(outputs, kind)?)));
    let (Some((kind, value)), None) = (given.next(), given.next()) else {
        let message = format!("must have exactly one of {}", kinds.join(", "));
        return Err(ApiError::bad(FIELD, message));
    };
    Ok(Some((FIELD, form(FIELD, (kind, value), spacing)?)))
}

fn guided(fields: &Fields) -> Result<Option<Named>, ApiError> {
    let kinds = [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
    ];
    let spacing = fields.text("guided_whitespace_pattern")?;
    let spacing = spacing.map_or(Spacing::Any, |pattern| Spacing::Pattern(pattern.to_owned()));
    let given =
        kinds.into_iter().filter_map(|(field, kind)| Some((field, kind, fields.get(field)?)));
    let forms = given.map(|(field, kind, value)| {
        Ok::<_, ApiError>((field, form(field, (kind, value), spacing.clone())?))
    });
    let mut forms = forms.collect::<Result<Vec<_>, _>>()?.into_iter();
    match (forms.next(), forms.next()) {
        (first, None) => Ok(first),
        (_, Some((field, _))) => {
            Err(ApiError::bad(field, "prescribes a second form; a reply can have only one"))
        }
    }
}

/// A field of an object that is neither absent, nor null, nor false.
fn some<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null() && *value != false)
}

fn form(field: &str, (kind, value): (&str, &Value), spacing: Spacing) -> Result<Form, ApiError> {
    let text = || {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| ApiError::bad(field, format!("needs a string for `{kind}`")))
    };
    match kind {
        "json" => Ok(Form::Json { schema: json(field, value)?, spacing }),
        "json_object" => Ok(Form::object(spacing)),
        "regex" => text().map(Form::Regex),
        "choice" => choice(field, value).map(Form::Choice),
        _ => text().map(Form::Rules),
    }
}

/// A schema, or the text of one.
fn json(field: &str, value: &Value) -> Result<Value, ApiError> {
    let schema = match value {
        Value::String(text) => serde_json::from_str(text).map_err(|error| {
            ApiError::bad(field, format!("holds a schema that is not JSON: {error}"))
        })?,
        other => other.clone(),
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        _ => Err(ApiError::bad(field, "needs an object as its schema")),
    }
}

fn choice(field: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    let texts = value.as_array().map(|list| list.iter().map(|text| text.as_str()));
    let texts: Option<Vec<&str>> = texts.and_then(Iterator::collect);
    match texts {
        Some(texts) if !texts.is_empty() && !texts.contains(&"") => {
            Ok(texts.into_iter().map(str::to_owned).collect())
        }
        _ => Err(ApiError::bad(field, "needs a list of texts, none of them empty, to choose from")),
    }
}
