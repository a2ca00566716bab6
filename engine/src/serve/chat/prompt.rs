//! The prompt of a chat: messages to text, and text to token ids.

use std::sync::Arc;

use http::api::schema::Field;
use serde_json::{Map, Value};
use template::{ChatInput, ChatTemplate, PromptThought, RenderError, prepare};

use crate::info::ModelInfo;
use crate::serve::calls::{ApiError, Fields, parse_token_ids};
use crate::serve::generation::{encode_after, encode_prompt};
use crate::serve::prefix::{PrefixMatch, PrefixReport, RememberedPrompt, TokenChain};
use crate::serve::state::ServerState;

/// The fields that make up the prompt of a chat.
pub(crate) const PROMPT_FIELDS: &[Field] = &[
    Field::array(MESSAGES),
    Field::array("tools"),
    Field::array("documents"),
    Field::object("chat_template_kwargs"),
    Field::string("reasoning_effort"),
    Field::boolean("add_generation_prompt"),
    Field::boolean("continue_final_message"),
    Field::boolean("add_special_tokens"),
];

const MESSAGES: &str = "messages";
/// The object in which a chat's prompt may be given as ids, and their name, as vLLM has them.
pub(super) const GIVEN_PROMPT: &str = "kv_transfer_params";
const GIVEN_IDS: &str = "prompt_token_ids";

/// A prompt as the model gets it.
pub(crate) struct ChatPrompt {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) text: Arc<str>,
    /// The reasoning in which the reply begins.
    pub(crate) thought: PromptThought,
    /// The report on the start of the prompt; none if nothing is remembered.
    pub(crate) prefix: Option<PrefixReport>,
    /// The prompt as its replies are remembered by; none if they are not.
    pub(crate) remembered: Option<RememberedPrompt>,
}

impl ChatPrompt {
    /// Renders and encodes the messages of a request. Only prompts of the same `salt` share
    /// remembered replies.
    ///
    /// # Errors
    /// 400 that names the field, also if the template refuses the messages.
    pub(crate) fn new(
        state: &ServerState,
        fields: &Fields,
        salt: Option<&Arc<str>>,
    ) -> Result<ChatPrompt, ApiError> {
        let model = &state.model;
        let (text, thought) = render(fields, model)?;
        let text: Arc<str> = text.into();
        let special = fields.flag("add_special_tokens", false)?;
        // Special tokens around the text are not part of it, so no reply is found by such a text.
        let Some(memory) = state.memory.as_ref().filter(|_| !special) else {
            let ids = encode_prompt(MESSAGES, &text, special, model)?.into();
            return Ok(ChatPrompt { ids, text, thought, prefix: None, remembered: None });
        };

        let PrefixMatch { report, start, is_respelled, .. } =
            memory.recall(salt.map(|it| &**it), &text);
        // The remembered ids are taken as they are, and only the text behind them is encoded.
        let chain = match start {
            Some(start) => {
                let rest = encode_after(MESSAGES, &text[start.text_bytes..], model)?;
                start.ids.append(&rest)
            }
            None => TokenChain::new(&encode_prompt(MESSAGES, &text, false, model)?),
        };

        let ids = chain.to_vec().into();
        let salt = salt.cloned();
        let remembered =
            RememberedPrompt { salt, text: Arc::clone(&text), ids: chain, is_respelled };
        let prefix = Some(report);
        Ok(ChatPrompt { ids, text, thought, prefix, remembered: Some(remembered) })
    }
}

impl ChatPrompt {
    /// Takes the ids of the request in place of those of the messages, if it has some. As in vLLM,
    /// `echo` needs the messages.
    ///
    /// # Errors
    /// 400 if they are no ids of this model.
    pub(crate) fn with_given_ids(
        self,
        fields: &Fields,
        model: &ModelInfo,
    ) -> Result<ChatPrompt, ApiError> {
        let given = fields.object(GIVEN_PROMPT)?.and_then(|object| object.get(GIVEN_IDS));
        let Some(given) = given.filter(|ids| !ids.is_null()) else { return Ok(self) };
        if fields.flag("echo", false)? {
            return Ok(self);
        }
        let name = format!("{GIVEN_PROMPT}.{GIVEN_IDS}");
        let Some(list) = given.as_array().filter(|list| !list.is_empty()) else {
            return Err(ApiError::bad_field(&name, "must be a list of token ids"));
        };
        let ids = parse_token_ids(&name, list, model.vocab)?.into();
        Ok(ChatPrompt { ids, prefix: None, remembered: None, ..self })
    }
}

