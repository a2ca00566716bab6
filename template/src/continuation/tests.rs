//! What a prompt may start with under each rule.

use super::*;

const PROMPT: &str = "<|turn|>user a<|end|><|turn|>assistant ";

/// A memory with one reply that thought before it answered.
fn memory(rule: HistoryRule) -> ReplyMemory {
    let memory = ReplyMemory::new(rule, 1 << 20);
    let prompt = RememberedPrompt {
        salt: None,
        text: PROMPT.into(),
        ids: TokenChain::new(&[1, 2, 3]),
        is_respelled: false,
    };
    let reply = ReplyText {
        ids: [4, 5, 6].into(),
        sampled: 3,
        text: "<think>hm</think> yes".into(),
        end: Some("<|end|>".into()),
        ..ReplyText::default()
    };
    memory.remember(&prompt, PROMPT.rfind("<|turn|>").unwrap(), [reply]);
    memory
}

fn recalled(rule: HistoryRule, said: &str, may_end: bool) -> PrefixMatch {
    let syntax = ReplySyntax { has_reasoning: true, ..ReplySyntax::default() };
    let text = format!("{PROMPT}{said}<|end|><|turn|>user b<|end|><|turn|>assistant ");
    memory(rule).recall(&syntax, None, &text, |_| may_end)
}

#[test]
fn each_rule_takes_what_it_says() {
    let rules = [HistoryRule::Verbatim, HistoryRule::Equivalent, HistoryRule::AsSampled];
    let reused = |said: &str| {
        rules.map(|rule| {
            let found = recalled(rule, said, true);
            assert_eq!(found.report.remembered_tokens, 6, "{said}");
            (found.report.reused_tokens, found.report.reason)
        })
    };
    let [respelled, dropped] = [PrefixReason::Respelled, PrefixReason::ReasoningDropped].map(Some);
    assert_eq!(reused("<think>hm</think> yes"), [(6, None); 3]);
    let spaced = reused("<think> hm </think> yes");
    assert_eq!(spaced, [(0, respelled), (6, respelled), (6, respelled)]);
    assert_eq!(reused("yes"), [(0, dropped), (0, dropped), (6, dropped)]);
    assert!(recalled(HistoryRule::AsSampled, "yes", true).is_respelled);
    assert!(recalled(HistoryRule::AsSampled, "no", true).start.is_none());
}

#[test]
fn a_path_that_may_not_end_there_is_told() {
    let found = recalled(HistoryRule::Verbatim, "<think>hm</think> yes", false);
    assert!(found.start.is_none() && found.is_cut_off);
    assert!(!recalled(HistoryRule::Verbatim, "no", false).is_cut_off);
}

#[test]
fn a_reply_that_comes_again_takes_no_more_memory() {
    let memory = memory(HistoryRule::Verbatim);
    let remember = || {
        let prompt = RememberedPrompt {
            salt: None,
            text: PROMPT.into(),
            ids: TokenChain::new(&[1, 2, 3]),
            is_respelled: false,
        };
        let reply = ReplyText { ids: [7].into(), sampled: 1, ..ReplyText::default() };
        memory.remember(&prompt, PROMPT.len(), [reply]);
        memory.bytes()
    };
    assert_eq!(remember(), remember());
}

/// Qwen3.5 opens a reply with `<think>` and leaves the thoughts out later: a reply that only calls
/// a tool then begins with `<tool_call>`, and so with the same letters.
#[test]
fn a_call_in_place_of_thoughts_is_known() {
    const CALL: &str = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n\
                        </function>\n</tool_call>";
    let [user, turn] = ["<|turn|>user a<|end|>", "<|turn|>assistant\n"];
    let prompt = RememberedPrompt {
        salt: None,
        text: format!("{CALL}{user}{turn}<think>\n").into(),
        ids: TokenChain::new(&[1, 2, 3]),
        is_respelled: false,
    };
    let reply = ReplyText {
        ids: [4, 5].into(),
        sampled: 2,
        text: format!("hm\n</think>\n\n{CALL}").into(),
        end: Some("<|end|>".into()),
        ..ReplyText::default()
    };
    let memory = ReplyMemory::new(HistoryRule::Verbatim, 1 << 20);
    memory.remember(&prompt, CALL.len() + user.len(), [reply]);

    let syntax = ReplySyntax {
        tools: ToolFormat::detect(CALL),
        has_reasoning: true,
        ..ReplySyntax::default()
    };
    let recalled = |call: &str| {
        let text = format!("{CALL}{user}{turn}{call}<|end|>{user}{turn}<think>\n");
        memory.recall(&syntax, None, &text, |_| true).report.reason
    };
    assert_eq!(recalled(CALL), Some(PrefixReason::ReasoningDropped));
    assert_eq!(recalled(&CALL.replace('1', "2")), None, "another call");
}
