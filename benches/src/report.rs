//! The figures as a table and as JSON: the median of the rounds, and ratios to the floors.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cell::{BenchCell, CELLS, Figures, Measured};
use crate::shapes::Shape;
use crate::subject::Kind;

/// A figure of a measurement, by name.
type FigureField = (&'static str, fn(&Figures) -> f64);

const FIELDS: [FigureField; 9] = [
    ("cpu_s_per_1000_calls", |f| f.cpu_s),
    ("calls_per_s", |f| f.calls),
    ("events_per_s", |f| f.events),
    ("p50_ms", |f| f.p50_ms),
    ("p99_ms", |f| f.p99_ms),
    ("first_byte_p50_ms", |f| f.first_byte_ms),
    ("resident_growth_mib", |f| f.grown_mib),
    ("disk_bytes_per_call", |f| f.disk_bytes),
    ("failed", |f| f.failed),
];

/// The table in Markdown: a section for each cell, a line for each subject.
pub(crate) fn table(measured: &[Measured]) -> String {
    let mut out = String::new();
    for cell in CELLS {
        let kinds = kinds(measured, cell);
        if kinds.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "\n**{}**\n\n| | CPU s/1000 | x floor | calls/s | events/s | p50 ms | p99 ms | first \
             byte ms | + MiB | disk B/call | failed |\n\
             |---|---|---|---|---|---|---|---|---|---|---|",
            cell.name
        );

        let floor = median(measured, cell, Kind::Tee, |f| cost(cell, f));
        for kind in kinds {
            let of = |field: fn(&Figures) -> f64| median(measured, cell, kind, field);
            let ratio = median(measured, cell, kind, |f| cost(cell, f)) / floor;
            let _ = writeln!(
                out,
                "| {} | {:.4} | {ratio:.2} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | \
                 {:.0} | {:.0} |",
                kind.name(),
                of(|f| f.cpu_s),
                of(|f| f.calls),
                of(|f| f.events),
                of(|f| f.p50_ms),
                of(|f| f.p99_ms),
                of(|f| f.first_byte_ms),
                of(|f| f.grown_mib),
                of(|f| f.disk_bytes),
                of(|f| f.failed),
            );
        }
    }
    out
}

/// The figure that subjects are compared by.
fn cost(cell: &BenchCell, figures: &Figures) -> f64 {
    if cell.shape == Shape::Stalled { figures.grown_mib } else { figures.cpu_s }
}

/// The figures as JSON: each cell, each subject, the median and every round.
pub(crate) fn json(measured: &[Measured]) -> Value {
    let mut cells = serde_json::Map::new();
    for cell in CELLS {
        let mut subjects = serde_json::Map::new();
        for kind in kinds(measured, cell) {
            let mut fields = serde_json::Map::new();
            for (name, field) in FIELDS {
                let rounds: Vec<f64> = values(measured, cell, kind, field).collect();
                let median = median(measured, cell, kind, field);
                fields.insert(name.to_owned(), json!({ "median": median, "rounds": rounds }));
            }
            subjects.insert(kind.name().to_owned(), Value::Object(fields));
        }
        if !subjects.is_empty() {
            cells.insert(cell.name.to_owned(), Value::Object(subjects));
        }
    }
    Value::Object(cells)
}

/// The subjects that a cell was measured with, in order.
fn kinds(measured: &[Measured], cell: &BenchCell) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for one in measured.iter().filter(|one| one.cell.name == cell.name) {
        if !kinds.contains(&one.kind) {
            kinds.push(one.kind);
        }
    }
    kinds
}

fn values<'a>(
    measured: &'a [Measured],
    cell: &'a BenchCell,
    kind: Kind,
    field: impl Fn(&Figures) -> f64 + 'a,
) -> impl Iterator<Item = f64> + 'a {
    measured
        .iter()
        .filter(move |one| one.cell.name == cell.name && one.kind == kind)
        .map(move |one| field(&one.figures))
}

fn median(
    measured: &[Measured],
    cell: &BenchCell,
    kind: Kind,
    field: impl Fn(&Figures) -> f64,
) -> f64 {
    let mut rounds: Vec<f64> = values(measured, cell, kind, field).collect();
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}
