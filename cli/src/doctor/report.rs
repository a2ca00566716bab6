//! The report on an upstream, as a page or as JSON.

use serde_json::{Value, json};
use wire::Difference;

use super::advice::Advice;
use super::findings::Findings;
use super::row::{HiddenReply, ProbeRow, name, names};
use crate::exit::Failure;
use crate::print;

/// The findings and the advice that follows from them.
pub(super) struct UpstreamReport<'a> {
    pub(super) findings: &'a Findings,
    pub(super) advice: &'a Advice,
}

/// Width of a page, in characters.
const WIDTH: usize = 100;
/// Longest policy versions in the table, in characters.
const VERSIONS_CHARS_MAX: usize = 12;
const HEAD: [&str; 10] =
    ["wire", "stream", "tools", "how", "ids", "logprobs", "prompt", "versions", "usage", "hidden"];

impl UpstreamReport<'_> {
    /// Prints a table with the advice below it.
    pub(super) fn print_page(&self) -> Result<(), Failure> {
        self.page().iter().try_for_each(|text| print::line(text))
    }

    fn page(&self) -> Vec<String> {
        let rows = &self.findings.rows;
        let mut page = self.heading();
        page.push(String::new());
        page.extend(print::table_text(&HEAD, &rows.iter().map(cells).collect::<Vec<_>>()));

        page.extend(list("errors", &errors(rows)));
        page.extend(differences(rows));
        page.extend(list("missing", &self.advice.missing));
        page.extend(list("worth knowing", &self.advice.notes));

        if self.advice.missing.is_empty() {
            let conclusion = match rows.iter().any(ProbeRow::is_unversioned) {
                false => "Nothing is missing: every sampling route reports its tokens exactly.",
                true => {
                    "Every sampling route reports its tokens exactly, but not all report which \
                     weights sampled them."
                }
            };
            page.extend([String::new(), conclusion.to_owned()]);
        }
        page
    }

    /// Prints one JSON object.
    pub(super) fn print_json(&self) -> Result<(), Failure> {
        let findings = self.findings;
        let rows: Vec<Value> = findings.rows.iter().map(ProbeRow::as_json).collect();

        print::line(
            &json!({
                "upstream": findings.upstream,
                "dialect": findings.dialect.as_str(),
                "version": findings.server.version,
                "system_fingerprint": findings.server.fingerprint,
                "weight_version": self.weights(),
                "logprob_kind": findings.logprob_kind,
                "kv_cache": findings.sampler.kv_cache(),
                "sampling_defaults": self.defaults(),
                "models": findings.server.models,
                "model": findings.model,
                "probes": rows,
                "missing": self.advice.missing,
                "notes": self.advice.notes,
                // Stricter than the exit code, which ignores missing versions.
                "complete": self.is_complete(),
            })
            .to_string(),
        )
    }

    /// True if every sampling route reports ids, logprobs and versions.
    fn is_complete(&self) -> bool {
        self.advice.missing.is_empty() && !self.findings.rows.iter().any(ProbeRow::is_unversioned)
    }

    fn weights(&self) -> Option<String> {
        let rows = &self.findings.rows;
        let by_server = self.findings.server.weights.clone();
        by_server.or_else(|| rows.iter().find_map(|row| row.versions.last().cloned()))
    }

    /// The sampling parameters that the server uses if a request names none.
    fn defaults(&self) -> String {
        let sampler = &self.findings.sampler;
        let bending = sampler.non_neutral_defaults();
        let source = sampler.source().map(|source| format!(" ({source})")).unwrap_or_default();

        let defaults = match (bending.is_empty(), sampler.knows_defaults()) {
            (true, true) => "temperature 1, nothing truncated or penalized".to_owned(),
            (true, false) => "not reported".to_owned(),
            (false, true) => bending.join(", "),
            (false, false) => format!("{}, others not reported", bending.join(", ")),
        };
        format!("{defaults}{source}")
    }

    /// The numbers of the upstream's KV cache, where they are not the model's own.
    fn kv_cache(&self) -> Option<String> {
        let numbers = self.findings.sampler.kv_cache()?;
        Some(format!("{numbers}: logprobs are those of a cache of fewer bits"))
    }

    /// The upstream's properties, one per line.
    fn heading(&self) -> Vec<String> {
        let Findings { upstream, dialect, server, model, logprob_kind, .. } = self.findings;

        let mut server_line = dialect.as_str().to_owned();
        server_line.extend(server.version.as_ref().map(|version| format!(" {version}")));
        server_line.extend(server.fingerprint.as_ref().map(|name| format!(" ({name})")));
        let model_line = match server.models.iter().filter(|other| *other != model).count() {
            0 => model.clone(),
            others => format!("{model} (and {others} more)"),
        };

        [
            ("upstream", Some(upstream.clone())),
            ("server", Some(server_line)),
            ("model", Some(model_line)),
            ("weights", self.weights()),
            ("logprobs", Some(kind_in_words(logprob_kind).to_owned())),
            ("defaults", Some(self.defaults())),
            ("kv cache", self.kv_cache()),
        ]
        .into_iter()
        .filter_map(|(property, value)| Some(format!("{property:<8}  {}", value?)))
        .collect()
    }
}

