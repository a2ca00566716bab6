//! Conversations whose replies were sampled in tokens that no tokenizer would choose.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use std::sync::Arc;

use template::continuation::PrefixReason;
use template::{ChatInput, ChatTemplate, ToolFormat, prepare};

use super::*;

const END: &str = "<|im_end|>";

/// ChatML that writes calls with spaces, trims content, and drops reasoning but in the last turn.
const TEMPLATE: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' and loop.last and message.reasoning_content -%}
{{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- message.content.strip() -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}";

struct World {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    memory: ChatMemory,
    state: u32,
    variables: Map<String, Value>,
}

/// A prompt and its reply.
struct Turn {
    asked: RememberedPrompt,
    prompt: Vec<u32>,
    ids: Vec<u32>,
    report: PrefixReport,
}

impl World {
    fn new() -> World {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
        let syntax = ReplySyntax {
            turn_ends: vec![END.to_owned()],
            tools: Some(ToolFormat::Hermes),
            has_reasoning: true,
        };
        World {
            tokenizer: Tokenizer::load(&folder).unwrap(),
            template: ChatTemplate::new(TEMPLATE, Map::new()).unwrap(),
            memory: ChatMemory::new(syntax),
            state: 1,
            variables: Map::new(),
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 8) as usize % below
    }

    /// Encodes a text in random pieces, so that its ids mostly differ from the tokenizer's own.
    fn spelled(&mut self, text: &str) -> Vec<u32> {
        let (mut ids, mut piece) = (Vec::new(), String::new());
        let (text, end) = text.strip_suffix(END).map_or((text, ""), |text| (text, END));
        for letter in text.chars() {
            piece.push(letter);
            if self.random(3) == 0 {
                ids.extend(self.tokenizer.encode_after(&piece).unwrap());
                piece.clear();
            }
        }
        for piece in [&piece, end] {
            ids.extend(self.tokenizer.encode_after(piece).unwrap());
        }
        ids
    }

    /// Renders the messages, and remembers `said` as the sampled reply.
    fn turn(&mut self, messages: &[Value], said: &str, finish: &FinishReason) -> Turn {
        let prepared = prepare(messages, false).unwrap();
        let input = ChatInput {
            messages: &prepared,
            add_generation_prompt: true,
            variables: Some(&self.variables),
            ..ChatInput::default()
        };
        let text: Arc<str> = self.template.render(&input).unwrap().into();
        let PrefixMatch { report, start, is_respelled, .. } = self.memory.recall(None, &text);
        let ids = match start {
            Some(start) => {
                let rest = self.tokenizer.encode_after(&text[start.text_bytes..]).unwrap();
                start.ids.append(&rest)
            }
            None => TokenChain::new(&self.tokenizer.encode(&text, false).unwrap()),
        };
        let prompt = ids.to_vec();
        assert!(report.reused_tokens <= report.remembered_tokens);
        if !is_respelled {
            assert_eq!(self.tokenizer.decode(&prompt, false), *text);
        }
        if report.reason.is_none() {
            assert!(!is_respelled);
            assert_eq!(report.reused_tokens, report.remembered_tokens);
        }
        let asked = RememberedPrompt { salt: None, text, ids, is_respelled };
        let ids = self.spelled(said);
        let sampled = SampledReply {
            prompt: &[],
            ids: &ids,
            finish,
            skip_special_tokens: true,
            includes_stop: false,
        };
        self.memory.remember(&asked, &sampled, &self.tokenizer);
        Turn { asked, prompt, ids, report }
    }

    /// Continues an earlier turn, and checks the report on it.
    fn follow(&mut self, before: &Turn, messages: &[Value], reason: Option<PrefixReason>) -> Turn {
        let next = self.turn(messages, "ok<|im_end|>", &FinishReason::Eos);
        let known = before.prompt.len() + before.ids.len();
        assert_eq!((next.report.reason, next.report.remembered_tokens), (reason, known));
        if matches!(reason, None | Some(PrefixReason::Respelled)) {
            assert_eq!(next.report.reused_tokens, known);
            assert!(next.prompt.starts_with(&[&*before.prompt, &*before.ids].concat()));
        }
        next
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[test]
fn what_was_said_is_put_back_as_it_was_sampled() {
    let mut world = World::new();
    let said = "the answer is the sum of these";
    let first = world.turn(&[user("hi")], &format!("{said}{END}"), &FinishReason::Eos);
    assert_eq!(first.report, PrefixReport::default());
    let history = [user("hi"), assistant(said), user("and?")];
    let second = world.follow(&first, &history, None);
    assert_ne!(second.prompt, world.tokenizer.encode(&second.asked.text, false).unwrap());
    let history = [&history[..], &[assistant("ok"), user("so")]].concat();
    world.follow(&second, &history, None);
    // The same again is the same.
    let again =
        world.turn(&[user("hi"), assistant(said), user("and?")], "no", &FinishReason::Length);
    assert_eq!(again.prompt, second.prompt);
}

#[test]
fn a_reply_that_was_cut_goes_on_where_it_was_cut() {
    let mut world = World::new();
    let first = world.turn(&[user("hi")], "the answer is th", &FinishReason::Length);
    world.follow(&first, &[user("hi"), assistant("the answer is th"), user("and?")], None);
    world.follow(&first, &[user("hi"), assistant("the answer is this"), user("and?")], None);
    let stop = FinishReason::StopText { text: "Observe".into(), at: 5 };
    let first = world.turn(&[user("ho")], "do it Observe", &stop);
    let next = world.turn(&[user("ho"), assistant("do it"), user("x")], "y", &FinishReason::Length);
    assert_eq!(next.report.reason, Some(PrefixReason::StopCut));
    assert_eq!(next.report.remembered_tokens, first.prompt.len() + first.ids.len());
    let kept = next.report.reused_tokens;
    assert!(kept > first.prompt.len() && kept < next.report.remembered_tokens);
    assert_eq!(next.prompt[..kept], [&*first.prompt, &*first.ids].concat()[..kept]);
    assert_eq!(world.tokenizer.decode(&next.prompt, false), *next.asked.text);
}

/// The template has an end behind the model's turns only, as those of Llama 2 do.
#[test]
fn conversations_whose_first_turns_have_no_end_are_told_apart() {
    let world = World::new();
    let ask = |text: &str| {
        let text: Arc<str> = text.into();
        let recalled = world.memory.recall(None, &text);
        let ids = TokenChain::new(&world.tokenizer.encode(&text, false).unwrap());
        (RememberedPrompt { salt: None, text, ids, is_respelled: false }, recalled.report)
    };
    let said =
        [world.tokenizer.encode("ok", false).unwrap(), vec![world.tokenizer.id(END).unwrap()]]
            .concat();
    let sampled = SampledReply {
        prompt: &[],
        ids: &said,
        finish: &FinishReason::Eos,
        skip_special_tokens: true,
        includes_stop: false,
    };
    let first = |number: usize| format!("[INST] {number:04} [/INST]");
    for number in 0..1124 {
        world.memory.remember(&ask(&first(number)).0, &sampled, &world.tokenizer);
    }
    for number in [0, 1, 50, 1123] {
        let (asked, report) = ask(&(first(number) + "ok" + END + "[INST] and? [/INST]"));
        assert!(report.reused_tokens > said.len(), "{number}: {report:?}");
        assert_eq!(report.reused_tokens, report.remembered_tokens);
        assert!(asked.ids.len() > report.reused_tokens);
    }
}

#[test]
fn half_a_character_stays_with_its_reply() {
    let mut world = World::new();
    let mut first = world.turn(&[user("hi")], "so", &FinishReason::Length);
    let half = world.tokenizer.encode("é", false).unwrap()[0];
    first.ids.push(half);
    let said = SampledReply {
        prompt: &[],
        ids: &first.ids,
        finish: &FinishReason::Length,
        skip_special_tokens: true,
        includes_stop: false,
    };
    world.memory.remember(&first.asked, &said, &world.tokenizer);
    // Both fit; the one whose text is whole is the better.
    let next = world.turn(&[user("hi"), assistant("so"), user("x")], "y", &FinishReason::Length);
    assert_eq!(next.report.reason, None);
    let mut world = World::new();
    let mut first = world.turn(&[user("hi")], "", &FinishReason::Length);
    first.ids = [world.tokenizer.encode("so", false).unwrap(), vec![half]].concat();
    let said = SampledReply {
        prompt: &[],
        ids: &first.ids,
        finish: &FinishReason::Length,
        skip_special_tokens: true,
        includes_stop: false,
    };
    world.memory.remember(&first.asked, &said, &world.tokenizer);
    let history = [user("hi"), assistant("so"), user("x")];
    world.follow(&first, &history, Some(PrefixReason::Respelled));
}

#[test]
fn calls_in_other_words_are_the_sampled_calls() {
    let mut world = World::new();
    let said = "<tool_call>{\"name\":\"f\",\"arguments\":{\"b\":[1,2],\"a\":\"x\"}}</tool_call>";
    let first = world.turn(&[user("hi")], &format!(" Well. {said}{END}"), &FinishReason::Eos);
    let message = |arguments: &str| {
        json!({"role": "assistant", "content": "Well.", "tool_calls": [{"id": "1",
            "type": "function", "function": {"name": "f", "arguments": arguments}}]})
    };
    let result = json!({"role": "tool", "content": "3", "tool_call_id": "1"});
    let respelled = Some(PrefixReason::Respelled);
    let history = [user("hi"), message("{\"a\": \"x\", \"b\": [1, 2]}"), result.clone()];
    let second = world.follow(&first, &history, respelled);
    // What goes on from that is told the same, whoever asks.
    let history = [&history[..], &[assistant("ok"), user("so")]].concat();
    world.follow(&second, &history, respelled);
    let other = [user("hi"), message("{\"a\": \"y\", \"b\": [1, 2]}"), result];
    assert_eq!(world.turn(&other, "ok", &FinishReason::Length).report, PrefixReport::default());
}

#[test]
fn history_that_was_rewritten_is_told() {
    let mut world = World::new();
    let said = format!("<think>\nhm\n</think>\n\nyes{END}");
    let first = world.turn(&[user("hi")], &said, &FinishReason::Eos);
    let kept = json!({"role": "assistant", "content": "yes", "reasoning": "hm"});
    let dropped = Some(PrefixReason::ReasoningDropped);
    world.follow(&first, &[user("hi"), kept, user("x")], dropped);
    world.follow(&first, &[user("hi"), assistant("yes"), user("x")], dropped);
    assert_eq!(
        world.turn(&[user("hi"), assistant("no")], "y", &FinishReason::Eos).report.reason,
        None
    );
    world.variables.insert("enable_thinking".into(), false.into());
    let first = world.turn(&[user("ho")], &format!("yes{END}"), &FinishReason::Eos);
    let history = [user("ho"), assistant("yes"), user("x")];
    world.follow(&first, &history, Some(PrefixReason::OpeningRewritten));
}

#[test]
fn one_of_two_calls_is_not_both() {
    let mut world = World::new();
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let first = world.turn(&[user("hi")], &format!("{call}\n{call}{END}"), &FinishReason::Eos);
    let one = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1",
        "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    world.follow(&first, &[user("hi"), one, user("x")], Some(PrefixReason::CallsDropped));
}

/// A text behind a special token is encoded as it is within the whole text.
#[test]
fn a_seam_at_the_end_of_a_turn_does_not_show() {
    let world = World::new();
    let turn = "<|im_start|>user\nthe sum  of é😀\n\n12345<|im_end|>\n";
    let text = turn.repeat(3);
    let whole = world.tokenizer.encode(&text, false).unwrap();
    for (at, _) in text.match_indices(END) {
        let (before, after) = text.split_at(at + END.len());
        let mut parts = world.tokenizer.encode(before, false).unwrap();
        parts.extend(world.tokenizer.encode_after(after).unwrap());
        assert_eq!(parts, whole);
    }
}

#[test]
fn callers_of_other_salts_know_nothing_of_it() {
    let mut world = World::new();
    let first = world.turn(&[user("hi")], &format!("yes{END}"), &FinishReason::Eos);
    let text = format!("{}yes{END}\n", first.asked.text);
    assert!(world.memory.recall(None, &text).start.is_some());
    for salt in ["a", "<|im_start|>"] {
        assert!(world.memory.recall(Some(salt), &text).start.is_none());
    }
}

#[test]
fn memory_is_bounded_and_what_is_used_stays() {
    let mut world = World::new();
    world.memory.replies = continuation::ReplyMemory::new(HistoryRule::Equivalent, 64 << 10);
    let first = world.turn(&[user("keep")], &format!("yes{END}"), &FinishReason::Eos);
    let history = [user("keep"), assistant("yes"), user("x")];
    for turn in 0..400 {
        world.turn(
            &[user(&format!("question {turn}"))],
            &format!("a{turn}{END}"),
            &FinishReason::Eos,
        );
        if turn % 50 == 0 {
            world.follow(&first, &history, None);
        }
        assert!(world.memory.replies.bytes() <= 64 << 10);
    }
    let forgotten = [user("question 0"), assistant("a0"), user("x")];
    assert_eq!(world.turn(&forgotten, "y", &FinishReason::Length).report, PrefixReport::default());
}

#[test]
fn of_two_replies_the_one_that_was_said_is_meant() {
    let mut world = World::new();
    world.turn(&[user("hi")], "yes", &FinishReason::Length);
    let longer = world.turn(&[user("hi")], &format!("yes it is{END}"), &FinishReason::Eos);
    let other = world.turn(&[user("hi")], &format!("no{END}"), &FinishReason::Eos);
    world.follow(&longer, &[user("hi"), assistant("yes it is"), user("x")], None);
    world.follow(&other, &[user("hi"), assistant("no"), user("x")], None);
}

/// A prompt starts with the earlier reply, in any tokens, or reports why it does not.
#[test]
fn any_conversation_keeps_its_tokens() {
    let parts = [
        "the sum",
        " é😀 ",
        "\n\n",
        "{\"a\": 1}",
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>",
        "<tool_call>{\"name\"",
        "<think>",
        "</think>",
        "  x",
        "12345",
    ];
    let mut world = World::new();
    for number in 0..40 {
        let mut messages = vec![user(&format!("go {number}"))];
        let mut before: Option<Turn> = None;
        for turn in 0..6 {
            let mut said = String::new();
            for _ in 0..world.random(5) {
                said.push_str(parts[world.random(parts.len())]);
            }
            let (text, finish) = match world.random(2) {
                0 => (format!("{said}{END}"), FinishReason::Eos),
                _ => (said.clone(), FinishReason::Length),
            };
            let next = world.turn(&messages, &text, &finish);
            if let Some(before) = &before
                && matches!(next.report.reason, None | Some(PrefixReason::Respelled))
                && next.report.remembered_tokens == before.prompt.len() + before.ids.len()
            {
                assert!(next.prompt.starts_with(&[&*before.prompt, &*before.ids].concat()));
            }
            before = Some(next);
            messages.push(message(&said));
            messages.push(user(&format!("turn {turn}")));
        }
    }
}

/// Makes the message that a client sends back for a reply.
fn message(said: &str) -> Value {
    let mut parser = template::ReasoningParser::new(template::PromptThought::Absent);
    let (first, rest) = (parser.push(said), parser.finish());
    let (content, calls) =
        template::ToolParser::parse(ToolFormat::Hermes, &(first.content + &rest.content));
    let calls: Vec<Value> = calls
        .into_iter()
        .map(|call| {
            json!({"id": "1", "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": content, "tool_calls": calls,
        "reasoning": first.reasoning + &rest.reasoning})
}
