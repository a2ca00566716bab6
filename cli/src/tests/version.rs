//! The line of `rolltape --version`.

use std::process::Command;

use crate::version::text;

#[test]
fn it_names_the_version_and_what_this_build_can_do() {
    let inner = text().strip_prefix(concat!(env!("CARGO_PKG_VERSION"), " (")).unwrap();
    let (_, features) = inner.strip_suffix(')').unwrap().split_once("; features: ").unwrap();
    let loaded = if cfg!(target_feature = "crt-static") { "" } else { ", cuda, nccl" };
    assert_eq!(features, format!("cpu, sqlite, postgres{loaded}"));
}

/// A commit without a change of the sources is named as well.
#[test]
fn the_commit_is_the_one_that_was_built() {
    let git = |words: &[&str]| {
        let run = Command::new("git").args(words).output().ok()?;
        run.status.success().then(|| String::from_utf8(run.stdout).unwrap().trim().to_owned())
    };
    let tracked = git(&["ls-files", "--error-unmatch", "build.rs"]);
    let head = match option_env!("ROLLTAPE_COMMIT").filter(|name| !name.is_empty()) {
        Some(named) => named.to_owned(),
        None => tracked
            .and_then(|_| git(&["rev-parse", "--short=12", "HEAD"]))
            .unwrap_or_else(|| "unknown".to_owned()),
    };
    assert!(env!("BUILD_COMMIT").starts_with(&head), "{} is not {head}", env!("BUILD_COMMIT"));
}
