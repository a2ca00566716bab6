//! The control listener's options: its token, and who else may ask.
//!
//! A server and its clients look for the token in the same order: the option, the variable
//! `ROLLTAPE_CONTROL_TOKEN`, the file that `ROLLTAPE_CONTROL_TOKEN_FILE` names, the file beside the
//! store. A server makes the file if it is missing. A client looks for that of the server on this
//! machine which it asks before it looks beside a store.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use episode::RewardRange;
use store::Location;

use super::address::ListenAddress;
use super::pointer;
use super::store::StoreArgs;
use super::upstream::read_file;
use crate::exit::Failure;
use crate::options::secret_file;

/// The topic of these options in `--help`.
pub(crate) const CONTROL_HEADING: &str = "Control listener";
/// Variables that hold the token or the name of its file.
const TOKEN_VARIABLE: &str = "ROLLTAPE_CONTROL_TOKEN";
const TOKEN_FILE_VARIABLE: &str = "ROLLTAPE_CONTROL_TOKEN_FILE";
/// Fewest characters of a token. 16 random ones cannot be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// The end of the token file's name, after that of the store.
const TOKEN_FILE_END: &str = "-token";
/// The token file of stores that are no files, in the user's folder of states.
const TOKEN_FILE_OF_USER: &str = "rolltape/control-token";

/// The token of the control listener.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = CONTROL_HEADING)]
pub(crate) struct ControlToken {
    /// File that holds the control listener's token
    ///
    /// A server makes it if it is missing. [default: the store's name and -token] [env:
    /// ROLLTAPE_CONTROL_TOKEN_FILE]
    // The variable comes after another one in the order, so it is not read here.
    #[arg(long, value_name = "FILE")]
    control_token_file: Option<PathBuf>,
    /// Variable that holds the control listener's token
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_CONTROL_TOKEN_ENV")]
    pub(super) control_token_env: Option<String>,
}

/// The authority behind the certificate of a control listener.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = CONTROL_HEADING)]
pub(crate) struct ControlCa {
    /// Certificates to trust beside the system's, in PEM
    ///
    /// For a control listener with TLS whose certificate is of an authority of your own.
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_CONTROL_CA")]
    control_ca: Option<PathBuf>,
}

impl ControlCa {
    /// The certificates; empty if none are given.
    ///
    /// # Errors
    /// [`Failure`] if the file cannot be read.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Failure> {
        self.control_ca.as_deref().map_or_else(|| Ok(Vec::new()), read_file)
    }
}

/// A running server, and the token with which it is asked.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = CONTROL_HEADING)]
pub(crate) struct ServerToAsk {
    /// The server's control listener
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8081",
        env = "ROLLTAPE_CONTROL_URL"
    )]
    pub(crate) control: String,
    #[command(flatten)]
    pub(crate) ca: ControlCa,
    #[command(flatten)]
    token: ControlToken,
    #[command(flatten)]
    store: StoreArgs,
}

impl ServerToAsk {
    /// The `authorization` of requests; `None` if no token is found here.
    ///
    /// # Errors
    /// [`Failure`] if there is a token that cannot be used.
    pub(crate) fn bearer(&self) -> Result<Option<String>, Failure> {
        self.token.of_client(&self.control, &self.store.location)
    }
}

/// The options of a control listener.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = CONTROL_HEADING)]
pub(crate) struct ControlArgs {
    #[command(flatten)]
    pub(crate) token: ControlToken,
    /// Another name of the control listener; repeatable
    ///
    /// Requests may address the listener by this name, by its address and as loopback.
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_CONTROL_HOST", value_delimiter = ',')]
    control_host: Vec<String>,
    /// Require no token of the control listener
    ///
    /// The listener must be on loopback.
    #[arg(long, env = "ROLLTAPE_CONTROL_OPEN")]
    control_open: bool,
    #[command(flatten)]
    pub(crate) ranges: RewardRanges,
}

/// Ranges of rewards.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RewardRanges {
    /// Range of the rewards of a name; repeatable
    ///
    /// A reward with another value is refused. Both ends are in the range, such as reward=0..1.
    #[arg(long = "reward-range", value_name = "NAME=LEAST..MOST", value_delimiter = ',')]
    #[arg(env = "ROLLTAPE_REWARD_RANGE")]
    pub(crate) all: Vec<RewardRange>,
}

/// The place of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TokenPlace {
    Variable(String),
    File(PathBuf),
}

/// A token, with where it is for whoever needs it.
#[derive(Clone)]
pub(crate) struct FoundToken {
    pub(crate) token: String,
    /// The file or the variable that holds it; `None` if only this process knows it.
    pub(crate) place: Option<String>,
}

