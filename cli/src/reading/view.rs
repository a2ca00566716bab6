//! `rolltape view`: shows a recording in a browser.

mod file;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use control::Settings;
use episode::GroupId;
use store::Snapshot;
use tokio::sync::watch;
use viewer::Viewer;

use super::named::Depth;
use super::source::{Source, SourceArgs, conversation, token_texts};
use crate::exit::{CommandResult, Failure};
use crate::http::base_url;
use crate::options::address::{ListenAddress, UNIX};
use crate::options::parse::{AttemptName, address, attempt_name};
use crate::options::secret_file;
use crate::options::store::{kept_audit, text_index};
use crate::print;
use crate::server::OWN_SOCKET_MODE;
use crate::server::listen::BoundSocket;
use crate::server::signals::{StopSignals, raise_descriptors};
use crate::terminal;

/// Show a recording in a browser
///
/// Prints a link to the page, or to an episode's conversation on it. Of a running server it is the
/// server's own page, and the link has a token that only reads. Else this command serves the page
/// until it ends, and so does the link's token. Comments that are written there go to the store.
///
/// With --html, writes the page of one episode, or of a group, to a file that a browser opens
/// without a server.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Page")]
pub(crate) struct Args {
    /// The episode to open, or the beginning of its name [default: the list]
    ///
    /// ID/ATTEMPT for one of its attempts.
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    episode: Option<AttemptName>,
    /// Address of a page of its own [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR", value_parser = address, conflicts_with = "control")]
    listen: Option<SocketAddr>,
    /// tokenizer.json or model folder, for the text of tokens of a store
    #[arg(long, value_name = "PATH", conflicts_with = "control")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    source: SourceArgs,
}

/// Prints the link to a running server's page, or serves a page.
pub(crate) async fn run(args: Args) -> CommandResult {
    // A server that was found and not named has no page for an address or a tokenizer of one's own.
    let wants_own = args.listen.is_some() || args.tokenizer.is_some() || args.file.html.is_some();
    match args.source.server().filter(|_| !wants_own).map(str::to_owned) {
        Some(control) => link(args, &control).await,
        None => serve(args).await,
    }
}

/// Prints the link to the page of the server at `control`.
async fn link(mut args: Args, control: &str) -> CommandResult {
    if control.starts_with(UNIX) {
        return Err(Failure::new("a browser opens no socket of the file system").hint(
            "leave --control out, and name the store with --store: its page is then at a port",
        ));
    }
    let source = args.source.open().await?;
    let place = place(&source, args.episode.as_ref()).await?;
    let token = source.read_token().await?;

    let page = base_url(control);
    print::line(&match token {
        Some(token) if place.is_empty() => format!("{page}/#token={token}"),
        Some(token) => format!("{page}/#token={token}&to={place}"),
        None => format!("{page}/#{place}"),
    })?;
    terminal::message("open this link in a browser; whoever has it can read all that is recorded");
    Ok(ExitCode::SUCCESS)
}

/// The place on the page: that of an episode's conversation, or the list.
async fn place(source: &Source, episode: Option<&AttemptName>) -> Result<String, Failure> {
    if episode.is_none() {
        return Ok(String::new());
    }
    let found = source.named(episode, 0, Depth::Turns).await?.episode;
    Ok(conversation(&found.episode_id, found.attempt))
}

/// The page as a file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "File")]
struct FileArgs {
    /// Write the page and its data to this file, which must not exist; - is stdout
    ///
    /// A browser opens it from a disk, and it asks no network. It holds everything that was said.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "control"])]
    html: Option<PathBuf>,
    /// Write all attempts of a group, side by side
    #[arg(long, value_name = "ID", requires = "html", conflicts_with = "episode")]
    group: Option<GroupId>,
    /// Write the recorded bodies of requests and replies as well
    #[arg(long, requires = "html")]
    bodies: bool,
}

/// Serves the page until a signal asks it to stop.
async fn serve(mut args: Args) -> CommandResult {
    let texts = token_texts(args.tokenizer.as_deref(), &args.source.store.location)?;
    // A store or an episode that cannot be read is told here, not on the page.
    let location = args.source.store.read_from().await?;
    drop(Snapshot::open(&location).await?);
    let named = &args.source.store.location;
    // Segments that were gathered to be read keep nothing.
    let comments_to = (location.to_string() == named.to_string()).then(|| named.clone());
    let viewer =
        Viewer::new(location, texts).with_index(text_index(named)).with_audit(kept_audit(named));
    if let Some(to) = &args.file.html {
        return file::write(&viewer, &args, to).await;
    }
    let place = match place(&Source::Store(viewer.clone()), args.episode.as_ref()).await? {
        list if list.is_empty() => list,
        place => format!("&to={place}"),
    };
    let mut signals = StopSignals::new()?;
    let address = ListenAddress::Tcp(args.listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into()));
    let socket = BoundSocket::take(None, &address, OWN_SOCKET_MODE, "--listen")?;

    let token = secret_file::random()?;
    let settings = Settings {
        token: Some(token.clone()),
        comments_to,
        descriptors_max: raise_descriptors(),
        ..Settings::new(viewer)
    };

    let opened = socket.open()?;
    let page = opened.address.reachable().url("http");
    print::line(&format!("{page}/#token={token}{place}"))?;
    terminal::message("open this link in a browser; Ctrl-C ends the page");

    let (stop, mut stopped) = watch::channel(false);
    let page = tokio::spawn(control::serve_reading(settings, opened.endpoint, async move {
        // An error means that the sender was dropped, which is a stop, too.
        let _ = stopped.wait_for(|stop| *stop).await;
    }));
    signals.received().await;
    stop.send_replace(true);
    page.await.map_err(|e| Failure::of(&e))?;
    Ok(ExitCode::SUCCESS)
}
