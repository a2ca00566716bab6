//! `rolltape completions`: prints what a shell needs to complete commands and options.

use std::process::ExitCode;

use clap::ValueEnum;
use clap_complete::generate;

use crate::exit::CommandResult;
use crate::print;

/// A shell whose completions can be made.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Print a script by which a shell completes commands and options
///
/// bash: rolltape completions bash > ~/.local/share/bash-completion/completions/rolltape
/// zsh: rolltape completions zsh > ~/.zfunc/_rolltape, a folder of $fpath
/// fish: rolltape completions fish > ~/.config/fish/completions/rolltape.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script for all of `command`.
pub(crate) fn run(args: &Args, command: &mut clap::Command) -> CommandResult {
    let mut script = Vec::new();
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    generate(shell, command, "rolltape", &mut script);
    String::from_utf8_lossy(&script).lines().try_for_each(print::line)?;
    Ok(ExitCode::SUCCESS)
}
