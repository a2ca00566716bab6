//! The facts of a reply: ids, logprobs, versions, counts, collected as it passes.

mod chat;
mod draft;
mod messages;
mod native;
mod responses;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use episode::{Choice, Route, TokenCounts};
use serde_json::Value;

use crate::owed::Owed;
use crate::request::Request;
use crate::sse::documents;
use crate::vocabulary::Vocabulary;
use draft::Draft;

/// Collects what a reply says, from one document or from many chunks. Never fails: what cannot
/// be read is counted, and the bytes are kept beside it anyway.
#[derive(Debug)]
pub struct Collector {
    route: Route,
    choices_per_prompt: u32,
    /// How many prompts the request has; a reply that names others is not believed.
    prompts_max: u32,
    /// Whether a list of alternatives holds more than the sampled token itself.
    alternatives: bool,
    vocabulary: Option<Arc<Vocabulary>>,
    model: Option<String>,
    prompts: BTreeMap<u32, Vec<u32>>,
    choices: BTreeMap<u32, Draft>,
    /// One version for all tokens, where the server says no more.
    version: Option<String>,
    usage: TokenCounts,
    /// Counts that hold where there is no usage.
    timed: TokenCounts,
    owed: Owed,
    error: Option<String>,
    unread: u32,
    /// Whether something was lost that may have been part of any choice.
    has_gap: bool,
}

/// What a whole reply said.
#[derive(Debug, Default, PartialEq)]
pub struct Facts {
    /// The model that the server named.
    pub model: Option<String>,
    /// Token ids of each prompt, by its place in the request; an empty list where none were
    /// reported.
    pub prompts: Vec<Vec<u32>>,
    /// The choices, by index.
    pub choices: Vec<Choice>,
    /// The server's counts; counted from ids where it gave none.
    pub usage: TokenCounts,
    /// The error the reply carried, inside a stream or instead of one.
    pub error: Option<String>,
    /// Chunks that could not be read.
    pub unread: u32,
    /// What it leaves to be asked of its server.
    pub owed: Owed,
}

/// The counts that a reply tells, whether or not it tells ids.
pub fn counts(route: Route, reply: &[u8]) -> TokenCounts {
    let mut collector = Collector::new(route, None, None);
    documents(reply).iter().for_each(|document| collector.take(document));
    collector.told()
}

impl Collector {
    /// A collector for the upstream's reply on `route` to `request`. With a `vocabulary`, tokens
    /// that come with their bytes and without an id are looked up.
    pub fn new(
        route: Route,
        request: Option<&Request>,
        vocabulary: Option<Arc<Vocabulary>>,
    ) -> Self {
        Self {
            route,
            choices_per_prompt: request.map_or(1, Request::choices),
            prompts_max: prompts_of(route, request),
            alternatives: request.is_some_and(|r| r.alternatives(route)),
            vocabulary,
            model: None,
            prompts: BTreeMap::new(),
            choices: BTreeMap::new(),
            version: None,
            usage: TokenCounts::default(),
            timed: TokenCounts::default(),
            owed: Owed::default(),
            error: None,
            unread: 0,
            has_gap: false,
        }
    }

    /// Keeps alternatives whether or not the agent asked for them.
    pub fn keep_alternatives(mut self) -> Self {
        self.alternatives = true;
        self
    }

    /// Takes one document, or the data of one event.
    pub fn take(&mut self, json: &[u8]) {
        let read = match self.route {
            Route::Messages => self.take_messages(json),
            Route::Responses => self.take_responses(json),
            Route::Generate => self.take_native(json),
            _ => self.take_chat(json),
        };
        if read.is_none() {
            self.unread += 1;
            self.lose(json);
        }
    }

    /// No choice is known exactly of which something could not be read.
    fn lose(&mut self, json: &[u8]) {
        match chat::indices(json).filter(|indices| !indices.is_empty()) {
            Some(indices) => indices.into_iter().for_each(|index| {
                let prompt_index = self.prompt_of(index);
                self.draft(index, prompt_index).lose();
            }),
            None => self.has_gap = true,
        }
    }

