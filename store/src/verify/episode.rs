//! Checking one episode: its logs, then its calls with all that belongs to them, then its chains
//! and rewards, then whether any byte of the logs belongs to nothing.

use episode::{CallId, Choice};

use crate::commit::seal::seal;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::with_causes;
use crate::log::format::{EXTENTS, FOLDED, IN_LOG};
use crate::log::tokens::{CallIndex, LogSource, TokenReader};
use crate::snapshot::ANNOTATIONS;
use crate::snapshot::rows::{
    annotation_of, begun_of, choice_of, comment_of, ended_of, episode_of, reward_of, side_of,
};
use crate::types::AttemptRecord;
use crate::verify::chains::check_chains;
use crate::verify::check::EpisodeCheck;
use crate::verify::links::{CheckedChain, check_links};
use crate::verify::logs::CheckedLog;

/// A call that is being checked.
struct CheckedCall {
    name: String,
    id: CallId,
    key: i64,
    /// The log of its token ids.
    log_key: Option<i64>,
}

/// The token ids of an episode.
struct EpisodeTokens {
    reader: TokenReader,
    /// False where the rows of the whole episode cannot be read: then each call's are tried.
    is_loaded: bool,
}

impl EpisodeCheck<'_> {
    /// Checks everything. A row that the database itself cannot read ends the check of the episode.
    pub(crate) async fn run(mut self) {
        let damage_before = self.report.damage_found;
        if let Err(error) = self.walk().await {
            self.damaged(None, format!("it cannot be read: {error}"));
        }
        // Damage of a row explains bytes that belong to none.
        if self.report.damage_found == damage_before {
            self.check_unused();
        }
    }

    async fn walk(&mut self) -> Result<(), sqlx::Error> {
        let row = query(
            "SELECT e.*, EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key) \
             AS marked FROM episode e WHERE episode_key = $1",
        )
        .bind(self.key)
        .fetch_one(&mut *self.connection)
        .await?;
        self.name = Some((row.try_get("episode_id")?, row.try_get("attempt")?));
        let record = match episode_of(&row) {
            Ok(record) => Some(record),
            Err(error) => {
                self.damaged(None, with_causes(&error));
                None
            }
        };

        self.check_logs().await?;
        self.check_calls(record.as_ref()).await?;
        check_chains(self).await?;
        let chain = check_links(self).await?;
        self.check_rewards(&chain).await?;
        self.check_comments(chain.is_sealed).await?;
        self.check_annotations().await
    }

    async fn check_logs(&mut self) -> Result<(), sqlx::Error> {
        let keys = query("SELECT reel_key FROM reel WHERE episode_key = $1").bind(self.key);
        for key in keys.scalars::<i64>(self.connection).await? {
            let mut defects = Vec::new();
            let mut log = CheckedLog::load(self.connection, key, |what| defects.push(what)).await?;
            for what in defects {
                self.damaged(None, what);
            }

            self.report.segments += log.segments;
            self.reader.insert_log(key, std::mem::take(&mut log.bytes));
            self.logs.insert(key, log);
        }
        Ok(())
    }

    async fn check_calls(&mut self, record: Option<&AttemptRecord>) -> Result<(), sqlx::Error> {
        let calls = query("SELECT * FROM call WHERE episode_key = $1 ORDER BY started_at, call_id")
            .bind(self.key)
            .fetch_all(&mut *self.connection)
            .await?;

        let mut reader = TokenReader::checking_each();
        let is_loaded = reader.load_episode(self.connection, self.key, &calls).await.is_ok();
        let mut tokens = EpisodeTokens { reader, is_loaded };
        for row in &calls {
            self.report.calls += 1;
            if !tokens.is_loaded {
                tokens.reader = TokenReader::checking_each();
            }
            self.check_call(row, record, &mut tokens).await?;
        }
        Ok(())
    }

    async fn check_call(
        &mut self,
        row: &Row,
        record: Option<&AttemptRecord>,
        tokens: &mut EpisodeTokens,
    ) -> Result<(), sqlx::Error> {
        let name: String = row.try_get("call_id")?;
        let Ok(id) = name.parse() else {
            self.damaged(Some(&name), "its id is not a call id");
            return Ok(());
        };
        // Without the episode's row there is no tag to decode the call with.
        if let Some(Err(error)) = record.map(|record| begun_of(row, record)) {
            self.damaged(Some(&name), with_causes(&error));
        }
        let call = CheckedCall {
            name,
            id,
            key: row.try_get("call_key")?,
            log_key: row.try_get("reel_key")?,
        };

        // Bodies and outcome.
        self.check_body(&call, "request", row.try_get("request_body")?).await;
        if let Some(reply) = row.try_get::<Option<i64>>("reply_body")? {
            self.check_body(&call, "reply", reply).await;
        }
        self.check_end(&call, row)?;

        // Its tokens. The seal covers them, so it is compared only where they are sound.
        let damage_before = self.report.damage_found;
        self.check_prompts(&call, tokens).await;
        self.check_prompt_rows(&call).await?;
        let mut choices = self.check_choices(&call).await?;
        self.check_sides(&call, &mut choices).await?;
        if self.report.damage_found == damage_before {
            self.check_seal(&call, row, choices, &tokens.reader).await?;
        }
        Ok(())
    }

    /// Reads a body and compares it with its length and its hash; marks its extents as used.
    async fn check_body(&mut self, call: &CheckedCall, kind: &str, key: i64) {
        self.report.bodies += 1;
        if let Err(error) = self.reader.bytes(self.connection, key).await {
            let what = format!("its {kind} (`body` {key}) is damaged: {error}");
            return self.damaged(Some(&call.name), what);
        }

        let select =
            query("SELECT encoding, reel_key, hash IS NULL AS bare FROM body WHERE body_key = $1");
        let row = select.bind(key).fetch_one(self.connection).await;
        let Ok(Some(body)) = row.and_then(|row| LogBody::of(&row)) else { return };
        if !body.has_hash {
            let what = format!("the hash of its {kind} (`body` {key}) is lost");
            self.damaged(Some(&call.name), what);
        }

        let extents = self.reader.extents(self.connection, key).await;
        if let (Ok(extents), Some(log)) = (extents, self.logs.get_mut(&body.log_key)) {
            log.bodies.use_extents(&extents);
        }
    }

    /// Checks that a call has ended whole, or not at all.
    fn check_end(&mut self, call: &CheckedCall, row: &Row) -> Result<(), sqlx::Error> {
        let name = Some(call.name.as_str());
        let has_reply = row.try_get::<Option<i64>>("reply_body")?.is_some();
        let has_time = row.try_get::<Option<i64>>("ended_at")?.is_some();
        let Some(outcome) = row.try_get::<Option<String>>("outcome")? else {
            if has_time || has_reply {
                self.damaged(name, "it has ended, but its outcome is lost");
            } else {
                let place = self.place(name);
                self.report.add_hole(place);
            }
            return Ok(());
        };

        if let Err(error) = ended_of(row, call.id, &outcome) {
            self.damaged(name, with_causes(&error));
        }
        if !has_time {
            self.damaged(name, "the time of its end is lost");
        }
        // A refused call has no reply: it never reached the upstream.
        if !has_reply && outcome != "refused" {
            self.damaged(name, "its reply is lost");
        }
        Ok(())
    }

    /// Assembles the prompts of a call and compares them with their hashes.
    async fn check_prompts(&mut self, call: &CheckedCall, tokens: &mut EpisodeTokens) {
        let loaded = match tokens.is_loaded {
            true => Ok(()),
            false => tokens.reader.load_call(self.connection, call.key).await,
        };
        let mut source = LogSource { connection: &mut *self.connection, reader: &mut self.reader };
        let read = match loaded {
            Ok(()) => tokens.reader.prompts(&mut source, call.key).await,
            Err(error) => Err(error),
        };

        match read {
            Ok(prompts) => self.report.prompts += prompts.len() as u64,
            Err(error) => {
                self.damaged(Some(&call.name), format!("a prompt is damaged: {error}"));
            }
        }
    }

    /// Checks that no prompt of a call is missing, and that the ids of each are in the log.
    async fn check_prompt_rows(&mut self, call: &CheckedCall) -> Result<(), sqlx::Error> {
        let rows = query("SELECT * FROM prompt WHERE call_key = $1 ORDER BY prompt_index")
            .bind(call.key)
            .fetch_all(&mut *self.connection)
            .await?;
        for (at, row) in rows.iter().enumerate() {
            let index: i64 = row.try_get("prompt_index")?;
            if index != at as i64 {
                self.damaged(Some(&call.name), format!("prompt {at} is lost"));
                return Ok(());
            }
            // Older formats have the ids in the row, and no hash.
            if row.try_get::<i64>("encoding")? != IN_LOG {
                continue;
            }

            let (tokens, shared): (usize, usize) = (row.try_get("tokens")?, row.try_get("shared")?);
            let own = tokens.saturating_sub(shared);
            self.use_ids(call, &format!("prompt {at}"), row.try_get("start")?, own);
            if row.try_get::<Option<Vec<u8>>>("hash")?.is_none() {
                self.damaged(Some(&call.name), format!("the hash of prompt {at} is lost"));
            }
        }
        Ok(())
    }

    /// Decodes the choices of a call. Returns the sound ones.
    async fn check_choices(&mut self, call: &CheckedCall) -> Result<Vec<Choice>, sqlx::Error> {
        let rows = query("SELECT * FROM choice WHERE call_key = $1 ORDER BY choice_index")
            .bind(call.key)
            .fetch_all(&mut *self.connection)
            .await?;
        let mut choices = Vec::new();
        for row in &rows {
            self.report.choices += 1;
            match sound_choice(row, call.id)? {
                Ok(choice) => choices.push(choice),
                Err(what) => self.damaged(Some(&call.name), what),
            }
            self.check_choice_ids(call, row)?;
        }
        Ok(choices)
    }

    fn check_choice_ids(&mut self, call: &CheckedCall, row: &Row) -> Result<(), sqlx::Error> {
        let index: i64 = row.try_get("choice_index")?;
        let Some(count) = row.try_get::<Option<usize>>("tokens")? else { return Ok(()) };

        let owner = format!("choice {index}");
        if row.try_get::<i64>("encoding")? == IN_LOG {
            self.use_ids(call, &owner, row.try_get("start")?, count);
        } else if row.try_get::<Option<&[u8]>>("token_ids")?.map(<[u8]>::len) != Some(4 * count) {
            self.damaged(Some(&call.name), format!("{owner} has lost token ids"));
        }
        Ok(())
    }

    /// Looks for the ids of `owner` in the call's log, and marks them as used.
    fn use_ids(&mut self, call: &CheckedCall, owner: &str, start: usize, count: usize) {
        let log =
            call.log_key.and_then(|key| self.logs.get_mut(&key).zip(self.reader.known_log(key)));
        let found = match log {
            None => Err("the log of its ids does not exist".to_owned()),
            Some((log, bytes)) => log.tokens.use_ids(&bytes.tokens, start, count),
        };
        if let Err(what) = found {
            self.damaged(Some(&call.name), format!("{owner}: {what}"));
        }
    }

    /// Decodes the side arrays of a call and adds them to their choices.
    async fn check_sides(
        &mut self,
        call: &CheckedCall,
        choices: &mut [Choice],
    ) -> Result<(), sqlx::Error> {
        let rows = query(
            "SELECT s.*, k.choice_key FROM side s LEFT JOIN choice k \
             USING (call_key, choice_index) WHERE s.call_key = $1",
        )
        .bind(call.key)
        .fetch_all(&mut *self.connection)
        .await?;
        for row in &rows {
            let name: String = row.try_get("name")?;
            let index: i64 = row.try_get("choice_index")?;
            let has_choice = row.try_get::<Option<i64>>("choice_key")?.is_some();

            match side_of(row, call.id) {
                Err(error) => {
                    let defect = with_causes(&error);
                    let what = format!("`{name}` of choice {index} is damaged: {defect}");
                    self.damaged(Some(&call.name), what);
                }
                Ok(_) if !has_choice => {
                    let what = format!("choice {index} is lost; its `{name}` is there");
                    self.damaged(Some(&call.name), what);
                }
                Ok((index, side)) => {
                    // Choices that do not decode are not in the list, and were reported.
                    if let Some(choice) = choices.iter_mut().find(|choice| choice.index == index) {
                        choice.token_columns.push(side);
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares the end of a call with its seal, if it has both.
    async fn check_seal(
        &mut self,
        call: &CheckedCall,
        row: &Row,
        mut choices: Vec<Choice>,
        tokens: &TokenReader,
    ) -> Result<(), sqlx::Error> {
        let sealed: Option<Vec<u8>> = row.try_get("seal")?;
        let outcome: Option<String> = row.try_get("outcome")?;
        let (Some(sealed), Some(outcome)) = (sealed, outcome) else { return Ok(()) };

        // Their ids are not decoded with the row: they are in the log.
        for choice in &mut choices {
            let at = CallIndex { call_key: call.key, index: choice.index.into() };
            let mut source =
                LogSource { connection: &mut *self.connection, reader: &mut self.reader };
            // Ids that cannot be read were reported before.
            let Ok(sampled) = tokens.sampled(&mut source, at).await else { return Ok(()) };
            choice.token_ids = sampled;
        }
        let Ok(mut ended) = ended_of(row, call.id, &outcome) else { return Ok(()) };
        ended.choices = choices;
        if seal(&ended) != sealed[..] {
            self.damaged(Some(&call.name), "its end is not what was written: the seal differs");
        }
        Ok(())
    }

    async fn check_rewards(&mut self, chain: &CheckedChain) -> Result<(), sqlx::Error> {
        let rows = query(
            "SELECT r.*, c.call_key FROM reward r LEFT JOIN call c \
             ON c.call_id = r.call_id AND c.episode_key = r.episode_key \
             WHERE r.episode_key = $1",
        )
        .bind(self.key)
        .fetch_all(&mut *self.connection)
        .await?;
        for row in &rows {
            let key: i64 = row.try_get("reward_key")?;
            let call: Option<String> = row.try_get("call_id")?;
            let reward = match reward_of(row) {
                Ok(reward) => reward,
                Err(error) => {
                    let what = format!("`reward` {key}: {}", with_causes(&error));
                    self.damaged(call.as_deref(), what);
                    continue;
                }
            };

            if let Some(defect) = reward.provenance.over.and_then(|over| chain.defect(over)) {
                self.damaged(call.as_deref(), format!("`reward` {key}: {defect}"));
            }
            // Rewards of sealed calls are checked in their segment.
            let has_call = chain.is_sealed || row.try_get::<Option<i64>>("call_key")?.is_some();
            if call.is_some() && !has_call {
                let what = format!("`reward` {key} is about this call, which is lost");
                self.damaged(call.as_deref(), what);
            }
        }
        Ok(())
    }

    async fn check_comments(&mut self, is_sealed: bool) -> Result<(), sqlx::Error> {
        let rows = query(
            "SELECT m.*, c.call_key FROM comment m LEFT JOIN call c \
             ON c.call_id = m.call_id AND c.episode_key = m.episode_key \
             WHERE m.episode_key = $1",
        )
        .bind(self.key)
        .fetch_all(&mut *self.connection)
        .await?;
        for row in &rows {
            let key: i64 = row.try_get("comment_key")?;
            let call: Option<String> = row.try_get("call_id")?;

            let has_call = is_sealed || row.try_get::<Option<i64>>("call_key")?.is_some();
            if let Err(error) = comment_of(row) {
                let what = format!("`comment` {key}: {}", with_causes(&error));
                self.damaged(call.as_deref(), what);
            } else if call.is_some() && !has_call {
                let what = format!("`comment` {key} is about this call, which is lost");
                self.damaged(call.as_deref(), what);
            }
        }
        Ok(())
    }

    async fn check_annotations(&mut self) -> Result<(), sqlx::Error> {
        let of_episode = format!("{ANNOTATIONS} WHERE c.episode_key = $1");
        let rows = query(of_episode).bind(self.key).fetch_all(&mut *self.connection).await?;
        for row in &rows {
            let key: i64 = row.try_get("annotation_key")?;
            let call: String = row.try_get("call_id")?;
            if let Err(error) = annotation_of(row) {
                self.damaged(Some(&call), format!("`annotation` {key}: {}", with_causes(&error)));
            }
        }
        Ok(())
    }

    /// Reports bytes of the logs that belong to no call.
    fn check_unused(&mut self) {
        let mut findings = Vec::new();
        for (key, log) in &mut self.logs {
            for (kind, track) in [("texts", &mut log.bodies), ("token ids", &mut log.tokens)] {
                findings.extend(track.unused().into_iter().map(|range| {
                    let (start, end) = (range.start, range.end);
                    format!(
                        "{kind} of `reel` {key}, bytes {start} to {end}, belong to no call: \
                         the row that they were written for is lost"
                    )
                }));
            }
        }
        for what in findings {
            self.damaged(None, what);
        }
    }
}

/// A body that is stored in a log.
struct LogBody {
    log_key: i64,
    has_hash: bool,
}

impl LogBody {
    /// Reads a row; `None` where the body is not in a log.
    fn of(row: &Row) -> Result<Option<Self>, sqlx::Error> {
        let encoding: i64 = row.try_get("encoding")?;
        let log_key: Option<i64> = row.try_get("reel_key")?;
        let has_hash = !row.try_get::<bool>("bare")?;
        Ok(match (encoding, log_key) {
            (EXTENTS | FOLDED, Some(log_key)) => Some(Self { log_key, has_hash }),
            _ => None,
        })
    }
}

/// Decodes a choice. The inner error is its defect.
fn sound_choice(row: &Row, call: CallId) -> Result<Result<Choice, String>, sqlx::Error> {
    let index: i64 = row.try_get("choice_index")?;
    let choice = match choice_of(row, call) {
        Ok(choice) => choice,
        Err(error) => return Ok(Err(format!("choice {index}: {}", with_causes(&error)))),
    };
    if choice.logprobs.len() != row.try_get::<usize>("logprob_count")? {
        return Ok(Err(format!("choice {index} has lost logprobs")));
    }
    Ok(Ok(choice))
}
