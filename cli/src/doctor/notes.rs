//! Remarks on what an upstream reports, beside exact tokens.

use episode::{Route, version_number};
use wire::Dialect;

use super::findings::Findings;
use super::prompt_ids::PromptIdsFinding;
use super::row::{HiddenReply, ProbeRow, ServedAs, names};

/// All remarks.
pub(super) fn notes(findings: &Findings) -> Vec<String> {
    let mut notes = Vec::new();
    if findings.answered().next().is_some() {
        notes.extend(notes_on_flags(findings));
        notes.extend(notes_on_replies(findings));
    }
    if findings.rows.iter().any(|row| row.declined) {
        notes.push(
            "the server refused to be asked for tokens on some calls; those are recorded as text"
                .to_owned(),
        );
    }

    if findings.answered().next().is_some() {
        notes.extend(contradicted(findings));
        notes.extend(truncated_sampling(findings));
    }
    notes.extend(tools_left_out(findings));
    notes.extend(unversioned(findings));
    notes.extend(unnumbered(findings));
    // Where the user wants it, it is missing.
    let is_note = !findings.given.continues && findings.prompt_ids != PromptIdsFinding::NoField;
    notes.extend(prompt_ids_lost(findings).filter(|_| is_note));
    notes
}

/// A remark if the server does not take the prompts of chats as ids.
pub(super) fn prompt_ids_lost(findings: &Findings) -> Option<String> {
    if !findings.prompt_ids.are_useless() || findings.dialect == Dialect::Rolltape {
        return None;
    }

    let fault = match findings.prompt_ids {
        PromptIdsFinding::Ignored => "ignores",
        PromptIdsFinding::Refused => "refuses",
        _ => "has no field for",
    };
    let remedy = match findings.dialect {
        Dialect::Vllm => {
            "; vLLM takes them from 0.33 on, and its Rust frontend ignores them: unset \
             VLLM_USE_RUST_FRONTEND"
        }
        Dialect::Sglang => "; upgrade SGLang (0.5.23 takes them)",
        _ => "; vLLM and SGLang take them, and rolltape engine continues by itself",
    };

    Some(format!(
        "the server {fault} the prompt of a chat as ids, so --continue exact does nothing \
         there{remedy}"
    ))
}

/// Remarks on flags of the server.
fn notes_on_flags(findings: &Findings) -> Vec<String> {
    let is_vllm = findings.dialect == Dialect::Vllm;
    let is_sglang = findings.dialect == Dialect::Sglang;
    // A vLLM in dev mode reports the kind, and then there is nothing to advise.
    let kind_unknown = findings.sampler.logprob_kind().is_none();
    // Translated calls keep their conversations in rolltape, native ones in vLLM.
    let native_responses = findings
        .answered()
        .any(|row| row.probe.route == Route::Responses && row.served == ServedAs::Native);

    let remarks = [
        (
            is_vllm && !findings.given.logprobs_mode && kind_unknown,
            "vLLM's logprobs are taken to be raw, before temperature; start it with \
             --logprobs-mode processed_logprobs to get those of the sampled distribution, and give \
             rolltape the same option",
        ),
        (
            is_vllm && findings.given.processed && kind_unknown,
            "vLLM does not report whether it runs with --logprobs-mode processed_logprobs",
        ),
        (
            is_vllm && !findings.server.tells_cached,
            "with --enable-prompt-tokens-details vLLM reports how much of a prompt was cached",
        ),
        (
            is_vllm && native_responses,
            "agents that send previous_response_id need VLLM_ENABLE_RESPONSES_API_STORE=1 in \
             vLLM's environment",
        ),
        (
            is_sglang
                && findings.server.parses == Some(false)
                && findings.answered().all(ProbeRow::has_logprobs),
            "SGLang has no parser set; without --tool-call-parser NAME tool calls stay text",
        ),
    ];
    texts_of(&remarks)
}

/// Remarks on the replies.
fn notes_on_replies(findings: &Findings) -> Vec<String> {
    let remarks = [
        (
            findings.answered().any(|row| row.has_ids() && row.counts.completion.is_none()),
            "the server reports no token counts on some calls, so lost ids would not be noticed \
             there",
        ),
        (
            findings.answered().any(|row| row.hidden == HiddenReply::Chunked),
            "other chunks: the same text in the same kinds of frames, split at other places, which \
             is a matter of timing",
        ),
        (
            findings.answered().any(|row| row.hidden == HiddenReply::NotRepeatable),
            "not repeatable: the server answers the same request differently, at temperature 0 and \
             with a seed, so hiding could not be checked there",
        ),
    ];
    texts_of(&remarks)
}

fn texts_of(remarks: &[(bool, &str)]) -> Vec<String> {
    remarks.iter().filter(|(applies, _)| *applies).map(|(_, text)| (*text).to_owned()).collect()
}

