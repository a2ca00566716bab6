//! Demanded calls in tags.

use template::{ToolCall, ToolParser};

use super::*;
use crate::sample::mix;

fn demanded(schema: Value, only_one: bool) -> RequiredCalls {
    let tools = vec![Tool { name: "f".to_owned(), schema }];
    let format = ToolFormat::Qwen3Coder;
    RequiredCalls { format, tools, only_one, demand: ToolDemand::Required }
}

/// Writes a call as the templates do.
fn written(parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
}

/// A schema with one required parameter `p`.
fn one(schema: Value) -> Value {
    json!({"type": "object", "properties": {"p": schema}, "required": ["p"],
        "$defs": {"digit": {"enum": [7, 8]}, "word": {"type": "string"}}})
}

#[test]
fn demanded_calls_in_tags_are_in_the_words_of_the_template() {
    let schema = json!({"type": "object", "required": ["w", "n"], "additionalProperties": false,
        "properties": {"w": {"enum": ["b", "c"]}, "o": {"type": "boolean"},
            "n": {"type": "integer"}}});
    let (single, many) = (demanded(schema.clone(), true), demanded(schema, false));
    let call = written(&[("w", "b"), ("n", "12")]);
    let longer = written(&[("w", "c"), ("o", "true"), ("n", "-3")]);
    for text in [&call, &longer] {
        assert!(fits(&single, None, text), "{text}");
    }
    assert!(fits(&many, None, &format!("{call}\n{longer}\n{call}")));
    for text in [
        String::new(),
        "Well.".to_owned(),
        format!("{call}\n{call}"),
        written(&[("n", "12"), ("w", "b")]),
        written(&[("w", "b")]),
        written(&[("w", "d"), ("n", "12")]),
        written(&[("w", "b"), ("n", "x")]),
        written(&[("w", "b"), ("o", "True"), ("n", "12")]),
        written(&[("w", "b"), ("x", "1"), ("n", "12")]),
        call.replace("</function>", ""),
        call.replace("<tool_call>\n", ""),
        call.replace("\n</parameter>", "</parameter>"),
        call.replace("=f>", "=g>"),
    ] {
        assert!(!fits(&single, None, &text), "{text}");
    }
    let thought = "\nIs 1 < 2?\n</think>\n\n";
    assert!(fits(&single, Some("a\n<think>\n"), &format!("{thought}{call}")));
}

#[test]
fn values_in_tags_are_text_or_json_by_their_schemas() {
    let cases: [(Value, &[&str], &[&str]); 17] = [
        (
            json!({"type": "string"}),
            &["", "a\nb", "\n\n", " <b> </p ", "</function>"],
            &["a</parameter>b"],
        ),
        (json!({}), &["any", "1"], &[]),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            &["ab", "a\nb"],
            &["a", "abcd"],
        ),
        (json!({"type": "string", "pattern": "^[a-c]+$"}), &["abc"], &["abd", ""]),
        (json!({"type": "string", "pattern": "^a\\$"}), &["a$", "a$b"], &["a"]),
        (json!({"type": "string", "pattern": "a[$|^]|b"}), &["xa^x", "b"], &["a"]),
        (json!({"type": "string", "pattern": "b/c"}), &["ab/cd", "b/c"], &["bc"]),
        (json!({"type": "string", "pattern": "^(a|b)$", "maxLength": 1}), &["a"], &["c"]),
        (
            json!({"enum": ["one two", "é\"", 3, null]}),
            &["one two", "é\"", "3", "null"],
            &["one", "4"],
        ),
        (json!({"const": "x"}), &["x"], &["\"x\""]),
        (json!({"type": "number", "minimum": 2}), &["2.5"], &["1", "x"]),
        (json!({"type": "array", "items": {"type": "string"}}), &["[\"a\"]", "[]"], &["a", "[1]"]),
        (json!({"type": ["string", "null"]}), &["a", "null"], &[]),
        (
            json!({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "boolean"}]}),
            &["a", "true"],
            &["ab"],
        ),
        (json!({"$ref": "#/$defs/digit"}), &["7"], &["9"]),
        (json!({"allOf": [{"$ref": "#/$defs/word"}], "description": "d"}), &["w"], &[]),
        (
            json!({"type": "object", "properties": {"d": {"$ref": "#/$defs/digit"}},
            "required": ["d"], "additionalProperties": false}),
            &["{\"d\": 7}"],
            &["{\"d\": 9}", "{}"],
        ),
    ];
    for (schema, fitting, others) in cases {
        let demanded = demanded(one(schema.clone()), true);
        for value in fitting {
            assert!(fits(&demanded, None, &written(&[("p", value)])), "{schema}: {value:?}");
        }
        for value in others {
            assert!(!fits(&demanded, None, &written(&[("p", value)])), "{schema}: {value:?}");
        }
    }
}

