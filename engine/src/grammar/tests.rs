//! Random walks through forms: every sampled reply has the form, and ends where it may.

use std::path::PathBuf;
use std::sync::LazyLock;

use super::*;
use crate::sample::mix;

const VOCAB: usize = 393;
const END: u32 = 390;

fn tokenizer() -> Tokenizer {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    Tokenizer::load(&folder).unwrap()
}

fn grammars() -> GrammarCompiler {
    GrammarCompiler::new(&tokenizer(), VOCAB, &[END, 388]).unwrap()
}

/// One random reply of a form, or none if it does not end in time.
fn walk(grammar: &Grammar, seed: u64) -> Option<String> {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(tokenizer);
    let mut grammar = grammar.clone();
    let mut ids = Vec::new();
    for position in 0..600 {
        let noise = |id| (mix(seed ^ mix(position * 1000 + id)) >> 40) as f32;
        let mut logits: Vec<f32> = (0..VOCAB as u64).map(noise).collect();
        grammar.mask_logits(&mut logits);
        let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        assert!(*best.1 > f32::NEG_INFINITY, "nothing fits after {ids:?}");
        grammar.push(best.0);
        assert!(!grammar.has_failed());
        if grammar.is_over() {
            assert!([END, 388].contains(&best.0));
            return Some(TOKENIZER.decode(&ids, false));
        }
        ids.push(best.0);
    }
    None
}

fn check(form: GrammarSpec, fits: impl Fn(&str) -> bool) {
    let grammar = grammars().compile(form.clone(), LeadingThought::None).unwrap();
    let replies: Vec<String> = (0..60).filter_map(|seed| walk(&grammar, seed)).collect();
    assert!(replies.len() > 20, "{form:?}: only {} replies ended", replies.len());
    for reply in replies {
        assert!(fits(&reply), "{form:?}: {reply:?}");
    }
}

fn schema() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["kind", "count"],
        "properties": {
            "kind": {"enum": ["a", "b c", "ü"]},
            "count": {"type": "integer", "minimum": 3, "maximum": 12},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        },
        "$defs": {"tag": {"type": "string", "maxLength": 3}}})
}

fn is_of_schema(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str(text) else { return false };
    let tags = map.get("tags").map(|tags| tags.as_array().unwrap().clone()).unwrap_or_default();
    ["a", "b c", "ü"].contains(&map["kind"].as_str().unwrap())
        && (3..=12).contains(&map["count"].as_i64().unwrap())
        && tags.len() <= 2
        && tags.iter().all(|tag| tag.as_str().unwrap().chars().count() <= 3)
        && map.keys().all(|key| ["kind", "count", "tags"].contains(&key.as_str()))
}

#[test]
fn json_has_its_schema() {
    let tight = GrammarSpec::Json { schema: schema(), spacing: JsonWhitespace::None };
    check(tight, |text| is_of_schema(text) && text.starts_with("{\"kind\":\""));
    let one = GrammarSpec::Json { schema: schema(), spacing: JsonWhitespace::Pattern(" ?".into()) };
    check(one, |text| is_of_schema(text) && !text.starts_with("{  "));
    check(GrammarSpec::Json { schema: schema(), spacing: JsonWhitespace::Any }, is_of_schema);
}

/// A model that always wants more white space gets on with its reply.
#[test]
fn white_space_between_the_parts_of_json_is_bounded() {
    let form = GrammarSpec::Json { schema: schema(), spacing: JsonWhitespace::Any };
    let bytes = |id: u32| tokenizer().decode(&[id], false);
    let spaced: Vec<u32> = (0..VOCAB as u32).filter(|id| bytes(*id).trim().is_empty()).collect();
    let opening = (0..VOCAB as u32).find(|id| bytes(*id) == "<").unwrap();
    for thought in [LeadingThought::None, LeadingThought::Optional] {
        let mut grammar = grammars().compile(form.clone(), thought).unwrap();
        let mut ids = Vec::new();
        while !grammar.is_over() {
            let mut logits: Vec<f32> = (0..VOCAB).map(|id| -(id as f32)).collect();
            spaced.iter().for_each(|id| logits[*id as usize] += 1000.0);
            logits[opening as usize] = f32::NEG_INFINITY;
            grammar.mask_logits(&mut logits);
            assert!(ids.len() < 300, "{:?}", tokenizer().decode(&ids, false));
            let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            grammar.push(best.0);
            assert!(!grammar.has_failed(), "{:?}", grammar.spent);
            ids.push(best.0);
        }
        let text = tokenizer().decode(&ids, true);
        assert!(is_of_schema(&text), "{text}");
        let runs = text.split(|letter: char| !letter.is_ascii_whitespace());
        assert_eq!(runs.map(str::len).max(), Some(spaces::SPACES_MAX), "{text:?}");
    }
}

