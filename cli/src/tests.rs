//! The command line as a whole, and its pages.

mod help;
mod variables;
mod version;

use clap::CommandFactory;

#[test]
fn the_command_line_is_sound() {
    crate::Cli::command().debug_assert();
}

/// The pages that list the options of `serve` and `engine`.
fn option_pages() -> String {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    ["serving.md", "engine.md", "weights.md"]
        .map(|page| std::fs::read_to_string(docs.join(page)).unwrap())
        .concat()
}

/// One line of the pages has the option and its variable.
#[test]
fn every_option_of_the_servers_is_documented() {
    let page = option_pages();
    let cli = crate::Cli::command();
    let mut seen = 0;
    for server in ["serve", "engine"] {
        let command = cli.find_subcommand(server).unwrap();
        let shown = command.get_arguments().filter(|option| !option.is_hide_set());
        for option in shown.filter(|option| option.get_id() != "help") {
            let long = option.get_long().unwrap();
            let ways = [format!("`--{long}`"), format!("`--{long} ")];
            let variable = option.get_env().map(|name| format!("`{}`", name.display()));
            let documented = page.lines().any(|line| {
                ways.iter().any(|way| line.contains(way))
                    && variable.as_ref().is_none_or(|variable| line.contains(variable))
            });
            assert!(documented, "`rolltape {server}` has --{long} ({variable:?})");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}
