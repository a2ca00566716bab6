//! The house rules that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// CONTRIBUTING.md has these numbers.
const FOLDER_FILES_MAX: usize = 24;
const FILE_LINES_MAX: usize = 600;
const LINE_COLUMNS_MAX: usize = 100;

/// Each crate with the crates of ours that it may use.
pub(crate) const ARROWS: [(&str, &[&str]); 14] = [
    (
        "cli",
        &[
            "control", "viewer", "proxy", "exporter", "engine", "store", "http", "kernels", "wire",
            "template", "episode",
        ],
    ),
    ("control", &["viewer", "proxy", "exporter", "store", "http", "wire", "episode"]),
    ("viewer", &["exporter", "store", "wire", "template", "episode"]),
    ("proxy", &["store", "http", "wire", "template", "episode"]),
    ("exporter", &["store", "wire", "template", "episode"]),
    ("engine", &["http", "kernels", "template", "wire", "episode"]),
    ("store", &["episode"]),
    ("http", &["episode"]),
    ("episode", &[]),
    ("wire", &["episode"]),
    ("template", &["episode"]),
    ("kernels", &[]),
    ("benches", &[]),
    (
        "tests",
        &[
            "control", "viewer", "proxy", "exporter", "engine", "store", "wire", "episode",
            "kernels", "template",
        ],
    ),
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub(crate) fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// Files that hold nothing but tests, and what only tests are built with.
fn is_test(path: &Path) -> bool {
    let tests = ["tests.rs", "properties.rs", "site.rs", "emulated.rs"];
    let inside = path.iter().any(|part| part == "tests");
    inside || tests.iter().any(|name| path.ends_with(name))
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for (folder, _) in ARROWS {
        files(&root().join(folder), "rs", &mut found);
    }
    found.sort();
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The part of a file that is not its unit tests, which are its last module.
pub(crate) fn product(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

#[test]
fn crates_use_only_crates_below_them() {
    let allowed: BTreeMap<_, BTreeSet<_>> =
        ARROWS.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    for (name, uses) in &allowed {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        let named = manifest.lines().filter_map(|line| line.strip_suffix(".workspace = true"));
        let ours: BTreeSet<_> = named.filter(|dep| allowed.contains_key(dep)).collect();
        let wrong: Vec<_> = ours.difference(uses).collect();
        assert!(wrong.is_empty(), "{name} must not use {wrong:?}");
    }
}

#[test]
fn files_and_lines_are_short() {
    let mut long = Vec::new();
    for (path, text) in sources() {
        let lines = product(&text).lines().count();
        if lines > FILE_LINES_MAX && !is_test(&path) {
            long.push(format!("{}: {lines} lines", path.display()));
        }
        for (number, line) in product(&text).lines().enumerate() {
            if line.chars().count() > LINE_COLUMNS_MAX {
                long.push(format!("{}:{}: too wide", path.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// What follows the tests of a file would be read as if it were one of them.
#[test]
fn tests_are_the_last_module_of_a_file() {
    for (path, text) in sources() {
        let after = text.split("\n#[cfg(test)]\nmod tests;\n").nth(1);
        assert!(after.is_none_or(str::is_empty), "{}: `mod tests;` is not last", path.display());
        let after = text.split("\n#[cfg(test)]\nmod tests {").nth(1);
        let closed = after.and_then(|tests| tests.split_once("\n}\n"));
        let ends = closed.is_none_or(|(_, rest)| rest.is_empty());
        assert!(ends, "{}: `mod tests` is not last", path.display());
    }
}

#[test]
fn folders_are_small() {
    let mut counts = BTreeMap::new();
    for (path, _) in sources().into_iter().filter(|(path, _)| !is_test(path)) {
        let folder = path.parent().unwrap().strip_prefix(root()).unwrap().to_owned();
        *counts.entry(folder).or_insert(0) += 1;
    }
    for (folder, count) in counts {
        assert!(count <= FOLDER_FILES_MAX, "{}: {count} files", folder.display());
    }
}

#[test]
fn every_module_says_what_it_is() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{}", path.display());
    }
}

#[test]
fn only_one_crate_knows() {
    let sql = ["sqlx::", "rusqlite::", "INSERT INTO"];
    let print = ["println!(", "eprintln!(", "std::env::args", "env::var", "process::exit("];
    let rules: [(&str, &[&str]); 2] = [("store", &sql), ("cli", &print)];
    for (path, text) in sources() {
        let relative = path.strip_prefix(root()).unwrap();
        let home = relative.iter().next().unwrap().to_string_lossy().into_owned();
        let skip = is_test(&path)
            || relative.ends_with("build.rs")
            || relative.iter().any(|part| part == "examples" || part == "benches");
        for (owner, words) in rules.iter().filter(|(owner, _)| *owner != home && !skip) {
            for word in *words {
                let found = product(&text).contains(word);
                assert!(!found, "{} has `{word}`, which only {owner} may", relative.display());
            }
        }
    }
}

/// Text that is printed elsewhere is not made safe for a terminal.
#[test]
fn the_command_line_prints_in_one_place() {
    let words = ["println!(", "print!(", "io::stdout()", "io::stderr()"];
    // The log and the progress bar ask for a terminal; the feed writes to a descriptor.
    let others = ["terminal.rs", "log.rs", "main.rs", "export.rs", "feed/sink.rs"];
    for (path, text) in sources() {
        let Ok(name) = path.strip_prefix(root().join("cli/src")) else { continue };
        let prints = words.iter().any(|word| product(&text).contains(word));
        assert!(!prints || others.iter().any(|other| name == Path::new(other)), "{name:?} prints");
    }
}

#[test]
fn unsafe_is_for_kernels_alone() {
    for (folder, _) in ARROWS.iter().filter(|(folder, _)| *folder != "kernels") {
        for name in ["src/lib.rs", "src/main.rs", "kit/lib.rs"] {
            let path = root().join(folder).join(name);
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            assert!(text.contains("#![forbid(unsafe_code)]"), "{}", path.display());
        }
    }
}

#[test]
fn no_integration_test_is_forgotten() {
    let main = std::fs::read_to_string(root().join("tests/it/main.rs")).unwrap();
    let mut found = Vec::new();
    files(&root().join("tests/it"), "rs", &mut found);
    for path in found {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(name == "main" || main.contains(&format!("mod {name};")), "{name} is not run");
    }
}

#[test]
fn migrations_are_numbered_without_gaps() {
    for database in ["sqlite", "postgres"] {
        let mut found = Vec::new();
        files(&root().join("migrations").join(database), "sql", &mut found);
        found.sort();
        assert!(!found.is_empty());
        for (index, path) in found.iter().enumerate() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name.starts_with(&format!("{:04}_", index + 15)), "{name}");
        }
    }
}