impl FoundToken {
    /// The `authorization` of a request that carries the token.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }
}

/// Leaves the token out.
impl fmt::Debug for FoundToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a token in {:?}", self.place)
    }
}

impl ControlArgs {
    /// Refuses what could not be served, before anything is touched.
    ///
    /// # Errors
    /// [`Failure`] if everybody beyond this machine could ask, or a variable holds no token.
    pub(crate) fn check(&self, control: &ListenAddress) -> Result<(), Failure> {
        if self.control_open && !control.is_of_this_machine() {
            let sentence = "the control listener needs a token beyond loopback";
            return Err(Failure::new(sentence).hint(
                "leave --control-open out, or give a loopback address with --control, such as \
                 127.0.0.1:8081",
            ));
        }
        if self.control_open && self.token.given(&|_| None).is_some() {
            return Err(Failure::new("--control-open and a token contradict each other")
                .hint("leave one of them out"));
        }
        match self.token.given(&|name| std::env::var_os(name)) {
            Some(TokenPlace::Variable(name)) => read_variable(&name).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns true if no token is required.
    pub(crate) fn is_open(&self) -> bool {
        self.control_open
    }

    /// The token that a server with this store requires; `None` if it is open.
    ///
    /// # Errors
    /// [`Failure`] if the token cannot be read, made or used.
    pub(crate) fn of_server(&self, store: &Location) -> Result<Option<FoundToken>, Failure> {
        if self.control_open {
            return Ok(None);
        }
        let get = |name: &str| std::env::var_os(name);
        let place = match self.token.given(&get) {
            Some(place) => place,
            None => {
                let file = token_file(store, &get)?;
                secret_file::create_folder_of(&file, store)?;
                TokenPlace::File(file)
            }
        };
        place.read_or_create().map(Some)
    }

    /// The token of a server that lives within this process and that nobody else calls. Without
    /// an option only this process knows it.
    ///
    /// # Errors
    /// [`Failure`] if the token that an option names cannot be used.
    pub(crate) fn of_private_server(&self) -> Result<Option<FoundToken>, Failure> {
        match self.token.given(&|_| None) {
            _ if self.control_open => Ok(None),
            Some(place) => place.read_or_create().map(Some),
            None => Ok(Some(FoundToken { token: secret_file::random()?, place: None })),
        }
    }

    /// The names by which the listener may be addressed.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.control_host.clone()
    }
}

impl ControlToken {
    /// The `authorization` for the running server at `control`, else for one that records into
    /// `store`; `None` if no token is found here.
    ///
    /// # Errors
    /// [`Failure`] if there is a token that cannot be used.
    pub(crate) fn of_client(
        &self,
        control: &str,
        store: &Location,
    ) -> Result<Option<String>, Failure> {
        let get = |name: &str| std::env::var_os(name);
        let found = match self.given(&get) {
            Some(place) => {
                let missing = || {
                    Failure::new(format!("there is no token in {}", place.name()))
                        .hint("`rolltape serve` says where its token is when it starts")
                };
                Some(place.read()?.ok_or_else(missing)?)
            }
            // Without a folder of states there is no file either. The token of another server is
            // none for one that is known.
            None => {
                let file = match pointer::server_at(control) {
                    Some(server) => server.token_file,
                    None => token_file(store, &get).ok(),
                };
                file.map(|file| TokenPlace::File(file).read()).transpose()?.flatten()
            }
        };
        Ok(found.map(|found| found.bearer()))
    }

    /// The place that an option or a variable names.
    fn given(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<TokenPlace> {
        let is_set = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
        let by_option = self.control_token_file.clone().map(TokenPlace::File);
        by_option
            .or_else(|| self.control_token_env.clone().map(TokenPlace::Variable))
            .or_else(|| {
                let name = Some(TOKEN_VARIABLE).filter(|name| variable(name).is_some())?;
                Some(TokenPlace::Variable(name.to_owned()))
            })
            .or_else(|| {
                let name = Some(TOKEN_FILE_VARIABLE).filter(is_set)?;
                Some(TokenPlace::File(variable(name)?.into()))
            })
    }
}

impl TokenPlace {
    fn name(&self) -> String {
        match self {
            Self::Variable(name) => format!("the variable {name}"),
            Self::File(path) => {
                std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string()
            }
        }
    }

