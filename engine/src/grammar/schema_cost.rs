//! The cost of compiling a JSON schema, as far as the library does not bound it itself.
//!
//! Patterns that a string must match together take time that doubles with each, and a number that
//! must be a multiple of `n` takes memory for each of `n` remainders.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::GrammarError;
use crate::bounds::{JOINT_PATTERNS_MAX, MULTIPLE_MAX};

/// Keywords that say what one string or number must be.
const PATTERNS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
/// Keywords of which one alternative is taken beside the schema around it.
const ALTERNATIVES: [&str; 2] = ["anyOf", "oneOf"];

/// Refuses a schema that joins too many patterns or too large multiples in one value.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    let cost = Schemas { root: schema, known: HashMap::new(), open: HashSet::new() }.cost(schema);
    if cost.patterns > JOINT_PATTERNS_MAX {
        let reason = format!("it joins more than {JOINT_PATTERNS_MAX} patterns in one text");
        return Err(GrammarError::form(reason));
    }
    if cost.multiple > MULTIPLE_MAX {
        let reason = format!("its `multipleOf` has digits that make more than {MULTIPLE_MAX}");
        return Err(GrammarError::form(reason));
    }
    Ok(())
}

/// The schemas within a text in Lark's notation.
///
/// # Errors
/// [`GrammarError`] if one is too dear, or is no JSON.
pub(super) fn check_rules(text: &str) -> Result<(), GrammarError> {
    for part in text.split("%json").skip(1) {
        let mut values = serde_json::Deserializer::from_str(part).into_iter::<Value>();
        match values.next() {
            Some(Ok(schema)) => check(&schema)?,
            _ => return Err(GrammarError::form("what follows `%json` is no JSON")),
        }
    }
    Ok(())
}

/// The most that any one value of a schema has to match at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    patterns: usize,
    /// The digits of `multipleOf` without the decimal point; of several, their product.
    multiple: u64,
}

impl Cost {
    fn either(self, other: Cost) -> Cost {
        Cost {
            patterns: self.patterns.max(other.patterns),
            multiple: self.multiple.max(other.multiple),
        }
    }

    fn both(self, other: Cost) -> Cost {
        Cost {
            patterns: self.patterns.saturating_add(other.patterns),
            multiple: self.multiple.max(1).saturating_mul(other.multiple.max(1)),
        }
    }
}

/// A schema and the costs of those that it refers to.
struct Schemas<'a> {
    root: &'a Value,
    known: HashMap<&'a str, Cost>,
    /// References that are being followed.
    open: HashSet<&'a str>,
}

impl<'a> Schemas<'a> {
    /// The cost of a schema, from above: of what it says of its own value and of the values in it,
    /// joined with what each reference and each part of `allOf` says of the same ones.
    fn cost(&mut self, schema: &'a Value) -> Cost {
        let parts = match schema {
            Value::Object(parts) => parts,
            Value::Array(items) => return self.costliest(items),
            _ => return Cost::default(),
        };

        let patterns = PATTERNS.iter().filter(|name| parts.contains_key(**name)).count();
        let mut cost = Cost { patterns, multiple: parts.get("multipleOf").map_or(0, digits) };
        let mut joined = Vec::new();
        for (name, value) in parts {
            match (name.as_str(), value) {
                ("allOf", Value::Array(all)) => joined.extend(all.iter().map(|one| self.cost(one))),
                ("$ref" | "$dynamicRef", Value::String(place)) => joined.push(self.target(place)),
                (name, Value::Array(some)) if ALTERNATIVES.contains(&name) => {
                    joined.push(self.costliest(some));
                }
                (_, value) => cost = cost.either(self.cost(value)),
            }
        }
        joined.into_iter().fold(cost, Cost::both)
    }

    fn costliest(&mut self, schemas: &'a [Value]) -> Cost {
        schemas.iter().fold(Cost::default(), |cost, one| cost.either(self.cost(one)))
    }

    /// The cost of the schema that a reference leads to. A circle leads to itself only in values
    /// that lie deeper.
    fn target(&mut self, place: &'a str) -> Cost {
        if let Some(known) = self.known.get(place) {
            return *known;
        }
        // The library refuses a reference that leads nowhere.
        let Some(target) = lookup(self.root, place).filter(|_| self.open.insert(place)) else {
            return Cost::default();
        };
        let cost = self.cost(target);
        self.open.remove(place);
        self.known.insert(place, cost);
        cost
    }
}

