//! What the documents say is what there is.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// All migrations, in order.
fn migrations() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == "sql")).collect();
    files.sort();
    files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// The views of the migrations with their columns, read out of an empty store.
fn views() -> Vec<(String, Vec<String>)> {
    let sql = migrations();
    let query = "SELECT m.name, group_concat(i.name) FROM sqlite_schema m \
                 JOIN pragma_table_info(m.name) i WHERE m.type = 'view' GROUP BY m.name";
    let mut sqlite3 = std::process::Command::new("sqlite3")
        .arg(":memory:")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sqlite3 is installed");
    let mut input = sqlite3.stdin.take().unwrap();
    input.write_all(format!("{sql}\n{query};").as_bytes()).unwrap();
    drop(input);
    let text = String::from_utf8(sqlite3.wait_with_output().unwrap().stdout).unwrap();
    let view = |line: &str| {
        let (name, columns) = line.split_once('|').unwrap();
        (name.to_owned(), columns.split(',').map(str::to_owned).collect())
    };
    text.lines().map(view).collect()
}

#[test]
fn every_column_of_every_view_is_documented() {
    let schema = read("docs/schema.md");
    let words: BTreeSet<_> =
        schema.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let views = views();
    assert_eq!(views.len(), 4);
    for (view, columns) in views {
        assert!(schema.contains(&format!("`{view}`")), "{view} is not documented");
        let missing: Vec<_> = columns.iter().filter(|c| !words.contains(c.as_str())).collect();
        assert!(missing.is_empty(), "{view}: {missing:?} are not documented");
    }
}

#[test]
fn the_walk_of_a_call_and_of_an_export_fit_one_screen() {
    for (file, start) in [
        ("proxy/src/serve.rs", "async fn call("),
        ("exporter/src/export.rs", "pub async fn export("),
    ] {
        let text = read(file);
        let walk = &text[text.find(start).unwrap()..];
        let lines = walk.lines().position(|line| line == "}").unwrap() + 1;
        assert!(lines <= 40, "{file}: the walk takes {lines} lines");
    }
}