/// Returns the text that each reply begins with: with `echo` that of the last message, if the
/// assistant has it; else none.
pub(super) fn echo(fields: &Fields) -> Result<String, ApiError> {
    let is_asked = fields.flag("echo", false)?;
    let last = fields.list(MESSAGES)?.and_then(<[Value]>::last);
    match last.filter(|message| message.get("role").is_some_and(|role| role == "assistant")) {
        Some(last) if is_asked => {
            let prepared = prepare(std::slice::from_ref(last), false)
                .map_err(|error| ApiError::bad_field(MESSAGES, error))?;
            let content = prepared.first().and_then(|message| message.get("content"));
            Ok(content.and_then(Value::as_str).unwrap_or_default().to_owned())
        }
        _ => Ok(String::new()),
    }
}

/// Renders the messages of a request by the model's chat template. Returns the reasoning in which
/// the reply begins, too.
fn render(fields: &Fields, model: &ModelInfo) -> Result<(String, PromptThought), ApiError> {
    let messages = fields.list(MESSAGES)?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::bad_field(MESSAGES, "must be a list of at least one message"));
    }
    let Some(template) = &model.template else {
        let message = "cannot be used: the model has no chat template";
        return Err(ApiError::bad_field(MESSAGES, message));
    };

    let continues_last = fields.flag("continue_final_message", false)?;
    let opens_reply = fields.flag("add_generation_prompt", true)?;
    if continues_last && opens_reply {
        let message = "cannot be true together with `add_generation_prompt`, which is by default";
        return Err(ApiError::bad_field("continue_final_message", message));
    }

    // Templates read arguments of tool calls as objects, and content as one text if they do not go
    // through its parts. Requests may have them as text and as lists of parts.
    let tools = fields.list("tools")?;
    let prepared = prepare(messages, template.reads_parts(tools.is_some()))
        .map_err(|error| ApiError::bad_field(MESSAGES, error))?;
    let variables = parse_variables(fields)?;
    if tools.is_some_and(|tools| !tools.is_empty()) && !template.reads_tools() {
        model.tools_left_out.call_once(warn_of_tools);
    }

    let input = ChatInput {
        messages: &prepared,
        tools,
        add_generation_prompt: opens_reply,
        documents: fields.list("documents")?,
        variables: Some(&variables),
        now: i64::try_from(crate::engine::now()).ok(),
    };
    let text = render_by(template, &input, continues_last)
        .map_err(|error| ApiError::bad_field(MESSAGES, error))?;
    let thought = match model.thinks {
        true => thought_of(&text, template, &input, continues_last),
        false => PromptThought::Absent,
    };
    Ok((text, thought))
}

fn render_by(
    template: &ChatTemplate,
    input: &ChatInput<'_>,
    continues_last: bool,
) -> Result<String, RenderError> {
    if continues_last { template.render_continuation(input) } else { template.render(input) }
}

/// Finds the reasoning in which the reply to a prompt begins.
///
/// Tags count where the reply begins: in the message that it continues, or behind the last message.
/// Those of other messages may be quotations. The template shows where that is: it is what changes
/// with the content of the last message, or what is the same behind it.
fn thought_of(
    text: &str,
    template: &ChatTemplate,
    input: &ChatInput<'_>,
    continues_last: bool,
) -> PromptThought {
    let at_end = PromptThought::of(text);
    if at_end != PromptThought::Absent || !PromptThought::is_in(text) {
        return at_end;
    }

    let mut messages = input.messages.to_vec();
    if let Some(last) = messages.last_mut().and_then(Value::as_object_mut) {
        let content = last.get("content").and_then(Value::as_str).unwrap_or_default().trim();
        let is_alike = content.starts_with('x') || content.ends_with('x');
        last.insert("content".to_owned(), Value::from(if is_alike { "y" } else { "x" }));
    }
    let input = ChatInput { messages: &messages, ..*input };
    let Ok(other) = render_by(template, &input, continues_last) else { return at_end };
    let equal = |(one, other): &(char, char)| one == other;
    let bytes = |chars: (char, char)| chars.0.len_utf8();
    if continues_last {
        // Both may begin with the same letters of a tag.
        let same = text.chars().zip(other.chars()).take_while(equal).map(bytes).sum::<usize>();
        let before = &text[..same];
        let start = before.rfind('<').filter(|at| !before[*at..].contains('>')).unwrap_or(same);
        return PromptThought::within(&text[..start], &text[start..]);
    }
    let backwards = text.chars().rev().zip(other.chars().rev());
    let same = backwards.take_while(equal).map(bytes).sum::<usize>();
    PromptThought::within("", &text[text.len() - same..])
}

