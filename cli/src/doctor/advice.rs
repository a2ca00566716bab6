//! Advice on missing tokens: each thing that is missing, and the option or flag that gives it.

use episode::{Fidelity, Route};
use wire::{Dialect, Probe};

use super::findings::Findings;
use super::notes::{notes, prompt_ids_lost};
use super::row::{HiddenReply, ProbeRow, ServedAs, names};

/// Most models that a hint lists.
const LISTED_MODELS_MAX: usize = 5;

/// Sentences for the user.
#[derive(Debug, Default)]
pub(super) struct Advice {
    /// The things that keep tokens from being exact, each with a remedy.
    pub(super) missing: Vec<String>,
    /// Remarks on everything else.
    pub(super) notes: Vec<String>,
}

/// A kind of fault: the rows that have it, and the sentence about them.
struct Fault {
    found_in: fn(&Findings, &ProbeRow) -> bool,
    sentence: fn(&Findings, &[&ProbeRow]) -> String,
}

const FAULTS: [Fault; 10] = [
    Fault { found_in: |_, row| refused(row) && row.refused_asked, sentence: asking_refused },
    Fault {
        found_in: |findings, row| refused(row) && is_tools_fault(findings, row),
        sentence: tools_refused,
    },
    Fault {
        found_in: |findings, row| {
            refused(row) && !row.refused_asked && !is_tools_fault(findings, row)
        },
        sentence: plain_refused,
    },
    Fault { found_in: |_, row| row.offered() && row.broke_off(), sentence: broken },
    Fault { found_in: |_, row| row.offered() && row.status.is_none(), sentence: silent },
    Fault { found_in: |_, row| row.answered() && !row.has_ids(), sentence: no_ids },
    Fault {
        found_in: |_, row| row.answered() && row.has_ids() && !row.has_logprobs(),
        sentence: no_logprobs,
    },
    Fault {
        found_in: |_, row| row.answered() && row.ids.is_some() && row.prompt_ids.is_none(),
        sentence: no_prompt_ids,
    },
    Fault { found_in: |_, row| row.answered() && !row.counts_fit(), sentence: other_counts },
    Fault {
        found_in: |_, row| matches!(row.hidden, HiddenReply::Differs(_)),
        sentence: not_hidden,
    },
];

impl Advice {
    /// Judges the findings.
    pub(super) fn new(findings: &Findings) -> Self {
        let mut missing = Vec::new();
        for fault in FAULTS {
            let rows: Vec<&ProbeRow> =
                findings.rows.iter().filter(|row| (fault.found_in)(findings, row)).collect();
            if !rows.is_empty() {
                missing.push(format!("{}: {}", names(&rows), (fault.sentence)(findings, &rows)));
            }
        }

        if !findings.rows.iter().any(ProbeRow::offered) {
            missing.push("the server offers no route that samples".to_owned());
        }
        if findings.given.continues {
            missing.extend(prompt_ids_lost(findings));
        }
        Self { missing, notes: notes(findings) }
    }
}

fn refused(row: &ProbeRow) -> bool {
    row.offered() && row.status.is_some() && row.error.is_some() && !row.broke_off()
}

/// True if the same call succeeds without a tool.
fn is_tools_fault(findings: &Findings, row: &ProbeRow) -> bool {
    let without = Probe { tools: false, ..row.probe };
    !row.refused_asked && row.probe.tools && findings.answered().any(|other| other.probe == without)
}

fn asking_refused(_: &Findings, _: &[&ProbeRow]) -> String {
    "the server fails only if it is asked for tokens; try another --dialect, or --dialect openai, \
     which asks for nothing"
        .to_owned()
}

fn tools_refused(findings: &Findings, rows: &[&ProbeRow]) -> String {
    if let Some(denied) = denied(rows) {
        return denied;
    }

    let remedy = match findings.dialect {
        Dialect::Vllm => {
            "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, the parser of \
             this model"
        }
        Dialect::Sglang => "start SGLang with --tool-call-parser NAME, the parser of this model",
        // llama.cpp names the flag itself. If it does not, it has read the template and failed.
        Dialect::Llamacpp if rows.iter().any(|row| wants_jinja(row)) => {
            "start llama.cpp with --jinja; if it then cannot read the model's template, give it \
             another one with --chat-template-file FILE"
        }
        Dialect::Llamacpp => {
            "see the server's error above; llama.cpp takes another template with \
             --chat-template-file FILE"
        }
        Dialect::Rolltape => "the model's chat template must support tools",
        Dialect::OpenAi => "the model must support tools",
    };
    format!("a request with a tool is refused; {remedy}")
}

