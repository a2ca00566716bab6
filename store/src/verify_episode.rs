//! Checking one episode: reels, then calls with all that hangs on them, then chains, then whether
//! anything is left over.

use std::collections::HashMap;
use std::error::Error;

use episode::{CallId, Choice};

use crate::calls::ended_of;
use crate::fields::Row;
use crate::link::Link;
use crate::pack::REELED;
use crate::query::query;
use crate::read::{Reader, size};
use crate::reel::{FOLDED, PIECES};
use crate::rows::{begun_of, choice_of, episode_of, reward_of, side_of};
use crate::snapshot::EpisodeRecord;
use crate::trace::Trace;
use crate::verify::{Place, Verified};
use crate::verify_chains::check_chains;
use crate::verify_reel::ReadReel;

/// An episode that is being checked.
pub(crate) struct Examined<'a> {
    pub(crate) connection: &'a mut Link,
    pub(crate) key: i64,
    name: Option<(String, i64)>,
    report: &'a mut Verified,
    reader: Reader,
    reels: HashMap<i64, ReadReel>,
}

/// Where a call's token ids are.
type TokenReel = Option<i64>;

impl<'a> Examined<'a> {
    pub(crate) fn new(connection: &'a mut Link, report: &'a mut Verified, key: i64) -> Self {
        let (reader, reels) = (Reader::default(), HashMap::new());
        Self { connection, key, name: None, report, reader, reels }
    }

    /// Checks everything. What the database itself cannot read ends the check of this episode.
    pub(crate) async fn examine(mut self) {
        let damage = self.report.damage_found;
        if let Err(error) = self.walk().await {
            self.broken(None, format!("it cannot be read: {error}"));
        }
        // What is broken explains what is left over.
        if self.report.damage_found == damage {
            self.left_over();
        }
    }

    async fn walk(&mut self) -> Result<(), sqlx::Error> {
        let row = query(
            "SELECT e.*, EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key) \
             AS marked FROM episode e WHERE episode_key = $1",
        )
        .bind(self.key);
        let row = row.fetch_one(&mut *self.connection).await?;
        self.name = Some((row.try_get("episode_id")?, row.try_get("attempt")?));
        let record = episode_of(&row).map_err(|error| self.broken(None, told(&error))).ok();
        self.reels().await?;
        let mut trace = Trace::of_each();
        let whole = trace.of_episode(self.connection, self.key).await.is_ok();
        let calls = "SELECT * FROM call WHERE episode_key = $1 ORDER BY started_at, call_id";
        let calls = query(calls).bind(self.key).fetch_all(&mut *self.connection).await?;
        for row in &calls {
            self.report.calls += 1;
            if !whole {
                trace = Trace::of_each();
            }
            self.call(row, record.as_ref(), (&mut trace, whole)).await?;
        }
        check_chains(self).await?;
        self.rewards().await
    }

    /// Tells what is broken, of a call or of the whole episode.
    pub(crate) fn broken(&mut self, call: Option<&str>, what: impl Into<String>) {
        let place = self.place(call);
        self.report.broken(place, what.into());
    }

    fn place(&self, call: Option<&str>) -> Place {
        Place { episode: self.name.clone(), call: call.map(str::to_owned) }
    }

    async fn reels(&mut self) -> Result<(), sqlx::Error> {
        let keys = "SELECT reel_key FROM reel WHERE episode_key = $1";
        let keys = query(keys).bind(self.key).scalars::<i64>(self.connection).await?;
        for key in keys {
            let mut broken = Vec::new();
            let mut reel = ReadReel::load(self.connection, key, |what| broken.push(what)).await?;
            broken.into_iter().for_each(|what| self.broken(None, what));
            self.report.segments += reel.segments;
            self.reader.put(key, std::mem::take(&mut reel.logs));
            self.reels.insert(key, reel);
        }
        Ok(())
    }

