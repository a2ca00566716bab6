//! Demanded calls in tags: `<function=NAME>`, a `<parameter=KEY>` for each argument, `</function>`.
//!
//! Parameters come in the order of the schema, those that are not required may be left out, and
//! there are no others. Text stands as it is, other values as JSON. A value ends with the first
//! `</parameter>`, so no text may have one in it. The format of a text is not held.

use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::Tool;
use crate::grammar::{GrammarError, lookup_schema, prepare_schema};

/// References and nested schemas that are followed to the texts of a value.
const DEPTH_MAX: usize = 8;
/// Keywords that say nothing about a value.
const ANNOTATIONS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "$comment",
    "$id",
    "$schema",
    "strict",
];
/// Keywords of a tool's own schema that are held.
const OBJECT: [&str; 6] =
    ["type", "properties", "required", "additionalProperties", "$defs", "definitions"];
/// The terminals of all calls: text that has no end of a value in it.
pub(super) const TEXT_RULES: &str = "TEXT: /(?s:.*)/ & ~/(?s:.*)<\\/parameter>(?s:.*)/\n";

/// Writes the rule `call_INDEX` of one tool, and those that it needs.
///
/// # Errors
/// If a name cannot stand in a tag, or the schema has a keyword that tags cannot hold.
pub(super) fn rules(index: usize, tool: &Tool) -> Result<String, GrammarError> {
    check_name(&tool.name)?;
    let properties = properties(&tool.schema)?;
    let open = literal(&format!("<function={}>\n", tool.name));

    let mut call = format!("call_{index}: {open}");
    let mut rules = String::new();
    for (position, property) in properties.iter().enumerate() {
        check_name(property.name)?;
        let rule = format!("parameter_{index}_{position}");
        call.push_str(&format!(" {rule}{}", if property.is_required { "" } else { "?" }));
        let value = format!("value_{index}_{position}");
        let open = literal(&format!("<parameter={}>\n", property.name));
        rules.push_str(&format!("{rule}: {open} {value} \"\\n\"\n"));
        rules.push_str(&ArgumentValues { root: &tool.schema }.rules(&value, property.schema)?);
    }
    Ok(format!("{call} \"</function>\"\n{rules}"))
}

/// A parameter of a tool.
struct Property<'a> {
    name: &'a str,
    schema: &'a Value,
    is_required: bool,
}

/// Lists the parameters of a tool: those that its schema describes, then required ones that it
/// does not.
fn properties(schema: &Value) -> Result<Vec<Property<'_>>, GrammarError> {
    let Value::Object(parts) = schema else {
        return Err(GrammarError::form("the schema of a tool must be an object"));
    };
    let is_held = |key: &str| OBJECT.contains(&key) || ANNOTATIONS.contains(&key);
    if let Some(key) = parts.keys().find(|key| !is_held(key)) {
        return Err(unheld(&format!("`{key}` of a tool's arguments")));
    }
    if parts.get("type").is_some_and(|kind| kind != "object") {
        return Err(unheld("a `type` of a tool's arguments other than `object`"));
    }

    let required: Vec<&str> = parts
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let described = parts.get("properties").and_then(Value::as_object);
    let named = described.into_iter().flatten().map(|(name, schema)| {
        let is_required = required.contains(&name.as_str());
        Property { name, schema, is_required }
    });
    let other = parts.get("additionalProperties").unwrap_or(&Value::Bool(true));
    let is_other =
        |name: &&&str| !described.is_some_and(|described| described.contains_key(**name));
    let others = required.iter().filter(is_other).map(|name| Property {
        name,
        schema: other,
        is_required: true,
    });
    Ok(named.chain(others).collect())
}

/// Refuses a name that would not be read back from a tag.
fn check_name(name: &str) -> Result<(), GrammarError> {
    if name.is_empty() || name.trim() != name || name.contains(['<', '>', '\n']) {
        return Err(unheld(&format!("the name {}", literal(name))));
    }
    Ok(())
}

/// A form of a value.
#[derive(Debug, PartialEq)]
enum ValueForm {
    /// Text that all of these patterns match.
    Text(Vec<String>),
    /// One text.
    Exact(String),
    /// JSON of a schema that allows no string.
    Json(Value),
}

/// The values of one tool's arguments.
struct ArgumentValues<'a> {
    root: &'a Value,
}