/// True if llama.cpp says that it runs without --jinja.
fn wants_jinja(row: &ProbeRow) -> bool {
    row.error.as_deref().is_some_and(|error| error.contains("--jinja"))
}

fn plain_refused(findings: &Findings, rows: &[&ProbeRow]) -> String {
    if let Some(denied) = denied(rows) {
        return denied;
    }

    let models = &findings.server.models;
    let listed = models[..models.len().min(LISTED_MODELS_MAX)].join(", ");
    match statuses(rows).all(|status| status == 404) && !listed.is_empty() {
        true => format!("name a model that the server has with --model: {listed}"),
        false => "a small request is refused; see the server's error above, or name another model \
                  with --model"
            .to_owned(),
    }
}

fn broken(_: &Findings, _: &[&ProbeRow]) -> String {
    "the reply broke off; see the server's log, and any proxy between it and rolltape".to_owned()
}

fn statuses(rows: &[&ProbeRow]) -> impl Iterator<Item = u16> {
    rows.iter().filter_map(|row| row.status)
}

fn denied(rows: &[&ProbeRow]) -> Option<String> {
    statuses(rows)
        .any(|status| matches!(status, 401 | 403))
        .then(|| "the server requires a key; give it with --upstream-key-env NAME".to_owned())
}

fn silent(_: &Findings, _: &[&ProbeRow]) -> String {
    "there was no answer; check that the server still runs and how busy it is".to_owned()
}

fn no_ids(findings: &Findings, rows: &[&ProbeRow]) -> String {
    let mapped = rows.iter().all(|row| row.ids.is_some() && row.fidelity == Fidelity::Mapped);
    let declined = rows.iter().any(|row| row.declined);
    let translatable =
        rows.iter().all(|row| matches!(row.probe.route, Route::Responses | Route::Messages));
    let native = rows.iter().all(|row| row.served == ServedAs::Native);

    // The first reason that applies to all of the rows; then the dialect's own.
    match findings.dialect {
        _ if mapped => {
            "the ids are mapped from the reported tokens; a server that reports ids (vLLM, SGLang, \
             llama.cpp, rolltape engine) gives exact ones"
        }
        _ if declined && translatable => {
            "the server refuses to be asked for tokens on this route and answers without them; \
             --translate always sends such calls to its chat route"
        }
        _ if declined => {
            "the server refuses to be asked for tokens and answers without them; upgrade it, or \
             name its dialect with --dialect"
        }
        _ if translatable && native && findings.dialect != Dialect::OpenAi => {
            "this route of the server reports no ids; --translate always sends such calls to its \
             chat route"
        }
        Dialect::OpenAi if findings.given.tokenizer => {
            "the server reports no ids, and not every token has a logprob whose bytes are one \
             entry of the tokenizer; check that --tokenizer is this model's"
        }
        Dialect::OpenAi => {
            "hosted servers report no ids; with the model's --tokenizer FILE they are asked for \
             logprobs, which are mapped to ids. If the server is vLLM, SGLang or llama.cpp under \
             another name, give its --dialect"
        }
        Dialect::Vllm => "no token ids; upgrade vLLM to a version with return_token_ids",
        Dialect::Sglang => {
            "no token ids; upgrade SGLang to a version with return_token_ids (0.5.23 has it)"
        }
        Dialect::Llamacpp => {
            "llama.cpp reports ids with logprobs only, and on a stream it loses them if a \
             character takes several tokens or a tool call is held back; calls that are not \
             streamed lose none"
        }
        Dialect::Rolltape => "no token ids; upgrade rolltape engine",
    }
    .to_owned()
}

