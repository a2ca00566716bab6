//! Calls in tags.

use serde_json::{Value, json};

use super::*;

const QWEN: ToolFormat = ToolFormat::Qwen3Coder;

fn types() -> Arc<ToolTypes> {
    let schema = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "n": {"type": "integer"}, "is": {"type": "boolean"},
        "list": {"type": "array"}, "either": {"type": ["string", "null"]},
        "size": {"enum": ["all", 1]}}});
    Arc::new(ToolTypes::of([("f", &schema)]))
}

fn parser() -> ToolParser {
    ToolParser::with_types(QWEN, types())
}

/// Returns the events of `text` in pieces of `size` characters, with neighbors joined.
fn tagged_events(text: &str, size: usize) -> Vec<ToolEvent> {
    let mut parser = parser();
    let letters: Vec<char> = text.chars().collect();
    let pieces = letters.chunks(size).map(|piece| piece.iter().collect::<String>());
    let mut all: Vec<ToolEvent> = pieces.flat_map(|piece| parser.push(&piece)).collect();
    all.extend(parser.finish());
    joined(all)
}

/// Checks a text in pieces of any size.
fn check_tagged(text: &str, content: &str, calls: &[ToolCall]) {
    let whole = tagged_events(text, text.len().max(1));
    for size in 1..=text.chars().count() {
        assert_eq!(tagged_events(text, size), whole, "{text} in pieces of {size}");
    }
    let found = parser().read(text);
    assert_eq!((found.0.as_str(), &found.1[..]), (content, calls), "{text}");
    for call in &found.1 {
        assert!(serde_json::from_str::<Value>(&call.arguments).is_ok(), "{}", call.arguments);
    }
}

