//! The findings, for people and for machines.

use serde_json::{Value, json};
use wire::{Dialect, Difference, Sampler, Server};

use super::advice::Advice;
use super::row::{Hidden, Row, name, names};
use crate::exit::Failure;
use crate::print;

/// Everything that was found.
pub(super) struct Report<'a> {
    pub(super) upstream: String,
    pub(super) dialect: Dialect,
    pub(super) server: &'a Server,
    pub(super) sampler: &'a Sampler,
    pub(super) model: &'a str,
    pub(super) logprob_kind: &'a str,
    pub(super) rows: &'a [Row],
    pub(super) advice: &'a Advice,
}

/// Columns that a page has.
const WIDTH: usize = 100;
/// Longest names of policy versions that are shown in the table, in characters.
const VERSIONS_CHARS_MAX: usize = 12;
const HEAD: [&str; 10] =
    ["wire", "stream", "tools", "how", "ids", "logprobs", "prompt", "versions", "usage", "hidden"];

impl Report<'_> {
    /// Prints it as a table with what is missing below.
    pub(super) fn draw(&self) -> Result<(), Failure> {
        self.page().iter().try_for_each(|text| print::line(text))
    }

    fn page(&self) -> Vec<String> {
        let mut page = self.who();
        page.push(String::new());
        page.extend(print::columns(&HEAD, &self.rows.iter().map(cells).collect::<Vec<_>>()));
        list("errors", &errors(self.rows), &mut page);
        page.extend(differences(self.rows));
        list("missing", &self.advice.missing, &mut page);
        list("worth knowing", &self.advice.notes, &mut page);
        if self.advice.missing.is_empty() {
            let well = match self.rows.iter().any(Row::is_unversioned) {
                false => "Nothing is missing: every route that samples tells its tokens exactly.",
                true => {
                    "Every route that samples tells its tokens exactly, but not all tell which \
                     weights they are of."
                }
            };
            page.extend([String::new(), well.to_owned()]);
        }
        page
    }

    /// Prints it as one JSON object.
    pub(super) fn as_json(&self) -> Result<(), Failure> {
        let rows: Vec<Value> = self.rows.iter().map(Row::as_json).collect();
        print::line(
            &json!({
                "upstream": self.upstream,
                "dialect": self.dialect.as_str(),
                "version": self.server.version,
                "system_fingerprint": self.server.fingerprint,
                "weight_version": self.weights(),
                "logprob_kind": self.logprob_kind,
                "sampling_defaults": self.defaults(),
                "models": self.server.models,
                "model": self.model,
                "probes": rows,
                "missing": self.advice.missing,
                "notes": self.advice.notes,
                "complete": self.is_complete(),
            })
            .to_string(),
        )
    }

    /// Whether ids, logprobs and versions are there wherever tokens are sampled.
    fn is_complete(&self) -> bool {
        self.advice.missing.is_empty() && !self.rows.iter().any(Row::is_unversioned)
    }

    fn weights(&self) -> Option<String> {
        let reported = || self.rows.iter().find_map(|row| row.versions.last().cloned());
        self.server.weights.clone().or_else(reported)
    }

    /// The sampling parameters that the server uses where a request names none.
    fn defaults(&self) -> String {
        let bending = self.sampler.bending();
        let source = self.sampler.source().map(|source| format!(" ({source})")).unwrap_or_default();
        let told = match (bending.is_empty(), self.sampler.tells_defaults()) {
            (true, true) => "temperature 1, nothing cut off or penalized".to_owned(),
            (true, false) => "not told".to_owned(),
            (false, true) => bending.join(", "),
            (false, false) => format!("{}, others not told", bending.join(", ")),
        };
        format!("{told}{source}")
    }

    /// Who the upstream is, a line for each thing that is known.
    fn who(&self) -> Vec<String> {
        let version = self.server.version.as_ref().map(|version| format!(" {version}"));
        let named = self.server.fingerprint.as_ref().map(|name| format!(" ({name})"));
        let others = self.server.models.iter().filter(|model| *model != self.model).count() as u64;
        let more = match others {
            0 => String::new(),
            _ => format!(" (and {others} more)"),
        };
        let server = [Some(self.dialect.as_str().to_owned()), version, named];
        let known = [
            ("upstream", Some(self.upstream.clone())),
            ("server", Some(server.into_iter().flatten().collect())),
            ("model", Some(format!("{}{more}", self.model))),
            ("weights", self.weights()),
            ("logprobs", Some(kind_in_words(self.logprob_kind).to_owned())),
            ("defaults", Some(self.defaults())),
        ];
        let known = known.into_iter().filter_map(|(what, said)| Some((what, said?)));
        known.map(|(what, said)| format!("{what:<8}  {said}")).collect()
    }
}

fn kind_in_words(kind: &str) -> &str {
    match kind {
        "processed" => "processed: of the distribution that was sampled",
        "temperature" => "temperature: of the whole distribution after temperature, before filters",
        "raw" => "raw: the model's own, before temperature",
        other => other,
    }
}

