//! Demanded calls: the texts that their grammars allow.

mod tagged;

use std::path::PathBuf;
use std::sync::LazyLock;

use template::PromptThought;

use super::*;
use crate::grammar::{Grammar, GrammarCompiler, LeadingThought};

fn required(format: ToolFormat, only_one: bool) -> RequiredCalls {
    let schema = json!({"type": "object", "properties": {"w": {"enum": ["b", "c"]}},
        "required": ["w"], "additionalProperties": false});
    let tool = |name: &str| Tool { name: name.to_owned(), schema: schema.clone() };
    let tools = vec![tool("f"), tool("g\"")];
    RequiredCalls { format, tools, only_one, demand: ToolDemand::Required }
}

/// The tokenizer of the tiny model, the compiler of forms for it, and the id that ends a reply.
static TINY: LazyLock<(Tokenizer, GrammarCompiler, u32)> = LazyLock::new(|| {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let tokenizer = Tokenizer::load(&folder).unwrap();
    let (vocab, end) = (tokenizer.size(), tokenizer.id("<|im_end|>").unwrap());
    let grammars = GrammarCompiler::new(&tokenizer, vocab, &[end]).unwrap();
    (tokenizer, grammars, end)
});

/// Compiles the grammar of a reply to `prompt`, that of a model that reasons.
fn compiled(calls: &RequiredCalls, prompt: Option<&str>) -> (Grammar, &'static Tokenizer, u32) {
    let (tokenizer, grammars, end) = &*TINY;
    let thought =
        LeadingThought::of(prompt.is_some(), PromptThought::of(prompt.unwrap_or_default()));
    let form = GrammarSpec::Calls(calls.rules(tokenizer).unwrap());
    let grammar = grammars.compile(form, thought).unwrap_or_else(|error| panic!("{error}"));
    (grammar, tokenizer, *end)
}

/// True if a reply to `prompt`, that of a model that reasons, may be this text, and then end.
fn fits(calls: &RequiredCalls, prompt: Option<&str>, text: &str) -> bool {
    let (mut grammar, tokenizer, end) = compiled(calls, prompt);
    let ids = tokenizer.encode(text, false).unwrap();
    ids.into_iter().chain([end]).all(|id| {
        let mut logits = vec![0.0; tokenizer.size()];
        grammar.mask_logits(&mut logits);
        grammar.push(id);
        logits[id as usize] == 0.0
    })
}

const F: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"w\": \"b\"}}</tool_call>";
const G: &str = "<tool_call>\n{\"name\": \"g\\\"\", \"arguments\": {\"w\": \"c\"}}\n</tool_call>";

#[test]
fn calls_are_in_the_words_of_the_template() {
    let (one, many) = (required(ToolFormat::Hermes, true), required(ToolFormat::Hermes, false));
    for text in [F, G] {
        assert!(fits(&one, None, text), "{text}");
    }
    assert!(fits(&many, None, &format!("{F}\n{G}{F}")));
    for text in [
        "",
        "Well.",
        &format!("Well. {F}"),
        &format!("{F}{G}"),
        &F.replace("\"f\"", "\"h\""),
        &F.replace("\"b\"", "\"d\""),
        &F.replace("</tool_call>", ""),
    ] {
        assert!(!fits(&one, None, text), "{text}");
    }
    let llama = required(ToolFormat::Llama3Json, false);
    let call = "{\"name\": \"f\", \"parameters\": {\"w\": \"b\"}}";
    assert!(fits(&llama, None, call));
    assert!(fits(&llama, None, &format!("{call}; {call}")));
    assert!(!fits(&llama, None, &call.replace("parameters", "arguments")));
}

#[test]
fn thoughts_may_come_first() {
    let one = required(ToolFormat::Hermes, true);
    let thought = "\nIs 1 < 2 in <b>f</b>?\n</think>\n\n";
    let (closed, opened) = (Some("a\n"), Some("a\n<think>\n"));
    assert!(fits(&one, closed, F));
    assert!(fits(&one, closed, &format!("<think>{thought}{F}")));
    assert!(fits(&one, opened, &format!("{thought}{F}")));
    assert!(!fits(&one, closed, &format!("{thought}{F}")));
    assert!(!fits(&one, opened, F));
    assert!(!fits(&one, opened, &format!("{thought}Well. {F}")));
    assert!(!fits(&one, None, &format!("<think>{thought}{F}")));
    let over = Some("a\n<think>\n\n</think>\n\n");
    assert!(fits(&one, over, F));
    assert!(!fits(&one, over, &format!("<think>{thought}{F}")));
    assert!(!fits(&one, over, &format!("\n{F}")));
}
