//! The types of values that can fit a schema.

use serde_json::Value;

use super::Form;

/// A set of JSON's types; integers are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TypeSet(u8);

const NAMES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl TypeSet {
    pub(super) const ALL: TypeSet = TypeSet(0b11_1111);
    const NONE: TypeSet = TypeSet(0);

    fn named(name: &str) -> TypeSet {
        let name = if name == "integer" { "number" } else { name };
        let at = NAMES.iter().position(|one| *one == name);
        at.map_or(TypeSet::NONE, |at| TypeSet(1 << at))
    }

    pub(super) fn of_value(value: &Value) -> TypeSet {
        TypeSet::named(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        })
    }

    /// The types of the keyword `type`.
    pub(super) fn of_keyword(value: &Value) -> TypeSet {
        match value {
            Value::String(name) => TypeSet::named(name),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str);
                names.map(TypeSet::named).fold(TypeSet::NONE, TypeSet::or)
            }
            _ => TypeSet::ALL,
        }
    }

    pub(super) fn or(self, other: TypeSet) -> TypeSet {
        TypeSet(self.0 | other.0)
    }

    fn and(self, other: TypeSet) -> TypeSet {
        TypeSet(self.0 & other.0)
    }

    pub(super) fn others(self) -> TypeSet {
        TypeSet(!self.0 & TypeSet::ALL.0)
    }

    /// Returns true if both have a type.
    pub(super) fn meets(self, other: TypeSet) -> bool {
        self.and(other) != TypeSet::NONE
    }

    pub(super) fn names(self) -> Vec<&'static str> {
        let has = |at: &usize| self.0 & (1 << *at) != 0;
        (0..NAMES.len()).filter(has).map(|at| NAMES[at]).collect()
    }
}

/// Returns the types of a schema, or more. References are followed to `depth`.
pub(super) fn types_of(schema: &Value, form: &Form<'_>, depth: usize) -> TypeSet {
    let Value::Object(parts) = schema else {
        return if *schema == false { TypeSet::NONE } else { TypeSet::ALL };
    };
    if !form.may_look(depth) {
        return TypeSet::ALL;
    }

    let of = |one: &Value| types_of(one, form, depth - 1);
    let mut types = TypeSet::ALL;
    for (key, value) in parts {
        let more = match (key.as_str(), value) {
            ("type", value) => TypeSet::of_keyword(value),
            ("const", value) => TypeSet::of_value(value),
            ("enum", Value::Array(values)) => {
                values.iter().map(TypeSet::of_value).fold(TypeSet::NONE, TypeSet::or)
            }
            ("allOf", Value::Array(all)) => all.iter().map(of).fold(TypeSet::ALL, TypeSet::and),
            ("anyOf" | "oneOf", Value::Array(any)) => {
                any.iter().map(of).fold(TypeSet::NONE, TypeSet::or)
            }
            ("$ref", _) => form.target(schema).map_or(TypeSet::ALL, of),
            _ => TypeSet::ALL,
        };

        types = types.and(more);
    }
    types
}
