//! The seal of a call: a hash over its end. Bodies and prompts have hashes of their own; the seal
//! covers the rest: sampled ids, logprobs, stop reasons, token counts.

use episode::{CallEnd, Choice, Route, VersionStamps};

use crate::encoding::pack::hash;

/// Bytes for which room is made ahead: enough for some 100 tokens.
const SEALED_ROOM: usize = 1024;

/// The first 16 bytes of the BLAKE3 hash over every value, each after its length.
pub(crate) fn seal(ended: &CallEnd) -> [u8; 16] {
    let mut sealed = SealedBytes(Vec::with_capacity(SEALED_ROOM));
    sealed.text(Some(ended.outcome.as_str()));
    sealed.number(ended.status.map(i64::from));
    sealed.number(Some(ended.ended_at));
    sealed.number(ended.first_byte_at);
    sealed.text(ended.error.as_deref());
    sealed.text(ended.model.as_deref());
    sealed.number(ended.usage.prompt.map(|count| count as i64));
    sealed.number(ended.usage.completion.map(|count| count as i64));
    sealed.text(Some(&ended.logprob_kind));
    sealed.text(ended.translated.map(Route::as_str));
    sealed.text(ended.unasked.as_deref());

    // Added by later versions: a value that is absent adds nothing, so that older seals still hold.
    if ended.stamps != VersionStamps::default() {
        sealed.text(ended.stamps.start.as_deref());
        sealed.text(ended.stamps.end.as_deref());
    }
    if ended.sampled_with.is_some() {
        sealed.text(ended.sampled_with.as_deref());
    }
    if ended.engine.is_some() || ended.routed.is_some() {
        sealed.text(ended.engine.as_deref());
        sealed.text(ended.routed.as_deref());
    }
    if ended.heartbeats > 0 {
        sealed.number(Some(ended.heartbeats.into()));
    }
    if let Some(continued) = ended.continued {
        sealed.text(Some(&continued.to_json()));
    }
    if let Some(head) = ended.head.to_text() {
        sealed.text(Some(&head));
    }
    if let Some(replayed) = ended.replayed {
        sealed.text(Some(&replayed.to_string()));
    }

    let mut choices: Vec<&Choice> = ended.choices.iter().collect();
    choices.sort_by_key(|choice| choice.index);
    for choice in choices {
        sealed.choice(choice);
    }
    hash(&sealed.0)
}

/// The bytes that are hashed. Gathered first: the hash takes whole blocks faster than values.
struct SealedBytes(Vec<u8>);

impl SealedBytes {
    fn choice(&mut self, choice: &Choice) {
        self.number(Some(choice.index.into()));
        self.number(Some(choice.prompt_index.into()));
        // Unknown ids differ from known ones of which there are none.
        match &choice.token_ids {
            None => self.number(None),
            Some(ids) => self.words(ids.iter().map(|id| id.to_le_bytes())),
        }
        self.words(choice.logprobs.iter().map(|logprob| logprob.to_le_bytes()));
        self.text(choice.finish_reason.as_deref());
        self.text(choice.stop_reason.as_deref());
        for span in &choice.versions {
            self.text(Some(&span.version));
            self.number(Some(span.start.into()));
            self.number(Some(span.end.into()));
        }
        self.text(Some(choice.fidelity.as_str()));

        let mut sides: Vec<_> = choice.token_columns.iter().collect();
        sides.sort_by_key(|side| &side.name);
        for side in sides {
            self.text(Some(&side.name));
            self.text(Some(&side.json));
        }
    }

    fn number(&mut self, number: Option<i64>) {
        match number {
            None => self.0.push(0),
            Some(number) => {
                self.0.push(1);
                self.0.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    /// Hashes a text with U+FFFD for U+0000, as PostgreSQL stores it.
    fn text(&mut self, text: Option<&str>) {
        let Some(text) = text else { return self.number(None) };
        if !text.contains('\0') {
            self.number(Some(text.len() as i64));
            self.0.extend_from_slice(text.as_bytes());
            return;
        }
        let parts: Vec<&str> = text.split('\0').collect();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.number(Some((length + 3 * (parts.len() - 1)) as i64));
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                self.0.extend_from_slice("\u{fffd}".as_bytes());
            }
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    fn words(&mut self, words: impl ExactSizeIterator<Item = [u8; 4]>) {
        self.number(Some(words.len() as i64));
        words.for_each(|word| self.0.extend_from_slice(&word));
    }
}

#[cfg(test)]
mod tests {
    use episode::{CallId, ReplyHead};
    use uuid::Uuid;

    use super::*;
    use crate::tests::ended;

    #[test]
    fn every_value_counts() {
        let first = ended(CallId(Uuid::now_v7()));
        let changed = |change: fn(&mut CallEnd)| {
            let mut other = first.clone();
            change(&mut other);
            seal(&other)
        };
        assert_eq!(seal(&first), changed(|ended| ended.choices.reverse()));
        let changes: [fn(&mut CallEnd); 16] = [
            |ended| ended.heartbeats = 1,
            |ended| ended.continued = None,
            |ended| ended.head = ReplyHead::default(),
            |ended| ended.replayed = None,
            |ended| ended.stamps.end = Some("2".into()),
            |ended| ended.sampled_with = Some("{}".into()),
            |ended| ended.status = None,
            |ended| ended.ended_at += 1,
            |ended| ended.model = Some("n".into()),
            |ended| ended.usage.completion = Some(0),
            |ended| ended.choices[0].logprobs[1] = 0.0,
            |ended| ended.choices[0].token_ids = Some(vec![7]),
            |ended| ended.choices[1].token_ids = Some(Vec::new()),
            |ended| ended.choices[0].finish_reason = None,
            |ended| ended.choices[0].versions[0].end = 1,
            |ended| ended.choices[0].token_columns[0].json.push(' '),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert_ne!(seal(&first), changed(change), "change {at}");
        }
        let with = |model: &str| {
            let mut other = first.clone();
            other.model = Some(model.into());
            seal(&other)
        };
        assert_eq!(with("a\0b"), with("a\u{fffd}b"));
    }
}
