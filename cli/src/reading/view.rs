//! `rolltape view`: shows a recording in a browser.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use control::Settings;
use store::Snapshot;
use tokio::sync::watch;
use viewer::Viewer;

use super::source::{Source, conversation, token_texts};
use crate::exit::{CommandResult, Failure};
use crate::options::address::ListenAddress;
use crate::options::parse::{AttemptName, address, attempt_name};
use crate::options::store::StoreArgs;
use crate::print;
use crate::secret_file;
use crate::server::OWN_SOCKET_MODE;
use crate::server::listen::BoundSocket;
use crate::server::signals::{StopSignals, raise_descriptors};
use crate::terminal;

/// Show a recording in a browser
///
/// Serves a page that shows the store, and prints the link to it, or to an episode's conversation
/// on it. The link contains a token that ends with this command. The store is only read, also while
/// `rolltape serve` records into it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Page")]
pub(crate) struct Args {
    /// The episode to open, or the beginning of its name [default: the list]
    ///
    /// ID/ATTEMPT for one of its attempts.
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    episode: Option<AttemptName>,
    /// Address of the page
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    listen: SocketAddr,
    /// tokenizer.json or model folder, for the text of tokens
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

/// Serves the page until a signal asks it to stop.
pub(crate) async fn run(args: Args) -> CommandResult {
    let texts = token_texts(args.tokenizer.as_deref(), &args.store.location)?;
    // A store or an episode that cannot be read is told here, not on the page.
    drop(Snapshot::open(&args.store.location).await?);
    let viewer = Viewer::new(args.store.location, texts);
    let place = match &args.episode {
        Some(name) => {
            let tree = Source::Store(viewer.clone()).named(Some(name), 0).await?;
            format!("&to={}", conversation(&tree.episode.episode_id, tree.episode.attempt))
        }
        None => String::new(),
    };
    let mut signals = StopSignals::new()?;
    let address = ListenAddress::Tcp(args.listen);
    let socket = BoundSocket::take(None, &address, OWN_SOCKET_MODE, "--listen")?;

    let token = secret_file::random()?;
    let settings = Settings {
        token: Some(token.clone()),
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