fn kind_in_words(kind: &str) -> &str {
    match kind {
        "processed" => "processed: the distribution that was sampled",
        "temperature" => "temperature: the whole distribution after temperature, before filters",
        "raw" => "raw: the model's own, before temperature",
        other => other,
    }
}

/// A titled list; nothing if it has no items.
fn list(title: &str, items: &[String]) -> Vec<String> {
    if items.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), format!("{title}:")];
    lines.extend(items.iter().flat_map(|text| print::wrapped("- ", text, WIDTH)));
    lines
}

/// The errors. One that several probes have is listed once.
fn errors(rows: &[ProbeRow]) -> Vec<String> {
    let mut errors: Vec<(&str, Vec<&ProbeRow>)> = Vec::new();
    for row in rows.iter().filter(|row| row.offered()) {
        let Some(error) = row.error.as_deref() else { continue };
        match errors.iter_mut().find(|(other, _)| *other == error) {
            Some((_, rows)) => rows.push(row),
            None => errors.push((error, vec![row])),
        }
    }
    errors.iter().map(|(error, rows)| format!("{}: {error}", names(rows))).collect()
}

/// The places where a hidden reply differs from a plain one, with excerpts of both. The lines are
/// not wrapped: an excerpt fits a line.
fn differences(rows: &[ProbeRow]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows {
        if lines.is_empty() && row.hidden.differs() {
            lines.extend([String::new(), "differences:".to_owned()]);
        }
        if let HiddenReply::Differs(Difference { at, one, other }) = &row.hidden {
            lines.push(format!("- {}, byte {at}:", name(row.probe)));
            for (reply, text) in [("unasked", one), ("hidden", other)] {
                lines.push(format!("  {reply:<7}  ...{}...", text.replace('\n', "\\n")));
            }
        }
    }
    lines
}

