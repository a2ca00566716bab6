//! Scores of ids that are there already: how a server is asked for the logprob of each token of a
//! prompt, and what it answers.
//!
//! vLLM and rolltape's engine score a prompt of `/v1/completions`, SGLang one of its own
//! `/generate`. llama.cpp's server and hosted ones score none.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::ask::ServerQuestion;
use crate::dialect::Dialect;

/// The question for the scores of ids: their logprobs under the whole distribution of the model.
/// Some servers let a temperature reach them and some do not, so it is 1.
#[derive(Debug, Clone, Copy)]
pub struct ScoreQuestion<'a> {
    /// The ids, of which the first gets no score.
    pub ids: &'a [u32],
    /// The number of ids at the beginning that need no score. SGLang and rolltape's engine take
    /// them from their caches; others score them again.
    pub known: usize,
    /// The number of most probable ids that are told beside each token.
    pub top: usize,
    /// The model or adapter to ask.
    pub model: Option<&'a str>,
}

/// The score of one token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenScore {
    /// Its logprob, in nats.
    pub logprob: f32,
    /// The most probable ids at its place and their logprobs, falling. It may be one of them.
    pub top: Vec<(u32, f32)>,
}

/// Reason why a reply has no scores.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScoreError {
    /// The dialect has no way to ask.
    #[error("a server of the dialect `{0}` does not score prompts; vLLM, SGLang and rolltape do")]
    NotScored(&'static str),
    /// The reply is not what was asked for.
    #[error("the server's reply has no scores of the prompt")]
    NoScores,
    /// The reply has scores of another number of tokens.
    #[error("the server scored {found} tokens of {expected}")]
    Count {
        /// Number of tokens that were sent.
        expected: usize,
        /// Number of tokens that were scored.
        found: usize,
    },
}

impl ScoreQuestion<'_> {
    /// The path and the body of the request.
    ///
    /// # Errors
    /// [`ScoreError::NotScored`] for a server that scores no prompts.
    pub fn request(&self, dialect: Dialect) -> Result<ServerQuestion, ScoreError> {
        let dialect = self.asked_in(dialect);
        let (path, mut body) = match dialect {
            Dialect::Vllm | Dialect::Rolltape => ("/v1/completions", self.of_completions()),
            Dialect::Sglang => ("/generate", self.of_generate()),
            Dialect::Llamacpp | Dialect::OpenAi => {
                return Err(ScoreError::NotScored(dialect.as_str()));
            }
        };
        let name = if dialect == Dialect::Sglang { "lora_path" } else { "model" };
        if let (Some(model), Some(fields)) = (self.model, body.as_object_mut()) {
            fields.insert(name.to_owned(), model.into());
        }
        Ok((path, Bytes::from(body.to_string())))
    }

    /// The dialect of the question: the engine scores the rest of ids by SGLang's route alone.
    pub fn asked_in(&self, dialect: Dialect) -> Dialect {
        match dialect {
            Dialect::Rolltape if self.known > 0 => Dialect::Sglang,
            other => other,
        }
    }

    fn of_completions(&self) -> Value {
        json!({
            "prompt": self.ids,
            "max_tokens": 1,
            "temperature": 1,
            "top_p": 1,
            "top_k": -1,
            "prompt_logprobs": self.top,
        })
    }

    fn of_generate(&self) -> Value {
        json!({
            "input_ids": self.ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1, "top_p": 1, "top_k": -1},
            "return_logprob": true,
            "logprob_start_len": self.start(),
            "top_logprobs_num": self.top,
        })
    }

    /// The position before the first id that SGLang scores.
    fn start(&self) -> usize {
        self.known.clamp(1, self.ids.len().max(1)) - 1
    }

    /// The scores in the reply, one for each id: none for the first, for one whose score is no
    /// number, and for what is known where the server left it out.
    ///
    /// # Errors
    /// [`ScoreError`] when the reply has no scores, or not one a token.
    pub fn answer(
        &self,
        dialect: Dialect,
        reply: &[u8],
    ) -> Result<Vec<Option<TokenScore>>, ScoreError> {
        let mut scores = match self.asked_in(dialect) {
            Dialect::Sglang => of_generated(reply).map(|scored| {
                let before = std::iter::repeat_n(None, self.start());
                before.chain(scored).collect()
            }),
            _ => of_completion(reply, self.ids),
        }
        .ok_or(ScoreError::NoScores)?;
        if scores.len() != self.ids.len() {
            return Err(ScoreError::Count { expected: self.ids.len(), found: scores.len() });
        }

        if let Some(first) = scores.first_mut() {
            *first = None;
        }
        for score in scores.iter_mut().flatten() {
            score.top.sort_by(|a, b| b.1.total_cmp(&a.1));
            score.top.truncate(self.top);
        }
        Ok(scores)
    }
}

