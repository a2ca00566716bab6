//! JSON schemas in the keywords that the library has.
//!
//! A keyword that it lacks is written in others, or refused by a sentence that names it. A schema
//! that was rewritten never allows more than the given one. It may allow less: where a value can
//! fit two schemas of `oneOf`, only values that are known to fit one of them remain.

mod disjoint;
mod negation;
mod strings;
mod types;

use std::cell::Cell;

use serde_json::{Map, Value, json};

use super::GrammarError;
use super::schema_cost::lookup;
use disjoint::are_disjoint;
use negation::negation;
use types::{TypeSet, types_of};

/// References and nested schemas that are followed to compare or negate a schema.
const DEPTH_MAX: usize = 8;
/// Schemas that are looked at to compare and negate those of one form.
const STEPS_MAX: usize = 100_000;
/// The number below which all integers are floats.
const COUNT_MAX: f64 = (1u64 << 53) as f64;
/// Schemas of one `oneOf` that are told apart; each is joined with the negation of the others.
const EXCLUSIVE_MAX: usize = 32;
/// The formats that the library knows. The specification has all others ignored.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords whose value is a schema.
const SCHEMAS: [&str; 3] = ["additionalProperties", "additionalItems", "items"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "prefixItems", "items"];
/// Keywords whose value has schemas by name.
const MAPS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords whose value is data.
const DATA: [&str; 6] = ["const", "enum", "default", "example", "examples", "required"];
/// Keywords whose value is a count.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
/// Keywords that cannot hold while a reply is sampled from left to right.
const UNHELD: [&str; 5] =
    ["contains", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"];

/// Rewrites a schema.
///
/// # Errors
/// [`GrammarError::Form`] that names the keyword that cannot be written in others.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    Form { root: schema, steps: Cell::new(STEPS_MAX) }.schema(schema)
}

/// Returns a count that is written as a float, such as 2.0, as an integer.
fn whole_count(value: &Value) -> Value {
    let float = value.as_f64().filter(|_| value.is_f64());
    match float.filter(|float| float.fract() == 0.0 && (0.0..COUNT_MAX).contains(float)) {
        Some(float) => json!(float as u64),
        None => value.clone(),
    }
}

/// A schema that is rewritten, and the work that may still go into it.
struct Form<'a> {
    root: &'a Value,
    steps: Cell<usize>,
}