impl ArgumentValues<'_> {
    /// Writes the rule `name` of a value and the end of its tag.
    fn rules(&self, name: &str, schema: &Value) -> Result<String, GrammarError> {
        let mut forms = self.forms(schema, DEPTH_MAX)?;
        // Any text is every text, and JSON too.
        if let Some(any) = forms.iter().position(|form| *form == ValueForm::Text(Vec::new())) {
            forms = vec![forms.swap_remove(any)];
        }
        if forms.is_empty() {
            return Err(GrammarError::form("a required argument has no value"));
        }

        let names: Vec<String> = (0..forms.len()).map(|way| format!("{name}_{way}")).collect();
        let mut rules = format!("{name}: {}\n", names.join(" | "));
        for (name, form) in names.iter().zip(forms) {
            let rule = match form {
                ValueForm::Text(patterns) => text_rule(name, &patterns),
                ValueForm::Exact(text) if text.contains("</parameter>") => {
                    return Err(unheld(&format!("the text {}", literal(&text))));
                }
                ValueForm::Exact(text) => {
                    format!("{name}: {}\n", literal(&format!("{text}\n</parameter>")))
                }
                ValueForm::Json(schema) => {
                    let schema = prepare_schema(&self.with_definitions(schema))?;
                    format!(
                        "{name}: {name}_json \"\\n</parameter>\"\n{name}_json: %json {schema}\n"
                    )
                }
            };
            rules.push_str(&rule);
        }
        Ok(rules)
    }

    /// Adds the definitions that a schema may refer to.
    fn with_definitions(&self, schema: Value) -> Value {
        let Value::Object(mut parts) = schema else { return schema };
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = self.root.get(key) {
                parts.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        Value::Object(parts)
    }

    /// Lists the forms of a value.
    fn forms(&self, schema: &Value, depth: usize) -> Result<Vec<ValueForm>, GrammarError> {
        let Value::Object(parts) = schema else {
            let any = ValueForm::Text(Vec::new());
            return Ok(if *schema == false { Vec::new() } else { vec![any] });
        };
        let depth = depth.checked_sub(1).ok_or_else(|| unheld("a schema that is so deep"))?;

        let list = |key: &str| parts.get(key).and_then(Value::as_array);
        if let Some(values) = list("enum") {
            self.check_alone(parts, "enum")?;
            return Ok(forms_of_values(values));
        }
        if let Some(value) = parts.get("const") {
            self.check_alone(parts, "const")?;
            return Ok(forms_of_values(std::slice::from_ref(value)));
        }
        if let Some(place) = parts.get("$ref").and_then(Value::as_str) {
            let target = lookup_schema(self.root, place)
                .ok_or_else(|| GrammarError::form(format!("{} leads nowhere", literal(place))))?;
            return self.joined(parts, "$ref", self.forms(target, depth)?);
        }
        if let (Some([one]), key) = (list("allOf").map(Vec::as_slice), "allOf") {
            return self.joined(parts, key, self.forms(one, depth)?);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(options) = list(key) {
                let forms: Result<Vec<_>, _> =
                    options.iter().map(|option| self.forms(option, depth)).collect();
                let forms = forms?;
                let texts = forms.iter().filter(|forms| forms.iter().any(is_text)).count();
                if key == "oneOf" && texts > 1 {
                    return Err(unheld("`oneOf` of several texts"));
                }
                return self.joined(parts, key, forms.into_iter().flatten().collect());
            }
        }
        forms_of_types(parts)
    }

    /// Returns the forms that one keyword gives. If none of them is text, the value is JSON of the
    /// whole schema; else no other keyword may narrow them.
    fn joined(
        &self,
        parts: &Map<String, Value>,
        key: &str,
        forms: Vec<ValueForm>,
    ) -> Result<Vec<ValueForm>, GrammarError> {
        if !forms.iter().any(is_text) {
            return Ok(vec![ValueForm::Json(Value::Object(parts.clone()))]);
        }
        self.check_alone(parts, key)?;
        Ok(forms)
    }

    /// Refuses other keywords beside one.
    fn check_alone(&self, parts: &Map<String, Value>, key: &str) -> Result<(), GrammarError> {
        let is_other = |other: &&String| {
            other.as_str() != key && *other != "type" && !ANNOTATIONS.contains(&other.as_str())
        };
        match parts.keys().find(is_other) {
            Some(other) => Err(unheld(&format!("`{other}` beside `{key}`"))),
            None => Ok(()),
        }
    }
}

fn is_text(form: &ValueForm) -> bool {
    !matches!(form, ValueForm::Json(_))
}