/// Tells that the model does not see the tools of a request, which is answered all the same, as
/// other servers do.
fn warn_of_tools() {
    tracing::warn!(
        "a request has tools, but the model's chat template has no place for them: the prompt is \
         the same as without"
    );
}

/// Reads `chat_template_kwargs`, and `reasoning_effort` for the templates that read it.
fn parse_variables(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(effort) = fields.text("reasoning_effort")? {
        // Templates that can do without reasoning name the switch `enable_thinking`.
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(Value::Bool(false));
        }
        variables.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The start of a prompt whose reply template `end` begins.
    fn chat_ml(content: &str, end: &str) -> ChatTemplate {
        let source = format!(
            "{{%- for m in messages -%}}{{{{- '<|' + m.role + '|>' -}}}}{content}\
             {{{{- '<|end|>' -}}}}{{%- endfor -%}}{{%- if add_generation_prompt -%}}\
             {{{{- '<|assistant|>{end}' -}}}}{{%- endif -%}}{{{{- '<|go|>' -}}}}"
        );
        ChatTemplate::new(&source, Map::new()).unwrap()
    }

    /// The thought after these messages; the reply continues the last one if it is the assistant's.
    fn thought(template: &ChatTemplate, messages: &[Value]) -> PromptThought {
        let continues_last = messages.last().unwrap()["role"] == "assistant";
        let add_generation_prompt = !continues_last;
        let input = ChatInput { messages, add_generation_prompt, ..ChatInput::default() };
        let text = render_by(template, &input, continues_last).unwrap();
        thought_of(&text, template, &input, continues_last)
    }

    fn said(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn a_prompt_that_ends_inside_a_thought_is_one() {
        use PromptThought::{Absent, Closed, Open};
        let plain = "{{- m.content -}}";
        for (end, expected) in [
            ("", Absent),
            ("<think>\\n", Open),
            ("<think>\\nOkay, ", Open),
            ("<think>\\n\\n</think>\\n\\n", Closed),
        ] {
            let template = chat_ml(plain, end);
            // Tags in messages of others, and in earlier ones, are quotations.
            for user in ["a", "what is <think>?", "<think>", "</think>x", "x"] {
                let earlier =
                    [said("user", "b"), said("assistant", "<think>c"), said("user", user)];
                assert_eq!(thought(&template, &earlier), expected, "{end} {user}");
            }
        }
    }

    #[test]
    fn a_continued_message_may_end_inside_a_thought() {
        use PromptThought::{Absent, Closed, Open};
        // As Qwen3's template does, it takes the thought out of the content and writes it in front.
        let split = "{%- set parts = m.content.split('</think>') -%}\
            {%- if parts | length > 1 -%}{{- '<think>\\n' + parts[0].split('<think>')[-1] + \
            '</think>' -}}{%- endif -%}{{- parts[-1] -}}";
        for template in [chat_ml("{{- m.content -}}", "<think>"), chat_ml(split, "")] {
            for (content, expected) in [
                ("<think>\nTwo and two", Open),
                ("<think>", Open),
                ("So. <think>\nTwo", Open),
                ("<think>\nTwo</think>\n\nIt is", Closed),
                ("It is", Absent),
                ("<", Absent),
            ] {
                // Such a content is not in the prompt as it is, so no reply continues it.
                if template.source().contains("split") && content.contains("</think>") {
                    continue;
                }
                let messages = [said("user", "what is <think>?"), said("assistant", content)];
                assert_eq!(thought(&template, &messages), expected, "{content}");
            }
        }
    }
}
