//! Every tape of every server: the request upstream, the reply to the agent, and the record.

use bytes::Bytes;
use episode::{Choice, Route};
use kit::tape;
use serde_json::Value;
use wire::{
    AskOptions, AugmentedRequest, Collector, Dialect, Facts, RefusedFields, ReplyDocument,
    ReplyFilter, Request, Splitter,
};

/// Pairs that were written from the sources of servers, and pairs that were recorded.
const INDEXES: [&str; 2] = ["index.json", "vllm_rust/index.json"];

/// One case of the corpus.
struct Case(Value);

impl Case {
    fn all() -> Vec<Self> {
        let read = |name| serde_json::from_slice::<Vec<Value>>(&tape(name)).unwrap();
        INDEXES.into_iter().flat_map(read).map(Self).collect()
    }

    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap()
    }

    fn is(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap()
    }

    fn name(&self) -> &str {
        self.text("name")
    }

    fn file(&self, ending: &str) -> Bytes {
        Bytes::from(tape(&format!("{}.{ending}", self.name())))
    }

    fn json(&self, ending: &str) -> Value {
        serde_json::from_slice(&self.file(ending)).unwrap()
    }

    /// The reply that the facts are of.
    fn answer(&self) -> Bytes {
        let which = if self.is("retried") { "plain" } else { "asked" };
        self.file(self.text(which))
    }

    fn is_stream(&self) -> bool {
        self.text("asked").ends_with(".sse")
    }

    fn route(&self) -> Route {
        Route::from_word(self.text("wire"))
    }

    fn request(&self) -> Request {
        Request::read(&self.file("request.json")).unwrap()
    }

    fn ask(&self) -> AugmentedRequest {
        let dialect = Dialect::from_word(self.text("upstream")).unwrap();
        let given_up: Vec<&str> =
            self.0["refused"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let options = AskOptions {
            hosted_logprobs: self.is("opted_in"),
            refused: match given_up.is_empty() {
                true => RefusedFields::default(),
                false => RefusedFields::default()
                    .after(&["return_weight_versions", "logprobs"], given_up.join(" ").as_bytes()),
            },
            ..AskOptions::for_dialect(dialect)
        };
        wire::ask(&options, self.route(), &self.request(), None, |_| false)
    }

    /// The facts that are recorded of `reply`.
    fn facts(&self, reply: &Bytes) -> Facts {
        let mut collector = Collector::new(self.route(), Some(&self.request()), None);
        if self.is_stream() {
            for event in events(&[reply]) {
                let data = event.data().map(|data| data.into_owned());
                if let Some(data) = data.filter(|data| data.trim_ascii() != b"[DONE]") {
                    collector.take(&data);
                }
            }
        } else {
            collector.take(reply);
        }
        collector.facts()
    }
}

fn events(chunks: &[&[u8]]) -> Vec<wire::Event> {
    let mut splitter = Splitter::default();
    let mut found = Vec::new();
    for chunk in chunks {
        splitter.push(chunk);
        while let Some(event) = splitter.next_event().unwrap() {
            found.push(event);
        }
    }
    found.extend(splitter.rest());
    found
}

fn shown(hide: &ReplyFilter, chunks: &[&[u8]]) -> Vec<u8> {
    events(chunks).iter().filter_map(|event| hide.event(&event.read())).flatten().collect()
}

#[test]
fn what_is_sent_is_the_request_and_what_is_asked_for() {
    for case in Case::all() {
        let asked = case.ask();
        assert_eq!(asked.body, case.file("sent.json"), "{}", case.name());
        let headers: Vec<(String, String)> = match case.is("headers") {
            true => {
                serde_json::from_value::<serde_json::Map<String, Value>>(case.json("headers.json"))
                    .unwrap()
                    .into_iter()
                    .map(|(name, value)| (name, value.as_str().unwrap().to_owned()))
                    .collect()
            }
            false => Vec::new(),
        };
        let given: Vec<(String, String)> =
            asked.headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        assert_eq!(given, headers, "{}", case.name());
    }
}

