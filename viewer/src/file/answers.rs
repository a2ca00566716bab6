//! The questions that the page asks about an attempt or a group, and their answers.

use std::collections::BTreeSet;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use episode::{AttemptId, GroupId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::{Answer, View, Viewer};
use crate::error::ViewError;
use crate::file::FileError;
use crate::file::elements::PageElements;
use crate::file::parts::{SharedParts, taken_out};
use crate::tokens::TokensView;
use crate::tree::EpisodeTree;
use crate::turn::TurnView;

/// Tokens of one question of the page: `WINDOW_TOKENS` there.
const WINDOW_TOKENS: u64 = 10_000;
/// Attempts of a group that the page asks for: `ATTEMPTS_MAX` there.
const ATTEMPTS_MAX: u32 = 512;

/// Names and values, as in a query.
type AskedPairs = Vec<(String, String)>;

/// Answers on their way into a file.
pub(super) struct Answers<'a, W> {
    viewer: &'a Viewer,
    elements: PageElements<W>,
    parts: SharedParts,
}

impl<'a, W: Write> Answers<'a, W> {
    pub(super) fn new(viewer: &'a Viewer, elements: PageElements<W>) -> Self {
        Self { viewer, elements, parts: SharedParts::default() }
    }

    /// The elements, with all answers.
    pub(super) fn end(self) -> PageElements<W> {
        self.elements
    }

    /// Answers what is asked about a group, but for its attempts.
    pub(super) async fn group(&mut self, group: &GroupId) -> Result<(), FileError> {
        let of_group =
            vec![pair("group", group), pair("sort", "opened"), pair("limit", ATTEMPTS_MAX)];
        self.document(View::Episodes, "", of_group).await?;

        let of_name = vec![pair("group", group)];
        self.document(View::Groups, "", of_name).await.map(drop)
    }

    /// Answers what is asked about an attempt.
    pub(super) async fn attempt(
        &mut self,
        name: &AttemptId,
        has_bodies: bool,
    ) -> Result<(), FileError> {
        let attempt = vec![pair("attempt", name.attempt)];
        let text = self.document(View::Tree, name.episode.as_str(), attempt).await?;
        let tree: EpisodeTree = read(&text)?;

        let of_turns = tree.turns.iter().map(|turn| &turn.call_id);
        let calls = of_turns.chain(tree.others.iter().map(|other| &other.call_id));
        for call in calls.collect::<BTreeSet<_>>() {
            self.call(call).await?;
            if has_bodies {
                self.body(View::Request, call).await?;
                self.body(View::Reply, call).await?;
            }
        }
        for turn in &tree.turns {
            self.tokens(turn).await?;
        }
        Ok(())
    }

    async fn call(&mut self, id: &str) -> Result<(), FileError> {
        let text = self.asked(View::Call, id, &[]).await?;
        self.write_in_parts(&key(View::Call, id, &[]), &text)
    }

    /// Answers all windows of a turn's tokens, and the one that the page asks for first.
    async fn tokens(&mut self, turn: &TurnView) -> Result<(), FileError> {
        let first = turn.prompt_tokens.unwrap_or(1).saturating_sub(1) / WINDOW_TOKENS;
        let mut windows = BTreeSet::from([0, first]);
        let mut is_counted = false;
        while let Some(window) = windows.pop_first() {
            let part = vec![
                pair("choice", turn.choice),
                pair("from", window * WINDOW_TOKENS),
                pair("count", WINDOW_TOKENS),
            ];
            let text = self.asked(View::Tokens, &turn.call_id, &part).await?;
            self.write_in_parts(&key(View::Tokens, &turn.call_id, &part), &text)?;
            if !is_counted {
                let view: TokensView = read(&text)?;
                let tokens = view.prompt_tokens + view.sampled_tokens;
                windows.extend(1..tokens.div_ceil(WINDOW_TOKENS));
                is_counted = true;
            }
        }
        Ok(())
    }

    async fn body(&mut self, view: View, id: &str) -> Result<(), FileError> {
        let body = self.asked(view, id, &[]).await?;
        let json = json!({ "base64": STANDARD.encode(body) });
        self.elements.json("data-answer", &key(view, id, &[]), &json.to_string())
    }

    /// Answers a question with its document, and returns it.
    async fn document(
        &mut self,
        view: View,
        id: &str,
        parameters: AskedPairs,
    ) -> Result<Vec<u8>, FileError> {
        let text = self.asked(view, id, &parameters).await?;
        let document = String::from_utf8_lossy(&text);
        self.write(&key(view, id, &parameters), &document, &[])?;
        Ok(text)
    }

    async fn asked(
        &self,
        view: View,
        id: &str,
        parameters: &[(String, String)],
    ) -> Result<Vec<u8>, ViewError> {
        match self.viewer.answer(view, id, parameters).await? {
            Answer::Document(text) => Ok(text),
            Answer::Body(body) => Ok(body.to_vec()),
        }
    }

    /// Writes a document whose long parts may be in the file already.
    fn write_in_parts(&mut self, key: &str, text: &[u8]) -> Result<(), FileError> {
        let mut document: Value = read(text)?;
        let mut places = Vec::new();
        for part in taken_out(&mut document) {
            let (number, is_new) = self.parts.of(&part);
            if is_new {
                self.elements.json("data-part", &number.to_string(), &part.json)?;
            }
            places.push(json!([part.place, number]));
        }
        self.write(key, &document.to_string(), &places)
    }

    fn write(&mut self, key: &str, document: &str, places: &[Value]) -> Result<(), FileError> {
        let places = Value::from(places).to_string();
        let json = format!("{{\"document\":{document},\"parts\":{places}}}");
        self.elements.json("data-answer", key, &json)
    }
}

/// The name of a question: its path, then its parameters by name. The page makes the same.
fn key(view: View, id: &str, parameters: &[(String, String)]) -> String {
    let mut pairs: Vec<String> =
        parameters.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    pairs.sort();
    format!("{}{}", view.path(id).trim_start_matches('/'), pairs.concat())
}

fn pair(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, ViewError> {
    serde_json::from_slice(text).map_err(|error| ViewError::Parameter(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_cut_as_the_page_cuts_them() {
        let windows = include_str!("../../page/src/tokens/windows.ts");
        assert!(windows.contains("WINDOW_TOKENS = 10_000;"));
        let group = include_str!("../../page/src/views/group.tsx");
        assert!(group.contains(&format!("ATTEMPTS_MAX = {ATTEMPTS_MAX};")));
        assert!(group.contains("\"groups\", { group: id }"));
    }

    #[test]
    fn the_name_of_a_question_has_its_parameters_in_order() {
        let part = [pair("choice", 0), pair("from", 10_000), pair("count", 10_000)];
        let name = key(View::Tokens, "c-1", &part);
        assert_eq!(name, "calls/c-1/tokens choice=0 count=10000 from=10000");
    }
}