    /// Which prompt the choice of this index continues.
    fn prompt_of(&self, index: u32) -> u32 {
        match self.route {
            Route::Completions | Route::Generate => index / self.choices_per_prompt,
            _ => 0,
        }
    }

    /// Whether every choice that the request asks for has said why it stopped.
    pub fn finished(&self) -> bool {
        let asked = u64::from(self.choices_per_prompt) * u64::from(self.prompts_max);
        self.choices.len() as u64 >= asked && self.choices.values().all(Draft::finished)
    }

    /// Whether the reply carried an error.
    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// What was collected.
    pub fn facts(mut self) -> Facts {
        if self.has_gap {
            self.choices.values_mut().for_each(Draft::lose);
        }
        let vocabulary = self.vocabulary.as_deref();
        let told = self.told();
        let unended = self.choices.iter().filter(|(_, draft)| draft.lacks_end());
        self.owed.unended = unended.map(|(index, _)| *index).collect();
        // With one choice, the count of all sampled tokens is the count of its own.
        let count = if self.choices.len() == 1 { told.completion } else { None };
        let version = self.version;
        let choices: Vec<Choice> = self
            .choices
            .into_values()
            .map(|draft| draft.choice(count, version.as_deref(), vocabulary))
            .collect();
        let sampled = |c: &Choice| c.token_ids.as_ref().map(|ids| ids.len() as u64);
        let counted = TokenCounts {
            prompt: (!self.prompts.is_empty())
                .then(|| self.prompts.values().map(|ids| ids.len() as u64).sum()),
            completion: (!choices.is_empty())
                .then(|| choices.iter().map(sampled).sum::<Option<u64>>())
                .flatten(),
        };
        Facts {
            model: self.model,
            prompts: in_place(self.prompts, self.prompts_max),
            usage: TokenCounts {
                prompt: told.prompt.or(counted.prompt),
                completion: told.completion.or(counted.completion),
            },
            choices,
            error: self.error,
            unread: self.unread,
            owed: self.owed,
        }
    }

    /// What the server counted. Where it counts each choice by itself, it counts all of them when
    /// each was.
    fn told(&self) -> TokenCounts {
        let one = self.choices.len() <= 1;
        let each = || sum(self.choices.values().map(Draft::count));
        let prompts = self.choices.values().map(Draft::prompt_index).collect::<BTreeSet<_>>();
        let timed = TokenCounts {
            prompt: if prompts.len() <= 1 { self.timed.prompt } else { self.owed.count(&prompts) },
            completion: if one { self.timed.completion } else { each() },
        };
        TokenCounts {
            prompt: self.usage.prompt.or(timed.prompt),
            completion: self.usage.completion.or(timed.completion),
        }
    }

    fn counts(&mut self, prompt: Option<u64>, completion: Option<u64>) {
        self.usage = TokenCounts {
            prompt: prompt.or(self.usage.prompt),
            completion: completion.or(self.usage.completion),
        };
    }

    fn failed_with(&mut self, error: &Value) {
        let text = error.get("message").and_then(Value::as_str).map(str::to_owned);
        self.error = Some(text.unwrap_or_else(|| match error {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }));
    }

    /// The choice of this index, made if need be.
    fn draft(&mut self, index: u32, prompt_index: u32) -> &mut Draft {
        self.choices.entry(index).or_insert_with(|| Draft::new(index, prompt_index))
    }
}

/// The sum of counts that are all known, as far as it goes.
pub(crate) fn sum(counts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    counts.into_iter().try_fold(0_u64, |sum, count| Some(sum.saturating_add(count?)))
}

/// How many prompts a request to `route` has.
fn prompts_of(route: Route, request: Option<&Request>) -> u32 {
    let batch = request.filter(|_| matches!(route, Route::Completions | Route::Generate));
    batch.map_or(1, |request| u32::try_from(request.prompts()).unwrap_or(u32::MAX))
}

