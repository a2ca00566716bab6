//! The documents agree with the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
    let connection = kit::sql(&path);
    let mut columns = connection.prepare(query).unwrap();
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    columns.query_map((), row).unwrap().map(Result::unwrap).collect()
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
        ("exporter/src/export.rs", "pub async fn export_with_progress("),
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
    assert_eq!(files.len(), 10, "{files:?}");

    let lines = |file: &&str| tidy::product(&read(file)).lines().count();
    let sum: usize = files.iter().map(lines).sum();
    assert!(sum <= 1500, "{sum} lines");
}

/// Each promise of the threat model names a test that is there, as `FILE::NAME` or `FILE`, and each
/// file of attacks is named.
#[test]
fn the_promises_of_the_threat_model_are_held_by_tests() {
    let page = read("docs/security.md");
    let folders = ["tests/attacks", "tests/python", "tests/it"];
    let text_of = |file: &str| {
        let paths = folders.map(|folder| tidy::root().join(folder).join(file));
        paths.into_iter().find_map(|path| std::fs::read_to_string(path).ok())
    };
    let is_test = |word: &&str| {
        let file = word.split("::").next().unwrap_or(word);
        !word.contains(' ') && (file.ends_with(".rs") || file.starts_with("test_"))
    };

    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains("::"));
    assert!(rows.count() > 30, "the promises were not read");
    let (mut named, mut missing) = (BTreeSet::new(), Vec::new());
    for word in page.split('`').skip(1).step_by(2).filter(is_test) {
        let (file, test) = word.split_once("::").unwrap_or((word, ""));
        let text = text_of(file).unwrap_or_default();
        let is_there = [format!("def {test}("), format!("fn {test}(")];
        if text.is_empty() || (!test.is_empty() && !is_there.iter().any(|fun| text.contains(fun))) {
            missing.push(word);
        }
        named.insert(file.to_owned());
    }
    assert!(missing.is_empty(), "docs/security.md names what is not there: {missing:?}");

    let mut attacks = Vec::new();
    tidy::files(&tidy::root().join("tests/attacks"), "py", &mut attacks);
    for path in attacks {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_named = !name.starts_with("test_") || named.contains(&name);
        assert!(is_named, "docs/security.md does not name {name}");
    }
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
    let tiers = ["quick", "whole"];
    assert_eq!(short, steps.iter().copied().chain(tiers).collect(), "justfile");
    for step in steps {
        assert!(recipes.contains(&format!("\n{step}:\n    .ci/run {step}\n")), "just {step}");
        assert!(ci.contains(&format!("\nstep_{step}()")), ".ci/run {step}");
    }
}

/// The files in which bounds are named.
const BOUNDS: [&str; 6] = [
    "proxy/src/bounds.rs",
    "http/src/bounds.rs",
    "control/src/bounds.rs",
    "wire/src/bounds.rs",
    "engine/src/bounds.rs",
    "viewer/src/bounds.rs",
];

/// `docs/SUMMARY.md` is what mdBook makes the book of.
#[test]
fn the_book_has_every_page_once() {
    let folder = tidy::root().join("docs");
    let mut pages = Vec::new();
    for part in ["", "design/", "recipes/"] {
        let names = std::fs::read_dir(folder.join(part)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names = names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md");
        pages.extend(names.map(|name| format!("{part}{name}")));
    }
    pages.sort();

    let summary = read("docs/SUMMARY.md");
    let mut listed: Vec<&str> = summary.lines().filter_map(linked).collect();
    listed.sort_unstable();
    assert_eq!(listed, pages);
}

/// The file that a line links to first.
fn linked(line: &str) -> Option<&str> {
    line.split_once("](")?.1.split(')').next()
}

/// The decisions, by number: (file, title, date, status).
fn decisions() -> Vec<(String, String, String, String)> {
    let mut files = Vec::new();
    tidy::files(&tidy::root().join("docs/design"), "md", &mut files);
    files.sort();

    let decision = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines().filter(|line| !line.is_empty());
        let title = lines.next().unwrap().split_once(": ").expect("a number and a title").1;

        let head = lines.next().unwrap().strip_prefix("Date: ");
        let head = head.and_then(|rest| rest.split_once(". Status: "));
        let (date, status) = head.unwrap_or_else(|| panic!("{file}: no date and status"));
        let status = status.split(['.', ';']).next().unwrap();
        (file.clone(), title.to_owned(), date.to_owned(), status.to_owned())
    };
    files.iter().map(decision).collect()
}

/// A decision has a day, and is accepted, or names one that is there.
#[test]
fn decisions_have_a_date_and_a_status() {
    let all = decisions();
    let is_there = |number: &str| all.iter().any(|(file, ..)| file.starts_with(number));
    for (file, _, date, status) in &all {
        let digits = date.split('-').map(str::len).collect::<Vec<_>>() == [4, 2, 2];
        assert!(digits && date.replace('-', "").parse::<u32>().is_ok(), "{file}: `{date}`");

        let changed = ["superseded by ", "amended by "];
        let by = changed.iter().find_map(|words| status.strip_prefix(words));
        let is_known = by.map_or(status == "accepted", |by| by.len() == 4 && is_there(by));
        assert!(is_known, "{file}: `{status}`");
    }
}

/// The decisions as a table of `docs/README.md`.
fn decisions_table() -> String {
    let mut table =
        "\n| decision | about | date | status |\n| --- | --- | --- | --- |\n".to_owned();
    for (file, title, date, status) in decisions() {
        let number = &file[..4];
        table += &format!("| [{number}](design/{file}) | {title} | {date} | {status} |\n");
    }
    table
}