#[test]
fn any_object_is_json() {
    let grammar = grammars()
        .compile(GrammarSpec::object(JsonWhitespace::None), LeadingThought::None)
        .unwrap();
    let replies: Vec<String> = (0..40).filter_map(|seed| walk(&grammar, seed)).collect();
    assert!(!replies.is_empty());
    for reply in replies {
        match serde_json::from_str::<Value>(&reply) {
            Ok(value) => assert!(value.is_object(), "{reply:?}"),
            // JSON has numbers of any size; this reader has not.
            Err(error) => assert!(error.to_string().contains("number out of range"), "{error}"),
        }
    }
}

#[test]
fn the_whole_reply_matches_an_expression() {
    let regex = GrammarSpec::Regex("[a-c]{2,4}-(x|ü)[0-9]".into());
    check(regex, |text| {
        let (word, rest) = text.split_once('-').unwrap();
        let digit = rest.strip_prefix('x').or_else(|| rest.strip_prefix('ü')).unwrap();
        (2..=4).contains(&word.len())
            && word.bytes().all(|byte| b"abc".contains(&byte))
            && digit.len() == 1
            && digit.bytes().all(|byte| byte.is_ascii_digit())
    });
}

#[test]
fn a_choice_is_one_of_its_texts() {
    let texts = ["yes", "no", "a \"quoted\"\nline", "näh", "yesterday"];
    let form = GrammarSpec::Choice(texts.map(String::from).to_vec());
    check(form, |text| texts.contains(&text));
}

#[test]
fn rules_of_both_notations_are_followed() {
    let sum = |text: &str| {
        let terms: Vec<&str> = text.split(" + ").collect();
        (1..=3).contains(&terms.len())
            && terms.iter().all(|term| term.len() == 1 && term.bytes().all(|b| b.is_ascii_digit()))
    };
    check(GrammarSpec::Rules("start: DIGIT (\" + \" DIGIT){0,2}\nDIGIT: /[0-9]/".into()), sum);
    let gbnf =
        "# a sum\nroot ::= the-digit (\n  \" + \" the-digit){0,2}\nthe-digit ::= [0-9] # one\n";
    check(GrammarSpec::Rules(gbnf.into()), sum);
    let list = "root ::= start | \"[\" start \"]\"\nstart ::= \"a\"\n  | \"b/]\"\n";
    check(GrammarSpec::Rules(list.into()), |text| ["a", "b/]", "[a]", "[b/]]"].contains(&text));
    let class = "root ::= [^a-z/\\]]{2}";
    check(GrammarSpec::Rules(class.into()), |text| {
        text.chars().count() == 2
            && !text.contains(|c: char| "/]".contains(c) || c.is_ascii_lowercase())
    });
}

#[test]
fn clones_go_their_own_ways() {
    let mut first = grammars()
        .compile(GrammarSpec::Choice(vec!["ab".into(), "cd".into()]), LeadingThought::None)
        .unwrap();
    let second = first.clone();
    let tokenizer = tokenizer();
    first.push(tokenizer.encode("a", false).unwrap()[0]);
    let mut logits = vec![0.0; VOCAB];
    first.mask_logits(&mut logits);
    assert_eq!(logits.iter().filter(|logit| **logit == 0.0).count(), 1);
    let replies: Vec<String> = (0..20).filter_map(|seed| walk(&second, seed)).collect();
    assert!(replies.contains(&"ab".into()) && replies.contains(&"cd".into()));
}

#[test]
fn what_nothing_fits_is_refused() {
    let schema = |schema| GrammarSpec::Json { schema, spacing: JsonWhitespace::Any };
    let impossible = [
        schema(json!(false)),
        schema(json!({"enum": []})),
        schema(json!({"type": "string", "minLength": 3, "maxLength": 2})),
        schema(json!({"type": "nothing"})),
        schema(json!({"$ref": "#/$defs/absent"})),
        GrammarSpec::Regex("(".into()),
        GrammarSpec::Rules("start: missing".into()),
        GrammarSpec::Rules("root ::= (\"a\"".into()),
        GrammarSpec::Rules("root ::= \"a".into()),
        GrammarSpec::Rules(String::new()),
    ];
    let grammars = grammars();
    for form in impossible {
        assert!(grammars.compile(form.clone(), LeadingThought::None).is_err(), "{form:?}");
    }
    assert!(matches!(GrammarCompiler::new(&tokenizer(), VOCAB, &[]), Err(GrammarError::NoEnd)));
}