#[test]
fn what_tags_cannot_hold_is_refused_by_name() {
    let cases = [
        (json!({"type": "object", "anyOf": []}), "`anyOf` of a tool's arguments"),
        (json!({"type": "array"}), "other than `object`"),
        (one(json!({"oneOf": [{"type": "string"}, {"const": "a"}]})), "`oneOf` of several texts"),
        (one(json!({"enum": ["a"], "maxLength": 1})), "`maxLength` beside `enum`"),
        (one(json!({"const": "</parameter>"})), "the text"),
        (one(json!({"$ref": "#/$defs/none"})), "leads nowhere"),
        (one(json!(false)), "no value"),
        (one(json!({"type": "string", "pattern": "^a|b"})), "the pattern \"^a|b\""),
        (one(json!({"type": "string", "pattern": "(a|^b)"})), "the pattern"),
        (one(json!({"type": "string", "pattern": "(?=a)"})), "look-around"),
        (json!({"properties": {"a>b": {}}}), "the name \"a>b\""),
        (json!({"properties": {"": {}}}), "the name \"\""),
    ];
    let (tokenizer, grammars, _) = &*TINY;
    for (schema, words) in cases {
        let rules = demanded(schema.clone(), true).rules(tokenizer);
        let refused = rules.and_then(|rules| {
            grammars.compile(GrammarSpec::Calls(rules), LeadingThought::None).map(|_| ())
        });
        let reason = refused.expect_err(&schema.to_string()).to_string();
        assert!(reason.contains(words), "{schema}: {reason}");
    }
}

/// Random replies are read back as calls that have the schema.
#[test]
fn whatever_is_sampled_under_a_demand_is_a_call() {
    let schema = json!({"type": "object", "required": ["text", "n"], "properties": {
        "text": {"type": "string", "maxLength": 9},
        "n": {"type": "integer", "minimum": 3, "maximum": 12},
        "is": {"type": "boolean"}, "kind": {"enum": ["a", "b c", "ü"]}}});
    let types = Arc::new(ToolTypes::of([("f", &schema)]));
    let calls = demanded(schema, false);
    let (grammar, tokenizer, end) = compiled(&calls, None);
    let mut ended = 0;
    for seed in 0..40 {
        let Some(text) = walk(&grammar, tokenizer, end, seed) else { continue };
        ended += 1;
        let parser = ToolParser::with_types(ToolFormat::Qwen3Coder, Arc::clone(&types));
        let (content, calls) = parser.demanded().read(&text);
        assert!(content.is_empty() && !calls.is_empty(), "{text}");
        for ToolCall { name, arguments } in calls {
            let arguments: Value = serde_json::from_str(&arguments).unwrap();
            let n = arguments["n"].as_i64().unwrap();
            let has_kind = arguments
                .get("kind")
                .is_none_or(|kind| ["a", "b c", "ü"].map(Value::from).contains(kind));
            let has_truth = arguments.get("is").is_none_or(Value::is_boolean);
            assert!(name == "f" && (3..=12).contains(&n) && has_kind && has_truth, "{text}");
            assert!(arguments["text"].as_str().unwrap().chars().count() <= 9, "{text}");
        }
    }
    assert!(ended > 20, "{ended}");
}

/// One random reply, or none if it does not end in time.
fn walk(grammar: &Grammar, tokenizer: &Tokenizer, end: u32, seed: u64) -> Option<String> {
    let mut grammar = grammar.clone();
    let mut ids = Vec::new();
    for position in 0..500 {
        let noise = |id| (mix(seed ^ mix(position * 1000 + id)) >> 40) as f32;
        let mut logits: Vec<f32> = (0..tokenizer.size() as u64).map(noise).collect();
        grammar.mask_logits(&mut logits);
        let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        grammar.push(best);
        assert!(!grammar.has_failed());
        if best == end {
            return Some(tokenizer.decode(&ids, false));
        }
        ids.push(best);
    }
    None
}
