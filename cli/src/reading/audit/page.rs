//! The page of an audit: the verdict, the causes, the histogram, and where the gaps are.

use exporter::{AuditFinding, AuditReport, AuditWord, Gaps};

use crate::print::count;
use crate::terminal::table::{TableCell, plain, table};
use crate::terminal::{Line, Style};

/// Width of the longest bar, in characters.
const BAR: u64 = 40;

pub(super) fn lines(report: &AuditReport) -> Vec<Line> {
    let (style, word) = match report.verdict {
        AuditWord::Differs => (Style::Red, "differs"),
        AuditWord::NoEvidence => (Style::Plain, "no evidence"),
        AuditWord::Clean => (Style::Green, "clean"),
    };
    let mut lines = vec![Line::styled(style, word)];
    lines.extend(report.causes.iter().flat_map(cause));
    lines.push(Line::default());
    lines.extend(histogram(report));

    for (name, parts) in [("version", &report.by_version), ("engine", &report.by_engine)] {
        lines.extend(by(name, parts.iter().map(|(part, gaps)| (part.as_str(), gaps))));
    }
    let places = report.by_position.iter().map(|(place, gaps)| (&place[2..], gaps));
    lines.extend(by("place in the reply", places));
    if report.verdict == AuditWord::Differs {
        let attempts = report.by_attempt.iter().map(|(part, gaps)| (part.as_str(), gaps));
        lines.extend(by("episode", attempts));
    }
    lines.push(Line::default());
    lines.extend(summary(report));
    lines
}

fn cause(found: &AuditFinding) -> Vec<Line> {
    let style = if found.cause.is_fault() { Style::Red } else { Style::Plain };
    let left = found.mean_gap_left.map(|left| format!(", {left:.6} with it")).unwrap_or_default();
    let proof = if found.proven { "" } else { ", by what is left" };
    let mut lines = vec![
        Line::default(),
        Line::styled(style, found.cause.as_str()),
        format!("  {}", found.sentence).into(),
        format!("  {}, mean gap {:.6}{left}{proof}", count(found.tokens, "token"), found.mean_gap)
            .into(),
    ];
    let lists =
        [("versions", &found.versions), ("engines", &found.engines), ("episodes", &found.attempts)];
    for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        lines.push(format!("  {name}: {}", list.join(", ")).into());
    }
    lines
}

/// The numbers of tokens by the amount of their gap.
fn histogram(report: &AuditReport) -> Vec<Line> {
    let most = report.histogram.iter().map(|bar| bar.tokens).max().unwrap_or_default().max(1);
    let row = |bar: &exporter::HistogramBar| -> Vec<TableCell> {
        let edge = bar.below.map_or("more".to_owned(), |below| format!("below {below}"));
        let width = (bar.tokens * BAR).div_ceil(most);
        vec![plain(edge), plain(bar.tokens), plain("#".repeat(width as usize))]
    };
    let rows = report.histogram.iter().map(row).collect();
    table([("gap, in nats", 0), ("tokens", 1), ("", 0)], rows, None)
}

/// The gaps by part, in the order in which the parts come; nothing of a single part.
fn by<'a>(name: &str, parts: impl ExactSizeIterator<Item = (&'a str, &'a Gaps)>) -> Vec<Line> {
    if parts.len() < 2 {
        return Vec::new();
    }
    let row = |(part, gaps): (&str, &Gaps)| {
        let number = |value: f64| plain(format!("{value:.6}"));
        let Gaps { tokens, mean, mean_abs, max_abs, kl } = gaps;
        let numbers = [mean, mean_abs, max_abs, kl].map(|value| number(*value));
        let part = if part.is_empty() { "-" } else { part };
        [plain(part), plain(tokens)].into_iter().chain(numbers).collect()
    };
    let rows = parts.map(row).collect();
    let columns =
        [(name, 0), ("tokens", 1), ("mean", 1), ("mean amount", 1), ("largest", 1), ("kl", 1)];
    [Line::default()].into_iter().chain(table(columns, rows, None)).collect()
}

fn summary(report: &AuditReport) -> Vec<Line> {
    let Gaps { mean_abs, max_abs, kl, .. } = report.gaps;
    let mut lines = vec![
        format!(
            "{} of {} in {} compared: mean gap {mean_abs:.6}, largest {max_abs:.4}, kl {kl:.2e}",
            report.compared,
            count(report.tokens, "sampled token"),
            count(report.rows, "row"),
        )
        .into(),
    ];
    for (reason, tokens) in &report.left_out {
        lines.push(format!("not compared: {}, {reason}", count(*tokens, "token")).into());
    }
    lines
}
