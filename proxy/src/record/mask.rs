//! The mask of the operator's key in what is stored, and in what agents get. An upstream may repeat
//! the key in a reply, and an agent that has read it may repeat it in a request.

use std::sync::Arc;

use bytes::Bytes;
use episode::{Body, CallEnd, CallStart, Choice, Lineage, Tag};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use memchr::memchr_iter;
use memchr::memmem::Finder;

use crate::bounds::MASKED_KEY_BYTES_MIN;
use crate::error::CallError;

/// The text that takes the key's place, over the key's length.
const MASK: &[u8] = b"rolltape-redacted-";

/// Replaces the operator's key. The replaced text has the same length.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyMask(Arc<[Finder<'static>]>);

impl KeyMask {
    /// A mask of `key`, as it is and as JSON may spell it. A short key is not masked: it may be an
    /// ordinary word.
    pub(crate) fn new(key: Option<&str>) -> Self {
        let Some(key) = key.filter(|key| key.len() >= MASKED_KEY_BYTES_MIN) else {
            return Self::default();
        };
        let mut spellings = vec![key.to_owned(), key.replace('/', "\\/")];
        spellings.dedup();
        Self(spellings.iter().map(|key| Finder::new(key.as_bytes()).into_owned()).collect())
    }

    /// True if there is no key to mask.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses a tag whose ids hold the key. A masked id would be that of another episode.
    ///
    /// # Errors
    /// [`CallError::InvalidTag`], which does not repeat the id.
    pub(crate) fn check_ids(&self, tag: &Tag) -> Result<(), CallError> {
        let Tag { episode, group, task, .. } = tag;
        let ids = [
            ("episode id", Some(episode.as_str())),
            ("group id", group.as_ref().map(|id| id.as_str())),
            ("task id", task.as_ref().map(|id| id.as_str())),
        ];
        let held = |id: Option<&str>| id.is_some_and(|id| self.masked(id.as_bytes()).is_some());
        match ids.into_iter().find(|(_, id)| held(*id)) {
            Some((name, _)) => Err(CallError::InvalidTag {
                name,
                value: "a text with the upstream's key".to_owned(),
                expected: "one without it",
            }),
            None => Ok(()),
        }
    }

    /// Masks the key in the start of a call.
    pub(crate) fn hide_in_start(&self, start: &mut CallStart) {
        if self.0.is_empty() {
            return;
        }
        self.hide_in_body(&mut start.request);
        self.hide_in_text(&mut start.path);
        let Lineage { client, session, agent, parent, .. } = &mut start.lineage;
        let names = [client, session, agent, parent, &mut start.model, &mut start.sampling];
        names.into_iter().flatten().for_each(|text| self.hide_in_text(text));
        for (name, value) in &mut start.tag.labels {
            self.hide_in_text(name);
            self.hide_in_text(value);
        }
    }

    /// Masks the key in the end of a call.
    pub(crate) fn hide_in_end(&self, end: &mut CallEnd) {
        if self.0.is_empty() {
            return;
        }
        self.hide_in_body(&mut end.reply);
        let texts = [&mut end.error, &mut end.model, &mut end.unasked];
        texts.into_iter().flatten().for_each(|text| self.hide_in_text(text));
        end.head.0.iter_mut().for_each(|(_, value)| self.hide_in_text(value));
        end.choices.iter_mut().for_each(|choice| self.hide_in_choice(choice));
    }

    /// Masks the key in what is found out after the end of a call.
    pub(crate) fn hide_in_lookups(&self, end: &mut CallEnd) {
        end.sampled_with.iter_mut().for_each(|sampled| self.hide_in_text(sampled));
    }

    fn hide_in_choice(&self, choice: &mut Choice) {
        let reasons = [&mut choice.finish_reason, &mut choice.stop_reason];
        let versions = choice.versions.iter_mut().map(|span| &mut span.version);
        let columns =
            choice.token_columns.iter_mut().flat_map(|column| [&mut column.name, &mut column.json]);
        let texts = reasons.into_iter().flatten().chain(versions).chain(columns);
        texts.for_each(|text| self.hide_in_text(text));
    }