/// Prompts at their places. A reply that was cut short has told of some only, and not of the
/// first ones first.
fn in_place(mut told: BTreeMap<u32, Vec<u32>>, prompts_max: u32) -> Vec<Vec<u32>> {
    let end = told.keys().rev().find(|at| **at < prompts_max).map_or(0, |last| last + 1);
    (0..end).map(|at| told.remove(&at).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use episode::Fidelity;

    use super::*;

    fn collect(route: Route, n: u32, parts: &[&str]) -> Facts {
        let mut collector = Collector::new(route, None, None);
        (collector.choices_per_prompt, collector.prompts_max) = (n, 2);
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    #[test]
    fn a_streamed_chat_adds_up() {
        let facts = collect(
            Route::Chat,
            1,
            &[
                r#"{"model":"m","choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2,3]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"finish_reason":null,"token_ids":[4]}]}"#,
                r#"{"choices":[{"index":0,"delta":{},"logprobs":{"content":[{"token":"b"}]},"finish_reason":"stop","stop_reason":7,"token_ids":[5],"weight_versions":[{"version":"3","start":0,"end":2}]}]}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
            ],
        );
        let choice = &facts.choices[0];
        assert_eq!(facts.prompts, [[1, 2, 3]]);
        assert_eq!(choice.token_ids.as_deref(), Some(&[4, 5][..]));
        assert!(choice.logprobs[0] == -0.5 && choice.logprobs[1].is_nan());
        assert_eq!(choice.fidelity, Fidelity::Exact);
        assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
        assert_eq!(choice.stop_reason.as_deref(), Some("7"));
        assert_eq!(choice.versions[0].number(), Some(3));
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(2) });
        assert_eq!(facts.model.as_deref(), Some("m"));
    }

    #[test]
    fn choices_of_a_batch_of_prompts_find_their_prompt() {
        let facts = collect(
            Route::Completions,
            2,
            &[r#"{"choices":[
                {"index":0,"text":"","token_ids":[9],"prompt_token_ids":[1],"logprobs":{"token_logprobs":[-1.0]}},
                {"index":1,"text":"","token_ids":[8],"prompt_token_ids":[1]},
                {"index":2,"text":"","token_ids":[7],"prompt_token_ids":[2]},
                {"index":3,"text":"","token_ids":[6],"prompt_token_ids":[2]}]}"#],
        );
        assert_eq!(facts.prompts, [[1], [2]]);
        let of: Vec<_> = facts.choices.iter().map(|c| c.prompt_index).collect();
        assert_eq!(of, [0, 0, 1, 1]);
        assert_eq!(facts.choices[0].logprobs, [-1.0]);
        assert_eq!(facts.usage.completion, Some(4));
    }

    /// The events of a batch of two prompts, two choices each, and what reads them.
    fn batch() -> (Collector, Vec<Vec<u8>>) {
        let request =
            include_bytes!("../../tests/tapes/vllm/completions/batch_stream.request.json");
        let stream = include_bytes!("../../tests/tapes/vllm/completions/batch_stream.asked.sse");
        let request = Request::read(&Bytes::from_static(request)).unwrap();
        (Collector::new(Route::Completions, Some(&request), None), documents(stream))
    }

    #[test]
    fn a_prompt_keeps_its_place_however_early_a_batch_is_cut() {
        let count = batch().1.len();
        let mut gaps = 0;
        for cut in 1..=count {
            let (mut collector, events) = batch();
            events[..cut].iter().for_each(|event| collector.take(event));
            let facts = collector.facts();
            gaps += facts.prompts.iter().filter(|prompt| prompt.is_empty()).count();
            for choice in &facts.choices {
                let own: &[u32] = if choice.prompt_index == 0 { &[1, 5] } else { &[1, 6, 7] };
                assert_eq!(facts.prompts[choice.prompt_index as usize], own, "{cut}");
            }
        }
        assert_eq!(gaps, 1, "the first event is of the second prompt");
    }

    #[test]
    fn a_batch_has_finished_when_all_of_its_choices_have() {
        let (mut collector, events) = batch();
        let finished: Vec<bool> = events
            .iter()
            .map(|event| {
                collector.take(event);
                collector.finished()
            })
            .collect();
        let first = finished.iter().position(|finished| *finished);
        assert_eq!(first, Some(3), "{finished:?}");
    }

    #[test]
    fn prompts_that_were_not_asked_for_take_no_room() {
        let (mut collector, _) = batch();
        collector.take(br#"{"choices":[{"index":4294967295,"prompt_token_ids":[9]}]}"#);
        collector.take(br#"{"choices":[{"index":0,"prompt_token_ids":[1,5]}]}"#);
        assert_eq!(collector.facts().prompts, [[1, 5]]);
    }

    #[test]
    fn counts_are_read_from_replies_of_every_form() {
        let told = |prompt, completion| TokenCounts { prompt, completion };
        let whole = br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        assert_eq!(counts(Route::Chat, whole), told(Some(3), Some(2)));
        let stream = [b"data: ".as_slice(), whole, b"\n\ndata: [DONE]\n\n"].concat();
        assert_eq!(counts(Route::Chat, &stream), told(Some(3), Some(2)));
        assert_eq!(counts(Route::Chat, br#"{"choices":[]}"#), told(None, None));
        let messages = br#"{"type":"message","usage":{"input_tokens":3,"output_tokens":2}}"#;
        assert_eq!(counts(Route::Messages, messages), told(Some(3), Some(2)));
    }

    /// A chunk of llama.cpp's of one choice, with so many tokens counted so far.
    fn timed(index: u32, id: u32, finish: &str, count: u32) -> String {
        let logprobs = match finish {
            "null" => format!(r#"{{"content":[{{"id":{id},"logprob":-0.5}}]}}"#),
            _ => "null".to_owned(),
        };
        format!(
            r#"{{"choices":[{{"index":{index},"logprobs":{logprobs},"finish_reason":{finish}}}],
            "timings":{{"cache_n":2,"prompt_n":1,"predicted_n":{count}}}}}"#
        )
    }

    #[test]
    fn an_event_without_anything_loses_nothing() {
        let parts = ["null", &timed(0, 7, "null", 1), &timed(0, 0, "\"stop\"", 1)];
        for route in [Route::Chat, Route::Completions] {
            let facts = collect(route, 1, &parts);
            assert_eq!(facts.unread, 0);
            assert_eq!(facts.choices[0].token_ids.as_deref(), Some(&[7][..]));
        }
    }

    #[test]
    fn counts_that_grow_with_the_stream_end_with_the_last() {
        let parts = [timed(0, 7, "null", 1), timed(0, 8, "null", 2), timed(0, 0, "\"stop\"", 2)];
        let facts = collect(Route::Chat, 1, &parts.each_ref().map(String::as_str));
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(2) });
        assert_eq!(facts.choices[0].token_ids.as_deref(), Some(&[7, 8][..]));
    }

    #[test]
    fn counts_beside_a_choice_are_of_that_choice() {
        let parts = [
            timed(1, 7, "null", 1),
            timed(0, 8, "null", 1),
            timed(0, 9, "null", 2),
            timed(0, 0, "\"stop\"", 2),
            timed(1, 0, "\"stop\"", 1),
        ];
        let facts = collect(Route::Chat, 2, &parts.each_ref().map(String::as_str));
        let ids: Vec<_> = facts.choices.iter().map(|c| c.token_ids.clone().unwrap()).collect();
        assert_eq!(ids, [vec![8, 9], vec![7]]);
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(3) });
    }

    #[test]
    fn an_end_that_is_not_told_is_owed_where_it_alone_is_missing() {
        let end = |count: u32, stop: &str| {
            let last = timed(0, 0, "\"stop\"", count);
            let verbose = format!(
                r#","__verbose":{{"index":0,"tokens":[],"stop":true,"tokens_predicted":{count},
                "tokens_evaluated":3,"prompt":"<s>hi","stop_type":"{stop}"}}}}"#
            );
            let last = last.strip_suffix('}').unwrap().to_owned() + &verbose;
            collect(Route::Chat, 1, &[&timed(0, 7, "null", 1), &last])
        };
        let facts = end(2, "eos");
        assert_eq!(
            (&facts.owed.unended[..], facts.owed.text.as_deref()),
            (&[0][..], Some("<s>hi"))
        );
        assert_eq!(facts.choices[0].token_ids.as_deref(), Some(&[7][..]));
        assert_eq!(facts.usage.completion, Some(2));
        for other in [end(2, "word"), end(3, "eos")] {
            assert!(other.owed.unended.is_empty() && other.choices[0].token_ids.is_none());
        }
        let whole = end(1, "eos");
        assert!(whole.owed.unended.is_empty() && whole.choices[0].token_ids.is_some());
    }

    #[test]
    fn errors_and_nonsense_are_kept_apart() {
        let facts = collect(Route::Chat, 1, &[r#"{"error":{"message":"out of memory"}}"#, "{"]);
        assert_eq!(facts.error.as_deref(), Some("out of memory"));
        assert_eq!(facts.unread, 1);
    }

    #[test]
    fn a_choice_of_which_a_part_could_not_be_read_has_no_ids() {
        let chunk = |index: u32, id: &str| {
            format!(r#"{{"choices":[{{"index":{index},"token_ids":[{id}]}}]}}"#)
        };
        let ids = |parts: &[&str]| {
            let facts = collect(Route::Chat, 2, parts);
            assert_eq!(facts.unread, 1);
            facts.choices.into_iter().map(|choice| choice.token_ids).collect::<Vec<_>>()
        };
        let (first, second, more) = (chunk(0, "1"), chunk(1, "2"), chunk(0, "3"));
        let one = ids(&[&first, &second, &chunk(0, "-1"), &more]);
        assert_eq!(one, [None, Some(vec![2])], "the chunk says whose it is");
        let any = ids(&[&first, &second, r#"{"choices":[{"#, &more]);
        assert_eq!(any, [None, None], "it may have been of either");
    }

    #[test]
    fn counts_without_measure_stay_at_the_largest() {
        let most = u64::MAX;
        let timings = format!(r#"{{"timings":{{"prompt_n":{most},"cache_n":{most}}}}}"#);
        let usage =
            format!(r#"{{"usage":{{"input_tokens":{most},"cache_read_input_tokens":{most}}}}}"#);
        for (route, reply) in [(Route::Chat, timings), (Route::Messages, usage)] {
            assert_eq!(collect(route, 1, &[&reply]).usage.prompt, Some(most), "{reply}");
        }
    }

    #[test]
    fn one_version_of_a_whole_reply_is_that_of_choices_of_any_length() {
        let reply = |version: &str| {
            format!(
                r#"{{"choices":[{{"index":0,"token_ids":[1,2]}},{{"index":1,"token_ids":[3,4,5]}}],
                "metadata":{{"weight_version":"{version}",
                "weight_versions":[{{"version":"7","start":0,"end":2}}]}}}}"#
            )
        };
        let ends = |version: &str| {
            let facts = collect(Route::Chat, 2, &[&reply(version)]);
            let spans = facts.choices.iter().map(|choice| choice.versions[0].end);
            spans.collect::<Vec<_>>()
        };
        assert_eq!(ends("7"), [2, 3]);
        assert_eq!(ends("8"), [2, 2], "which of the two sampled the rest is not known");
    }

    #[test]
    fn a_reply_is_not_multiplied_by_its_choices() {
        let choices: Vec<String> = (0..1000).map(|n| format!(r#"{{"index":{n}}}"#)).collect();
        let reply = |metadata: String| {
            format!(r#"{{"choices":[{}],"metadata":{{{metadata}}}}}"#, choices.join(","))
        };
        let span = r#"{"version":"1","start":0,"end":1}"#;
        let shared = |spans: usize| {
            let spans = vec![span; spans].join(",");
            collect(Route::Chat, 1, &[&reply(format!(r#""weight_versions":[{spans}]"#))])
        };
        let spans = |facts: &Facts| facts.choices.iter().map(|c| c.versions.len()).sum::<usize>();
        assert_eq!((spans(&shared(4)), shared(4).unread), (4000, 0));
        assert_eq!((spans(&shared(5)), shared(5).unread), (0, 1));
        let long = "\u{e9}".repeat(200);
        let one = format!(
            r#"{{"choices":[{{"token_ids":[1]}}],"metadata":{{"weight_version":"{long}"}}}}"#
        );
        let facts = collect(Route::Chat, 1, &[&one]);
        assert_eq!(facts.choices[0].versions[0].version.len(), 256);
    }
}
