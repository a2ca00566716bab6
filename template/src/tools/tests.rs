//! Calls in texts that are cut into pieces anywhere.

mod tagged;

use super::*;

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.into(), arguments: arguments.into() }
}

/// Returns the events of `text` in pieces of `size` characters, with neighbors joined.
fn events(format: ToolFormat, text: &str, size: usize) -> Vec<ToolEvent> {
    let mut parser = ToolParser::new(format);
    let letters: Vec<char> = text.chars().collect();
    let mut all = Vec::new();
    for piece in letters.chunks(size) {
        all.extend(parser.push(&piece.iter().collect::<String>()));
    }
    all.extend(parser.finish());
    joined(all)
}

/// Joins neighbors of a kind.
fn joined(all: Vec<ToolEvent>) -> Vec<ToolEvent> {
    let mut joined: Vec<ToolEvent> = Vec::new();
    for event in all {
        match (joined.last_mut(), event) {
            (Some(ToolEvent::Content(old)), ToolEvent::Content(new))
            | (Some(ToolEvent::Arguments(old)), ToolEvent::Arguments(new)) => old.push_str(&new),
            (_, event) => joined.push(event),
        }
    }
    joined
}

/// Checks a text in pieces of any size, and that no text is lost.
fn check(format: ToolFormat, text: &str, content: &str, calls: &[ToolCall]) {
    let whole = events(format, text, text.len().max(1));
    for size in 1..=text.chars().count().max(1) {
        assert_eq!(events(format, text, size), whole, "{text} in pieces of {size}");
    }
    let found = ToolParser::parse(format, text);
    assert_eq!((found.0.as_str(), &found.1[..]), (content, calls), "{text}");
    assert_kept(text, &whole);
}

/// Checks that the returned parts are in the text in that order, with only markup between them.
fn assert_kept(text: &str, events: &[ToolEvent]) {
    let mut rest = text;
    for event in events {
        let part = match event {
            ToolEvent::Content(part) | ToolEvent::Arguments(part) => part,
            ToolEvent::Name(name) => &serde_json::to_string(name).unwrap(),
            ToolEvent::End => continue,
        };
        let at = rest.find(part.as_str()).unwrap_or_else(|| panic!("{part} of {text}"));
        assert_markup(&rest[..at], text);
        rest = &rest[at + part.len()..];
    }
    assert_markup(rest, text);
}

fn assert_markup(lost: &str, text: &str) {
    let words = ["tool_call", "python_tag", "name", "arguments", "parameters", "type", "function"];
    let mut lost = lost.replace(|letter: char| " \n<>/|{}\":,;".contains(letter), "");
    for word in words {
        lost = lost.replace(word, "");
    }
    assert_eq!(lost, "", "{text}");
}

#[test]
fn calls_and_content_are_told_apart() {
    let hermes = ToolFormat::Hermes;
    check(hermes, "just text < tool", "just text < tool", &[]);
    check(
        hermes,
        "So:\n<tool_call>\n{\"name\":\"f\",\"arguments\": {\"b\":1,\"a\":\"é}<\"}}\n</tool_call>",
        "So:\n",
        &[call("f", "{\"b\":1,\"a\":\"é}<\"}")],
    );
    check(
        hermes,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\
         <tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n",
        "",
        &[call("f", "{}"), call("g", "{}")],
    );
    check(hermes, "\n\nyes", "\n\nyes", &[]);
    check(hermes, "\n\n", "\n\n", &[]);
    check(
        hermes,
        "\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "",
        &[call("f", "{}")],
    );
    check(
        hermes,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and <b>\n\n",
        " and <b>\n\n",
        &[call("f", "{}")],
    );
}

