//! What `rolltape --version` says of the sources: their commit, and its date.
//!
//! `ROLLTAPE_COMMIT` names them where there is no repository, such as in a container's build.

use std::path::Path;
use std::process::Command;

/// What the binary is made of: another build of it may have other changes.
const SOURCES: [&str; 16] = [
    "../Cargo.lock",
    "../Cargo.toml",
    "../cli",
    "../engine/models",
    "../engine/src",
    "../episode/src",
    "../exporter/src",
    "../kernels/cuda",
    "../kernels/src",
    "../migrations",
    "../proxy/src",
    "../store/src",
    "../template/src",
    "../viewer/page/dist",
    "../viewer/src",
    "../wire/src",
];

fn main() {
    println!("cargo::rerun-if-env-changed=ROLLTAPE_COMMIT");
    SOURCES.iter().for_each(|path| watch(path));
    // A new commit changes the branch's file; where branches are packed, the log of `HEAD`.
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs", branch.as_deref().unwrap_or("HEAD")] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            watch(&path);
        }
    }
    let named = std::env::var("ROLLTAPE_COMMIT").ok().filter(|name| !name.is_empty());
    let commit = named.or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=BUILD_COMMIT={commit}");
}

/// Has this script run again after a change. A path that is missing would count as one each time.
fn watch(path: &str) {
    if Path::new(path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// The commit and its date, with `-dirty` if tracked files had changes.
fn commit() -> Option<String> {
    // These sources may lie, untracked, in the repository of something else.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let hash = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])?;
    let date = git(&["show", "--no-patch", "--format=%cs", "HEAD"])?;
    Some(format!("{hash} {date}"))
}

/// The output of a git command, without the end of its line.
fn git(words: &[&str]) -> Option<String> {
    let run = Command::new("git").args(words).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    let text = String::from_utf8(run.stdout).ok()?;
    run.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