/// The request that makes rolltape's engine or SGLang serve the weights of a folder.
pub fn weights_request(folder: &str) -> ServerQuestion {
    ("/update_weights_from_disk", Bytes::from(json!({"model_path": folder}).to_string()))
}

/// The request that makes rolltape's engine or vLLM serve an adapter.
pub fn adapter_request(name: &str, folder: &str) -> ServerQuestion {
    let body = json!({"lora_name": name, "lora_path": folder});
    ("/v1/load_lora_adapter", Bytes::from(body.to_string()))
}

/// The questions for the ids of a text with the ids that the tokenizer puts around every text, and
/// without them. [`crate::ids_answer`] reads both answers.
pub fn around_questions(model: Option<&str>, text: &str) -> [ServerQuestion; 2] {
    [true, false].map(|special| {
        let body = json!({"model": model, "prompt": text, "add_special_tokens": special});
        ("/tokenize", Bytes::from(body.to_string()))
    })
}

/// One position of vLLM's list: ids as texts, each with its logprob.
type Listed = BTreeMap<String, ListedLogprob>;

#[derive(Deserialize)]
struct ListedLogprob {
    logprob: Option<f32>,
}

fn of_completion(reply: &[u8], ids: &[u32]) -> Option<Vec<Option<TokenScore>>> {
    #[derive(Deserialize)]
    struct Completion {
        choices: Vec<ScoredChoice>,
    }
    #[derive(Deserialize)]
    struct ScoredChoice {
        prompt_logprobs: Option<Vec<Option<Listed>>>,
    }
    let reply: Completion = serde_json::from_slice(reply).ok()?;
    let listed = reply.choices.into_iter().next()?.prompt_logprobs?;

    let score = |(place, id): (Option<Listed>, Option<&u32>)| {
        let known = place?.into_iter().filter_map(|(id, told)| Some((id.parse().ok()?, told)));
        let top: Vec<_> = known.filter_map(|(id, told)| Some((id, told.logprob?))).collect();
        let logprob = top.iter().find(|(listed, _)| Some(listed) == id)?.1;
        Some(TokenScore { logprob, top })
    };
    // A list of another length than the ids' is told by its length.
    let ids = ids.iter().map(Some).chain(std::iter::repeat(None));
    Some(listed.into_iter().zip(ids).map(score).collect())
}

/// SGLang's entry: a logprob, an id, and a text.
type Triple = (Option<f32>, u32, Option<String>);