#[test]
fn the_keys_of_a_call_may_stand_in_any_order() {
    for text in [
        "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"}</tool_call>",
        "<tool_call>{\"id\": 1, \"name\": \"f\" , \"arguments\": {\"a\": [1, {}]} , \
         \"type\": \"function\" }</tool_call>",
        "<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": [1, {}]}}</tool_call>",
    ] {
        let whole = ToolParser::parse(ToolFormat::Hermes, text);
        assert_eq!(whole, (String::new(), vec![call("f", "{\"a\": [1, {}]}")]), "{text}");
        for size in 1..text.len() {
            let len = text.len();
            let (one, all) =
                (events(ToolFormat::Hermes, text, size), events(ToolFormat::Hermes, text, len));
            assert_eq!(one, all);
        }
    }
}

#[test]
fn a_call_that_does_not_parse_is_content() {
    for text in [
        "a <tool_call>{\"name\": \"f\"}</tool_call> b",
        "<tool_call>nonsense</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argu",
        "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"n\u{e4}me\": \"f\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call> b",
        "<tool_call>{\"name\": \"f\", \"arguments\": {} oops}</tool_call>",
        "ends in <tool_c",
    ] {
        check(ToolFormat::Hermes, text, text, &[]);
    }
}

/// A call that was returned could not be taken back.
#[test]
fn a_call_that_breaks_late_is_content_in_a_stream_too() {
    for text in [
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1} x}",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": }}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        "{\"name\": \"f\", \"parameters\": {\"a\": [}}",
    ] {
        let format =
            if text.starts_with('<') { ToolFormat::Hermes } else { ToolFormat::Llama3Json };
        assert_eq!(events(format, text, 1), [ToolEvent::Content(text.into())]);
    }
}

#[test]
fn a_call_may_have_other_keys_and_the_last_of_equal_ones_counts() {
    for text in [
        "<tool_call>{\"name\": \"f\", \"thought\": {\"name\": 1}, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"why\": \"x\", \"arguments\": {}, \"name\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"g\", \"arguments\": 1, \"arguments\": {}, \"name\": \"f\"}",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"parameters\": [1]}",
    ] {
        for size in [1, 3, text.len()] {
            let expected =
                [ToolEvent::Name("f".into()), ToolEvent::Arguments("{}".into()), ToolEvent::End];
            assert_eq!(events(ToolFormat::Hermes, text, size), expected, "{text}");
        }
    }
    let other = "{\"name\": \"f\", \"parameters\": {}, \"id2\": 1}";
    let found = ToolParser::parse(ToolFormat::Llama3Json, other);
    assert_eq!(found, (String::new(), vec![call("f", "{}")]));
}

#[test]
fn an_unclosed_call_counts_if_it_is_whole() {
    let hermes = ToolFormat::Hermes;
    for arguments in ["[1]", "\"a\"", "12", "null"] {
        let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}");
        check(hermes, &text, "", &[call("f", arguments)]);
    }
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}\nso <b>";
    check(hermes, text, "\nso <b>", &[call("f", "{}")]);
}

#[test]
fn demanded_arguments_come_out_as_they_are_written() {
    let mut parser = ToolParser::new(ToolFormat::Hermes);
    assert_eq!(parser.push("a <tool"), [ToolEvent::Content("a ".into())]);
    assert_eq!(parser.push("s"), [ToolEvent::Content("<tools".into())]);

    let mut parser = ToolParser::new(ToolFormat::Hermes).demanded();
    assert!(parser.push("<tool_call>{\"na").is_empty());
    assert!(parser.push("me\":\"f\",\"arguments\":").is_empty());
    let first = [ToolEvent::Name("f".into()), ToolEvent::Arguments("{ \"a\"".into())];
    assert_eq!(parser.push("{ \"a\""), first);
    assert_eq!(parser.push(": \"}"), [ToolEvent::Arguments(": \"}".into())]);
    assert_eq!(parser.push("\"}}"), [ToolEvent::Arguments("\"}".into()), ToolEvent::End]);
    assert!(parser.push("</tool_").is_empty());
    assert!(parser.push("call>\n").is_empty());
    assert!(parser.finish().is_empty());
}

