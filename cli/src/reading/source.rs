//! The place where a command reads a recording: a store, or the server that records into it. Both
//! give the same documents.

mod server;

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use store::Location;
use viewer::{
    Answer, CallView, EpisodeList, EpisodeTree, EventReader, Stats, TokenTexts, TokensView, View,
    ViewError, Viewer,
};

use self::server::{ServerEvents, ServerReader};
use crate::exit::Failure;
use crate::options::control::{CONTROL_HEADING, ControlCa, ControlToken};
use crate::options::pointer;
use crate::options::store::{StoreArgs, text_index};

/// Pause between two looks at a store for what has changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The store, or the server to ask in its place.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = CONTROL_HEADING)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Ask a running server's control listener
    ///
    /// The store itself is then not read. --store only tells where the token is.
    #[arg(long, value_name = "URL")]
    control: Option<String>,
    #[command(flatten)]
    ca: ControlCa,
    #[command(flatten)]
    token: ControlToken,
}

/// Names and values, as in a query.
pub(super) type QueryPairs = Vec<(String, String)>;

/// A recording that answers questions.
pub(super) enum Source {
    Store(Viewer),
    Server(Box<ServerReader>),
}

/// A stream of what changes in a recording.
pub(super) enum Changes {
    Store(Box<EventReader>),
    Server(Box<ServerEvents>),
}

impl SourceArgs {
    /// What opens an attempt's conversation in a browser: an address, or a command.
    pub(super) fn in_browser(&self, episode: &str, attempt: u32) -> String {
        match &self.control {
            Some(control) => page_address(&crate::http::base_url(control), episode, attempt),
            None => format!("rolltape view {episode}/{attempt} --store {}", self.store.location),
        }
    }

    /// The control listener of the server to ask, if one is to be asked.
    pub(super) fn server(&self) -> Option<&str> {
        self.control.as_deref()
    }

    /// The recording. Nothing is read or asked yet.
    pub(super) async fn open(&mut self) -> Result<Source, Failure> {
        self.open_with(None).await
    }

    /// The recording, with a tokenizer for the texts of a store's tokens. A server has its own.
    pub(super) async fn open_with(&mut self, tokenizer: Option<&Path>) -> Result<Source, Failure> {
        if let Some(control) = &self.control {
            let bearer = self.token.of_client(control, &self.store.location)?;
            let server = ServerReader::new(control, &self.ca.read()?, bearer)?;
            return Ok(Source::Server(Box::new(server)));
        }
        let texts = token_texts(tokenizer, &self.store.location)?;
        let viewer = Viewer::new(self.store.read_from().await?, texts);
        Ok(Source::Store(viewer.with_index(text_index(&self.store.location))))
    }
}

impl Source {
    /// The token that only reads, of a server that requires one.
    pub(super) async fn read_token(&self) -> Result<Option<String>, Failure> {
        match self {
            Self::Store(_) => Ok(None),
            Self::Server(server) => server.read_token().await,
        }
    }

    /// A page of attempts.
    pub(super) async fn episodes(&self, parameters: &QueryPairs) -> Result<EpisodeList, Failure> {
        self.document(View::Episodes, "", parameters).await
    }

    /// An attempt as turns.
    pub(super) async fn tree(
        &self,
        episode: &str,
        attempt: Option<u32>,
    ) -> Result<EpisodeTree, Failure> {
        let attempt = attempt.map(|number| pair("attempt", number));
        self.document(View::Tree, episode, &attempt.into_iter().collect()).await
    }

    /// An attempt as turns, with what was said in each.
    pub(super) async fn told_tree(
        &self,
        episode: &str,
        attempt: Option<u32>,
    ) -> Result<EpisodeTree, Failure> {
        let mut parameters = vec![pair("messages", 1)];
        parameters.extend(attempt.map(|number| pair("attempt", number)));
        self.document(View::Tree, episode, &parameters).await
    }

    /// A call as messages.
    pub(super) async fn call(&self, id: &str) -> Result<CallView, Failure> {
        self.document(View::Call, id, &Vec::new()).await
    }

    /// A call with the arrays of its tokens.
    pub(super) async fn whole_call(&self, id: &str) -> Result<CallView, Failure> {
        self.document(View::Call, id, &vec![pair("arrays", 1)]).await
    }

