//! The opposite of a schema, as far as the library's keywords can say it.

use serde_json::{Map, Number, Value, json};

use super::Form;
use super::disjoint::listed;
use super::strings::other_than;
use super::types::TypeSet;

/// Returns schemas of which every value that fits one does not fit `schema`. A value that does not
/// fit may be missing. `None` if nothing is known.
pub(super) fn negation(schema: &Value, form: &Form<'_>, depth: usize) -> Option<Vec<Value>> {
    let parts = match schema {
        Value::Bool(true) => return None,
        Value::Bool(false) => return Some(vec![Value::Bool(true)]),
        schema => schema.as_object()?,
    };
    if !form.may_look(depth) {
        return None;
    }
    let negate = |one: &Value| negation(one, form, depth - 1);

    // A schema is the conjunction of its parts, and not to fit one of them is not to fit it.
    let mut ways = Vec::new();
    for (key, value) in parts {
        match key.as_str() {
            "type" => ways.extend(of_types(TypeSet::of_keyword(value).others())),
            "const" | "enum" => ways.extend(other_values(&listed(schema)?)),
            "required" => ways.extend(names(value).map(without)),
            "properties" => ways.extend(other_properties(value, negate)),
            "allOf" => ways.extend(schemas(value).filter_map(negate).flatten()),
            "anyOf" => ways.extend(none_of(value, negate)),
            "not" => ways.push(value.clone()),
            "$ref" => ways.extend(form.target(schema).and_then(negate).unwrap_or_default()),
            key => ways.extend(beyond(key, value)),
        }
    }
    (!ways.is_empty()).then_some(ways)
}

fn schemas(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn names(value: &Value) -> impl Iterator<Item = &str> {
    schemas(value).filter_map(Value::as_str)
}

fn of_types(types: TypeSet) -> Option<Value> {
    let names = types.names();
    (!names.is_empty()).then(|| json!({"type": names}))
}

/// Values other than the listed ones. Numbers are left out, and lists and objects, if one of their
/// type is listed.
fn other_values(listed: &[&Value]) -> Vec<Value> {
    let types = listed.iter().map(|value| TypeSet::of_value(value));
    let types = types.reduce(TypeSet::or);
    let mut ways: Vec<Value> =
        types.and_then(|types| of_types(types.others())).into_iter().collect();
    let texts: Vec<&str> = listed.iter().filter_map(|value| value.as_str()).collect();
    if let Some(pattern) = other_than(&texts) {
        ways.push(json!({"type": "string", "pattern": pattern}));
    }
    let flags: Vec<bool> = listed.iter().filter_map(|value| value.as_bool()).collect();
    if let [flag] = flags[..] {
        ways.push(json!({"const": !flag}));
    }
    ways
}

fn without(name: &str) -> Value {
    json!({"type": "object", "properties": {name: false}})
}

/// Objects in which one property is there and is not what the schema says.
fn other_properties(
    properties: &Value,
    negate: impl Fn(&Value) -> Option<Vec<Value>>,
) -> Vec<Value> {
    let mut ways = Vec::new();
    for (name, schema) in properties.as_object().into_iter().flatten() {
        let other = negate(schema).unwrap_or_default().into_iter();
        ways.extend(other.map(|other| {
            let properties = Map::from_iter([(name.clone(), other)]);
            json!({"type": "object", "properties": properties, "required": [name]})
        }));
    }
    ways
}

/// Values that fit none of the schemas.
fn none_of(value: &Value, negate: impl Fn(&Value) -> Option<Vec<Value>>) -> Option<Value> {
    let all: Option<Vec<Value>> =
        schemas(value).map(|one| Some(json!({"anyOf": negate(one)?}))).collect();
    all.map(|all| json!({"allOf": all}))
}

/// Values beyond a bound.
fn beyond(key: &str, value: &Value) -> Option<Value> {
    let (kind, opposite) = match key {
        "minimum" => ("number", "exclusiveMaximum"),
        "maximum" => ("number", "exclusiveMinimum"),
        "exclusiveMinimum" if value.is_number() => ("number", "maximum"),
        "exclusiveMaximum" if value.is_number() => ("number", "minimum"),
        "minLength" => ("string", "maxLength"),
        "maxLength" => ("string", "minLength"),
        "minItems" => ("array", "maxItems"),
        "maxItems" => ("array", "minItems"),
        "minProperties" => ("object", "maxProperties"),
        "maxProperties" => ("object", "minProperties"),
        _ => return None,
    };
    let bound = match (kind, key.starts_with("min")) {
        ("number", _) => value.clone(),
        (_, true) => Value::Number(Number::from(value.as_u64()?.checked_sub(1)?)),
        (_, false) => Value::Number(Number::from(value.as_u64()?.checked_add(1)?)),
    };
    Some(json!({"type": kind, opposite: bound}))
}
