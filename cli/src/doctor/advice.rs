//! What is missing, and how each server is made to give it.

use episode::{Fidelity, Route};
use wire::{Dialect, Probe, Sampler, Server};

use super::notes;
use super::row::{Hidden, How, Row, names};

/// Models of the server that are named to choose from.
const LISTED_MODELS_MAX: usize = 5;

/// What is to be judged.
pub(super) struct Case<'a> {
    pub(super) dialect: Dialect,
    pub(super) server: &'a Server,
    pub(super) sampler: &'a Sampler,
    /// The kind of its logprobs.
    pub(super) logprob_kind: &'a str,
    pub(super) rows: &'a [Row],
    /// Whether the user said what the logprobs are.
    pub(super) mode_named: bool,
    /// Whether the user gave a tokenizer.
    pub(super) vocabulary: bool,
    /// Whether the user said that they are of the distribution that was sampled.
    pub(super) processed: bool,
}

/// Sentences for the user.
#[derive(Debug, Default)]
pub(super) struct Advice {
    /// What keeps tokens from being known exactly, each with a way out.
    pub(super) missing: Vec<String>,
    /// What can be had beside that.
    pub(super) notes: Vec<String>,
}

impl Advice {
    /// Judges what was found.
    pub(super) fn new(case: &Case<'_>) -> Self {
        let mut missing = Vec::new();
        let kinds: [(Find, Tell); 10] = [
            (|_, row| refused(row) && row.refused_asked, asking_refused),
            (|case, row| refused(row) && is_tools_fault(case, row), tools_refused),
            (
                |case, row| refused(row) && !row.refused_asked && !is_tools_fault(case, row),
                plain_refused,
            ),
            (|_, row| row.offered() && row.broke_off(), broken),
            (|_, row| row.offered() && row.status.is_none(), silent),
            (|_, row| row.answered() && !row.has_ids(), no_ids),
            (|_, row| row.answered() && row.has_ids() && !row.has_logprobs(), no_logprobs),
            (
                |_, row| row.answered() && row.ids.is_some() && row.prompt_ids.is_none(),
                no_prompt_ids,
            ),
            (|_, row| row.answered() && !row.counts_fit(), other_counts),
            (|_, row| matches!(row.hidden, Hidden::Differs(_)), not_hidden),
        ];
        for (find, tell) in kinds {
            let found: Vec<&Row> = case.rows.iter().filter(|row| find(case, row)).collect();
            if !found.is_empty() {
                missing.push(format!("{}: {}", names(&found), tell(case, &found)));
            }
        }
        if !case.rows.iter().any(Row::offered) {
            missing.push("the server offers no route that samples".to_owned());
        }
        Self { missing, notes: notes::of(case) }
    }
}

