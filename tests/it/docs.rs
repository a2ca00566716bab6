//! What the documents say is what there is.

use std::collections::BTreeSet;
use std::path::Path;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The views of a store with their columns, as the migrations leave them.
async fn views() -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let (store, writer) = store::Store::open(&path, store::Durability::Power).await.unwrap();
    drop(store);
    writer.finish().await;
    let query = "SELECT m.name, i.name FROM sqlite_schema m \
                 JOIN pragma_table_info(m.name) i WHERE m.type = 'view'";
    sqlx::query_as(query).fetch_all(&mut kit::sql(&path).await).await.unwrap()
}

#[tokio::test]
async fn every_column_of_every_view_is_documented() {
    let schema = read("docs/schema.md");
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<_> = schema.split(|c| !word(c)).collect();
    let columns = views().await;
    assert!(columns.len() > 30, "the views were not read");
    for (view, column) in &columns {
        assert!(schema.contains(&format!("`{view}`")), "{view} is not documented");
        assert!(words.contains(column.as_str()), "{view}.{column} is not documented");
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
