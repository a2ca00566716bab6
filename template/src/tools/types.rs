//! The types of parameters, by which values that are written as text become JSON.

use std::collections::HashMap;

use serde_json::Value;

/// References and nested schemas that are followed to the types of a value.
const DEPTH_MAX: usize = 8;

/// The JSON schemas of the arguments of tools, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolTypes {
    /// `None` if they are unknown.
    schemas: Option<HashMap<String, Value>>,
}

impl ToolTypes {
    /// Makes the types of these tools: names and JSON schemas of their arguments.
    pub fn of<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Value)>) -> ToolTypes {
        let schemas = tools.into_iter().map(|(name, schema)| (name.to_owned(), schema.clone()));
        ToolTypes { schemas: Some(schemas.collect()) }
    }

    /// Returns true if a tool may have this parameter: if its schema names it, or if the tools are
    /// unknown.
    pub(super) fn describe(&self, tool: &str, parameter: &str) -> bool {
        let Some(schemas) = &self.schemas else { return true };
        let properties = schemas.get(tool).and_then(|schema| schema.get("properties"));
        properties.is_some_and(|properties| properties.get(parameter).is_some())
    }

    /// Returns the types of a parameter. One that no schema describes is text.
    pub(super) fn of_parameter(&self, tool: &str, parameter: &str) -> ValueTypes {
        let Some(schemas) = &self.schemas else { return ValueTypes::UNKNOWN };
        let Some(root) = schemas.get(tool) else { return ValueTypes::TEXT };
        let named = root.get("properties").and_then(|properties| properties.get(parameter));
        let schema = named.or_else(|| root.get("additionalProperties"));
        let types = schema.map_or(ValueTypes::NONE, |schema| types_of(schema, root, DEPTH_MAX));
        if types == ValueTypes::NONE { ValueTypes::TEXT } else { types }
    }
}

/// Some of the types of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueTypes(u8);

impl ValueTypes {
    const NONE: ValueTypes = ValueTypes(0);
    const NULL: ValueTypes = ValueTypes(1);
    const INTEGER: ValueTypes = ValueTypes(2);
    const NUMBER: ValueTypes = ValueTypes(4);
    const BOOLEAN: ValueTypes = ValueTypes(8);
    /// Objects and lists.
    const NESTED: ValueTypes = ValueTypes(16);
    const TEXT: ValueTypes = ValueTypes(32);
    /// Any, and nothing says which.
    const UNKNOWN: ValueTypes = ValueTypes(64);

    fn has(self, other: ValueTypes) -> bool {
        self.0 & other.0 != 0
    }

    fn and(self, other: ValueTypes) -> ValueTypes {
        ValueTypes(self.0 | other.0)
    }

    fn named(name: &str) -> ValueTypes {
        match name {
            "null" => ValueTypes::NULL,
            "integer" => ValueTypes::INTEGER,
            "number" => ValueTypes::NUMBER,
            "boolean" => ValueTypes::BOOLEAN,
            "object" | "array" => ValueTypes::NESTED,
            "string" => ValueTypes::TEXT,
            _ => ValueTypes::NONE,
        }
    }

    fn of(value: &Value) -> ValueTypes {
        match value {
            Value::Null => ValueTypes::NULL,
            Value::Bool(_) => ValueTypes::BOOLEAN,
            Value::Number(number) if number.is_f64() => ValueTypes::NUMBER,
            Value::Number(_) => ValueTypes::INTEGER,
            Value::String(_) => ValueTypes::TEXT,
            Value::Array(_) | Value::Object(_) => ValueTypes::NESTED,
        }
    }

    /// Returns true if every text is a string.
    pub(super) fn is_text(self) -> bool {
        self == ValueTypes::TEXT
    }

    /// Returns the JSON that a text stands for: null, a number, a boolean, an object or a list if
    /// the types have it and the text can be read so, else a string. A text that no type fits is
    /// JSON if it can be, else a string.
    pub(super) fn json(self, text: &str) -> String {
        let word = text.trim();
        if self == ValueTypes::UNKNOWN {
            return unknown_json(word, text);
        }
        if self.has(ValueTypes::NULL) && word.eq_ignore_ascii_case("null") {
            return "null".to_owned();
        }
        if let Some(number) = serde_json::from_str::<serde_json::Number>(word).ok()
            && (self.has(ValueTypes::NUMBER)
                || self.has(ValueTypes::INTEGER) && is_integer(word, &number))
        {
            return word.to_owned();
        }
        if let Some(truth) = truth(word).filter(|_| self.has(ValueTypes::BOOLEAN)) {
            return truth.to_string();
        }
        let may_be_json = self.has(ValueTypes::NESTED) || !self.has(ValueTypes::TEXT);
        if may_be_json && is_json(word) { word.to_owned() } else { quoted(text) }
    }
}