impl Form<'_> {
    /// Counts a schema that is looked at. Returns false if there were too many, or too deep.
    fn may_look(&self, depth: usize) -> bool {
        let left = self.steps.get();
        self.steps.set(left.saturating_sub(1));
        depth > 0 && left > 0
    }

    /// Returns the schema that a reference leads to.
    fn target(&self, schema: &Value) -> Option<&Value> {
        lookup(self.root, schema.get("$ref")?.as_str()?)
    }

    fn schema(&self, schema: &Value) -> Result<Value, GrammarError> {
        let Value::Object(given) = schema else { return Ok(schema.clone()) };
        let mut out = Map::new();
        let mut joined = Vec::new();
        for (key, value) in given {
            match key.as_str() {
                "format" if !is_known_format(value) => {}
                "uniqueItems" if is_trivially_unique(given) => {}
                "uniqueItems" => return Err(unheld(key)),
                "oneOf" => joined.push(json!({"anyOf": self.exclusive(value)?})),
                "not" => joined.push(self.not(value)?),
                "if" => joined.extend(self.condition(value, given)?),
                // Without `if` they say nothing, and with it they are a part of it.
                "then" | "else" => {}
                "dependencies" | "dependentRequired" | "dependentSchemas" => {
                    joined.extend(self.dependencies(value)?);
                }
                "minContains" | "maxContains" if !given.contains_key("contains") => {}
                "unevaluatedProperties" if has_no_applicator(given) => {
                    let schema = self.schema(value)?;
                    out.insert("additionalProperties".to_owned(), schema);
                }
                "propertyNames" => joined.push(self.property_names(value, given)?),
                key if COUNTS.contains(&key) => {
                    out.insert(key.to_owned(), whole_count(value));
                }
                key if UNHELD.contains(&key) && *value != true => return Err(unheld(key)),
                key if UNHELD.contains(&key) => {}
                _ => {
                    out.insert(key.clone(), self.inner(key, value)?);
                }
            }
        }

        if !joined.is_empty() {
            match out.get_mut("allOf") {
                Some(Value::Array(all)) => all.extend(joined),
                _ => drop(out.insert("allOf".to_owned(), Value::Array(joined))),
            }
        }
        Ok(Value::Object(out))
    }

    /// Rewrites the value of a keyword that the library has.
    fn inner(&self, key: &str, value: &Value) -> Result<Value, GrammarError> {
        match value {
            Value::Array(list) if LISTS.contains(&key) => self.schemas(list).map(Value::Array),
            Value::Object(map) if MAPS.contains(&key) => {
                let rewritten = map.iter().map(|(name, one)| Ok((name.clone(), self.schema(one)?)));
                rewritten.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            Value::Object(_) if SCHEMAS.contains(&key) => self.schema(value),
            value if DATA.contains(&key) => Ok(value.clone()),
            value => Ok(self.referred(value)),
        }
    }

    /// Rewrites whatever a reference may lead to: definitions, under any name. What cannot be
    /// rewritten stays, and the library refuses it where it is used.
    fn referred(&self, value: &Value) -> Value {
        match value {
            Value::Object(map) if is_schema(map) => {
                self.schema(value).unwrap_or_else(|_| value.clone())
            }
            Value::Object(map) => {
                let rewritten = map.iter().map(|(name, one)| (name.clone(), self.referred(one)));
                Value::Object(rewritten.collect())
            }
            Value::Array(list) => list.iter().map(|one| self.referred(one)).collect(),
            value => value.clone(),
        }
    }

    fn schemas(&self, schemas: &[Value]) -> Result<Vec<Value>, GrammarError> {
        schemas.iter().map(|one| self.schema(one)).collect()
    }

    /// Returns, for each schema of `oneOf`, the values that fit it and none of the others.
    fn exclusive(&self, value: &Value) -> Result<Vec<Value>, GrammarError> {
        let Some(options) = value.as_array().filter(|options| !options.is_empty()) else {
            return Err(GrammarError::form("`oneOf` must be a list of schemas"));
        };
        if options.len() > EXCLUSIVE_MAX && !self.are_all_disjoint(options) {
            let reason = format!("`oneOf` has more than {EXCLUSIVE_MAX} schemas; use `anyOf`");
            return Err(GrammarError::form(reason));
        }

        let mut out = Vec::with_capacity(options.len());
        for (i, option) in options.iter().enumerate() {
            let mut parts = vec![self.schema(option)?];
            let types = types_of(option, self, DEPTH_MAX);
            for (j, other) in options.iter().enumerate() {
                if i != j && !are_disjoint(option, other, self, DEPTH_MAX) {
                    parts.push(self.negated(other, types).ok_or_else(|| overlap(i, j))??);
                }
            }
            out.push(if parts.len() == 1 { parts.remove(0) } else { json!({"allOf": parts}) });
        }
        Ok(out)
    }

    fn are_all_disjoint(&self, options: &[Value]) -> bool {
        let mut pairs = options
            .iter()
            .enumerate()
            .flat_map(|(i, one)| options[i + 1..].iter().map(move |other| (one, other)));
        pairs.all(|(one, other)| are_disjoint(one, other, self, DEPTH_MAX))
    }

    /// Returns a schema of values of these types that do not fit `schema`. `None` if none is known.
    fn negated(&self, schema: &Value, types: TypeSet) -> Option<Result<Value, GrammarError>> {
        let mut ways = negation(schema, self, DEPTH_MAX)?;
        ways.retain(|way| types_of(way, self, DEPTH_MAX).meets(types));
        match ways.len() {
            0 => None,
            1 => Some(self.schema(&ways[0])),
            _ => Some(self.schemas(&ways).map(|ways| json!({"anyOf": ways}))),
        }
    }

    fn not(&self, value: &Value) -> Result<Value, GrammarError> {
        self.negated(value, TypeSet::ALL).ok_or_else(|| {
            let reason = "`not` has a schema whose opposite cannot be sampled; say what the value \
                          may be, instead";
            GrammarError::form(reason)
        })?
    }

    /// Returns what `if` with `then` and `else` demands: both the condition and what follows, or
    /// not the condition and what follows then.
    fn condition(
        &self,
        condition: &Value,
        given: &Map<String, Value>,
    ) -> Result<Option<Value>, GrammarError> {
        let (then, otherwise) = (given.get("then"), given.get("else"));
        if then.is_none() && otherwise.is_none() {
            return Ok(None);
        }
        let Some(not) = self.negated(condition, TypeSet::ALL) else {
            let reason = "`if` has a schema whose opposite cannot be sampled; write the cases as \
                          `anyOf`";
            return Err(GrammarError::form(reason));
        };
        let mut ways = [vec![self.schema(condition)?], vec![not?]];
        for (way, more) in ways.iter_mut().zip([then, otherwise]) {
            way.extend(more.map(|more| self.schema(more)).transpose()?);
        }
        Ok(Some(json!({"anyOf": ways.map(|way| json!({"allOf": way}))})))
    }

    /// Returns, for each name, that it is absent or what it demands is there.
    fn dependencies(&self, value: &Value) -> Result<Vec<Value>, GrammarError> {
        let Value::Object(map) = value else {
            return Err(GrammarError::form("dependencies must be an object"));
        };
        let mut out = Vec::with_capacity(map.len());
        for (name, demand) in map {
            let demand = match demand {
                Value::Array(names) => json!({"required": names}),
                schema => self.schema(schema)?,
            };
            let absent = json!({"properties": {name.as_str(): false}});
            out.push(json!({"anyOf": [absent, demand]}));
        }
        Ok(out)
    }

    /// Writes names that are listed, or match a pattern, as properties.
    fn property_names(
        &self,
        names: &Value,
        given: &Map<String, Value>,
    ) -> Result<Value, GrammarError> {
        if given.contains_key("properties") || given.contains_key("patternProperties") {
            let reason = "`propertyNames` beside `properties` cannot be sampled; leave it out, \
                          and list the properties";
            return Err(GrammarError::form(reason));
        }

        let value = match given.get("additionalProperties") {
            Some(schema) => self.schema(schema)?,
            None => Value::Bool(true),
        };

        let listed = names.get("enum").and_then(Value::as_array);
        if let Some(listed) = listed {
            let listed = listed.iter().filter_map(Value::as_str);
            let properties: Map<_, _> =
                listed.map(|name| (name.to_owned(), value.clone())).collect();
            return Ok(json!({"properties": properties, "additionalProperties": false}));
        }

        let Some(pattern) = strings::name_pattern(names) else {
            let reason = "`propertyNames` may have `enum`, `pattern`, `minLength` and `maxLength`, \
                          and nothing else";
            return Err(GrammarError::form(reason));
        };
        Ok(json!({"patternProperties": {pattern: value}, "additionalProperties": false}))
    }
}

