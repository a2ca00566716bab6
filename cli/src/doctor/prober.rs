//! Sends probes to an upstream and records what comes back in rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use episode::{Outcome, Route};
use proxy::{Client, ClientError, ClientReply, ClientRequest, Upstream};
use tokio::time::timeout;
use wire::{Comparison, Dialect, Probe, PromptField, ServerInfo, ServerSampling, compare};

use super::prompt_ids::PromptIdsFinding;
use super::row::{HiddenReply, ProbeRow};
use crate::exit::Failure;
use crate::options::upstream::UpstreamArgs;

/// Longest time for one probe, all its calls together.
const PROBE_WAIT: Duration = Duration::from_secs(60);
/// Longest reply to a probe, in bytes.
const PROBE_REPLY_BYTES_MAX: usize = 4 << 20;
/// Probes without an end before no more are sent.
const ENDLESS_PROBES_MAX: u32 = 2;
/// Longest wait for each answer about the upstream itself.
const IDENTIFY_WAIT: Duration = Duration::from_secs(10);

/// A client of an upstream that is known by now.
pub(super) struct Prober {
    client: Client,
    pub(super) dialect: Dialect,
    pub(super) server: ServerInfo,
    pub(super) sampler: ServerSampling,
    pub(super) model: String,
    /// The kind of the upstream's logprobs.
    pub(super) logprob_kind: String,
    /// Probes whose replies had no end.
    endless: u32,
}

impl Prober {
    /// Finds out what the upstream is: its models, dialect, version and sampling defaults.
    pub(super) async fn identify(
        upstream: &Upstream,
        model: Option<&str>,
        args: &UpstreamArgs,
    ) -> Result<Self, Failure> {
        let mut config = args.config(upstream.clone(), false)?;
        config.reply_bytes_max = PROBE_REPLY_BYTES_MAX;
        let client = Client::new(config.clone()).map_err(|e| Failure::of(&e))?;
        refuse_recorder(&client, upstream).await?;

        let mut server = ServerInfo::default();
        let status = list_models(&client, upstream, &mut server).await?;
        let listed = server.models.first().map(String::as_str);
        let Some(model) = model.or(listed).map(str::to_owned) else {
            let sentence = format!("{upstream} lists no model (status {status})");
            return Err(Failure::new(sentence).hint(match status {
                401 | 403 => "give its key with --upstream-key-env NAME",
                _ => "name a model with --model, and the server with --dialect",
            }));
        };

        let dialect = client.dialect().await.map_err(|e| Failure::of(&e))?;
        for path in ServerInfo::paths(dialect) {
            if let Some(document) = get(&client, path).await {
                server.take(&document);
            }
        }
        let mut sampler = ServerSampling::for_dialect(dialect);
        for path in ServerSampling::paths(dialect) {
            // The first page that says anything is enough.
            if let Some(page) = get(&client, path).await
                && sampler.take(&page)
            {
                break;
            }
        }

        // The user's --logprobs-mode overrides what the server reports.
        let reported = sampler.logprob_kind().filter(|_| config.logprob_kind.is_none());
        let logprob_kind = reported.unwrap_or_else(|| config.logprob_kind_of(dialect)).to_owned();
        Ok(Self { client, dialect, server, sampler, model, logprob_kind, endless: 0 })
    }

    /// Sends one probe, unless those before had no end.
    pub(super) async fn probe(&mut self, probe: Probe) -> ProbeRow {
        let mut row = ProbeRow::new(probe);
        if self.endless >= ENDLESS_PROBES_MAX {
            row.fail(format!("not sent: {ENDLESS_PROBES_MAX} replies before had no end"));
            return row;
        }
        if timeout(PROBE_WAIT, self.send_rounds(&mut row)).await.is_err() {
            self.endless += 1;
            row.fail(format!("no answer in {} s", PROBE_WAIT.as_secs()));
        }
        row
    }

    /// Sends the probe in one round, or in two if the hidden reply differs. A difference that does
    /// not come back is the server's own and not a fault of hiding.
    async fn send_rounds(&mut self, row: &mut ProbeRow) {
        let probe = row.probe;
        // Some servers refuse a tool only if the model may choose not to call it.
        if let Some(offer) = probe.unforced_body(&self.model)
            && let Ok(reply) = self.send(probe, &offer, false).await
            && reply.ended.outcome == Outcome::Refused
        {
            row.record(&reply, &self.model);
            return;
        }

        row.hidden = self.send_round(row).await;
        if row.hidden.differs() && !self.send_round(row).await.differs() {
            row.hidden = HiddenReply::NotRepeatable;
        }
    }

    /// Sends the call as an agent is served, between two calls that ask for nothing. What only a
    /// first call meets, such as an empty cache, is then not taken for a difference.
    async fn send_round(&mut self, row: &mut ProbeRow) -> HiddenReply {
        let probe = row.probe;
        let body = probe.body(&self.model);
        let first = self.send(probe, &body, false).await;
        let asked = match self.send(probe, &body, true).await {
            Ok(asked) => asked,
            Err(error) => {
                self.endless += u32::from(error.is_endless());
                row.fail(error.to_string());
                return HiddenReply::Unknown;
            }
        };

        row.record(&asked, &self.model);
        let first_complete =
            first.as_ref().is_ok_and(|reply| reply.ended.outcome == Outcome::Complete);
        row.refused_asked = !row.answered() && first_complete;
        if !row.answered() {
            return HiddenReply::Unknown;
        }
        // Some servers name their version in replies only.
        self.server.take_reply(&asked.ended.reply.read());
        if !asked.asked {
            return HiddenReply::NothingAsked;
        }

        match (first, self.send(probe, &body, false).await) {
            (Ok(first), Ok(second)) => compare_hidden(probe.route, [&asked, &first, &second]),
            _ => HiddenReply::Unknown,
        }
    }

