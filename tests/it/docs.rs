//! The documents agree with the code.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::Connection;

use crate::tidy;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The columns that the migrations make: (kind, table or view, column, type), tables in the order
/// in which they are made.
async fn columns() -> Vec<(String, String, String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let (store, writer) = store::Store::open(&path, store::Durability::Power).await.unwrap();
    drop(store);
    writer.finish().await;
    let query = "SELECT m.type, m.name, i.name, i.type FROM sqlite_schema m \
                 JOIN pragma_table_info(m.name) i WHERE m.type IN ('view', 'table') \
                 AND m.name NOT LIKE 'sqlite_%' AND m.name NOT LIKE '\\_sqlx%' ESCAPE '\\' \
                 ORDER BY m.rowid, i.cid";
    sqlx::query_as(query).fetch_all(&mut kit::sql(&path).await).await.unwrap()
}

/// The tables with their columns, as a block of the document.
async fn tables() -> String {
    let mut block = String::from("```\n");
    let mut last = String::new();
    for (_, table, column, kind) in columns().await.iter().filter(|row| row.0 == "table") {
        if *table != last {
            block += &format!("{}{table}\n", if last.is_empty() { "" } else { "\n" });
            last.clone_from(table);
        }
        block += &format!("  {column:<18} {kind}\n");
    }
    block + "```"
}

/// `UPDATE_DOCS=1 cargo test -p tests docs` writes the list instead of comparing it.
#[tokio::test]
async fn the_tables_are_listed_as_the_migrations_make_them() {
    const START: &str = "<!-- Made from the migrations by a test. -->\n";
    let page = read("docs/tables.md");
    let (before, after) = page.split_once(START).expect("the list of tables has a mark");
    let end = after.match_indices("```").nth(1).expect("the list has an end").0 + 3;
    let (listed, rest) = after.split_at(end);
    let made = tables().await;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tables.md");
        std::fs::write(path, format!("{before}{START}{made}{rest}")).unwrap();
    } else {
        assert_eq!(listed, made, "run with UPDATE_DOCS=1");
    }
}

#[tokio::test]
async fn every_column_of_every_view_is_documented() {
    let schema = read("docs/schema.md");
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<_> = schema.split(|c| !word(c)).collect();
    let columns = columns().await;
    let views = columns.iter().filter(|row| row.0 == "view");
    assert!(views.clone().count() > 30, "the views were not read");
    for (_, view, column, _) in views {
        assert!(schema.contains(&format!("`{view}`")), "{view} is not documented");
        assert!(words.contains(column.as_str()), "{view}.{column} is not documented");
    }
}

/// Compares the columns of SQLite with those of PostgreSQL.
#[tokio::test]
async fn both_databases_have_the_same_tables_and_views() {
    let Some(server) = postgres_kit::Server::shared() else { return };
    let url = server.database();
    let at: store::Location = url.parse().unwrap();
    let (store, writer) = store::Store::open(&at, store::Durability::Power).await.unwrap();
    drop(store);
    writer.finish().await;
    let query = "SELECT table_name::text, column_name::text FROM information_schema.columns \
                 WHERE table_schema = 'rolltape' AND table_name <> '_sqlx_migrations'";
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let found: Vec<(String, String)> =
        sqlx::query_as(query).fetch_all(&mut connection).await.unwrap();
    let expected = columns().await.into_iter().map(|(_, table, column, _)| (table, column));
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected.collect());
}

#[test]
fn the_walk_of_a_call_and_of_an_export_fit_one_screen() {
    for (file, start) in [
        ("proxy/src/serve.rs", "async fn call("),
        ("exporter/src/export.rs", "pub async fn export_telling("),
    ] {
        let text = read(file);
        let walk = &text[text.find(start).unwrap()..];
        let walk = walk.lines().take_while(|line| *line != "}");
        let lines = walk.filter(|line| !line.trim().is_empty()).count() + 1;
        assert!(lines <= 40, "{file}: the walk takes {lines} lines that are not blank");
    }
}

/// The files that CONTRIBUTING.md names for a first reading can be read in fifteen minutes.
#[test]
fn the_first_reading_is_short() {
    let page = read("CONTRIBUTING.md");
    let section = page.split_once("## Fifteen minutes").unwrap().1.split_once("\n## ").unwrap().0;
    let is_file = |name: &&str| tidy::root().join(name).is_file();
    let files: Vec<&str> = section.split('`').filter(is_file).collect();
    assert_eq!(files.len(), 9, "{files:?}");

    let lines = |file: &&str| tidy::product(&read(file)).lines().count();
    let sum: usize = files.iter().map(lines).sum();
    assert!(sum <= 1500, "{sum} lines");
}

/// The steps of CI, their short names and the page that lists them agree.
#[test]
fn the_steps_of_ci_are_listed_where_people_look() {
    let ci = read(".ci/run");
    let steps = ci.split_once("readonly STEPS=(").unwrap().1.split_once(')').unwrap().0;
    let steps: Vec<&str> = steps.split_whitespace().collect();
    let page = read("CONTRIBUTING.md");
    let listed = page.split_once("| step | runs |\n| --- | --- |\n").unwrap().1;
    let listed = listed.lines().take_while(|line| line.starts_with("| `"));
    let listed: Vec<&str> = listed.map(|line| line.split('`').nth(1).unwrap()).collect();
    assert_eq!(listed, steps, "CONTRIBUTING.md");
    let recipes = read("justfile");
    let short: BTreeSet<&str> =
        recipes.lines().filter_map(|line| line.trim().strip_prefix(".ci/run ")).collect();
    assert_eq!(short, steps.iter().copied().collect(), "justfile");
    for step in steps {
        assert!(recipes.contains(&format!("\n{step}:\n    .ci/run {step}\n")), "just {step}");
        assert!(ci.contains(&format!("\nstep_{step}()")), ".ci/run {step}");
    }
}