#[test]
fn hidden_replies_are_the_plain_ones_at_every_cut() {
    let mut streams = 0;
    for case in Case::all().into_iter().filter(|case| !case.is("retried")) {
        let (asked, plain) = (case.file(case.text("asked")), case.file(case.text("plain")));
        let hide = case.ask().hide;
        if !case.is_stream() {
            assert_eq!(hide.document(&ReplyDocument::new(asked)), plain, "{}", case.name());
            continue;
        }
        streams += 1;
        let whole = shown(&hide, &[&asked]);
        assert_eq!(Bytes::from(whole), plain, "{}", case.name());
        // What is shown of an event depends on the event alone.
        let found = events(&[&asked]);
        for cut in 0..=asked.len() {
            let halves = events(&[&asked[..cut], &asked[cut..]]);
            assert!(halves == found, "{} cut at {cut}", case.name());
        }
    }
    assert!(streams > 50, "the corpus was not read");
}

/// Chat's word for another wire's stop reason.
fn in_chat(word: &Value, route: Route, given: Option<&str>) -> Value {
    let chat = match (route, word.as_str().unwrap_or_default()) {
        // The status says that it stopped; whether it called a tool, the items say.
        (Route::Responses, "completed") if given == Some("tool_calls") => "tool_calls",
        (Route::Responses, "completed") => "stop",
        (Route::Messages, "end_turn" | "stop_sequence") => "stop",
        (Route::Messages, "max_tokens") | (Route::Responses, "max_output_tokens") => "length",
        (Route::Messages, "tool_use") => "tool_calls",
        _ => return word.clone(),
    };
    Value::from(chat)
}

fn assert_logprobs(choice: &Choice, facts: &Value, name: &str) {
    let truth = facts["logprobs"].as_array().unwrap();
    let complete = facts["complete"].as_bool().unwrap_or(true);
    let same = |(given, truth): (&f32, &Value)| match truth.as_f64() {
        Some(value) => given.to_bits() == (value as f32).to_bits(),
        None => given.is_nan(),
    };
    if complete {
        assert_eq!(choice.logprobs.len(), truth.len(), "{name}");
        assert!(choice.logprobs.iter().zip(truth).all(same), "{name}: {:?}", choice.logprobs);
    } else {
        // A lost entry may take others with it, but none may be given to a wrong token.
        let mut pairs = choice.logprobs.iter().zip(truth);
        assert!(pairs.all(|pair| pair.0.is_nan() || same(pair)), "{name}: {:?}", choice.logprobs);
    }
}

#[test]
fn what_is_recorded_is_what_the_reply_says() {
    let mut with_ids = 0;
    for case in Case::all() {
        let name = case.name();
        let facts = case.facts(&case.answer());
        let truth = case.json("facts.json");
        assert_eq!(serde_json::json!(facts.prompts), truth["prompts"], "{name}");
        let usage = (facts.usage.prompt, facts.usage.completion);
        let counted = (truth["usage"]["prompt"].as_u64(), truth["usage"]["completion"].as_u64());
        assert_eq!(usage, counted, "{name}");
        assert_eq!(facts.error.is_some(), !truth["error"].is_null(), "{name}: {:?}", facts.error);

        let choices = truth["choices"].as_array().unwrap();
        assert_eq!(facts.choices.len(), choices.len(), "{name}");
        for (choice, truth) in facts.choices.iter().zip(choices) {
            let complete = truth["complete"].as_bool().unwrap_or(true);
            if complete || choice.token_ids.is_some() {
                let ids = serde_json::json!(choice.token_ids);
                assert_eq!(ids, truth["token_ids"], "{name}");
                with_ids += 1;
            }
            assert_logprobs(choice, truth, name);

            let word =
                in_chat(&truth["finish_reason"], case.route(), choice.finish_reason.as_deref());
            assert_eq!(serde_json::json!(choice.finish_reason), word, "{name}");
            let spans: Vec<_> =
                choice.versions.iter().map(|s| (&s.version, s.start, s.end)).collect();
            assert_eq!(serde_json::json!(spans), truth["versions"], "{name}");
        }
    }
    assert!(with_ids > 80, "the corpus was not read");
}

#[test]
fn a_stream_ends_once_and_where_it_ends() {
    for case in Case::all().into_iter().filter(Case::is_stream) {
        let plain = case.file(case.text("plain"));
        let found = events(&[&plain]);
        let ends: Vec<usize> =
            (0..found.len()).filter(|at| found[*at].ends(case.route())).collect();
        assert!(ends.len() <= 1, "{}", case.name());
        assert!(ends.iter().all(|at| at + 1 == found.len()), "{}", case.name());
    }
}
