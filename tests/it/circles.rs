//! Neither files nor rooms of one crate import each other in circles.
//!
//! A file is a module. It imports what its `use` statements and its paths name, down to the deepest
//! module of that name. A parent and its child may name each other. A room is a folder, with the
//! file of its name, or a file beside folders; it imports what its files import.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tidy::{ARROWS, files, product, root};

/// Rooms that still stand in circles, as crate and room. It may only shrink.
const EXCEPTIONS: [(&str, &str); 0] = [];

type Module = Vec<String>;

/// The modules of a crate, each with those that it imports.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

fn graph(source: &Path) -> Graph {
    let mut found = Vec::new();
    files(source, "rs", &mut found);
    let mut texts = BTreeMap::new();
    for path in found {
        let relative = path.strip_prefix(source).unwrap().with_extension("");
        let mut module: Module =
            relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        if ["lib", "main"].contains(&module.last().unwrap().as_str()) {
            module.pop();
        }
        texts.insert(module, std::fs::read_to_string(&path).unwrap());
    }
    let known: BTreeSet<Module> = texts.keys().cloned().collect();
    let imports = |module: &Module, text: &str| {
        let named = paths(&code(product(text)));
        let targets = named.iter().filter_map(|path| target(module, path, &known));
        targets.filter(|target| !related(module, target)).collect()
    };
    texts.iter().map(|(module, text)| (module.clone(), imports(module, text))).collect()
}

/// A text without its comments.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// All paths that a text names: those of `use` trees, and those that stand in expressions.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = String::new();
    let mut statements = code.split(';').peekable();
    while let Some(statement) = statements.next() {
        let at = statement.rfind("use ").filter(|at| {
            let before = statement[..*at].trim_end();
            statements.peek().is_some()
                && (before.is_empty()
                    || before.ends_with(['}', ']', ')'])
                    || before.ends_with("pub"))
        });
        match at {
            Some(at) => {
                rest.push_str(&statement[..at]);
                expand(&[], &statement[at + 4..], &mut found);
            }
            None => rest.push_str(statement),
        }
        rest.push(';');
    }
    let is_path = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
    for word in rest.split(is_path).filter(|word| word.contains("::")) {
        let parts = word.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
        found.push(parts.collect());
    }
    found
}

/// The leaves of a `use` tree.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let mut depth = 0;
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[start..]);
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        let (head, inner) = part.split_once('{').unwrap_or((part, ""));
        let head = head.split(" as ").next().unwrap_or_default();
        let names = head.split("::").map(str::trim).filter(|name| !name.is_empty());
        let mut path = prefix.to_vec();
        path.extend(names.map(str::to_owned));
        match inner.rsplit_once('}') {
            Some((inner, _)) => expand(&path, inner, found),
            None => found.push(path),
        }
    }
}

/// The module that a path leads to, if it is another one of the crate.
fn target(module: &Module, path: &[String], known: &BTreeSet<Module>) -> Option<Module> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let mut whole: Module = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "super" => [&module[..module.len().checked_sub(supers)?], &path[supers..]].concat(),
        "self" => [module, &path[1..]].concat(),
        _ => {
            let whole = [module, path].concat();
            known.contains(&whole[..=module.len()]).then_some(whole)?
        }
    };
    while !known.contains(&whole) {
        whole.pop()?;
    }
    Some(whole)
}

fn related(one: &Module, other: &Module) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Everything that a module reaches.
fn reach<'a>(graph: &'a Graph, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(module) = waiting.pop() {
        let new = graph[module].iter().filter(|next| reached.insert(*next));
        waiting.extend(new);
    }
    reached
}

fn in_circles(graph: &Graph) -> Vec<String> {
    let circular = graph.keys().filter(|module| reach(graph, module).contains(*module));
    circular.map(|module| module.join("::")).collect()
}

/// The rooms inside a module, each with those beside it that its files import.
fn rooms(graph: &Graph, inside: &[String]) -> Graph {
    let room = |module: &Module| {
        module.starts_with(inside).then(|| module.get(..=inside.len()).map(<[String]>::to_vec))?
    };
    let mut found = Graph::new();
    for (module, imports) in graph {
        let Some(from) = room(module) else { continue };
        let to = imports.iter().filter_map(room).filter(|to| *to != from);
        found.entry(from.clone()).or_default().extend(to);
    }
    found
}

/// The crates that have sources of their own beside tests and benchmarks.
fn crates() -> impl Iterator<Item = &'static str> {
    ARROWS.iter().map(|(name, _)| *name).filter(|name| !["tests", "benches"].contains(name))
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    for name in crates() {
        let graph = graph(&root().join(name).join("src"));
        assert!(graph.len() > 5, "{name} was not read");
        let found = in_circles(&graph);
        assert!(found.is_empty(), "{name}: files in circles: {found:?}");
    }
}

#[test]
fn rooms_do_not_import_each_other_in_circles() {
    for name in crates() {
        let graph = graph(&root().join(name).join("src"));
        let mut found = in_circles(&rooms(&graph, &[]));
        found.retain(|room| !EXCEPTIONS.contains(&(name, room)));
        assert!(found.is_empty(), "{name}: rooms in circles: {found:?}");
    }
}

#[test]
fn a_circle_of_rooms_is_found_where_no_file_is_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    write("lib.rs", "mod a;\nmod b;\n");
    write("a.rs", "mod high;\nmod low;\n");
    write("a/high.rs", "use crate::b::Two;\n");
    write("a/low.rs", "pub(crate) struct One;\n");
    write("b.rs", "use crate::a::low::One;\n");
    let graph = graph(folder.path());
    assert!(in_circles(&graph).is_empty());
    assert_eq!(in_circles(&rooms(&graph, &[])), ["a", "b"]);
}

#[test]
fn a_circle_is_found_however_it_is_spelled() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use a::One;\n");
    write("a.rs", "use std::io;\nuse crate::{b::Two, c};\n");
    write("b.rs", "fn two() -> u8 { super::c::three() }\n");
    write("c.rs", "#[derive(Debug)]\nstruct C;\n\npub(crate) use crate::a::One as Other;\n");
    write("d.rs", "use crate::a; // crate::d\n#[cfg(test)]\nmod tests { use crate::d; }\n");
    assert_eq!(in_circles(&graph(folder.path())), ["a", "b", "c"]);
    write("c.rs", "// use crate::a::One;\n");
    assert!(in_circles(&graph(folder.path())).is_empty());
}