    /// Masks the key in headers or trailers.
    pub(crate) fn hide_in_headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            let masked = self.masked(value.as_bytes());
            if let Some(Ok(masked)) = masked.map(|bytes| HeaderValue::from_bytes(&bytes)) {
                *value = masked;
            }
        }
    }

    /// True if bytes hold the key.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|key| key.find(bytes).is_some())
    }

    /// Number of the last bytes that may be the beginning of a key.
    pub(crate) fn begun(&self, bytes: &[u8]) -> usize {
        let begun = self.0.iter().map(|key| {
            let key = key.needle();
            let tail = &bytes[bytes.len().saturating_sub(key.len() - 1)..];
            let starts = key.first().map(|first| memchr_iter(*first, tail));
            let begun = starts.into_iter().flatten().find(|at| key.starts_with(&tail[*at..]));
            begun.map_or(0, |at| tail.len() - at)
        });
        begun.max().unwrap_or(0)
    }

    /// Masks the key in bytes.
    pub(crate) fn hide_in_bytes(&self, bytes: &mut Bytes) {
        if let Some(masked) = self.masked(bytes) {
            *bytes = Bytes::from(masked);
        }
    }

    fn hide_in_body(&self, body: &mut Body) {
        if let Some(masked) = self.masked(&body.read()) {
            *body = masked.into();
        }
    }

    fn hide_in_text(&self, text: &mut String) {
        if let Some(masked) = self.masked(text.as_bytes()) {
            *text = String::from_utf8_lossy(&masked).into_owned();
        }
    }

    /// The bytes with the key masked; `None` if they do not hold it.
    fn masked(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut masked: Option<Vec<u8>> = None;
        for key in self.0.iter() {
            for at in key.find_iter(bytes) {
                let masked = masked.get_or_insert_with(|| bytes.to_vec());
                let place = &mut masked[at..at + key.needle().len()];
                place.iter_mut().zip(MASK.iter().cycle()).for_each(|(byte, mask)| *byte = *mask);
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use episode::{CallId, Outcome, ReplyHead, Route, TagSource, TokenColumn, VersionSpan};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_key_is_masked_wherever_it_stands() {
        let key = "sk-own/4b8e7f3a9c1d5e2b";
        let mask = KeyMask::new(Some(key));
        let mut reply = Body::from(format!("a {key}{key} b sk-own\\/4b8e7f3a9c1d5e2b c"));
        let length = reply.len();
        mask.hide_in_body(&mut reply);
        let text = String::from_utf8(reply.read().to_vec()).unwrap();
        assert_eq!(text.len(), length);
        assert!(!text.contains("4b8e7f3a") && text.contains("rolltape-redacted"), "{text}");
        assert!(text.starts_with("a ") && text.contains(" b ") && text.ends_with(" c"));
    }

    const KEY: &str = "sk-own-4b8e7f3a9c1d5e2b";

    fn tag(episode: &str, group: Option<&str>) -> Tag {
        Tag {
            episode: episode.parse().unwrap(),
            attempt: 0,
            group: group.map(|group| group.parse().unwrap()),
            task: None,
            labels: vec![(KEY.to_owned(), format!("a {KEY}"))],
            source: TagSource::Path,
        }
    }

    fn said() -> Option<String> {
        Some(format!("it is {KEY}"))
    }

    #[test]
    fn no_text_of_a_call_keeps_the_key() {
        let mask = KeyMask::new(Some(KEY));
        let mut start = CallStart {
            call_id: CallId(Uuid::nil()),
            tag: tag("e", None),
            started_at: 1,
            method: "POST".to_owned(),
            path: format!("/v1/{KEY}"),
            route: Route::Chat,
            model: said(),
            request: Body::from(KEY),
            sampling: said(),
            lineage: Lineage {
                client: said(),
                session: said(),
                agent: said(),
                parent: said(),
                ..Lineage::default()
            },
        };
        let text = || said().unwrap();
        let choice = Choice {
            finish_reason: said(),
            stop_reason: said(),
            versions: vec![VersionSpan { version: text(), start: 0, end: 1 }],
            token_columns: vec![TokenColumn { name: text(), json: text() }],
            ..Choice::default()
        };
        let mut end = CallEnd {
            error: said(),
            reply: Body::from(KEY),
            model: said(),
            choices: vec![choice],
            sampled_with: said(),
            logprob_kind: "raw".to_owned(),
            unasked: said(),
            head: ReplyHead(vec![("x-note".to_owned(), format!("a {KEY}"))]),
            ..CallEnd::without_reply(CallId(Uuid::nil()), 1, Outcome::Complete)
        };

        mask.hide_in_start(&mut start);
        mask.hide_in_end(&mut end);
        mask.hide_in_lookups(&mut end);
        let all = format!("{start:?} {end:?}");
        assert!(!all.contains(KEY) && all.contains("rolltape-redacted"), "{all}");
    }

    #[test]
    fn an_id_with_the_key_is_refused_and_not_repeated() {
        let mask = KeyMask::new(Some(KEY));
        assert!(mask.check_ids(&tag("e", Some("g"))).is_ok());
        for tag in [tag(&format!("a.{KEY}"), None), tag("e", Some(KEY))] {
            let refused = mask.check_ids(&tag).unwrap_err();
            assert!(refused.status() == 400 && !refused.to_string().contains(KEY), "{refused}");
            assert!(KeyMask::new(None).check_ids(&tag).is_ok());
        }
    }

    #[test]
    fn ordinary_words_stay() {
        let mut reply = Body::from("none of it");
        for key in [None, Some("none"), Some("sk-own-4b8e7f3a9c1d")] {
            KeyMask::new(key).hide_in_body(&mut reply);
            assert_eq!(reply, Body::from("none of it"));
        }
    }
}
