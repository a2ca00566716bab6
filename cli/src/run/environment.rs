//! The environment of the command of `rolltape run`: the user's own, without what rolltape reads.
//!
//! The command is an agent, and agents run code that a model wrote. With rolltape's variables it
//! could write to the store or reward itself; with those of databases and object stores it could
//! read recordings and replace exports.

use std::ffi::{OsStr, OsString};

use crate::exit::Failure;

/// Beginnings of the names that are removed: rolltape's own variables, those that it takes for a
/// store on a server, and those with which exports reach an object store.
const REMOVED: [&str; 9] = [
    "ROLLTAPE_",
    "PG",
    "DATABASE_URL",
    "AWS_",
    "AZURE_STORAGE_",
    "AZURE_CLIENT_",
    "AZURE_FEDERATED_",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
];
/// The names that `--clean-env` passes, besides those that begin with `LC_`.
const BASICS: [&str; 9] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TZ", "TMPDIR"];

/// A variable: its name and its value.
pub(super) type Variable = (OsString, OsString);

/// The value of one of `variables` that is text.
pub(super) fn variable(variables: &[Variable], name: &str) -> Option<String> {
    let (_, value) = variables.iter().find(|(found, _)| found == name)?;
    value.to_str().map(str::to_owned)
}

/// Options on the environment of the command.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Environment of the command")]
pub(super) struct EnvironmentArgs {
    /// Pass a variable that would be removed; repeatable
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// Pass only basic variables and those of --pass-env
    ///
    /// The basic ones are PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*, TERM, TZ and TMPDIR.
    #[arg(long)]
    clean_env: bool,
    /// List the agents that are known by their command
    ///
    /// And how each is told its base URL. Nothing is run.
    #[arg(long)]
    pub(super) list_agents: bool,
}

impl EnvironmentArgs {
    /// Checks that no variable is passed that holds one of rolltape's own secrets.
    ///
    /// # Errors
    /// [`Failure`] that names the variable.
    pub(super) fn check(&self, secrets: &[&str]) -> Result<(), Failure> {
        let secret = self.pass_env.iter().find(|name| secrets.contains(&name.as_str()));
        secret.map_or(Ok(()), |name| {
            Err(Failure::new(format!("`{name}` holds a secret of rolltape, or names one"))
                .hint("leave it out of --pass-env: with it the agent could reward itself"))
        })
    }

    /// Returns the variables that the command gets of `all`. The names of `secrets` are not among
    /// them: with these an agent could reward itself, or call the upstream unrecorded.
    pub(super) fn passed(
        &self,
        all: impl Iterator<Item = Variable>,
        secrets: &[&str],
    ) -> Vec<Variable> {
        all.filter(|(name, _)| {
            let is_passed = self.passes(name, secrets);
            if !is_passed {
                tracing::info!(?name, "a variable is not passed to the command");
            }
            is_passed
        })
        .collect()
    }

    fn passes(&self, name: &OsStr, secrets: &[&str]) -> bool {
        // What is no text starts with the same bytes as its text would.
        let text = name.to_string_lossy();
        let is_named = |names: &[&str]| names.contains(&text.as_ref());
        if is_named(secrets) {
            return false;
        }
        if self.pass_env.iter().any(|passed| **passed == text) {
            return true;
        }
        match self.clean_env {
            true => is_named(&BASICS) || text.starts_with("LC_"),
            false => !REMOVED.iter().any(|start| text.starts_with(start)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(args: &EnvironmentArgs, names: &[&str]) -> Vec<String> {
        let all = names.iter().map(|name| ((*name).into(), "x".into()));
        let passed = args.passed(all, &["MY_TOKEN"]);
        passed.into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
    }

    const OWN: [&str; 6] = [
        "PATH",
        "LC_ALL",
        "OPENAI_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "GOOGLE_API_KEY",
        "HTTP_PROXY",
    ];
    const OURS: [&str; 8] = [
        "ROLLTAPE_STORE",
        "ROLLTAPE_SOME_NEW_ONE",
        "PGPASSWORD",
        "PGSERVICEFILE",
        "DATABASE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
    ];

    #[test]
    fn an_agent_s_own_variables_pass_and_rolltape_s_do_not() {
        let all = [&OWN[..], &OURS[..], &["MY_TOKEN"]].concat();
        assert_eq!(passed(&EnvironmentArgs::default(), &all), OWN);
    }

    #[test]
    fn what_is_named_passes_unless_it_is_a_secret_of_rolltape() {
        let args = EnvironmentArgs {
            pass_env: vec!["PGPASSWORD".to_owned(), "MY_TOKEN".to_owned()],
            clean_env: true,
            list_agents: false,
        };
        let all = [&OWN[..], &OURS[..], &["MY_TOKEN"]].concat();
        assert_eq!(passed(&args, &all), ["PATH", "LC_ALL", "PGPASSWORD"]);
        assert!(args.check(&["MY_TOKEN"]).is_err() && args.check(&["OTHER"]).is_ok());
    }
}