    /// Reads the token; `None` if the file is missing.
    fn read(&self) -> Result<Option<FoundToken>, Failure> {
        let token = match self {
            Self::Variable(name) => Some(read_variable(name)?),
            Self::File(path) => secret_file::read(path)?
                .map(|content| checked(&content, &format!("`{}`", path.display())))
                .transpose()?,
        };
        Ok(token.map(|token| FoundToken { token, place: Some(self.name()) }))
    }

    fn read_or_create(&self) -> Result<FoundToken, Failure> {
        if let Self::File(path) = self {
            let line = || Ok(secret_file::random()? + "\n");
            secret_file::read_or_create(path, line)?;
        }
        let missing = || Failure::new(format!("there is no token in {}", self.name()));
        self.read()?.ok_or_else(missing)
    }
}

/// The file of the token of servers that record into `store`.
fn token_file(
    store: &Location,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, Failure> {
    secret_file::of_store(store, TOKEN_FILE_END, TOKEN_FILE_OF_USER, variable).ok_or_else(|| {
        Failure::new("there is no folder for the control listener's token").hint(
            "name a file with --control-token-file, or set HOME; a PostgreSQL store has no folder \
             of its own",
        )
    })
}

fn read_variable(name: &str) -> Result<String, Failure> {
    let place = format!("the environment variable `{name}`");
    match std::env::var(name) {
        Ok(token) => checked(&token, &place),
        Err(_) => Err(Failure::new(format!("{place} holds no token"))
            .hint("set it to the control listener's token, or leave --control-token-env out")),
    }
}

/// The token in `content`, without the line's end.
fn checked(content: &str, place: &str) -> Result<String, Failure> {
    let token = content.trim_end_matches(['\r', '\n']);
    let hint = format!(
        "a token is {TOKEN_CHARS_MIN} or more visible ASCII characters without a space, such as \
         those of: openssl rand -hex 32"
    );
    let why = if token.trim().is_empty() {
        "holds no token"
    } else if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        "holds a token that a header cannot carry"
    } else if token.len() < TOKEN_CHARS_MIN {
        "holds a token that can be guessed: it is too short"
    } else {
        return Ok(token.to_owned());
    };
    Err(Failure::new(format!("{place} {why}")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(env: Option<&str>, file: Option<&str>) -> ControlToken {
        ControlToken {
            control_token_env: env.map(str::to_owned),
            control_token_file: file.map(PathBuf::from),
        }
    }

    #[test]
    fn an_option_precedes_a_variable_a_token_its_file() {
        let both = |name: &str| match name {
            TOKEN_VARIABLE => Some("t".into()),
            TOKEN_FILE_VARIABLE => Some("f".into()),
            _ => None,
        };
        let file_only = |name: &str| both(name).filter(|_| name == TOKEN_FILE_VARIABLE);
        let file = |name: &str| Some(TokenPlace::File(name.into()));
        let variable = |name: &str| Some(TokenPlace::Variable(name.to_owned()));
        assert_eq!(options(Some("A"), Some("a")).given(&both), file("a"));
        assert_eq!(options(Some("A"), None).given(&both), variable("A"));
        assert_eq!(options(None, None).given(&both), variable(TOKEN_VARIABLE));
        assert_eq!(options(None, None).given(&file_only), file("f"));
        assert_eq!(options(None, None).given(&|_| None), None);
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        for bad in [
            "",
            " ",
            "\n",
            "                ",
            "short",
            "fifteen-letters",
            "a b c d e f g h i",
            "sixteen-letters\0",
            "sixteen-letters-\u{e9}",
            "sixteen\nletters-and-more",
        ] {
            assert!(checked(bad, "it").is_err(), "{bad:?}");
        }
        assert_eq!(checked("sixteen-letters!\r\n", "it").unwrap(), "sixteen-letters!");
    }

    #[test]
    fn the_token_lies_beside_the_store_or_in_the_folder_of_states() {
        let states = |name: &str| (name == "XDG_STATE_HOME").then(|| "/states".into());
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        let relative = |name: &str| (name == "HOME").then(|| "me".into());
        let file = Location::File("runs/a.db".into());
        assert_eq!(token_file(&file, &|_| None).unwrap(), PathBuf::from("runs/a.db-token"));
        let server: Location = "postgres://me@h/d".parse().unwrap();
        let found = |variable: &dyn Fn(&str) -> Option<OsString>| token_file(&server, variable);
        assert_eq!(found(&states).unwrap(), PathBuf::from("/states/rolltape/control-token"));
        let in_home = PathBuf::from("/home/me/.local/state/rolltape/control-token");
        assert_eq!(found(&home).unwrap(), in_home);
        assert!(found(&relative).is_err());
    }
}