fn of_generated(reply: &[u8]) -> Option<Vec<Option<TokenScore>>> {
    #[derive(Deserialize)]
    struct Generated {
        meta_info: SglangScores,
    }
    #[derive(Deserialize)]
    struct SglangScores {
        input_token_logprobs: Vec<Triple>,
        #[serde(default)]
        input_top_logprobs: Vec<Option<Vec<Triple>>>,
    }
    let SglangScores { input_token_logprobs: tokens, input_top_logprobs: tops } =
        serde_json::from_slice::<Generated>(reply).ok()?.meta_info;

    let tops = tops.into_iter().chain(std::iter::repeat_with(|| None));
    let score = |((logprob, ..), top): (Triple, Option<Vec<Triple>>)| {
        let known = top.into_iter().flatten().filter_map(|(told, id, _)| Some((id, told?)));
        Some(TokenScore { logprob: logprob?, top: known.collect() })
    };
    Some(tokens.into_iter().zip(tops).map(score).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: ScoreQuestion<'_> =
        ScoreQuestion { ids: &[5, 6, 7], known: 0, top: 1, model: Some("m") };

    fn score(logprob: f32, top: (u32, f32)) -> Option<TokenScore> {
        Some(TokenScore { logprob, top: vec![top] })
    }

    #[test]
    fn each_server_is_asked_in_its_own_words() {
        let (path, body) = QUESTION.request(Dialect::Vllm).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((path, &body["prompt"]), ("/v1/completions", &json!([5, 6, 7])));
        assert_eq!((&body["model"], &body["prompt_logprobs"]), (&json!("m"), &json!(1)));
        let (path, body) = QUESTION.request(Dialect::Sglang).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((path, &body["input_ids"]), ("/generate", &json!([5, 6, 7])));
        assert_eq!(body["lora_path"], "m");
        let refused = QUESTION.request(Dialect::Llamacpp).unwrap_err().to_string();
        assert!(refused.contains("`llamacpp` does not score prompts"), "{refused}");
    }

    #[test]
    fn scores_of_both_kinds_of_servers_are_read() {
        let expected = [None, score(-2.0, (9, -0.25)), score(-1.0, (7, -1.0))];
        let listed = json!([null, {"9": {"logprob": -0.25}, "6": {"logprob": -2.0, "rank": 4}},
            {"7": {"logprob": -1.0}}]);
        let vllm = json!({"choices": [{"prompt_logprobs": listed}]}).to_string();
        let found = QUESTION.answer(Dialect::Vllm, vllm.as_bytes()).unwrap();
        assert_eq!(found, expected);
        let sglang = json!({"text": "x", "meta_info": {
            "input_token_logprobs": [[null, 5, null], [-2.0, 6, null], [-1.0, 7, "c"]],
            "input_top_logprobs": [null, [[-0.25, 9, null]], [[-1.0, 7, null]]]}});
        let found = QUESTION.answer(Dialect::Sglang, sglang.to_string().as_bytes()).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_known_is_asked_for_where_it_costs_nothing_alone() {
        let question = ScoreQuestion { known: 2, ..QUESTION };
        let (path, _) = question.request(Dialect::Vllm).unwrap();
        assert_eq!(path, "/v1/completions");
        for dialect in [Dialect::Sglang, Dialect::Rolltape] {
            let (path, body) = question.request(dialect).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((path, &body["logprob_start_len"]), ("/generate", &json!(1)));
            let reply = json!({"meta_info": {
                "input_token_logprobs": [[null, 6, null], [-1.0, 7, null]],
                "input_top_logprobs": [null, [[-1.0, 7, null]]]}});
            let found = question.answer(dialect, reply.to_string().as_bytes()).unwrap();
            assert_eq!(found, [None, None, score(-1.0, (7, -1.0))]);
        }
        // All may be known, and none.
        let starts = [(0, 0), (1, 0), (3, 2), (9, 2)];
        for (known, start) in starts {
            assert_eq!(ScoreQuestion { known, ..QUESTION }.start(), start, "{known}");
        }
    }

    #[test]
    fn replies_without_scores_are_told() {
        let none = QUESTION.answer(Dialect::Vllm, br#"{"choices":[{"text":"x"}]}"#);
        assert_eq!(none, Err(ScoreError::NoScores));
        let short = br#"{"choices":[{"prompt_logprobs":[null,{"6":{"logprob":-1}}]}]}"#;
        let short = QUESTION.answer(Dialect::Vllm, short);
        assert_eq!(short, Err(ScoreError::Count { expected: 3, found: 2 }));
        // A place that does not name its token, and a logprob that is no number.
        let listed = br#"{"choices":[{"prompt_logprobs":[null,{"1":{"logprob":-1}},
            {"7":{"logprob":null}}]}]}"#;
        assert_eq!(QUESTION.answer(Dialect::Rolltape, listed), Ok(vec![None, None, None]));
    }
}