fn cells(row: &ProbeRow) -> Vec<String> {
    let versions = row.versions.join(",");

    vec![
        row.probe.route.as_str().to_owned(),
        yes_or_no(row.probe.streams),
        yes_or_no(row.probe.tools),
        match (row.offered(), row.error.is_some(), row.status) {
            (true, true, Some(_)) if row.broke_off() => "broken".to_owned(),
            // The exclamation mark tells an error's status from a number.
            (true, true, Some(status)) => format!("{status}!"),
            (true, true, None) => "silent".to_owned(),
            _ => row.served.as_str().to_owned(),
        },
        or_dash(row.ids),
        or_dash(Some(row.logprobs).filter(|_| row.answered())),
        or_dash(row.prompt_ids),
        or_dash(Some(shorten(&versions)).filter(|_| !versions.is_empty())),
        match row.counts_agree {
            Some(true) => "agrees".to_owned(),
            Some(false) => "differs".to_owned(),
            None => or_dash(row.counts.completion.map(|_| "told")),
        },
        match &row.hidden {
            HiddenReply::Differs(found) => format!("differs @{}", found.at),
            other => or_dash(other.as_str()),
        },
    ]
}

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn shorten(versions: &str) -> String {
    match versions.chars().count() > VERSIONS_CHARS_MAX {
        true => versions.chars().take(VERSIONS_CHARS_MAX - 3).chain("...".chars()).collect(),
        false => versions.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use wire::{Dialect, Probe, ServerInfo, ServerSampling};

    use super::super::findings::GivenOptions;
    use super::super::prompt_ids::PromptIdsFinding;
    use super::*;

    fn page(rows: &[ProbeRow], advice: &Advice) -> Vec<String> {
        page_of(rows, advice, b"{}")
    }

    /// The page for a server that says `about` of itself.
    fn page_of(rows: &[ProbeRow], advice: &Advice, about: &[u8]) -> Vec<String> {
        let mut sampler = ServerSampling::for_dialect(Dialect::Vllm);
        sampler.take(about);
        let models = vec!["m".to_owned(), "n".to_owned()];
        let server =
            ServerInfo { version: Some("0.33.0".to_owned()), models, ..ServerInfo::default() };
        let findings = Findings {
            upstream: "http://h:1".to_owned(),
            dialect: Dialect::Vllm,
            server,
            sampler,
            model: "m".to_owned(),
            logprob_kind: "raw".to_owned(),
            rows: rows.to_vec(),
            prompt_ids: PromptIdsFinding::default(),
            given: GivenOptions::default(),
        };
        UpstreamReport { findings: &findings, advice }.page()
    }

    #[test]
    fn the_widest_page_fits() {
        let wide = |probe| {
            let found = Difference { at: 99_999, one: "x".repeat(72), other: "{}".repeat(36) };
            let mut row = ProbeRow::new(probe);
            (row.status, row.ids, row.logprobs, row.prompt_ids) =
                (Some(200), Some(1000), 1000, Some(10_000));
            row.versions = vec!["a-hash-of-forty-characters-or-so-is-long".to_owned()];
            (row.counts_agree, row.hidden) = (Some(false), HiddenReply::Differs(found));
            row
        };
        let rows: Vec<ProbeRow> = Probe::all().into_iter().map(wide).collect();
        let advice = Advice { missing: vec!["many words ".repeat(40)], notes: Vec::new() };
        for line in page(&rows, &advice) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn a_kv_cache_of_fewer_bits_is_told() {
        assert!(!page(&[], &Advice::default()).iter().any(|line| line.starts_with("kv cache")));
        let told = page_of(
            &[],
            &Advice::default(),
            br#"{"vllm_config":{"model_config":{},
            "cache_config":{"cache_dtype":"fp8_e4m3"}}}"#,
        );
        assert!(told.iter().any(|line| line.starts_with("kv cache  fp8_e4m3: ")), "{told:?}");
    }

    #[test]
    fn one_error_of_many_probes_is_listed_once() {
        let denied = |probe| {
            let mut row = ProbeRow::new(probe);
            row.status = Some(401);
            row.fail("401 Unauthorized".to_owned());
            row
        };
        let rows: Vec<ProbeRow> = Probe::all().into_iter().map(denied).collect();
        let page = page(&rows, &Advice::default());
        let lines: Vec<_> = page.iter().filter(|line| line.contains("Unauthorized")).collect();
        assert_eq!(lines, ["- chat; completions; responses; messages: 401 Unauthorized"]);
        assert!(page[2].ends_with("m (and 1 more)"), "{}", page[2]);
        assert_eq!(page.iter().filter(|line| line.contains("401!")).count(), rows.len());
    }
}