/// Writes a call as the templates do.
fn written(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn values_in_tags_have_the_types_of_their_parameters() {
    let values = [
        ("text", "7"),
        ("n", "-3"),
        ("is", "True"),
        ("list", "[1,\n \"a\"]"),
        ("either", "null"),
        ("size", "null"),
        ("other", "8"),
    ];
    let arguments = "{\"text\": \"7\", \"n\": -3, \"is\": true, \"list\": [1,\n \"a\"], \
                     \"either\": null, \"size\": \"null\", \"other\": \"8\"}";
    check_tagged(&written("f", &values), "", &[call("f", arguments)]);
    check_tagged(&written("g", &[("n", "7")]), "", &[call("g", "{\"n\": \"7\"}")]);
    check_tagged(&written("f", &[]), "", &[call("f", "{}")]);
}

#[test]
fn strings_in_tags_are_kept_letter_by_letter() {
    for value in [
        "",
        "\n",
        "\n\n",
        "  two\n\tlines \"é\" \\ ",
        "a\n",
        "<b>",
        "</param",
        "</function>\n</tool_call>",
        "<tool_call>\n<function=g>\n<parameter=n>\n1",
    ] {
        let arguments = json!({"text": value}).to_string().replace("\":\"", "\": \"");
        check_tagged(&written("f", &[("text", value)]), "", &[call("f", &arguments)]);
    }
    // Only one line break on each side is markup, and there may be none.
    let tight = "<tool_call><function=f><parameter=text> a </parameter></function></tool_call>";
    check_tagged(tight, "", &[call("f", "{\"text\": \" a \"}")]);
}

#[test]
fn calls_in_tags_and_content_are_told_apart() {
    let one = written("f", &[("n", "1")]);
    let expected = call("f", "{\"n\": 1}");
    check_tagged("just <func", "just <func", &[]);
    check_tagged(&format!("So:\n{one}"), "So:\n", std::slice::from_ref(&expected));
    check_tagged(&format!("\n\n{one}\n{one}\n"), "", &[expected.clone(), expected.clone()]);
    check_tagged(&format!("{one} and <b>"), " and <b>", std::slice::from_ref(&expected));
    // The tags around the function may be missing, as some models leave them out.
    let bare = one.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
    check_tagged(&bare, "", std::slice::from_ref(&expected));
    check_tagged(&format!("So: {bare}\n{bare}"), "So: ", &[expected.clone(), expected.clone()]);
    check_tagged(&one.replace("\n</tool_call>", ""), "", &[expected]);
}

#[test]
fn tags_that_are_no_call_are_content() {
    let one = written("f", &[("n", "1")]);
    let mutated = [
        one.replace("<function=f>", "f"),
        one.replace("<function=f>", "<function=>"),
        one.replace("<function=f>", "<function= >"),
        one.replace("<function=f>", "<function=f"),
        one.replace("<function=f>", "<function=<f>>"),
        one.replace("<function=f>", "<funktion=f>"),
        one.replace("<parameter=n>", "<parameter=>"),
        one.replace("<parameter=n>", "<parameter=n"),
        one.replace("<parameter=n>", "n:"),
        one.replace("<parameter=n>", "<parameter=<n>>"),
        one.replace("</function>", "</function"),
        one.replace("</function>", "</funktion>"),
        one.replace("</function>", "so <b>\n</function>"),
        one.replace("\n</function>", "\n<parameter=n>\n2\n</parameter>\n</function>"),
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>".to_owned(),
        "<tool_call></tool_call>".to_owned(),
        "write <function=NAME> and so on".to_owned(),
    ];
    for text in &mutated {
        assert_ne!(*text, one);
        check_tagged(text, text, &[]);
    }
    // A call behind it is found.
    check_tagged(
        &format!("<tool_call>\n<function=f\n{one}"),
        "<tool_call>\n<function=f\n",
        &[call("f", "{\"n\": 1}")],
    );
}

#[test]
fn every_start_of_a_call_in_tags_is_content_as_it_is() {
    let text = written("f", &[("text", "a\nb"), ("n", "12")]);
    let end = text.find("</function>").unwrap() + "</function>".len();
    for cut in (0..end).filter(|cut| text.is_char_boundary(*cut)) {
        check_tagged(&text[..cut], &text[..cut], &[]);
    }
}

#[test]
fn demanded_strings_in_tags_come_out_as_they_are_written() {
    let mut parser = parser().demanded();
    assert!(parser.push("<tool_call>\n<function=f>\n<parameter=te").is_empty());
    let lead = [ToolEvent::Name("f".into()), ToolEvent::Arguments("{\"text\": \"".into())];
    assert_eq!(parser.push("xt>"), lead);
    assert!(parser.push("\n").is_empty());
    assert_eq!(parser.push("one\ntwo\n"), [ToolEvent::Arguments("one\\ntwo".into())]);
    assert!(parser.push("</para").is_empty());
    assert_eq!(parser.push("x"), [ToolEvent::Arguments("\\n</parax".into())]);
    assert_eq!(parser.push("\n</parameter>"), [ToolEvent::Arguments("\"".into())]);
    // A number is certain when it is over.
    assert_eq!(parser.push("<parameter=n>\n1"), [ToolEvent::Arguments(", \"n\": ".into())]);
    assert!(parser.push("2").is_empty());
    assert_eq!(parser.push("\n</parameter>"), [ToolEvent::Arguments("12".into())]);
    assert_eq!(
        parser.push("\n</function>\n</tool_call>"),
        [ToolEvent::Arguments("}".into()), ToolEvent::End]
    );
    assert!(parser.finish().is_empty());
}

#[test]
fn tags_that_break_late_are_content_in_a_stream_too() {
    let text = "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\noops";
    assert_eq!(tagged_events(text, 1), [ToolEvent::Content(text.into())]);
}

#[test]
fn values_and_calls_may_lack_their_ends() {
    let whole = written("f", &[("text", "a\nb"), ("n", "1")]);
    let expected = call("f", "{\"text\": \"a\\nb\", \"n\": 1}");
    let first = whole.replacen("</parameter>\n", "", 1);
    let last = whole.replace("1\n</parameter>\n", "1\n");
    let neither = first.replace("</parameter>\n", "");
    let no_end = whole.replace("</function>\n", "");
    let nothing = neither.replace("</function>\n", "");
    for text in [&first, &last, &neither, &no_end, &nothing] {
        assert_ne!(*text, whole);
        check_tagged(text, "", std::slice::from_ref(&expected));
        let two = [expected.clone(), expected.clone()];
        check_tagged(&format!("So:\n{text}\n{text}"), "So:\n", &two);
    }
    let bare = neither.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
    check_tagged(&bare, "", std::slice::from_ref(&expected));

    // A tag that is no parameter of the tool is text, and so is one within a line.
    let value = "a\n<parameter=other>\nb <parameter=n>";
    let arguments = json!({"text": value}).to_string().replace("\":\"", "\": \"");
    let text = written("f", &[("text", value)]).replace("</parameter>\n", "");
    check_tagged(&text, "", &[call("f", &arguments)]);
}

#[test]
fn a_demanded_call_in_tags_has_its_arguments_so_far() {
    let text = "<tool_call>\n<function=f>\n<parameter=text>\nab";
    assert_eq!(parser().demanded().read(text), (String::new(), vec![call("f", "{\"text\": \"ab")]));
    let number = "<tool_call>\n<function=f>\n<parameter=n>\n12\n</para";
    assert_eq!(parser().demanded().read(number), (String::new(), vec![call("f", "{\"n\": 12")]));
    let between = "<tool_call>\n<function=f>\n<parameter=n>\n12\n</parameter>\n<par";
    assert_eq!(parser().demanded().read(between), (String::new(), vec![call("f", "{\"n\": 12")]));
    let early = "<tool_call>\n<function=f>\n<para";
    assert_eq!(parser().demanded().read(early), (String::new(), Vec::new()));
}

/// Texts that random pieces of calls make, each cut in every size.
#[test]
fn no_cut_changes_what_tags_mean() {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=text>",
        "<parameter=n>",
        "<parameter=",
        "</parameter>",
        "\n",
        "\n\n",
        "12",
        "é\"<",
        "</",
        ">",
    ];
    let mut state = 11_u32;
    for round in 0..600 {
        let mut text = String::new();
        for _ in 0..round % 12 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push_str(parts[(state >> 16) as usize % parts.len()]);
        }
        let whole = tagged_events(&text, text.len().max(1));
        for size in 1..text.chars().count() {
            assert_eq!(tagged_events(&text, size), whole, "{text} in pieces of {size}");
        }
        // Without a call, all of the text is content.
        let (content, calls) = parser().read(&text);
        assert!(!calls.is_empty() || content == text, "{text}");
    }
}