    /// A call as tokens.
    pub(super) async fn tokens(&self, id: &str, choice: u32) -> Result<TokensView, Failure> {
        self.document(View::Tokens, id, &vec![pair("choice", choice)]).await
    }

    /// The way to texts of tokens that have none.
    pub(super) fn way_to_texts(&self) -> &'static str {
        match self {
            Self::Store(_) => "name the model's folder, or its tokenizer.json, with --tokenizer",
            Self::Server(_) => {
                "start the server with --tokenizer, which takes the model's folder or its \
                 tokenizer.json"
            }
        }
    }

    /// The bodies of a call: what the agent sent, and what it received.
    pub(super) async fn bodies(&self, id: &str) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let request = self.answer(View::Request, id, &Vec::new()).await?;
        Ok((request, self.answer(View::Reply, id, &Vec::new()).await?))
    }

    /// Numbers over time.
    pub(super) async fn stats(&self, parameters: &QueryPairs) -> Result<Stats, Failure> {
        self.document(View::Stats, "", parameters).await
    }

    /// The changes from now on.
    pub(super) async fn changes(&self, parameters: &QueryPairs) -> Result<Changes, Failure> {
        match self {
            Self::Store(viewer) => {
                let mut events = EventReader::new(viewer.clone(), parameters).map_err(failure)?;
                // The first look finds nothing: what changes from it on is found later.
                events.look().await.map_err(failure)?;
                Ok(Changes::Store(Box::new(events)))
            }
            Self::Server(server) => Ok(Changes::Server(Box::new(server.events(parameters).await?))),
        }
    }

    async fn document<T: DeserializeOwned>(
        &self,
        view: View,
        id: &str,
        parameters: &QueryPairs,
    ) -> Result<T, Failure> {
        let text = self.answer(view, id, parameters).await?;
        serde_json::from_slice(&text).map_err(|error| {
            Failure::of(&error).context("the server's document is not as expected").hint(
                "the server and this command may be of different versions; --store reads the \
                 store itself",
            )
        })
    }

    async fn answer(
        &self,
        view: View,
        id: &str,
        parameters: &QueryPairs,
    ) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Store(viewer) => match viewer.answer(view, id, parameters).await {
                Ok(Answer::Document(text)) => Ok(text),
                Ok(Answer::Body(body)) => Ok(body.to_vec()),
                Err(error) => Err(failure(error)),
            },
            Self::Server(server) => server.answer(view, id, parameters).await,
        }
    }
}

impl Changes {
    /// The next changes: the kind and the document of each. Waits until there are any.
    pub(super) async fn next(&mut self) -> Result<Vec<(String, String)>, Failure> {
        match self {
            Self::Store(events) => loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let found = events.look().await.map_err(failure)?;
                if !found.is_empty() {
                    let owned = found.into_iter().map(|(kind, text)| (kind.to_owned(), text));
                    return Ok(owned.collect());
                }
            },
            Self::Server(stream) => stream.next().await,
        }
    }
}

/// The texts of a store's tokens: by the tokenizer that was named, or by that of the server which
/// records to the store.
pub(super) fn token_texts(
    named: Option<&Path>,
    store: &Location,
) -> Result<Option<TokenTexts>, Failure> {
    let Some(path) = named else {
        return Ok(pointer::tokenizer_of(store).as_deref().map(TokenTexts::later));
    };
    let read = TokenTexts::read(path).map_err(|e| Failure::of(&e).context("--tokenizer"))?;
    Ok(Some(read))
}

/// The address of an attempt's conversation on the page of a server.
pub(crate) fn page_address(control: &str, episode: &str, attempt: u32) -> String {
    format!("{control}/#{}", conversation(episode, attempt))
}

/// The place of an attempt's conversation on the page, behind the `#` of its address.
pub(crate) fn conversation(episode: &str, attempt: u32) -> String {
    format!("/e/{episode}/{attempt}/read")
}

/// A parameter.
pub(super) fn pair(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

pub(super) fn failure(error: ViewError) -> Failure {
    match error {
        ViewError::Parameter(why) => Failure::new(why),
        ViewError::Missing(why) => missing(why),
        ViewError::Store(error) => error.into(),
    }
}

/// The failure that the recording has no such thing.
fn missing(why: String) -> Failure {
    Failure::new(format!("{why} in the recording")).hint(
        "`rolltape episodes` lists the episodes, and `rolltape show EPISODE` the calls of one",
    )
}