fn list(title: &str, said: &[String], page: &mut Vec<String>) {
    if !said.is_empty() {
        page.extend([String::new(), format!("{title}:")]);
        page.extend(said.iter().flat_map(|text| print::wrapped("- ", text, WIDTH)));
    }
}

/// What went wrong; what the server says of many probes is said once.
fn errors(rows: &[Row]) -> Vec<String> {
    let mut told: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.offered()) {
        let Some(error) = row.error.as_deref() else { continue };
        match told.iter_mut().find(|(other, _)| *other == error) {
            Some((_, rows)) => rows.push(row),
            None => told.push((error, vec![row])),
        }
    }
    told.iter().map(|(error, rows)| format!("{}: {error}", names(rows))).collect()
}

/// Where what an agent is given is not what it would be given unasked, with both. Not wrapped: the
/// excerpts are as wide as a line.
fn differences(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows {
        if lines.is_empty() && row.hidden.differs() {
            lines.extend([String::new(), "differences:".to_owned()]);
        }
        if let Hidden::Differs(Difference { at, one, other }) = &row.hidden {
            lines.push(format!("- {}, byte {at}:", name(row.probe)));
            for (what, said) in [("unasked", one), ("hidden", other)] {
                lines.push(format!("  {what:<7}  ...{}...", said.replace('\n', "\\n")));
            }
        }
    }
    lines
}

fn cells(row: &Row) -> Vec<String> {
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let number = |n: Option<usize>| or_dash(n.map(|n| n.to_string()));
    vec![
        row.probe.route.as_str().to_owned(),
        yes(row.probe.streams),
        yes(row.probe.tools),
        match (row.offered(), row.error.is_some(), row.status) {
            (true, true, Some(_)) if row.broke_off() => "broken".to_owned(),
            (true, true, Some(status)) => format!("{status}!"),
            (true, true, None) => "silent".to_owned(),
            _ => row.how.as_str().to_owned(),
        },
        number(row.ids),
        number(Some(row.logprobs).filter(|_| row.answered())),
        number(row.prompt_ids),
        or_dash(Some(cut(&row.versions.join(","))).filter(|text| !text.is_empty())),
        match row.counts_agree {
            Some(true) => "agrees".to_owned(),
            Some(false) => "differs".to_owned(),
            None => or_dash(row.counts.completion.map(|_| "told".to_owned())),
        },
        match &row.hidden {
            Hidden::Differs(found) => format!("differs @{}", found.at),
            other => or_dash(other.as_str().map(str::to_owned)),
        },
    ]
}

fn cut(versions: &str) -> String {
    match versions.chars().count() > VERSIONS_CHARS_MAX {
        true => versions.chars().take(VERSIONS_CHARS_MAX - 3).chain("...".chars()).collect(),
        false => versions.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use wire::Probe;

    use super::*;

    fn page(rows: &[Row], advice: &Advice) -> Vec<String> {
        let models = vec!["m".to_owned(), "n".to_owned()];
        let server = Server { version: Some("0.33.0".to_owned()), models, ..Server::default() };
        let upstream = "http://h:1".to_owned();
        let (model, dialect, logprob_kind) = ("m", Dialect::Vllm, "raw");
        let sampler = &Sampler::of(dialect);
        let server = &server;
        Report { upstream, dialect, server, sampler, model, logprob_kind, rows, advice }.page()
    }

    #[test]
    fn the_widest_page_fits() {
        let wide = |probe| {
            let found = Difference { at: 99_999, one: "x".repeat(72), other: "{}".repeat(36) };
            let mut row = Row::new(probe);
            (row.status, row.ids, row.logprobs, row.prompt_ids) =
                (Some(200), Some(1000), 1000, Some(10_000));
            row.versions = vec!["a-hash-of-forty-characters-or-so-is-long".to_owned()];
            (row.counts_agree, row.hidden) = (Some(false), Hidden::Differs(found));
            row
        };
        let rows: Vec<Row> = Probe::all().into_iter().map(wide).collect();
        let advice = Advice { missing: vec!["many words ".repeat(40)], notes: Vec::new() };
        for line in page(&rows, &advice) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn one_error_of_many_probes_is_said_once() {
        let denied = |probe| {
            let mut row = Row::new(probe);
            row.status = Some(401);
            row.failed("401 Unauthorized".to_owned());
            row
        };
        let rows: Vec<Row> = Probe::all().into_iter().map(denied).collect();
        let page = page(&rows, &Advice::default());
        let said: Vec<_> = page.iter().filter(|line| line.contains("Unauthorized")).collect();
        assert_eq!(said, ["- chat; completions; responses; messages: 401 Unauthorized"]);
        assert!(page[2].ends_with("m (and 1 more)"), "{}", page[2]);
        assert_eq!(page.iter().filter(|line| line.contains("401!")).count(), rows.len());
    }
}
