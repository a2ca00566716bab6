//! `rolltape completions`: prints what a shell needs to complete commands, options and names.

mod names;

use std::process::ExitCode;

use clap::{Command, ValueEnum};
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

/// Print a script by which a shell completes commands, options and names
///
/// Names of episodes and groups are those of the store that the command would read.
///
/// bash: rolltape completions bash > ~/.local/share/bash-completion/completions/rolltape
/// zsh: rolltape completions zsh > ~/.zfunc/_rolltape, a folder of $fpath
/// fish: rolltape completions fish > ~/.config/fish/completions/rolltape.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The shell
    #[arg(required_unless_present = "names")]
    shell: Option<Shell>,
    /// Print the names that complete the last of these words of a command line
    #[arg(long, hide = true, value_name = "WORD", help_heading = "Output")]
    #[arg(num_args = 0.., allow_hyphen_values = true, conflicts_with = "shell")]
    names: Vec<String>,
}

/// Prints the script for all of `command`, or names.
pub(crate) async fn run(args: &Args, command: &mut Command) -> CommandResult {
    let Some(shell) = args.shell else { return names::print(&args.names, command).await };
    let script = match shell {
        Shell::Bash => generated(clap_complete::Shell::Bash, command) + BASH_NAMES,
        Shell::Zsh => zsh(&generated(clap_complete::Shell::Zsh, command)),
        Shell::Fish => fish(&generated(clap_complete::Shell::Fish, command)),
    };
    script.lines().try_for_each(print::line)?;
    Ok(ExitCode::SUCCESS)
}

fn generated(shell: clap_complete::Shell, command: &mut Command) -> String {
    let mut script = Vec::new();
    generate(shell, command, "rolltape", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Names contain no spaces, and nothing that bash would expand.
const BASH_NAMES: &str = r#"
_rolltape_with_names() {
    local IFS=$' \t\n' rolltape="${COMP_WORDS[0]/#\~/$HOME}"
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=( $("$rolltape" completions --names "${words[@]}" 2>/dev/null) )
    [ "${#COMPREPLY[@]}" -gt 0 ] || _rolltape "$@"
}
complete -F _rolltape_with_names -o bashdefault -o default rolltape
"#;

/// Zsh knows the function of the file's name, so that one asks for names first.
const ZSH_NAMES: &str = r#"_rolltape() {
    local rolltape="${(Q)words[1]/#\~/$HOME}"
    local -a names typed=("${(@Q)words[2,CURRENT]}")
    names=(${(f)"$("$rolltape" completions --names "${typed[@]}" 2>/dev/null)"})
    (( $#names )) || { _rolltape_options "$@"; return }
    [[ $PREFIX == --*=* ]] && compset -P '*='
    compadd -a names
}

"#;
/// The definition that gets another name, and the end of the script, which calls it.
const ZSH_FUNCTION: &str = "\n_rolltape() {\n";
const ZSH_END: &str = "if [ \"$funcstack[1]\" = \"_rolltape\" ]";

fn zsh(script: &str) -> String {
    let script = script.replacen(ZSH_FUNCTION, "\n_rolltape_options() {\n", 1);
    script.replacen(ZSH_END, &format!("{ZSH_NAMES}{ZSH_END}"), 1)
}

const FISH_NAMES: &str = "
function __rolltape_names
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] completions --names $words[2..] 2>/dev/null
end
complete -c rolltape -n 'string length -q -- (__rolltape_names)' -k -f -a '(__rolltape_names)'
";

/// An option's values are those that its own line gives.
fn fish(script: &str) -> String {
    let of_names = |line: &str| line.contains(" -l episode ") || line.contains(" -l group ");
    let lines = script.lines().map(|line| match of_names(line) {
        true => format!("{line} -k -f -a '(__rolltape_names)'\n"),
        false => format!("{line}\n"),
    });
    lines.collect::<String>() + FISH_NAMES
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_scripts_ask_for_names() {
        let mut command = Cli::command();
        let script = zsh(&generated(clap_complete::Shell::Zsh, &mut command));
        assert_eq!(script.matches("\n_rolltape() {").count(), 1);
        assert_eq!(script.matches("\n_rolltape_options() {").count(), 1);
        assert!(script.find(ZSH_END) > script.find("compadd -a names"));

        let script = fish(&generated(clap_complete::Shell::Fish, &mut command));
        let of_show = script.lines().filter(|line| line.contains("(__rolltape_names)"));
        assert!(of_show.count() > 10, "{script}");
    }
}