    async fn call(
        &mut self,
        row: &Row,
        record: Option<&EpisodeRecord>,
        (trace, whole): (&mut Trace, bool),
    ) -> Result<(), sqlx::Error> {
        let name: String = row.try_get("call_id")?;
        let Ok(id) = name.parse::<CallId>() else {
            self.broken(Some(&name), "its id is not one");
            return Ok(());
        };
        if let Some(Err(error)) = record.map(|record| begun_of(row, record)) {
            self.broken(Some(&name), told(&error));
        }
        let request: i64 = row.try_get("request_body")?;
        self.body((&name, "request"), request).await;
        let reply: Option<i64> = row.try_get("reply_body")?;
        if let Some(reply) = reply {
            self.body((&name, "reply"), reply).await;
        }
        let outcome: Option<String> = row.try_get("outcome")?;
        let ended_at: Option<i64> = row.try_get("ended_at")?;
        match &outcome {
            None if ended_at.is_some() || reply.is_some() => {
                self.broken(Some(&name), "it has ended, but its outcome is lost");
            }
            None => {
                let place = self.place(Some(&name));
                self.report.hole(place);
            }
            Some(outcome) => {
                if let Err(error) = ended_of(row, id, outcome) {
                    self.broken(Some(&name), told(&error));
                }
                if ended_at.is_none() {
                    self.broken(Some(&name), "the time of its end is lost");
                }
                if reply.is_none() && outcome != "refused" {
                    self.broken(Some(&name), "its reply is lost");
                }
            }
        }
        let key: i64 = row.try_get("call_key")?;
        let reel: TokenReel = row.try_get("reel_key")?;
        let damage = self.report.damage_found;
        self.prompts((&name, key), (&mut *trace, whole)).await;
        self.prompt_runs((&name, key), reel).await?;
        let mut choices = self.choices((&name, id), key, reel).await?;
        self.sides((&name, id), key, &mut choices).await?;
        let seal: Option<Vec<u8>> = row.try_get("seal")?;
        match (seal, outcome) {
            (Some(seal), Some(outcome)) if self.report.damage_found == damage => {
                let known = (outcome.as_str(), seal.as_slice());
                self.seal((&name, id), (row, choices, known), (trace, key)).await;
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares all that is known of a call's end with the hash that was made over it.
    async fn seal(
        &mut self,
        (name, id): (&str, CallId),
        (row, mut choices, (outcome, seal)): (&Row, Vec<Choice>, (&str, &[u8])),
        (trace, key): (&mut Trace, i64),
    ) {
        for choice in &mut choices {
            let at = (key, choice.index.into());
            let from = (&mut *self.connection, &mut self.reader);
            // What cannot be read was told.
            let Ok(sampled) = trace.sampled(from, at).await else { return };
            choice.token_ids = sampled;
        }
        let Ok(mut ended) = ended_of(row, id, outcome) else { return };
        ended.choices = choices;
        if crate::seal::seal(&ended) != seal {
            self.broken(Some(name), "its end is not what was written: the seal differs");
        }
    }

    /// Puts a body together and compares it with its length and its hash.
    async fn body(&mut self, (call, kind): (&str, &str), key: i64) {
        self.report.bodies += 1;
        if let Err(error) = self.reader.body(self.connection, key).await {
            self.broken(Some(call), format!("its {kind} (`body` {key}) is damaged: {error}"));
            return;
        }
        let stored =
            "SELECT encoding, reel_key, hash IS NULL AS bare FROM body WHERE body_key = $1";
        let stored = query(stored).bind(key).fetch_one(self.connection).await;
        let Ok((PIECES | FOLDED, Some(reel), bare)) = stored.and_then(|row| reeled(&row)) else {
            return;
        };
        if bare {
            self.broken(Some(call), format!("the hash of its {kind} (`body` {key}) is lost"));
        }
        let pieces = self.reader.pieces(self.connection, key).await;
        if let (Ok(pieces), Some(reel)) = (pieces, self.reels.get_mut(&reel)) {
            reel.texts.use_pieces(&pieces);
        }
    }

    /// Puts the prompts of a call together and compares them with their hashes.
    async fn prompts(&mut self, (call, key): (&str, i64), (trace, whole): (&mut Trace, bool)) {
        let loaded = match whole {
            true => Ok(()),
            false => trace.of_call(self.connection, key).await,
        };
        let read = match loaded {
            Ok(()) => trace.prompts((&mut *self.connection, &mut self.reader), key).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(prompts) => self.report.prompts += prompts.len() as u64,
            Err(error) => self.broken(Some(call), format!("a prompt is damaged: {error}")),
        }
    }

    async fn prompt_runs(
        &mut self,
        (call, key): (&str, i64),
        reel: TokenReel,
    ) -> Result<(), sqlx::Error> {
        let rows = "SELECT * FROM prompt WHERE call_key = $1 ORDER BY prompt_index";
        let rows = query(rows).bind(key).fetch_all(&mut *self.connection).await?;
        for (at, row) in rows.iter().enumerate() {
            let index: i64 = row.try_get("prompt_index")?;
            if index != at as i64 {
                self.broken(Some(call), format!("prompt {at} is lost"));
                return Ok(());
            }
            if row.try_get::<i64>("encoding")? != REELED {
                continue;
            }
            let (tokens, shared) = (size(row, "tokens")?, size(row, "shared")?);
            let rest = tokens.saturating_sub(shared);
            self.ids((call, &format!("prompt {at}")), (reel, size(row, "start")?, rest));
            if row.try_get::<Option<Vec<u8>>>("hash")?.is_none() {
                self.broken(Some(call), format!("the hash of prompt {at} is lost"));
            }
        }
        Ok(())
    }

    async fn choices(
        &mut self,
        (call, id): (&str, CallId),
        key: i64,
        reel: TokenReel,
    ) -> Result<Vec<Choice>, sqlx::Error> {
        let mut choices = Vec::new();
        let rows = "SELECT * FROM choice WHERE call_key = $1 ORDER BY choice_index";
        let rows = query(rows).bind(key).fetch_all(&mut *self.connection).await?;
        for row in &rows {
            self.report.choices += 1;
            let index: i64 = row.try_get("choice_index")?;
            let whose = format!("choice {index}");
            match choice_of(row, id) {
                Err(error) => self.broken(Some(call), format!("{whose}: {}", told(&error))),
                Ok(choice) if choice.logprobs.len() != size(row, "logprob_count")? => {
                    self.broken(Some(call), format!("{whose} has lost logprobs"));
                }
                Ok(choice) if choice.versions.iter().any(|span| span.start > span.end) => {
                    self.broken(
                        Some(call),
                        format!("{whose}: a version span ends before it begins"),
                    );
                }
                Ok(choice) => choices.push(choice),
            }
            if row.try_get::<Option<i64>>("tokens")?.is_none() {
                continue;
            }
            let count = size(row, "tokens")?;
            if row.try_get::<i64>("encoding")? == REELED {
                self.ids((call, &whose), (reel, size(row, "start")?, count));
            } else if row.try_get::<Option<&[u8]>>("token_ids")?.map(<[u8]>::len) != Some(4 * count)
            {
                self.broken(Some(call), format!("{whose} has lost token ids"));
            }
        }
        Ok(choices)
    }

    /// Looks for ids in the reel.
    fn ids(&mut self, (call, whose): (&str, &str), at: (TokenReel, usize, usize)) {
        let (reel_key, start, count) = at;
        let reel = reel_key.and_then(|key| self.reels.get_mut(&key).zip(self.reader.held(key)));
        let found = match reel {
            None => Err("the reel of its ids is not there".to_owned()),
            Some((reel, logs)) => reel.tokens.use_ids(&logs.tokens, (start, count)),
        };
        if let Err(what) = found {
            self.broken(Some(call), format!("{whose}: {what}"));
        }
    }

    async fn sides(
        &mut self,
        (call, id): (&str, CallId),
        key: i64,
        choices: &mut [Choice],
    ) -> Result<(), sqlx::Error> {
        let rows = "SELECT s.*, k.choice_key FROM side s LEFT JOIN choice k \
                    USING (call_key, choice_index) WHERE s.call_key = $1";
        let rows = query(rows).bind(key).fetch_all(&mut *self.connection).await?;
        for row in &rows {
            let name: String = row.try_get("name")?;
            let index: i64 = row.try_get("choice_index")?;
            let is_lost = row.try_get::<Option<i64>>("choice_key")?.is_none();
            match side_of(row, id) {
                Err(error) => {
                    let what = format!("`{name}` of choice {index} is damaged: {}", told(&error));
                    self.broken(Some(call), what);
                }
                Ok(_) if is_lost => {
                    let what = format!("choice {index} is lost; its `{name}` is there");
                    self.broken(Some(call), what);
                }
                Ok((index, side)) => {
                    let whose = choices.iter_mut().find(|choice| choice.index == index);
                    whose.into_iter().for_each(|choice| choice.sides.push(side.clone()));
                }
            }
        }
        Ok(())
    }

    async fn rewards(&mut self) -> Result<(), sqlx::Error> {
        let rows = "SELECT r.*, c.call_key FROM reward r LEFT JOIN call c \
                    ON c.call_id = r.call_id AND c.episode_key = r.episode_key \
                    WHERE r.episode_key = $1";
        let rows = query(rows).bind(self.key).fetch_all(&mut *self.connection).await?;
        for row in &rows {
            let key: i64 = row.try_get("reward_key")?;
            let call: Option<String> = row.try_get("call_id")?;
            if let Err(error) = reward_of(row) {
                self.broken(call.as_deref(), format!("`reward` {key}: {}", told(&error)));
            } else if call.is_some() && row.try_get::<Option<i64>>("call_key")?.is_none() {
                let what = format!("`reward` {key} is about this call, which is lost");
                self.broken(call.as_deref(), what);
            }
        }
        Ok(())
    }

    fn left_over(&mut self) {
        let mut broken = Vec::new();
        for (key, reel) in &mut self.reels {
            for (kind, extent) in [("texts", &mut reel.texts), ("token ids", &mut reel.tokens)] {
                broken.extend(extent.unused().into_iter().map(|range| {
                    let (start, end) = (range.start, range.end);
                    format!(
                        "{kind} of `reel` {key}, bytes {start} to {end}, belong to no call: \
                             what they were written for is lost"
                    )
                }));
            }
        }
        broken.into_iter().for_each(|what| self.broken(None, what));
    }
}

/// Encoding, reel and whether there is no hash, of a body.
fn reeled(row: &Row) -> Result<(i64, Option<i64>, bool), sqlx::Error> {
    Ok((row.try_get("encoding")?, row.try_get("reel_key")?, row.try_get("bare")?))
}

/// An error with its causes.
fn told(error: &dyn Error) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        sentence = format!("{sentence}: {source}");
        cause = source.source();
    }
    sentence
}