/// The schema that a reference leads to. Read as the library reads it, which is not quite a JSON
/// pointer: nothing is unescaped, and `+0` is an index.
pub(crate) fn lookup<'a>(root: &'a Value, place: &str) -> Option<&'a Value> {
    if place == "#" || place == "#/" {
        return Some(root);
    }
    place.strip_prefix("#/")?.split('/').try_fold(root, |found, segment| match found {
        Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
        found => found.get(segment),
    })
}

/// The digits of a number without its decimal point, at most [`u64::MAX`].
fn digits(number: &Value) -> u64 {
    let text = number.to_string();
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(if digits.is_empty() { 0 } else { u64::MAX })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patterns(count: usize) -> Vec<Value> {
        (0..count).map(|at| json!({ "pattern": format!(".*{at}.*") })).collect()
    }

    fn is_refused(schema: &Value) -> bool {
        check(schema).is_err()
    }

    #[test]
    fn patterns_of_one_value_are_counted_together() {
        let (few, many) = (patterns(JOINT_PATTERNS_MAX), patterns(JOINT_PATTERNS_MAX + 1));
        assert!(!is_refused(&json!({ "type": "string", "allOf": few })));
        assert!(is_refused(&json!({ "type": "string", "allOf": many })));
        let nested = json!({ "items": { "allOf": [{ "allOf": many }] } });
        assert!(is_refused(&nested));
        let chained = json!({ "$ref": "#/$defs/a", "pattern": "x", "$defs": {
            "a": { "anyOf": [{ "pattern": "a" }, { "allOf": few }] } } });
        assert!(is_refused(&chained));
        for (key, place) in
            [("a~1N", "#/$defs/a~1N"), ("a~0", "#/$defs/a~0"), ("a", "#/$defs/a/+0")]
        {
            let schema = json!({ "$ref": place, "$defs": { key: [{ "allOf": many }] } });
            assert!(is_refused(&schema), "{place}");
            let schema = json!({ "allOf": vec![json!({ "$ref": place }); JOINT_PATTERNS_MAX + 1],
                "$defs": { key: [{ "pattern": "a" }] } });
            assert!(is_refused(&schema), "{place} joined");
        }
        let by_name = json!({ "allOf": many.iter().map(|one| json!({ "properties": { "a": one } }))
            .collect::<Vec<_>>() });
        assert!(is_refused(&by_name));
    }

    #[test]
    fn patterns_of_different_values_are_not() {
        let fields: serde_json::Map<String, Value> = patterns(100)
            .into_iter()
            .enumerate()
            .map(|(at, one)| {
                (format!("field-{at}"), json!({ "$ref": "#/$defs/a", "allOf": [one] }))
            })
            .collect();
        let schema = json!({ "properties": fields, "$defs": { "a": { "type": "string" } } });
        assert!(!is_refused(&schema));
        let tree = json!({ "$defs": { "tree": { "properties": {
            "name": { "pattern": "a" }, "child": { "$ref": "#/$defs/tree" } } } },
            "$ref": "#/$defs/tree" });
        assert!(!is_refused(&tree));
    }

    #[test]
    fn multiples_are_bounded_by_their_digits() {
        for cheap in [json!(0.01), json!(100), json!(MULTIPLE_MAX), json!(2.5)] {
            assert!(!is_refused(&json!({ "multipleOf": cheap })), "{cheap}");
        }
        for dear in [json!(MULTIPLE_MAX + 1), json!(0.499_979), json!(u64::MAX)] {
            assert!(is_refused(&json!({ "multipleOf": dear })), "{dear}");
        }
        let product = json!({ "allOf": [{ "multipleOf": 997 }, { "multipleOf": 991 }] });
        assert!(is_refused(&product));
    }

    #[test]
    fn schemas_within_rules_count_too() {
        let rules = |schema: Value| format!("start: \"a\" %json {schema}\n");
        assert!(check_rules(&rules(json!({ "multipleOf": 2 }))).is_ok());
        assert!(check_rules(&rules(json!({ "multipleOf": 499_979 }))).is_err());
        assert!(check_rules("start: %json").is_err());
    }
}