/// Lists the forms of given values.
fn forms_of_values(values: &[Value]) -> Vec<ValueForm> {
    let (texts, others): (Vec<&Value>, Vec<&Value>) =
        values.iter().partition(|value| value.is_string());
    let mut forms: Vec<ValueForm> = texts
        .into_iter()
        .filter_map(Value::as_str)
        .map(|text| ValueForm::Exact(text.to_owned()))
        .collect();
    if !others.is_empty() {
        forms.push(ValueForm::Json(json!({"enum": others})));
    }
    forms
}

/// Lists the forms of the types of a schema: text, and JSON of the others. Without types, keywords
/// of text mean text, other keywords mean JSON, and none means any text.
fn forms_of_types(parts: &Map<String, Value>) -> Result<Vec<ValueForm>, GrammarError> {
    const TEXT: [&str; 3] = ["pattern", "minLength", "maxLength"];
    let named: Vec<&str> = match parts.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => {
            let says = |key: &&String| !ANNOTATIONS.contains(&key.as_str());
            let is_text = parts.keys().filter(says).all(|key| TEXT.contains(&key.as_str()));
            match is_text {
                true => vec!["string"],
                false => vec!["null", "boolean", "number", "array", "object"],
            }
        }
    };

    let others: Vec<&str> = named.iter().copied().filter(|name| *name != "string").collect();
    let mut forms = Vec::new();
    if others.len() < named.len() {
        forms.push(ValueForm::Text(patterns_of(parts)?));
    }
    if !others.is_empty() {
        let mut schema = parts.clone();
        schema.insert("type".to_owned(), json!(others));
        forms.push(ValueForm::Json(Value::Object(schema)));
    }
    Ok(forms)
}

/// Returns the patterns of a text, in Lark's notation, each of the whole text.
fn patterns_of(parts: &Map<String, Value>) -> Result<Vec<String>, GrammarError> {
    let count = |key: &str| parts.get(key).and_then(Value::as_f64);
    let mut patterns = Vec::new();
    if let (least, Some(most)) = (count("minLength").unwrap_or(0.0), count("maxLength")) {
        patterns.push(format!("(?s:.{{{least},{most}}})"));
    } else if let Some(least) = count("minLength") {
        patterns.push(format!("(?s:.{{{least},}})"));
    }
    if let Some(pattern) = parts.get("pattern").and_then(Value::as_str) {
        patterns.push(regex_to_lark(&whole_pattern(pattern)?, "dw"));
    }
    Ok(patterns)
}

/// Returns a pattern of the whole of each text that has a match of `pattern` in it.
///
/// # Errors
/// If it has anchors elsewhere than at its ends, or one that holds for some of its ways only:
/// `^a|b` is not `^(a|b)`.
fn whole_pattern(pattern: &str) -> Result<String, GrammarError> {
    let (open, inner) = match pattern.strip_prefix('^') {
        Some(inner) => ("", inner),
        None => ("(?s:.*)", pattern),
    };
    let is_escaped = |text: &str| (text.len() - text.trim_end_matches('\\').len()) % 2 == 1;
    let (inner, close) = match inner.strip_suffix('$').filter(|inner| !is_escaped(inner)) {
        Some(inner) => (inner, ""),
        None => (inner, "(?s:.*)"),
    };

    let Outside { has_anchor, has_ways } = Outside::of(inner);
    if has_anchor || has_ways && (open.is_empty() || close.is_empty()) {
        return Err(unheld(&format!("the pattern {}", literal(pattern))));
    }
    Ok(format!("{open}(?:{inner}){close}"))
}

/// Parts of a pattern that are outside of its character classes.
#[derive(Default)]
struct Outside {
    has_anchor: bool,
    /// Alternatives that are in no group.
    has_ways: bool,
}

impl Outside {
    fn of(pattern: &str) -> Outside {
        let (mut depth, mut is_escaped, mut is_class) = (0_usize, false, false);
        let mut found = Outside::default();
        for letter in pattern.chars() {
            match letter {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                ']' => is_class = false,
                _ if is_class => {}
                '[' => is_class = true,
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                '^' | '$' => found.has_anchor = true,
                '|' => found.has_ways |= depth == 0,
                _ => {}
            }
        }
        found
    }
}

/// Writes the rule of a text that all patterns match, and the end of its tag.
fn text_rule(name: &str, patterns: &[String]) -> String {
    let terminal = name.to_uppercase();
    let ways: Vec<String> = patterns.iter().map(|pattern| format!(" & /{pattern}/")).collect();
    format!("{name}[suffix=\"\\n</parameter>\"]: {terminal}\n{terminal}: TEXT{}\n", ways.concat())
}

/// Writes a text in Lark's notation.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

fn unheld(what: &str) -> GrammarError {
    GrammarError::form(format!("{what} cannot be held in the notation of the model's calls"))
}