/// The pages in the order of `docs/README.md`, as mdBook reads them.
fn summary(index: &str) -> String {
    let mut summary = "# Summary\n\n[rolltape](README.md)\n".to_owned();
    for line in index.lines() {
        if let Some(part) = line.strip_prefix("## ") {
            summary += &format!("\n# {part}\n\n");
        } else if let Some(page) = linked(line).filter(|_| line.starts_with("| [")) {
            let text = read(&format!("docs/{page}"));
            let title = text.lines().next().unwrap().trim_start_matches("# ");
            summary += &format!("- [{title}]({page})\n");
        }
    }
    summary
}

/// `UPDATE_DOCS=1 cargo test -p tests docs` writes the list of decisions and the summary.
#[test]
fn the_book_has_the_order_of_the_list() {
    const START: &str = "<!-- Made from design/ by a test. -->\n";
    let page = read("docs/README.md");
    let (before, listed) = page.split_once(START).expect("the list of decisions has a mark");
    let decisions = decisions_table();
    let made = summary(&format!("{before}{decisions}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let docs = tidy::root().join("docs");
        std::fs::write(docs.join("README.md"), format!("{before}{START}{decisions}")).unwrap();
        std::fs::write(docs.join("SUMMARY.md"), made).unwrap();
    } else {
        assert_eq!(listed, decisions, "run with UPDATE_DOCS=1");
        assert_eq!(read("docs/SUMMARY.md"), made, "run with UPDATE_DOCS=1");
    }
}

/// The table of generated files names what is there, and commands that the code names too.
/// The meanings of a table's words that the page shows: those of the first column of the table
/// whose header starts with `header`.
fn meanings<'a>(page: &'a str, header: &str) -> Vec<&'a str> {
    let (_, table) = page.split_once(header).expect("the page has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('|').nth(2)).map(str::trim).collect()
}

#[test]
fn the_page_is_built_with_the_meanings_that_the_documents_have() {
    let script = read("viewer/page/dist/app.js");
    for (file, header) in
        [("docs/export.md", "| reason | meaning |"), ("docs/forks.md", "| cause | meaning |")]
    {
        let page = read(file);
        let meanings = meanings(&page, header);
        assert!(!meanings.is_empty(), "{file} has no `{header}`");
        let missing: Vec<_> = meanings.iter().filter(|text| !script.contains(**text)).collect();
        assert!(missing.is_empty(), "in viewer/page, `npm run build`; {file}: {missing:?}");
    }
}

#[test]
fn generated_files_are_there() {
    let page = read("docs/generated.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() > 20, "the table was not read");
    for row in &rows {
        for name in row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2) {
            assert!(tidy::root().join(name).exists(), "docs/generated.md names {name}");
        }
    }

    let mut files = Vec::new();
    tidy::files(&tidy::root(), "rs", &mut files);
    let code: Vec<String> =
        files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let commands = page.split('`').filter(|words| words.starts_with("UPDATE_DOCS=1 cargo"));
    for command in commands {
        let quoted = format!("`{command}`");
        assert!(code.iter().any(|text| text.contains(&quoted)), "{command}");
    }
}

/// A bound's value in words: a size, a time or a number.
fn bound_value(name: &str, value: &str) -> String {
    for (start, unit) in [("Duration::from_secs(", "s"), ("Duration::from_millis(", "ms")] {
        if let Some(number) = value.strip_prefix(start) {
            return format!("{} {unit}", number.trim_end_matches(')'));
        }
    }
    let number = |text: &str| text.replace('_', "").parse::<u64>();
    let (base, bits) = value.split_once(" << ").unwrap_or((value, "0"));
    let (Ok(base), Ok(bits)) = (number(base), number(bits)) else {
        return value.to_owned();
    };
    let whole = base << bits;
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |(bits, _): &&(u64, &str)| whole >= 1 << bits && whole.is_multiple_of(1 << bits);
    match units.iter().find(fits).filter(|_| name.contains("BYTES")) {
        Some((bits, unit)) => format!("{} {unit}", whole >> bits),
        None => whole.to_string(),
    }
}

/// The bounds of the files as a table for each.
fn bounds_table() -> String {
    let mut page = String::new();
    for file in BOUNDS.into_iter().filter(|file| tidy::root().join(file).is_file()) {
        page += &format!("\n`{file}`\n\n| bound | value | of |\n| --- | --- | --- |\n");
        let mut meaning = Vec::new();
        // A constant may take two lines.
        let text = read(file).replace("=\n    ", "= ");
        for line in text.lines() {
            if let Some(words) = line.strip_prefix("/// ") {
                meaning.push(words.to_owned());
            } else if let Some((name, rest)) = line
                .strip_prefix("pub(crate) const ")
                .or_else(|| line.strip_prefix("pub const "))
                .and_then(|constant| constant.split_once(": "))
            {
                let value = rest.split_once(" = ").unwrap().1.trim_end_matches(';');
                let words = std::mem::take(&mut meaning).join(" ");
                page += &format!("| `{name}` | {} | {words} |\n", bound_value(name, value));
            } else {
                meaning.clear();
            }
        }
    }
    page
}

/// `UPDATE_DOCS=1 cargo test -p tests docs` writes the list instead of comparing it.
#[test]
fn every_bound_is_listed_with_its_value() {
    const START: &str = "<!-- Made from the code by a test. -->\n";
    let page = read("docs/bounds.md");
    let (before, listed) = page.split_once(START).expect("the list of bounds has a mark");
    let made = bounds_table();
    assert!(made.contains("| `EVENT_BYTES_MAX` | 64 MiB |"), "{made}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(tidy::root().join("docs/bounds.md"), format!("{before}{START}{made}"))
            .unwrap();
    } else {
        assert_eq!(listed, made, "run with UPDATE_DOCS=1");
    }
}
