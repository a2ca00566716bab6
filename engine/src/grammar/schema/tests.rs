//! Tests of what schemas become, and of what is refused.

use super::*;

fn refusal(schema: &Value) -> String {
    prepare(schema).unwrap_err().to_string()
}

#[test]
fn what_the_library_has_stays() {
    let schema = json!({"type": "object", "$defs": {"a": {"format": "date"}},
        "properties": {"b": {"$ref": "#/$defs/a"}, "format": {"type": "string"}},
        "required": ["b"], "additionalProperties": {"items": {"enum": [1, "format"]}}});
    assert_eq!(prepare(&schema).unwrap(), schema);
    assert_eq!(prepare(&json!(true)).unwrap(), json!(true));
}

#[test]
fn formats_that_nobody_defined_are_ignored() {
    let schema = json!({"items": {"type": "string", "format": "path"}});
    assert_eq!(prepare(&schema).unwrap(), json!({"items": {"type": "string"}}));
}

#[test]
fn a_count_may_be_written_as_a_float() {
    let schema = json!({"items": {"maxLength": 2.0}, "minItems": 1.0, "maximum": 3.0});
    let expected = json!({"items": {"maxLength": 2}, "minItems": 1, "maximum": 3.0});
    assert_eq!(prepare(&schema).unwrap(), expected);
    assert_eq!(prepare(&json!({"maxItems": 2.5})).unwrap(), json!({"maxItems": 2.5}));
}

#[test]
fn schemas_that_are_apart_are_any_of() {
    let (a, b) = (json!({"type": "string"}), json!({"type": ["integer", "null"]}));
    let expected = json!({"allOf": [{"anyOf": [a, b]}]});
    assert_eq!(prepare(&json!({"oneOf": [a, b]})).unwrap(), expected);
    let tagged = |tag: &str| {
        let properties = json!({"t": {"const": tag}});
        json!({"type": "object", "required": ["t"], "properties": properties})
    };
    let expected = json!({"allOf": [{"anyOf": [tagged("a"), tagged("b")]}]});
    assert_eq!(prepare(&json!({"oneOf": [tagged("a"), tagged("b")]})).unwrap(), expected);
}

#[test]
fn keywords_that_cannot_hold_are_refused_by_name() {
    for (key, schema) in [
        ("uniqueItems", json!({"items": {}, "uniqueItems": true})),
        ("contains", json!({"contains": {"type": "null"}})),
        ("unevaluatedProperties", json!({"allOf": [{}], "unevaluatedProperties": false})),
        ("not", json!({"properties": {"a": {"not": {"pattern": "x"}}}})),
        ("if", json!({"if": {"format": "date"}, "then": {"minLength": 3}})),
        ("oneOf", json!({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]})),
        ("propertyNames", json!({"properties": {"a": {}}, "propertyNames": {"pattern": "b"}})),
    ] {
        let reason = refusal(&schema);
        assert!(reason.contains(&format!("`{key}`")), "{key}: {reason}");
    }
    assert!(prepare(&json!({"uniqueItems": false, "if": {"format": "date"}})).is_ok());
    assert!(prepare(&json!({"uniqueItems": true, "maxItems": 1})).is_ok());
    // What nothing refers to refuses nothing.
    assert!(prepare(&json!({"$defs": {"a": {"type": "array", "uniqueItems": true}}})).is_ok());
}

#[test]
fn the_library_refuses_in_our_words() {
    let reason = explained("Unimplemented keys: [\"contains\", \"x\"]".to_owned());
    assert!(reason.starts_with("`contains` cannot be held"), "{reason}");
    let outer = "Only absolute $ref's are supported without 'referencing' feature; ref 'a.json'";
    assert!(explained(outer.to_owned()).contains("not to 'a.json'"));
}