fn no_logprobs(findings: &Findings, rows: &[&ProbeRow]) -> String {
    let responses = rows.iter().all(|row| row.probe.route == Route::Responses);
    match findings.dialect {
        Dialect::Vllm if responses => {
            "vLLM loses logprobs of tool calls and reasoning on this route; --translate always \
             sends such calls to its chat route"
        }
        Dialect::Sglang if findings.server.parses != Some(true) => {
            "SGLang loses the logprobs of steps without text on streams; start it with \
             --tool-call-parser NAME or --reasoning-parser NAME"
        }
        Dialect::Llamacpp => {
            "llama.cpp loses logprobs on a stream if a character takes several tokens or a tool \
             call is held back; no flag changes that"
        }
        _ => "not every sampled token has a logprob; upgrade the server",
    }
    .to_owned()
}

fn no_prompt_ids(findings: &Findings, _: &[&ProbeRow]) -> String {
    match findings.dialect {
        Dialect::Llamacpp => {
            "llama.cpp reports prompts as text, and its /apply-template and /tokenize gave another \
             number of ids than it read; upgrade it to a build that takes `verbose` in a request, \
             and check that both routes can be reached. Images have no ids"
        }
        Dialect::OpenAi => {
            "hosted servers do not report the ids of prompts, so such calls give no rows to train \
             on; vLLM, SGLang and rolltape engine report them"
        }
        Dialect::Sglang => "no ids of the prompt; upgrade SGLang (0.5.23 reports them)",
        Dialect::Vllm => "no ids of the prompt; upgrade vLLM to a version with return_token_ids",
        Dialect::Rolltape => "no ids of the prompt; upgrade rolltape engine",
    }
    .to_owned()
}

fn other_counts(_: &Findings, _: &[&ProbeRow]) -> String {
    "the server's token counts are not those of its ids; such calls are recorded as reported. \
     Check whether whole replies agree, and upgrade the server"
        .to_owned()
}