    async fn send(
        &self,
        probe: Probe,
        body: &Bytes,
        asks: bool,
    ) -> Result<ClientReply, ClientError> {
        let path = probe.path();
        let question = ClientRequest { route: probe.route, path, body, asks, prompt: None };
        self.client.call(question).await
    }

    /// Finds out whether the upstream takes the prompt of a chat as ids, if the probes show that it
    /// reports such prompts.
    pub(super) async fn prompt_ids(&self, rows: &[ProbeRow]) -> PromptIdsFinding {
        if PromptField::new(self.dialect, &[]).is_none() {
            return PromptIdsFinding::NoField;
        }
        let is_reported =
            |row: &ProbeRow| row.probe.route == Route::Chat && row.prompt_ids.is_some();
        match rows.iter().any(is_reported) {
            true => timeout(PROBE_WAIT, self.send_prompt()).await.unwrap_or_default(),
            false => PromptIdsFinding::Unknown,
        }
    }

    /// Sends a chat as it is, and again with ids that no encoding of its messages has: its own, and
    /// one more.
    async fn send_prompt(&self) -> PromptIdsFinding {
        let chat = Probe { route: Route::Chat, streams: false, tools: false };
        let body = chat.body(&self.model);
        let Ok(plain) = self.send(chat, &body, true).await else {
            return PromptIdsFinding::Unknown;
        };
        let Some(own) = plain.ended.prompts.first().filter(|ids| !ids.is_empty()) else {
            return PromptIdsFinding::Unknown;
        };

        let longer = [own.as_slice(), &own[own.len() - 1..]].concat();
        let field = PromptField::new(self.dialect, &longer).map(Arc::new);
        let (route, path, prompt) = (chat.route, chat.path(), field.as_ref());
        let question = ClientRequest { route, path, body: &body, asks: true, prompt };
        match self.client.call(question).await {
            Ok(reply) => PromptIdsFinding::of(&reply, own, &longer),
            Err(_) => PromptIdsFinding::Unknown,
        }
    }
}

/// Refuses an upstream that is a recording rolltape: it would record the probes.
async fn refuse_recorder(client: &Client, upstream: &Upstream) -> Result<(), Failure> {
    match timeout(IDENTIFY_WAIT, client.is_recorder()).await {
        Ok(true) => {
            let sentence =
                format!("{upstream} is a rolltape that records; it would record the probes");
            Err(Failure::new(sentence).hint("name the server behind it"))
        }
        Ok(false) | Err(_) => Ok(()),
    }
}

/// Asks for the list of models. Returns the status.
async fn list_models(
    client: &Client,
    upstream: &Upstream,
    server: &mut ServerInfo,
) -> Result<u16, Failure> {
    let reason = match timeout(IDENTIFY_WAIT, client.get("/v1/models")).await {
        Ok(Ok((status, models))) => {
            server.take_models(&models);
            return Ok(status);
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("{upstream} does not answer"),
    };
    Err(Failure::new(reason).hint("start the server, or give its address with --upstream"))
}

/// The document at `path`, if the upstream has one.
async fn get(client: &Client, path: &str) -> Option<Bytes> {
    match timeout(IDENTIFY_WAIT, client.get(path)).await {
        Ok(Ok((200, document))) => Some(document),
        _ => None,
    }
}

/// Compares a hidden reply with two plain ones.
fn compare_hidden(route: Route, replies: [&ClientReply; 3]) -> HiddenReply {
    let [asked, first, second] = replies.map(|reply| reply.ended.reply.read());
    match (compare(route, &first, &second), compare(route, &first, &asked)) {
        (Comparison::Differs(_), _) => HiddenReply::NotRepeatable,
        (_, Comparison::Differs(difference)) => HiddenReply::Differs(difference),
        (_, Comparison::Equal) => HiddenReply::Equal,
        (_, Comparison::Chunked) => HiddenReply::Chunked,
    }
}

#[cfg(test)]
pub(in crate::doctor) mod tests {
    use episode::{CallEnd, CallId};

    use super::*;

    pub(in crate::doctor) fn reply(text: &str) -> ClientReply {
        let ended = CallEnd {
            status: Some(200),
            reply: text.to_owned().into(),
            ..CallEnd::without_reply(CallId(uuid::Uuid::nil()), 0, Outcome::Complete)
        };
        ClientReply { ended, asked: true, declined: false, has_prompt: false }
    }

    #[test]
    fn hiding_is_judged_only_where_replies_repeat() {
        let of = |texts: [&str; 3]| {
            let replies = texts.map(reply);
            compare_hidden(Route::Chat, [&replies[0], &replies[1], &replies[2]])
        };
        assert_eq!(of([r#"{"a":1}"#, r#"{"a":1}"#, r#"{"a":1}"#]), HiddenReply::Equal);
        assert_eq!(of([r#"{"a":1}"#, r#"{"a":1}"#, r#"{"a":2}"#]), HiddenReply::NotRepeatable);
        assert!(matches!(of([r#"{"a":2}"#, r#"{"a":1}"#, r#"{"a":1}"#]), HiddenReply::Differs(_)));
    }
}
