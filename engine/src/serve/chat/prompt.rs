//! The prompt of a chat: messages to text, and text to token ids.

use std::sync::Arc;

use http::api::schema::Field;
use serde_json::{Map, Value};
use template::{ChatInput, prepare};

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
        let text: Arc<str> = render(fields, model)?.into();
        let special = fields.flag("add_special_tokens", false)?;
        // Special tokens around the text are not part of it, so no reply is found by such a text.
        let Some(memory) = state.memory.as_ref().filter(|_| !special) else {
            let ids = encode_prompt(MESSAGES, &text, special, model)?.into();
            return Ok(ChatPrompt { ids, text, prefix: None, remembered: None });
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
        Ok(ChatPrompt { ids, text, prefix: Some(report), remembered: Some(remembered) })
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
        Ok(ChatPrompt { ids, text: self.text, prefix: None, remembered: None })
    }
}

/// Returns the text that each reply begins with: with `echo` that of the last message, if the
/// assistant has it; else none.
pub(super) fn echo(fields: &Fields) -> Result<String, ApiError> {
    let is_asked = fields.flag("echo", false)?;
    let last = fields.list(MESSAGES)?.and_then(<[Value]>::last);
    match last.filter(|message| message.get("role").is_some_and(|role| role == "assistant")) {
        Some(last) if is_asked => {
            let prepared = prepare(std::slice::from_ref(last))
                .map_err(|error| ApiError::bad_field(MESSAGES, error))?;
            let content = prepared.first().and_then(|message| message.get("content"));
            Ok(content.and_then(Value::as_str).unwrap_or_default().to_owned())
        }
        _ => Ok(String::new()),
    }
}

/// Renders the messages of a request by the model's chat template.
fn render(fields: &Fields, model: &ModelInfo) -> Result<String, ApiError> {
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

    // Templates read arguments of tool calls as objects and content as one text. Requests may have
    // them as text and as lists of parts.
    let prepared = prepare(messages).map_err(|error| ApiError::bad_field(MESSAGES, error))?;
    let variables = parse_variables(fields)?;
    let tools = fields.list("tools")?;
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
    let rendered =
        if continues_last { template.render_continuation(&input) } else { template.render(&input) };
    rendered.map_err(|error| ApiError::bad_field(MESSAGES, error))
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