type Find = fn(&Case<'_>, &Row) -> bool;
type Tell = fn(&Case<'_>, &[&Row]) -> String;

fn refused(row: &Row) -> bool {
    row.offered() && row.status.is_some() && row.error.is_some() && !row.broke_off()
}

/// Whether the same call goes well without a tool.
fn is_tools_fault(case: &Case<'_>, row: &Row) -> bool {
    let without = Probe { tools: false, ..row.probe };
    let well = |other: &Row| other.probe == without && other.answered();
    !row.refused_asked && row.probe.tools && case.rows.iter().any(well)
}

fn asking_refused(_: &Case<'_>, _: &[&Row]) -> String {
    "the server fails only when it is asked for tokens; if another --dialect does not help, with \
     --dialect openai it is asked for nothing"
        .to_owned()
}

fn tools_refused(case: &Case<'_>, rows: &[&Row]) -> String {
    let statuses = rows.iter().filter_map(|row| row.status);
    if let Some(denied) = denied(statuses) {
        return denied;
    }
    let way = match case.dialect {
        Dialect::Vllm => {
            "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, the parser of \
             this model"
        }
        Dialect::Sglang => "start SGLang with --tool-call-parser NAME, the parser of this model",
        // It says so itself. Where it does not, it reads the template and something else is amiss.
        Dialect::Llamacpp if rows.iter().any(|row| wants_jinja(row)) => {
            "start llama.cpp with --jinja; where it then cannot read the model's template, give it \
             one with --chat-template-file FILE"
        }
        Dialect::Llamacpp => {
            "see what the server said above; another template for llama.cpp is given with \
             --chat-template-file FILE"
        }
        Dialect::Rolltape => "the model's template must take tools",
        Dialect::OpenAi => "the model must take tools",
    };
    format!("a request with a tool is refused; {way}")
}

/// Whether llama.cpp says that it runs without the templates that know tools.
fn wants_jinja(row: &Row) -> bool {
    row.error.as_deref().is_some_and(|error| error.contains("--jinja"))
}

fn plain_refused(case: &Case<'_>, rows: &[&Row]) -> String {
    let statuses = || rows.iter().filter_map(|row| row.status);
    if let Some(denied) = denied(statuses()) {
        return denied;
    }
    let listed = case.server.models.iter().take(LISTED_MODELS_MAX).cloned().collect::<Vec<_>>();
    match statuses().all(|status| status == 404) && !listed.is_empty() {
        true => format!("name a model that the server has with --model: {}", listed.join(", ")),
        false => "a small request is refused; see what the server said above, or name another \
                  model with --model"
            .to_owned(),
    }
}

fn broken(_: &Case<'_>, _: &[&Row]) -> String {
    "the reply broke off; see the server's own log, and what stands between it and rolltape"
        .to_owned()
}

fn denied(mut statuses: impl Iterator<Item = u16>) -> Option<String> {
    let denied = statuses.any(|status| matches!(status, 401 | 403));
    denied.then(|| "the server wants a key; give it with --upstream-key-env NAME".to_owned())
}

fn silent(_: &Case<'_>, _: &[&Row]) -> String {
    "there was no answer; see whether the server is still up and how busy it is".to_owned()
}

fn no_ids(case: &Case<'_>, rows: &[&Row]) -> String {
    let mapped = rows.iter().all(|row| row.ids.is_some() && row.fidelity == Fidelity::Mapped);
    let declined = rows.iter().any(|row| row.declined);
    let translatable =
        rows.iter().all(|row| matches!(row.probe.route, Route::Responses | Route::Messages));
    let native = rows.iter().all(|row| row.how == How::Native);
    match case.dialect {
        _ if mapped => {
            "the ids are mapped from the reported tokens, not reported; a server that \
                        reports ids (vLLM, SGLang, llama.cpp, rolltape engine) gives exact ones"
        }
        _ if declined && translatable => {
            "the server refuses to be asked for tokens here and answers without; with --translate \
             always such calls go to its chat route"
        }
        _ if declined => {
            "the server refuses to be asked for tokens and answers without; upgrade it, or say \
             with --dialect what it is"
        }
        _ if translatable && native && case.dialect != Dialect::OpenAi => {
            "this route of the server tells no ids; with --translate always such calls go to \
             its chat route"
        }
        Dialect::OpenAi if case.vocabulary => {
            "the server tells no ids, and not every token has a logprob whose bytes are one \
             entry of the tokenizer; see that --tokenizer is this model's"
        }
        Dialect::OpenAi => {
            "hosted servers tell no ids; give the model's --tokenizer FILE to have logprobs asked \
             for and mapped to ids. If it is vLLM, SGLang or llama.cpp under another name, say so \
             with --dialect"
        }
        Dialect::Vllm => "no token ids; upgrade vLLM to one that knows return_token_ids",
        Dialect::Sglang => {
            "no token ids; upgrade SGLang to one that knows return_token_ids (0.5.23 does)"
        }
        Dialect::Llamacpp => {
            "llama.cpp tells ids beside logprobs only, and loses them on a stream where a \
             character takes several tokens or a tool call is held back; calls that are not \
             streamed lose none"
        }
        Dialect::Rolltape => "no token ids; upgrade rolltape engine",
    }
    .to_owned()
}

fn no_logprobs(case: &Case<'_>, rows: &[&Row]) -> String {
    let responses = rows.iter().all(|row| row.probe.route == Route::Responses);
    match case.dialect {
        Dialect::Vllm if responses => {
            "vLLM loses logprobs of what is not text on this route, such as tool calls and \
             reasoning; with --translate always such calls go to its chat route"
        }
        Dialect::Sglang if case.server.parses != Some(true) => {
            "SGLang loses logprobs of steps without text on streams; start it with \
             --tool-call-parser NAME or --reasoning-parser NAME"
        }
        Dialect::Llamacpp => {
            "llama.cpp loses logprobs where a character takes several tokens or a tool call is \
             held back on a stream, and has no flag for it"
        }
        _ => "not every sampled token has a logprob; upgrade the server",
    }
    .to_owned()
}

fn no_prompt_ids(case: &Case<'_>, _: &[&Row]) -> String {
    match case.dialect {
        Dialect::Llamacpp => {
            "llama.cpp tells prompts as text, and its /apply-template and /tokenize did not make \
             as many ids of it as it read; upgrade it to a build that takes `verbose` in a \
             request, and see that both routes can be reached. Images are no ids"
        }
        Dialect::OpenAi => {
            "hosted servers do not tell the ids of prompts, so such calls make no rows to train \
             on; vLLM, SGLang and rolltape engine tell them"
        }
        Dialect::Sglang => "no ids of the prompt; upgrade SGLang (0.5.23 tells them)",
        Dialect::Vllm => "no ids of the prompt; upgrade vLLM to one that knows return_token_ids",
        Dialect::Rolltape => "no ids of the prompt; upgrade rolltape engine",
    }
    .to_owned()
}

fn other_counts(_: &Case<'_>, _: &[&Row]) -> String {
    "the server counts other tokens than it tells; such calls are recorded as they are told. See \
     whether whole replies agree, and upgrade the server"
        .to_owned()
}

fn not_hidden(_: &Case<'_>, _: &[&Row]) -> String {
    "what the agent is given is not what the server says unasked; with --dialect openai it is \
     asked for nothing. Please report it with the server's version and the differences above"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a server that tells everything, changed.
    fn rows(change: impl Fn(&mut Row)) -> Vec<Row> {
        let exact = |probe| {
            let mut row = Row::new(probe);
            (row.status, row.ids, row.logprobs, row.prompt_ids) = (Some(200), Some(2), 2, Some(3));
            (row.versions, row.hidden) = (vec!["7".to_owned()], Hidden::Equal);
            change(&mut row);
            row
        };
        Probe::all().into_iter().map(exact).collect()
    }

    fn advice(dialect: Dialect, change: impl Fn(&mut Row)) -> Advice {
        Advice::new(&Case {
            dialect,
            server: &Server::default(),
            sampler: &Sampler::of(dialect),
            logprob_kind: dialect.logprob_kind(),
            rows: &rows(change),
            mode_named: false,
            vocabulary: false,
            processed: false,
        })
    }

    /// The only thing that is missing.
    fn missing(dialect: Dialect, change: impl Fn(&mut Row)) -> String {
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
    fn defaults_that_are_not_told_are_told_of_with_the_way_out() {
        let of = |dialect: Dialect, page: &[u8]| {
            let mut sampler = Sampler::of(dialect);
            sampler.take(page);
            let notes = Advice::new(&Case {
                dialect,
                server: &Server::default(),
                sampler: &sampler,
                logprob_kind: sampler.logprob_kind().unwrap_or(dialect.logprob_kind()),
                rows: &rows(|_| {}),
                mode_named: false,
                vocabulary: false,
                processed: false,
            });
            notes.notes.into_iter().find(|note| note.starts_with("what a request leaves out"))
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
        let gone = |row: &mut Row| {
            if row.probe.route != Route::Chat {
                *row = Row { how: How::NotOffered, ..Row::new(row.probe) };
            }
        };
        assert_eq!(advice(Dialect::OpenAi, gone).missing, [""; 0]);
        let all = |row: &mut Row| row.how = How::NotOffered;
        assert_eq!(missing(Dialect::OpenAi, all), "the server offers no route that samples");
    }

    #[test]
    fn refused_tools_name_the_flag_of_the_server() {
        let refused = |row: &mut Row| {
            if row.probe.tools {
                *row = Row { status: Some(400), ..Row::new(row.probe) };
                row.failed("no parser".to_owned());
            }
        };
        let told = missing(Dialect::Vllm, refused);
        assert!(told.starts_with("chat with a tool; responses with a tool; messages with a tool:"));
        assert!(told.contains("--enable-auto-tool-choice --tool-call-parser"));
        assert!(!missing(Dialect::Llamacpp, refused).contains("--jinja"), "it parses templates");
        let legacy = |row: &mut Row| {
            if row.probe.tools {
                *row = Row { status: Some(500), ..Row::new(row.probe) };
                row.failed("tools param requires --jinja flag".to_owned());
            }
        };
        assert!(missing(Dialect::Llamacpp, legacy).contains("--jinja"));
        assert!(missing(Dialect::Sglang, refused).contains("--tool-call-parser"));
    }

    #[test]
    fn tools_are_not_blamed_where_nothing_goes_well() {
        let refused = |row: &mut Row| {
            *row = Row { status: Some(404), ..Row::new(row.probe) };
            row.failed("404 no such model".to_owned());
        };
        assert!(missing(Dialect::Vllm, refused).contains("--model"));
        let broken = |row: &mut Row| row.failed("the stream ended early".to_owned());
        assert!(missing(Dialect::Vllm, broken).contains("broke off"));
        assert_eq!(advice(Dialect::Vllm, broken).notes, [""; 0]);
    }

    #[test]
    fn lost_logprobs_name_the_flag_of_the_server() {
        let streamed = |row: &mut Row| row.logprobs -= usize::from(row.probe.streams);
        let told = missing(Dialect::Sglang, streamed);
        assert!(told.contains("chat, streamed;") && told.contains("--reasoning-parser"), "{told}");
        let responses = |row: &mut Row| {
            row.logprobs -= usize::from(row.probe.route == Route::Responses && row.probe.tools);
        };
        assert!(missing(Dialect::Vllm, responses).contains("--translate always"));
    }

    #[test]
    fn a_server_that_fails_when_asked_is_not_to_be_asked() {
        let fails = |row: &mut Row| {
            *row = Row { status: Some(500), refused_asked: true, ..Row::new(row.probe) };
            row.failed("500 boom".to_owned());
        };
        let told = missing(Dialect::Sglang, fails);
        assert!(told.starts_with("chat; completions; responses; messages: "), "{told}");
        assert!(told.contains("--dialect openai"));
    }

    #[test]
    fn versions_that_are_not_there_or_are_no_numbers_are_told_of() {
        let streamed = |row: &mut Row| {
            if row.probe.streams {
                row.versions.clear();
            }
        };
        let notes = advice(Dialect::Sglang, streamed).notes;
        assert!(
            notes.iter().any(|note| note.starts_with("chat, streamed; completions, streamed;"))
        );
        let named = |row: &mut Row| row.versions = vec!["default".to_owned()];
        let notes = advice(Dialect::Vllm, named).notes;
        assert!(notes.iter().any(|note| note.contains("/update_weight_version")), "{notes:?}");
        assert!(!advice(Dialect::Rolltape, |_| {}).notes.iter().any(|n| n.contains("-1")));
    }

    #[test]
    fn hosted_servers_need_a_tokenizer_and_some_a_key() {
        let textual = |row: &mut Row| (row.ids, row.logprobs) = (None, 0);
        assert!(missing(Dialect::OpenAi, textual).contains("--tokenizer FILE"));
        let denied = |row: &mut Row| {
            *row = Row { status: Some(401), ..Row::new(row.probe) };
            row.failed("Unauthorized".to_owned());
        };
        let advice = advice(Dialect::OpenAi, denied);
        assert!(advice.missing.iter().all(|told| told.contains("--upstream-key-env")));
    }
}