fn not_hidden(_: &Findings, _: &[&ProbeRow]) -> String {
    "what the agent gets is not what the server says unasked; with --dialect openai it is asked \
     for nothing. Please report this with the server's version and the differences above"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use wire::{ServerInfo, ServerSampling};

    use super::super::findings::GivenOptions;
    use super::super::prompt_ids::PromptIdsFinding;
    use super::*;

    /// Rows of a server that tells everything, changed.
    fn rows(change: impl Fn(&mut ProbeRow)) -> Vec<ProbeRow> {
        let exact = |probe| {
            let mut row = ProbeRow::new(probe);
            let prompt = if row.probe.tools { 9 } else { 3 };
            (row.status, row.ids, row.logprobs) = (Some(200), Some(2), 2);
            row.prompt_ids = Some(prompt);
            (row.versions, row.hidden) = (vec!["7".to_owned()], HiddenReply::Equal);
            change(&mut row);
            row
        };
        Probe::all().into_iter().map(exact).collect()
    }

    fn findings(dialect: Dialect, rows: Vec<ProbeRow>) -> Findings {
        Findings {
            upstream: "http://h:1".to_owned(),
            dialect,
            server: ServerInfo::default(),
            sampler: ServerSampling::for_dialect(dialect),
            model: "m".to_owned(),
            logprob_kind: dialect.logprob_kind().to_owned(),
            rows,
            prompt_ids: PromptIdsFinding::Taken,
            given: GivenOptions::default(),
        }
    }

    fn advice(dialect: Dialect, change: impl Fn(&mut ProbeRow)) -> Advice {
        Advice::new(&findings(dialect, rows(change)))
    }

    /// The only thing that is missing.
    fn missing(dialect: Dialect, change: impl Fn(&mut ProbeRow)) -> String {
        let [only] = advice(dialect, change).missing.try_into().unwrap();
        only
    }

    #[test]
    fn nothing_is_missing_where_all_is_told() {
        let advice = advice(Dialect::Vllm, |_| {});
        assert_eq!(advice.missing, [""; 0]);
        assert!(advice.notes[0].contains("--logprobs-mode processed_logprobs"));
    }

    #[test]
    fn tools_that_the_template_leaves_out_are_noted() {
        let is_noted = |prompt: fn(&ProbeRow) -> Option<usize>| {
            let found = advice(Dialect::Rolltape, |row| row.prompt_ids = prompt(row));
            found.notes.iter().any(|note| note.contains("has no place for tools"))
        };
        assert!(is_noted(|_| Some(3)));
        assert!(!is_noted(|row| Some(if row.probe.tools { 9 } else { 3 })));
        assert!(!is_noted(|row| (!row.probe.tools).then_some(3)));
        assert!(!is_noted(|_| None));
    }

    #[test]
    fn defaults_that_are_not_reported_are_noted_with_a_remedy() {
        let of = |dialect: Dialect, page: &[u8]| {
            let mut findings = findings(dialect, rows(|_| {}));
            findings.sampler.take(page);
            if let Some(kind) = findings.sampler.logprob_kind() {
                findings.logprob_kind = kind.to_owned();
            }
            let notes = Advice::new(&findings);
            notes
                .notes
                .into_iter()
                .find(|note| note.starts_with("parameters that a request leaves out"))
        };
        let silent = of(Dialect::Vllm, b"{}").unwrap();
        assert!(silent.contains("--generation-config vllm"), "{silent}");
        let vllm = include_bytes!("../../../tests/tapes/vllm/server_info.json");
        assert_eq!(of(Dialect::Vllm, vllm), Some(silent));
        let own = include_bytes!("../../../tests/tapes/vllm/server_info_own.json");
        assert_eq!(of(Dialect::Vllm, own), None, "they are processed");
        let sglang = include_bytes!("../../../tests/tapes/sglang/server_info.json");
        let sglang = of(Dialect::Sglang, sglang).unwrap();
        assert!(sglang.contains("--sampling-defaults openai"));
        let llamacpp = include_bytes!("../../../tests/tapes/llamacpp/props.json");
        assert!(of(Dialect::Llamacpp, llamacpp).unwrap().contains("top_k 40"));
    }

    #[test]
    fn a_wire_that_is_not_there_is_not_missing() {
        let gone = |row: &mut ProbeRow| {
            if row.probe.route != Route::Chat {
                *row = ProbeRow { served: ServedAs::NotOffered, ..ProbeRow::new(row.probe) };
            }
        };
        assert_eq!(advice(Dialect::OpenAi, gone).missing, [""; 0]);
        let all = |row: &mut ProbeRow| row.served = ServedAs::NotOffered;
        assert_eq!(missing(Dialect::OpenAi, all), "the server offers no route that samples");
    }

    #[test]
    fn refused_tools_name_the_flag_of_the_server() {
        let refused = |row: &mut ProbeRow| {
            if row.probe.tools {
                *row = ProbeRow { status: Some(400), ..ProbeRow::new(row.probe) };
                row.fail("no parser".to_owned());
            }
        };
        let sentence = missing(Dialect::Vllm, refused);
        assert!(
            sentence.starts_with("chat with a tool; responses with a tool; messages with a tool:")
        );
        assert!(sentence.contains("--enable-auto-tool-choice --tool-call-parser"));
        assert!(!missing(Dialect::Llamacpp, refused).contains("--jinja"), "it parses templates");
        let legacy = |row: &mut ProbeRow| {
            if row.probe.tools {
                *row = ProbeRow { status: Some(500), ..ProbeRow::new(row.probe) };
                row.fail("tools param requires --jinja flag".to_owned());
            }
        };
        assert!(missing(Dialect::Llamacpp, legacy).contains("--jinja"));
        assert!(missing(Dialect::Sglang, refused).contains("--tool-call-parser"));
    }

    #[test]
    fn tools_are_not_blamed_where_nothing_goes_well() {
        let refused = |row: &mut ProbeRow| {
            *row = ProbeRow { status: Some(404), ..ProbeRow::new(row.probe) };
            row.fail("404 no such model".to_owned());
        };
        assert!(missing(Dialect::Vllm, refused).contains("--model"));
        let broken = |row: &mut ProbeRow| row.fail("the stream ended early".to_owned());
        assert!(missing(Dialect::Vllm, broken).contains("broke off"));
        assert_eq!(advice(Dialect::Vllm, broken).notes, [""; 0]);
    }

    #[test]
    fn lost_logprobs_name_the_flag_of_the_server() {
        let streamed = |row: &mut ProbeRow| row.logprobs -= usize::from(row.probe.streams);
        let sentence = missing(Dialect::Sglang, streamed);
        assert!(
            sentence.contains("chat, streamed;") && sentence.contains("--reasoning-parser"),
            "{sentence}"
        );
        let responses = |row: &mut ProbeRow| {
            row.logprobs -= usize::from(row.probe.route == Route::Responses && row.probe.tools);
        };
        assert!(missing(Dialect::Vllm, responses).contains("--translate always"));
    }

    #[test]
    fn a_server_that_fails_when_asked_is_not_to_be_asked() {
        let fails = |row: &mut ProbeRow| {
            *row = ProbeRow { status: Some(500), refused_asked: true, ..ProbeRow::new(row.probe) };
            row.fail("500 boom".to_owned());
        };
        let sentence = missing(Dialect::Sglang, fails);
        assert!(sentence.starts_with("chat; completions; responses; messages: "), "{sentence}");
        assert!(sentence.contains("--dialect openai"));
    }

    #[test]
    fn versions_that_are_not_there_or_are_no_numbers_are_told_of() {
        let streamed = |row: &mut ProbeRow| {
            if row.probe.streams {
                row.versions.clear();
            }
        };
        let notes = advice(Dialect::Sglang, streamed).notes;
        assert!(
            notes.iter().any(|note| note.starts_with("chat, streamed; completions, streamed;"))
        );
        let notes_on = |dialect, label: &str| {
            advice(dialect, |row: &mut ProbeRow| row.versions = vec![label.to_owned()]).notes
        };
        let notes = notes_on(Dialect::Vllm, "main");
        assert!(notes.iter().any(|note| note.contains("/update_weight_version")), "{notes:?}");
        let notes = notes_on(Dialect::Rolltape, "main");
        assert!(notes.iter().any(|note| note.contains("/update_weights")), "{notes:?}");
        // Rows get the numbers 0, 7 and 12.
        for label in ["default", "trl-policy-v7", "step_12"] {
            let notes = notes_on(Dialect::Rolltape, label);
            assert!(!notes.iter().any(|note| note.contains("-1")), "{label}: {notes:?}");
        }
        assert!(!advice(Dialect::Rolltape, |_| {}).notes.iter().any(|n| n.contains("-1")));
    }

    #[test]
    fn a_server_that_takes_no_prompt_as_ids_is_named() {
        let told = |dialect, prompt_ids, continues| {
            let mut findings = findings(dialect, rows(|_| {}));
            (findings.prompt_ids, findings.given.continues) = (prompt_ids, continues);
            let advice = Advice::new(&findings);
            [advice.missing, advice.notes].map(|list| {
                list.iter().filter(|sentence| sentence.contains("--continue exact")).count()
            })
        };
        assert_eq!(told(Dialect::Vllm, PromptIdsFinding::Ignored, false), [0, 1]);
        assert_eq!(told(Dialect::Vllm, PromptIdsFinding::Ignored, true), [1, 0]);
        assert_eq!(told(Dialect::Sglang, PromptIdsFinding::Refused, false), [0, 1]);
        assert_eq!(told(Dialect::Vllm, PromptIdsFinding::Taken, true), [0, 0]);
        assert_eq!(told(Dialect::Vllm, PromptIdsFinding::Unknown, true), [0, 0]);
        // Nobody expects it of them.
        assert_eq!(told(Dialect::Llamacpp, PromptIdsFinding::NoField, false), [0, 0]);
        assert_eq!(told(Dialect::Llamacpp, PromptIdsFinding::NoField, true), [1, 0]);
        assert_eq!(
            told(Dialect::Rolltape, PromptIdsFinding::NoField, true),
            [0, 0],
            "it does by itself"
        );
    }

    #[test]
    fn hosted_servers_need_a_tokenizer_and_some_a_key() {
        let textual = |row: &mut ProbeRow| (row.ids, row.logprobs) = (None, 0);
        assert!(missing(Dialect::OpenAi, textual).contains("--tokenizer FILE"));
        let denied = |row: &mut ProbeRow| {
            *row = ProbeRow { status: Some(401), ..ProbeRow::new(row.probe) };
            row.fail("Unauthorized".to_owned());
        };
        let advice = advice(Dialect::OpenAi, denied);
        assert!(advice.missing.iter().all(|sentence| sentence.contains("--upstream-key-env")));
    }
}