#[test]
fn llama_calls_are_objects_alone_or_behind_a_tag() {
    let llama = ToolFormat::Llama3Json;
    let text = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
    check(llama, text, "", &[call("f", "{\"a\": 1}")]);
    check(llama, &format!(" {text}"), "", &[call("f", "{\"a\": 1}")]);
    let two = format!("<|python_tag|>{text}; {text}");
    check(llama, &two, "", &[call("f", "{\"a\": 1}"), call("f", "{\"a\": 1}")]);
    check(llama, &format!("So: {text}"), &format!("So: {text}"), &[]);
    let tagged = format!("So: <|python_tag|>{text}");
    check(llama, &tagged, "So: ", &[call("f", "{\"a\": 1}")]);
    let typed = format!("{{\"type\": \"function\", {}", &text[1..]);
    check(llama, &typed, "", &[call("f", "{\"a\": 1}")]);
    for other in ["{\"city\": {\"a\": 1}}", "{\"name\": \"x\"}", "{", "<|python_tag|>print(1)"] {
        check(llama, other, other, &[]);
    }
}

#[test]
fn other_json_is_not_held_back() {
    let mut parser = ToolParser::new(ToolFormat::Llama3Json);
    assert!(parser.push("{\"ci").is_empty());
    assert_eq!(
        parser.push("ty\":"),
        [ToolEvent::Content("{\"city".into()), ToolEvent::Content("\":".into())]
    );
}

/// Texts that random pieces of calls make, each cut in every size.
#[test]
fn nothing_is_lost_whatever_the_text_and_its_pieces() {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"a\": [1, \"é\\n\"]}",
        "{}",
        "}",
        "\"",
        " ; ",
        "\n",
        "text",
        "<tool",
        "{\"type\": \"function\", ",
        "\"parameters\": {\"b\": -1.5e3}}",
    ];
    let mut state = 7_u32;
    for round in 0..400 {
        let mut text = String::new();
        for _ in 0..round % 9 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push_str(parts[(state >> 16) as usize % parts.len()]);
        }
        for format in [ToolFormat::Hermes, ToolFormat::Llama3Json] {
            let whole = events(format, &text, text.len().max(1));
            assert_kept(&text, &whole);
            for size in 1..text.chars().count() {
                assert_eq!(events(format, &text, size), whole, "{text} in pieces of {size}");
            }
        }
    }
}

#[test]
fn the_form_is_the_one_that_the_template_shows() {
    assert_eq!(ToolFormat::detect("a <tool_call> b"), Some(ToolFormat::Hermes));
    assert_eq!(ToolFormat::detect("<|python_tag|>"), Some(ToolFormat::Llama3Json));
    let tags = "<tool_call><function=f><parameter=p>";
    assert_eq!(ToolFormat::detect(tags), Some(ToolFormat::Qwen3Coder));
    assert_eq!(ToolFormat::detect("<tool_call><function=f>"), None);
    assert_eq!(ToolFormat::detect(""), None);
}

#[test]
fn a_demanded_call_that_was_cut_has_its_arguments_so_far() {
    let hermes = || ToolParser::new(ToolFormat::Hermes);
    let whole = "\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b";
    let expected = [call("f", "{\"a\": \"b")];
    let (content, calls) = hermes().demanded().read(whole);
    assert_eq!((content.as_str(), &calls[..]), ("", &expected[..]));
    assert_eq!(hermes().read(whole), (whole.to_owned(), Vec::new()));

    // Before the name there is no call yet, and markup is no content.
    let end = whole.find(": {").unwrap();
    for cut in 0..end {
        assert_eq!(hermes().demanded().read(&whole[..cut]), (String::new(), Vec::new()));
    }
    // Nor is the markup behind the arguments.
    for rest in ["c\"}", "c\"}}", "c\"}}\n", "c\"}}\n</tool"] {
        let expected = vec![call("f", "{\"a\": \"bc\"}")];
        assert_eq!(hermes().demanded().read(&format!("{whole}{rest}")), (String::new(), expected));
    }
}
