//! Schemas that no value fits both of.

use serde_json::Value;

use super::Form;
use super::types::types_of;

/// Returns true if it is known that no value fits both schemas. References are followed to `depth`.
pub(super) fn are_disjoint(one: &Value, other: &Value, form: &Form<'_>, depth: usize) -> bool {
    if !types_of(one, form, depth).meets(types_of(other, form, depth)) {
        return true;
    }
    if !form.may_look(depth) {
        return false;
    }
    // A schema is the conjunction of its parts, so one part that is disjoint suffices.
    let inner = |one: &Value, other: &Value| are_disjoint(one, other, form, depth - 1);
    [(one, other), (other, one)].into_iter().any(|(one, other)| {
        let all = list(one, "allOf").any(|part| inner(part, other));
        let any = |key| one.get(key).is_some() && list(one, key).all(|part| inner(part, other));
        let referred = form.target(one).is_some_and(|part| inner(part, other));
        all || any("anyOf") || any("oneOf") || referred
    }) || have_other_values(one, other)
        || have_other_properties(one, other, inner)
}

fn list<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// The values that a schema lists.
pub(super) fn listed(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

fn have_other_values(one: &Value, other: &Value) -> bool {
    match (listed(one), listed(other)) {
        (Some(one), Some(other)) => !one.iter().any(|value| other.contains(value)),
        _ => false,
    }
}

/// Returns true if both are objects, and a property that one of them requires cannot be what the
/// other one says of it.
fn have_other_properties(
    one: &Value,
    other: &Value,
    are_disjoint: impl Fn(&Value, &Value) -> bool,
) -> bool {
    let is_object = |schema: &Value| schema.get("type").is_some_and(|kind| kind == "object");
    if !is_object(one) || !is_object(other) {
        return false;
    }
    let required = list(one, "required").chain(list(other, "required")).filter_map(Value::as_str);
    required.into_iter().any(|name| {
        let (mine, theirs) = (property(one, name), property(other, name));
        matches!((mine, theirs), (Some(mine), Some(theirs)) if are_disjoint(mine, theirs))
    })
}

/// The schema of a property, if it is known.
fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let named = schema.get("properties").and_then(|properties| properties.get(name));
    let has_patterns = schema.get("patternProperties").is_some();
    named.or_else(|| schema.get("additionalProperties").filter(|_| !has_patterns))
}
