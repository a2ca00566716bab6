//! The texts of ids and the ids of texts, as a server tells them.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::TOKENIZE;
use crate::dialect::Dialect;

const DETOKENIZE: &str = "/detokenize";

/// A question of rolltape to a server: path and body.
pub type ServerQuestion = (&'static str, Bytes);

/// A question by which a server of SGLang's dialect shows how it renders chats.
#[derive(Debug, Clone)]
pub struct TemplateQuestion {
    /// The question.
    pub question: ServerQuestion,
    /// True if a server that renders them by a Jinja template alone answers it, and false if that
    /// one refuses it.
    pub is_taken: bool,
}

impl TemplateQuestion {
    /// The questions that tell whether the template alone makes the prompt of the chat that `body`
    /// asks about. Under a template in SGLang's own code, the words at which a reply stops come
    /// with it, and are forgotten when the prompt is given as ids. Only for a Jinja template does
    /// `/tokenize` take `add_generation_prompt`; a release that does not know the field takes the
    /// second question, too.
    pub fn all(body: &Bytes) -> [Self; 2] {
        let ask = |more: &str, is_taken| {
            let whole = body.strip_suffix(b"}").unwrap_or(body);
            let body = Bytes::from([whole, more.as_bytes(), b"}"].concat());
            Self { question: (TOKENIZE, body), is_taken }
        };
        let refused = ",\"add_generation_prompt\":false,\"continue_final_message\":true";
        [ask(",\"add_generation_prompt\":true", true), ask(refused, false)]
    }
}

fn fields(model: Option<&str>, name: &str, value: Value) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(model) = model {
        fields.insert("model".to_owned(), model.into());
    }
    fields.insert(name.to_owned(), value);
    fields
}

/// The question for the text of ids, special ones among them.
pub fn text_question(dialect: Dialect, model: Option<&str>, ids: &[u32]) -> ServerQuestion {
    let mut body = fields(model, "tokens", json!(ids));
    if dialect == Dialect::Sglang {
        body.insert("skip_special_tokens".to_owned(), false.into());
    }
    (DETOKENIZE, Bytes::from(Value::Object(body).to_string()))
}

/// The answer to a [`text_question`].
pub fn text_answer(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Text {
        #[serde(alias = "prompt")]
        text: String,
    }
    Some(serde_json::from_slice::<Text>(answer).ok()?.text)
}

/// The question for the texts of several lists of ids. SGLang answers it.
pub fn texts_question(model: Option<&str>, lists: &[Vec<u32>]) -> ServerQuestion {
    let mut body = fields(model, "tokens", json!(lists));
    body.insert("skip_special_tokens".to_owned(), false.into());
    (DETOKENIZE, Bytes::from(Value::Object(body).to_string()))
}

/// The answer to a [`texts_question`] with `count` lists.
pub fn texts_answer(answer: &[u8], count: usize) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct ToldTexts {
        text: Vec<String>,
    }
    let texts = serde_json::from_slice::<ToldTexts>(answer).ok()?.text;
    (texts.len() == count).then_some(texts)
}

/// The question for the ids of a text.
pub fn ids_question(model: Option<&str>, text: &str) -> ServerQuestion {
    let mut body = fields(model, "prompt", text.into());
    body.insert("add_special_tokens".to_owned(), false.into());
    (TOKENIZE, Bytes::from(Value::Object(body).to_string()))
}

/// The ids in the answer to a question for them; `None` if there are none.
pub fn ids_answer(answer: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct ToldIds {
        tokens: Vec<u32>,
    }
    let ids = serde_json::from_slice::<ToldIds>(answer).ok()?.tokens;
    (!ids.is_empty()).then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_asked_in_its_own_words() {
        let (path, body) = text_question(Dialect::Vllm, None, &[1, 2]);
        assert_eq!((path, &*body), ("/detokenize", br#"{"tokens":[1,2]}"#.as_slice()));
        let (_, body) = text_question(Dialect::Sglang, Some("m"), &[1]);
        assert_eq!(body, r#"{"model":"m","tokens":[1],"skip_special_tokens":false}"#);
        let (_, body) = texts_question(None, &[vec![1], vec![1, 2]]);
        assert_eq!(body, r#"{"tokens":[[1],[1,2]],"skip_special_tokens":false}"#);
        let (path, body) = ids_question(None, "a");
        assert_eq!(path, "/tokenize");
        assert_eq!(body, r#"{"prompt":"a","add_special_tokens":false}"#);
    }

    #[test]
    fn answers_are_read_and_others_are_none() {
        for answer in [r#"{"prompt":"a"}"#, r#"{"text":"a"}"#] {
            assert_eq!(text_answer(answer.as_bytes()).as_deref(), Some("a"));
        }
        assert_eq!(text_answer(br#"{"text":["a"]}"#), None);
        let texts = br#"{"text":["a","b"]}"#;
        assert_eq!(texts_answer(texts, 2), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(texts_answer(texts, 3), None);
        assert_eq!(ids_answer(br#"{"tokens":[1,2],"count":2}"#), Some(vec![1, 2]));
        assert_eq!(ids_answer(br#"{"tokens":[]}"#), None);
        assert_eq!(ids_answer(br#"{"tokens":[[1]]}"#), None);
    }

    #[test]
    fn a_template_is_asked_for_in_two_ways() {
        let asked = Bytes::from_static(br#"{"messages":[]}"#);
        let [taken, refused] = TemplateQuestion::all(&asked);
        assert!(taken.is_taken && !refused.is_taken);
        assert_eq!(taken.question.1, r#"{"messages":[],"add_generation_prompt":true}"#);
        let body: Value = serde_json::from_slice(&refused.question.1).unwrap();
        assert_eq!(body["add_generation_prompt"], false);
        assert_eq!(body["continue_final_message"], true);
    }
}
