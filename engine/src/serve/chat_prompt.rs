//! The prompt of a chat: messages to text, text to ids.

use std::sync::Arc;

use serde_json::Value;
use template::{ChatInput, prepare};

use super::encode;
use super::error::ApiError;
use super::fields::Fields;
use super::prefix::{Asked, Ids, Recalled, Report};
use super::submit::State;
use crate::Card;

/// Where the messages are.
const FIELD: &str = "messages";

/// A prompt as it will be run.
pub(super) struct ChatPrompt {
    pub(super) ids: Arc<[u32]>,
    /// Its text.
    pub(super) text: Arc<str>,
    /// What the reply says about its start; none where nothing is remembered.
    pub(super) prefix: Option<Report>,
    /// For the replies to be remembered by.
    pub(super) asked: Option<Asked>,
}

impl ChatPrompt {
    /// The prompt of a request. `salt` keeps apart what is remembered for different callers.
    pub(super) fn new(
        state: &State,
        fields: &Fields,
        salt: Option<&Arc<str>>,
    ) -> Result<ChatPrompt, ApiError> {
        let card = &state.card;
        let text: Arc<str> = render(fields, card)?.into();
        let special = fields.flag("add_special_tokens", false)?;
        // Tokens around the text are not in it, and so nothing can be found by it.
        let memory = state.memory.as_ref().filter(|_| !special);
        let Some(memory) = memory else {
            let ids = encode::prompt(FIELD, &text, special, card)?.into();
            return Ok(ChatPrompt { ids, text, prefix: None, asked: None });
        };
        let Recalled { report, start, is_respelled } =
            memory.recall(salt.map(|salt| &**salt), &text);
        let ids = match start {
            Some((ids, used)) => ids.and(&encode::after(FIELD, &text[used..], card)?),
            None => Ids::new(&encode::prompt(FIELD, &text, false, card)?),
        };
        Ok(ChatPrompt {
            ids: ids.to_vec().into(),
            prefix: Some(report),
            asked: Some(Asked { salt: salt.cloned(), text: Arc::clone(&text), ids, is_respelled }),
            text,
        })
    }
}

/// The text of a request's messages.
fn render(fields: &Fields, card: &Card) -> Result<String, ApiError> {
    let messages = fields.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::bad("messages", "must be a list of at least one message"));
    }
    let Some(template) = &card.template else {
        return Err(ApiError::bad("messages", "cannot be used: the model has no chat template"));
    };
    let goes_on = fields.flag("continue_final_message", false)?;
    let opens = fields.flag("add_generation_prompt", true)?;
    if goes_on && opens {
        let message = "cannot be true together with `add_generation_prompt`, which is by default";
        return Err(ApiError::bad("continue_final_message", message));
    }
    let messages = prepare(messages).map_err(|error| ApiError::bad("messages", error))?;
    let variables = variables(fields)?;
    let input = ChatInput {
        messages: &messages,
        tools: fields.list("tools")?,
        add_generation_prompt: opens,
        documents: fields.list("documents")?,
        variables: Some(&variables),
        now: i64::try_from(crate::now()).ok(),
    };
    let text = if goes_on { template.render_open(&input) } else { template.render(&input) };
    text.map_err(|error| ApiError::bad("messages", error))
}

/// `chat_template_kwargs`, and `reasoning_effort` for templates that know it.
fn variables(fields: &Fields) -> Result<serde_json::Map<String, Value>, ApiError> {
    let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(effort) = fields.text("reasoning_effort")? {
        // No effort is no thinking, in the word of the templates that can do without.
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(Value::Bool(false));
        }
        variables.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    Ok(variables)
}
