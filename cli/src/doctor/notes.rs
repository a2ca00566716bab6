//! What an upstream could give beside exact tokens, and what to know of what it gives.

use episode::Route;
use wire::Dialect;

use super::advice::Case;
use super::row::{Hidden, How, Row, names};

/// What can be had beside exact tokens.
pub(super) fn of(case: &Case<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let answered = || case.rows.iter().filter(|row| row.answered());
    let mut note = |when: bool, text: &str| notes.extend(when.then(|| text.to_owned()));
    let vllm = case.dialect == Dialect::Vllm && answered().next().is_some();
    note(
        vllm && !case.mode_named && case.sampler.logprob_kind().is_none(),
        "vLLM's logprobs are taken to be raw, those before temperature; start it with \
         --logprobs-mode processed_logprobs to have those of the distribution that was sampled, \
         and give rolltape the same option",
    );
    note(
        vllm && case.processed && case.sampler.logprob_kind().is_none(),
        "whether vLLM runs with --logprobs-mode processed_logprobs cannot be seen from outside",
    );
    note(
        vllm && !case.server.tells_cached,
        "with --enable-prompt-tokens-details vLLM says how much of a prompt came out of its cache",
    );
    note(
        vllm && answered().any(|r| r.probe.route == Route::Responses && r.how == How::Native),
        "agents that send previous_response_id need VLLM_ENABLE_RESPONSES_API_STORE=1 in vLLM's \
         environment",
    );
    note(
        case.dialect == Dialect::Sglang
            && case.server.parses == Some(false)
            && answered().all(Row::has_logprobs),
        "SGLang says that no parser is set; without --tool-call-parser NAME tool calls stay text",
    );
    note(
        answered().any(|row| row.has_ids() && row.counts.completion.is_none()),
        "the server does not count tokens on some calls, so lost ids would not be noticed there",
    );
    note(
        answered().any(|row| row.hidden == Hidden::Chunked),
        "other chunks: the same words in the same kinds of frames, cut at other places, which is \
         a matter of timing",
    );
    note(
        answered().any(|row| row.hidden == Hidden::NotRepeatable),
        "not repeatable: the server itself answers the same request differently, at temperature 0 \
         and with a seed, so whether hiding is exact could not be seen there",
    );
    note(
        case.rows.iter().any(|row| row.declined),
        "the server refused to be asked for tokens on some calls; those are recorded as text",
    );
    if answered().next().is_some() {
        notes.extend(contradicted(case));
        notes.extend(bent(case));
    }
    notes.extend(unversioned(case));
    notes.extend(unnumbered(case));
    notes
}

/// A note where the user and the server disagree about the logprobs.
fn contradicted(case: &Case<'_>) -> Option<String> {
    let told = case.sampler.logprob_kind().filter(|told| *told != case.logprob_kind)?;
    let named = case.logprob_kind;
    Some(format!(
        "the server says that its logprobs are {told}, and rolltape was told that they are \
         {named}: leave --logprobs-mode out"
    ))
}

/// The reason why rows are not exact unless requests say all of their sampling, and the way out.
fn bent(case: &Case<'_>) -> Option<String> {
    let bending = case.sampler.bending();
    if case.logprob_kind == "processed" || (case.sampler.tells_defaults() && bending.is_empty()) {
        return None;
    }
    let found = match bending.is_empty() {
        true => "with defaults that the server does not tell, such as those of the model's \
                 generation_config.json, and its logprobs may not be of that"
            .to_owned(),
        false => format!("with {}, and its logprobs are not of that", bending.join(", ")),
    };
    let way = match case.dialect {
        Dialect::Vllm => {
            "start vLLM with --logprobs-mode processed_logprobs, or with --generation-config vllm \
             and VLLM_SERVER_DEV_MODE=1 so that it says so, or force it with \
             --force-sampling 'temperature=1, top_p=1, top_k=off, min_p=off, \
             repetition_penalty=1, presence_penalty=0, frequency_penalty=0'"
        }
        Dialect::Sglang => {
            "start SGLang with --sampling-defaults openai, or force it with \
             --force-sampling temperature=1,top_p=1,top_k=off,min_p=off,repetition_penalty=1"
        }
        Dialect::Llamacpp => {
            "start llama.cpp with --temp 1 --top-k 0 --top-p 1 --min-p 0, or force the same with \
             --force-sampling"
        }
        Dialect::Rolltape => "start the engine with --logprobs-mode processed_logprobs",
        Dialect::OpenAi => return None,
    };
    Some(format!(
        "what a request leaves out is sampled {found}, so that such rows are not exact; {way}"
    ))
}

/// Where the server does not say which weights sampled a token.
fn unversioned(case: &Case<'_>) -> Option<String> {
    let silent: Vec<&Row> = case.rows.iter().filter(|row| row.is_unversioned()).collect();
    if silent.is_empty() {
        return None;
    }
    let responses = silent.iter().all(|row| row.probe.route == Route::Responses);
    let way = match case.dialect {
        Dialect::Vllm if responses => {
            "with --translate always such calls go to vLLM's chat route, which does"
        }
        Dialect::Vllm => {
            "upgrade vLLM to one that knows return_weight_versions, and leave out \
             VLLM_USE_RUST_FRONTEND, or say them with POST /version on the control listener"
        }
        Dialect::Sglang => "SGLang does in whole replies only",
        Dialect::Llamacpp => "llama.cpp has no flag for it",
        Dialect::Rolltape => "upgrade rolltape engine",
        Dialect::OpenAi => "hosted servers have no setting for it",
    };
    Some(format!(
        "{}: the server does not say which weights sampled a token, and rows get version -1; {way}",
        names(&silent)
    ))
}

/// A name of weights that trainers cannot compare.
fn unnumbered(case: &Case<'_>) -> Option<String> {
    let mut versions = case.rows.iter().flat_map(|row| &row.versions);
    let label = versions.find(|version| version.parse::<i64>().is_err())?;
    let way = match case.dialect {
        Dialect::Vllm => {
            "; give them a number by POST /update_weight_version {\"new_version\": \"1\"} (vLLM \
             started with VLLM_SERVER_DEV_MODE=1), or as the trainer updates them"
        }
        Dialect::Sglang => {
            "; give them a number by POST /update_weight_version {\"new_version\": \"1\"}, or as \
             the trainer updates them"
        }
        Dialect::Rolltape => "; rolltape engine takes no new weights yet, so there is one version",
        _ => "",
    };
    Some(format!(
        "the weights are called `{label}`, which is no number, so rows get version -1{way}"
    ))
}