/// Returns the types that a schema allows; none if it says nothing.
fn types_of(schema: &Value, root: &Value, depth: usize) -> ValueTypes {
    let Some(depth) = depth.checked_sub(1) else { return ValueTypes::NONE };
    let list = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();

    let mut types = match schema.get("type") {
        Some(Value::String(name)) => ValueTypes::named(name),
        _ => list("type")
            .filter_map(Value::as_str)
            .fold(ValueTypes::NONE, |types, name| types.and(ValueTypes::named(name))),
    };
    for value in list("enum").chain(schema.get("const")) {
        types = types.and(ValueTypes::of(value));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        types = list(key).fold(types, |types, one| types.and(types_of(one, root, depth)));
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|place| lookup(root, place));
    target.map_or(types, |target| types.and(types_of(target, root, depth)))
}

/// Returns the schema that a reference within a schema leads to.
fn lookup<'a>(root: &'a Value, place: &str) -> Option<&'a Value> {
    root.pointer(place.strip_prefix('#')?)
}

/// Returns the JSON of a text of which nothing is known. Templates write true, false and null as
/// Python does.
fn unknown_json(word: &str, text: &str) -> String {
    match word {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        word if is_json(word) => word.to_owned(),
        _ => quoted(text),
    }
}

/// Returns true for a number without a fraction and an exponent, of any size.
fn is_integer(word: &str, number: &serde_json::Number) -> bool {
    !number.is_f64() || !word.contains(['.', 'e', 'E'])
}

fn truth(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

/// Returns a text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_the_first_of_its_types_that_it_fits() {
        let cases = [
            (json!({"type": "string"}), "3", "\"3\""),
            (json!({"type": "string"}), " a\n\"b ", "\" a\\n\\\"b \""),
            (json!({"type": "integer"}), "3", "3"),
            (json!({"type": "integer"}), " -12 ", "-12"),
            (
                json!({"type": "integer"}),
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (json!({"type": "integer"}), "3.5", "3.5"),
            (json!({"type": ["integer", "string"]}), "3.5", "\"3.5\""),
            (json!({"type": "integer"}), "three", "\"three\""),
            (json!({"type": "number"}), "1e3", "1e3"),
            (json!({"type": "number"}), "1e999", "\"1e999\""),
            (json!({"type": "number"}), "NaN", "\"NaN\""),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "boolean"}), "0", "false"),
            (json!({"type": "boolean"}), "yes", "\"yes\""),
            (json!({"type": ["string", "null"]}), "null", "null"),
            (json!({"type": ["string", "null"]}), "None", "\"None\""),
            (json!({"type": "object"}), "{\"a\": [1, \"b\"]}", "{\"a\": [1, \"b\"]}"),
            (json!({"type": "array"}), "[1,]", "\"[1,]\""),
            (json!({"anyOf": [{"type": "array"}, {"type": "string"}]}), "[1]", "[1]"),
            (json!({"anyOf": [{"type": "array"}, {"type": "string"}]}), "1", "1"),
            (json!({"enum": [1, "two"]}), "1", "1"),
            (json!({"enum": [1, "two"]}), "two", "\"two\""),
            (json!({"const": true}), "true", "true"),
            (json!({"$ref": "#/$defs/n"}), "7", "7"),
            (json!({"$ref": "#/$defs/circle"}), "7", "\"7\""),
            (json!({"allOf": [{"$ref": "#/$defs/n"}]}), "7", "7"),
            (json!({"type": "unheard"}), "7", "\"7\""),
            (json!({}), "7", "\"7\""),
            (json!(true), "7", "\"7\""),
        ];
        for (schema, text, expected) in cases {
            let root = json!({"properties": {"p": schema},
                "$defs": {"n": {"type": "integer"}, "circle": {"$ref": "#/$defs/circle"}}});
            let types = ToolTypes::of([("f", &root)]);
            assert_eq!(types.of_parameter("f", "p").json(text), expected, "{root} {text}");
            // Another tool and another parameter are text.
            assert!(types.of_parameter("g", "p").is_text());
            assert!(types.of_parameter("f", "q").is_text());
        }
        let open = json!({"additionalProperties": {"type": "integer"}});
        assert_eq!(ToolTypes::of([("f", &open)]).of_parameter("f", "any").json("7"), "7");
    }

    #[test]
    fn without_schemas_a_text_is_json_if_it_can_be() {
        for (text, expected) in
            [("7", "7"), ("True", "true"), ("None", "null"), ("[1, 2]", "[1, 2]"), (" a", "\" a\"")]
        {
            assert_eq!(ToolTypes::default().of_parameter("f", "p").json(text), expected);
        }
    }
}