/// Applicators, beside which properties may have been looked at elsewhere.
const APPLICATORS: [&str; 8] =
    ["$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "additionalProperties"];

/// Returns true if the properties that were not looked at are those that the schema does not name.
fn has_no_applicator(schema: &Map<String, Value>) -> bool {
    !APPLICATORS.iter().any(|key| schema.contains_key(*key))
}

/// Returns the library's reason for refusing a schema, in the words of this module.
pub(super) fn explained(reason: String) -> String {
    if let Some((_, keys)) = reason.split_once("Unimplemented keys: [") {
        return unheld(keys.split('"').nth(1).unwrap_or_default()).to_string();
    }
    if reason.contains("oneOf constraints are not supported") {
        return overlap(0, 1).to_string();
    }
    match reason.split_once("'referencing' feature; ref ") {
        Some((_, place)) => {
            format!(
                "`$ref` must lead into the same schema, as `#/$defs/name` does, and not to {place}"
            )
        }
        None => reason,
    }
}

/// Returns true for a schema, false for a list of schemas by name.
fn is_schema(map: &Map<String, Value>) -> bool {
    const TELLING: [&str; 8] =
        ["type", "$ref", "properties", "enum", "const", "anyOf", "oneOf", "allOf"];
    // A schema may be named like a keyword.
    let is_keyword = |key: &&str| map.get(*key).is_some_and(|value| !value.is_object());
    TELLING.iter().any(is_keyword) || map.get("properties").is_some_and(Value::is_object)
}

fn is_known_format(value: &Value) -> bool {
    value.as_str().is_some_and(|name| FORMATS.contains(&name))
}

/// Returns true if no two items can be the same, because there is no second one.
fn is_trivially_unique(schema: &Map<String, Value>) -> bool {
    let is_off = schema["uniqueItems"] != true;
    is_off || schema.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= 1)
}

/// The refusal of a keyword that looks at what was sampled before.
fn unheld(key: &str) -> GrammarError {
    let reason = format!(
        "`{key}` cannot be held while a reply is sampled; leave it out, and check the reply"
    );
    GrammarError::form(reason)
}

fn overlap(one: usize, other: usize) -> GrammarError {
    let reason = format!(
        "a value may fit both schemas {one} and {other} of `oneOf`, and which fit only one is not \
         known; use `anyOf`, or give each a required property with a `const` of its own"
    );
    GrammarError::form(reason)
}

#[cfg(test)]
mod tests;