#[test]
fn depth_is_no_danger() {
    let grammars = grammars();
    let json = |schema| {
        grammars.compile(
            GrammarSpec::Json { schema, spacing: JsonWhitespace::Any },
            LeadingThought::None,
        )
    };
    let mut deep = json!({"type": "integer"});
    for _ in 0..120 {
        deep = json!({"type": "object", "properties": {"a": {"items": deep}}});
    }
    assert!(json(deep).is_ok());
    let next = |i| json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", i + 1)}});
    let mut chain: serde_json::Map<String, Value> =
        (0..500).map(|i| (format!("d{i}"), next(i))).collect();
    chain.insert("d500".into(), json!({"type": "integer"}));
    assert!(json(json!({"$ref": "#/$defs/d0", "$defs": chain})).is_ok());
    let nested = |count| format!("{}a{}", "(".repeat(count), ")".repeat(count));
    assert!(grammars.compile(GrammarSpec::Regex(nested(190)), LeadingThought::None).is_ok());
    let reason = |form| grammars.compile(form, LeadingThought::None).unwrap_err().to_string();
    let groups = "it has more than 200 nested groups";
    assert_eq!(reason(GrammarSpec::Regex(nested(100_000 / 2))), groups);
    assert_eq!(reason(GrammarSpec::Rules(format!("start: {}", nested(60_000)))), groups);
    assert_eq!(
        reason(GrammarSpec::Choice(vec!["a".repeat(131_073)])),
        "it is larger than 131072 bytes"
    );
}

#[test]
fn a_form_that_takes_too_long_fails_and_others_go_on() {
    let rules = "s: s s s | s s | /[^\\n]/\nstart: s";
    let Ok(mut grammar) =
        grammars().compile(GrammarSpec::Rules(rules.to_owned()), LeadingThought::None)
    else {
        return;
    };
    let begun = Instant::now();
    for _ in 0..600 {
        let mut logits = vec![0.0; VOCAB];
        grammar.mask_logits(&mut logits);
        let allowed = logits.iter().position(|logit| *logit == 0.0 && !grammar.has_failed());
        let Some(id) = allowed else { break };
        grammar.push(id as u32);
    }
    assert!(grammar.has_failed());
    assert!(begun.elapsed() < Duration::from_secs(20));
    check(GrammarSpec::Regex("[a-c]{2,4}".to_owned()), |text| (2..=4).contains(&text.len()));
}

/// Walks through a schema, and checks each reply by `fits`.
fn check_schema(schema: Value, fits: impl Fn(&Value) -> bool) {
    let form = GrammarSpec::Json { schema, spacing: JsonWhitespace::None };
    check(form, |reply| serde_json::from_str(reply).is_ok_and(|value| fits(&value)));
}

#[test]
fn one_of_is_one_and_not_two() {
    let needs = |key: &str| json!({"type": "object", "required": [key]});
    let numbers = json!({"a": {"enum": [1, 2]}, "b": {"enum": [3]}});
    check_schema(
        json!({"type": "object", "properties": numbers, "additionalProperties": false,
            "oneOf": [needs("a"), needs("b")]}),
        |value| value.get("a").is_some() != value.get("b").is_some(),
    );
    check_schema(
        json!({"oneOf": [{"enum": ["a", "ab", 1]}, {"type": "string", "maxLength": 2}]}),
        |value| value == 1 || value.as_str().is_some_and(|s| s.len() <= 8 && s != "a" && s != "ab"),
    );
    check_schema(
        json!({"oneOf": [{"type": "integer", "minimum": 0, "maximum": 20},
            {"type": "integer", "minimum": 10, "maximum": 30}]}),
        |value| value.as_i64().is_some_and(|n| (0..10).contains(&n) || (21..=30).contains(&n)),
    );
}

#[test]
fn conditions_dependencies_and_names_hold() {
    let flags = json!({"a": {"type": "boolean"}, "b": {"type": "boolean"}});
    let object = |more: Value| {
        let mut schema = json!({"type": "object", "properties": flags,
            "additionalProperties": false});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    for key in ["dependencies", "dependentRequired"] {
        check_schema(object(json!({key: {"a": ["b"]}})), |value| {
            value.get("a").is_none() || value.get("b").is_some()
        });
    }
    let is_a = json!({"properties": {"a": {"const": true}}, "required": ["a"]});
    let case = json!({"if": is_a, "then": {"required": ["b"]},
        "else": {"properties": {"b": false}}});
    check_schema(object(case), |value| (value["a"] == true) == value.get("b").is_some());
    check_schema(object(json!({"not": {"required": ["a", "b"]}})), |value| {
        value.get("a").is_none() || value.get("b").is_none()
    });
    let named = json!({"type": "object", "propertyNames": {"enum": ["x", "y"]},
        "additionalProperties": {"type": "boolean"}});
    check_schema(named, |value| {
        let mut fields = value.as_object().unwrap().iter();
        fields.all(|(name, value)| ["x", "y"].contains(&&**name) && value.is_boolean())
    });
    check_schema(
        json!({"type": "string", "maxLength": 3, "not": {"enum": ["a", "abc"]}}),
        |value| value.as_str().is_some_and(|text| text != "a" && text != "abc"),
    );
}