/// A remark if --logprobs-mode and the server contradict each other.
fn contradicted(findings: &Findings) -> Option<String> {
    let reported = findings.sampler.logprob_kind().filter(|kind| *kind != findings.logprob_kind)?;
    Some(format!(
        "the server reports {reported} logprobs, but --logprobs-mode says {}: leave the option out",
        findings.logprob_kind
    ))
}

/// A remark if the server's sampling defaults keep rows from being exact, with a remedy.
fn truncated_sampling(findings: &Findings) -> Option<String> {
    let bending = findings.sampler.non_neutral_defaults();
    if findings.logprob_kind == "processed"
        || (findings.sampler.knows_defaults() && bending.is_empty())
    {
        return None;
    }

    let defaults = match bending.is_empty() {
        true => "defaults that the server does not report, such as those of the model's \
                 generation_config.json, and its logprobs may be of another distribution"
            .to_owned(),
        false => format!(
            "the server's {}, and its logprobs are of another distribution",
            bending.join(", ")
        ),
    };
    // Either the logprobs become those of the sampled distribution, or the distribution becomes the
    // plain one, which every kind of logprobs is of.
    let remedy = match findings.dialect {
        Dialect::Vllm => {
            "start vLLM with --logprobs-mode processed_logprobs, or with --generation-config vllm \
             and VLLM_SERVER_DEV_MODE=1 so that it reports them, or force the sampling with \
             --force-sampling 'temperature=1, top_p=1, top_k=off, min_p=off, \
             repetition_penalty=1, presence_penalty=0, frequency_penalty=0'"
        }
        Dialect::Sglang => {
            "start SGLang with --sampling-defaults openai, or force the sampling with \
             --force-sampling temperature=1,top_p=1,top_k=off,min_p=off,repetition_penalty=1"
        }
        Dialect::Llamacpp => {
            "start llama.cpp with --temp 1 --top-k 0 --top-p 1 --min-p 0, or force the \
             same with --force-sampling"
        }
        Dialect::Rolltape => "start the engine with --logprobs-mode processed_logprobs",
        // A hosted server has no flags, and its kind is unknown anyway.
        Dialect::OpenAi => return None,
    };
    Some(format!(
        "parameters that a request leaves out get {defaults}, so such rows are not \
         exact; {remedy}"
    ))
}

/// A remark if the prompt of a chat is as long with a tool as without: its template leaves tools
/// out, and no server says so.
fn tools_left_out(findings: &Findings) -> Option<String> {
    let prompt_of = |tools| {
        let mut chats = findings.answered().filter(|row| row.probe.route == Route::Chat);
        chats.find(|row| row.probe.tools == tools)?.prompt_ids
    };
    let (with, without) = (prompt_of(true)?, prompt_of(false)?);
    (with <= without).then(|| {
        "the model's chat template has no place for tools: a prompt is the same with and without \
         them, so the model is not told which it has; describe them in the system message, or \
         serve the model with another template"
            .to_owned()
    })
}

/// A remark on calls without policy versions.
fn unversioned(findings: &Findings) -> Option<String> {
    let silent: Vec<&ProbeRow> = findings.rows.iter().filter(|row| row.is_unversioned()).collect();
    if silent.is_empty() {
        return None;
    }

    // vLLM reports versions on its chat route but not on this one.
    let responses = silent.iter().all(|row| row.probe.route == Route::Responses);
    let remedy = match findings.dialect {
        Dialect::Vllm if responses => {
            "--translate always sends such calls to vLLM's chat route, which does"
        }
        Dialect::Vllm => {
            "upgrade vLLM to a version with return_weight_versions and unset \
             VLLM_USE_RUST_FRONTEND, or report them with POST /version on the control listener"
        }
        Dialect::Sglang => "SGLang does so in whole replies only",
        Dialect::Llamacpp => "llama.cpp has no flag for it",
        Dialect::Rolltape => "upgrade rolltape engine",
        Dialect::OpenAi => "hosted servers have no setting for it",
    };
    Some(format!(
        "{}: the server does not report which weights sampled a token, so rows get version -1; \
         {remedy}",
        names(&silent)
    ))
}

/// A remark on version labels that trainers cannot compare.
fn unnumbered(findings: &Findings) -> Option<String> {
    let mut versions = findings.rows.iter().flat_map(|row| &row.versions);
    let label = versions.find(|label| version_number(label).is_none())?;

    let remedy = match findings.dialect {
        Dialect::Vllm => {
            "; give them a number by POST /update_weight_version {\"new_version\": \"1\"} (vLLM \
             started with VLLM_SERVER_DEV_MODE=1), or as the trainer updates them"
        }
        Dialect::Sglang => {
            "; give them a number by POST /update_weight_version {\"new_version\": \"1\"}, or as \
             the trainer updates them"
        }
        Dialect::Rolltape => {
            "; the engine takes new weights with a number: \
             POST /update_weights {\"weight_dir\": \"DIR\", \"weight_version\": \"1\"}"
        }
        _ => "",
    };

    Some(format!(
        "the weights have the label `{label}`, which has no number, so rows get version -1{remedy}"
    ))
}
