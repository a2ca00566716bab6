//! The schema of the `trajectories` file: the contract with trainers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use serde_json::{Map, Value, json};

/// Version of the columns below. A column may be added under the same version; one that is renamed,
/// removed or given another meaning makes a new version.
pub const SCHEMA_VERSION: i32 = 1;

/// One column: its name, what it holds, and its type.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The name in the file.
    pub name: &'static str,
    /// What it holds.
    pub doc: &'static str,
    /// Whether a row may have none.
    pub nullable: bool,
    shape: Shape,
}

/// The types that the columns need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Int32,
    Int64,
    Float64,
    Text,
    Json,
    Int8s,
    Int32s,
    Float32s,
    Rewards,
    Flag,
    Ids,
    SomeIds,
    SomeTexts,
    Floats,
    Experts,
    Texts,
    Jsons,
    Turns,
    Messages,
}

/// Every column of the file, in order.
pub const COLUMNS: [Column; 51] = [
    Column::required("schema_version", Shape::Int32, "version of this table: 1"),
    Column::required("episode_id", Shape::Text, "one run of an agent under one id"),
    Column::required("attempt", Shape::Int32, "which run of that episode, from 0"),
    Column::required("trajectory_id", Shape::Text, "episode_id/attempt/trajectory_index"),
    Column::required(
        "trajectory_index",
        Shape::Int32,
        "which path of this episode and attempt, from 0",
    ),
    Column::required(
        "num_trajectories",
        Shape::Int32,
        "number of paths of this episode and attempt, exported or not",
    ),
    Column::optional(
        "parent_trajectory_id",
        Shape::Text,
        "the path that this one left, exported or not; null for a conversation of its own",
    ),
    Column::optional(
        "fork_position",
        Shape::Int32,
        "number of leading tokens that both share, 0 without ids; null as above",
    ),
    Column::required(
        "kind",
        Shape::Text,
        "main, subagent, compaction, retry, sibling, auxiliary, fork",
    ),
    Column::required("kind_reason", Shape::Text, "what says that it is of that kind"),
    Column::optional(
        "group_id",
        Shape::Text,
        "episodes whose rewards are compared; rows are sorted by it, null last",
    ),
    Column::optional("task_id", Shape::Text, "what the episode was asked to do"),
    Column::required(
        "model",
        Shape::Text,
        "the server's name of the model, else the agent's, else empty",
    ),
    Column::required(
        "tokenizer_fingerprint",
        Shape::Text,
        "which tokenizer the ids belong to; empty where not known",
    ),
    Column::required(
        "input_ids",
        Shape::Int32s,
        "all token ids of the path, prompt included; empty without ids",
    ),
    Column::required(
        "loss_mask",
        Shape::Int8s,
        "1 on sampled tokens to be trained in this row, 0 on all others",
    ),
    Column::required(
        "logprobs",
        Shape::Float32s,
        "of the sampled token as the server reported it; 0.0 where not sampled or missing",
    ),
    Column::required("logprob_kind", Shape::Text, "processed, temperature, raw, unknown"),
    Column::required(
        "versions",
        Shape::Int32s,
        "policy version of each token; -1 where not sampled or not known",
    ),
    Column::required(
        "prompt_len",
        Shape::Int32,
        "length of the first prompt: prompt_ids = input_ids[:prompt_len]",
    ),
    Column::required("turns", Shape::Turns, "the sampled spans, one for each call of the path"),
    Column::optional(
        "policy_version_min",
        Shape::Int64,
        "smallest version that a trained token may be of; null where none is known",
    ),
    Column::optional(
        "policy_version_max",
        Shape::Int64,
        "largest version that a trained token may be of; null where none is known",
    ),
    Column::optional(
        "mixed_versions",
        Shape::Flag,
        "whether trained tokens are of several versions; null where that is not known",
    ),
    Column::optional(
        "staleness",
        Shape::Int64,
        "the trainer's version less policy_version_min; null unless asked for",
    ),
    Column::optional(
        "reward",
        Shape::Float64,
        "the episode's last reward named `reward`; null is not zero",
    ),
    Column::optional(
        "trajectory_reward",
        Shape::Float64,
        "the last reward named `reward` of this very path; null is not zero",
    ),
    Column::optional(
        "token_rewards",
        Shape::Rewards,
        "rewards of calls and spans on their last tokens, null on all others; null without any",
    ),
    Column::optional("advantage", Shape::Float64, "null unless asked for"),
    Column::optional(
        "group_size",
        Shape::Int64,
        "selected attempts of the group; null unless asked for, as the next three",
    ),
    Column::optional("group_scored", Shape::Int64, "those of them that have a reward"),
    Column::optional(
        "group_reward_mean",
        Shape::Float64,
        "mean of their rewards; null where there are none",
    ),
    Column::optional(
        "group_reward_std",
        Shape::Float64,
        "their standard deviation (ddof 1); null where there are fewer than two",
    ),
    Column::required(
        "rewards",
        Shape::Json,
        "all statements: a list of {name, value, source, at, scope, call_id, choice, start, end}",
    ),
    Column::required(
        "row_weight",
        Shape::Float64,
        "trained tokens of this row over those of all rows of its episode and attempt",
    ),
    Column::optional(
        "fidelity",
        Shape::Text,
        "exact where the engine reported the ids; null without ids",
    ),
    Column::required("verdict", Shape::Text, "exact, usable, unusable"),
    Column::required(
        "reasons",
        Shape::Texts,
        "why the verdict is not exact, sorted; empty when it is",
    ),
    Column::required(
        "episode_verdict",
        Shape::Text,
        "the verdict on all paths of this episode and attempt, exported or not",
    ),
    Column::required("status", Shape::Text, "completed, truncated, aborted, failed"),
    Column::required("prompt", Shape::Messages, "the messages of the path's first call"),
    Column::required(
        "completion",
        Shape::Messages,
        "the messages that followed, the last answer included",
    ),
    Column::required("tools", Shape::Jsons, "the tools that the first call offered"),
    Column::required("metadata", Shape::Json, "{labels, source} of the episode"),
    Column::optional(
        "top_logprob_ids",
        Shape::SomeIds,
        "ids of the likeliest tokens beside each; an id is null where only a text is known",
    ),
    Column::optional(
        "top_logprob_tokens",
        Shape::SomeTexts,
        "their texts; a text is null where only an id is known",
    ),
    Column::optional("top_logprobs", Shape::Floats, "their logprobs"),
    Column::optional(
        "kept_token_ids",
        Shape::Ids,
        "ids that truncated sampling left to choose from at each token",
    ),
    Column::optional(
        "routed_experts",
        Shape::Experts,
        "the experts of each token, layer by layer; zeros where none are recorded",
    ),
    Column::optional(
        "routed_experts_shape",
        Shape::Int32s,
        "[tokens, layers, k], or [tokens, layers * k] where the server says no more",
    ),
    Column::optional(
        "routed_experts_mask",
        Shape::Int8s,
        "1 on tokens whose experts are recorded, 0 on all others",
    ),
];

/// What a row of the feed has beside these: docs/feed.md tells of it.
pub(crate) const FEED_ITEM: Column =
    Column::required("feed_item", Shape::Int64, "the position of the item that the row belongs to");

/// The Arrow schema of the feed: that of the file, and one column more.
pub(crate) fn feed_schema() -> SchemaRef {
    Arc::new(Schema::new(COLUMNS.iter().chain([&FEED_ITEM]).map(Column::field).collect::<Fields>()))
}

/// The Arrow schema. JSON columns carry the extension `arrow.json`, which Parquet stores as the
/// logical type JSON, so that readers decode them.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(COLUMNS.iter().map(Column::field).collect::<Fields>()))
}

impl Column {
    const fn required(name: &'static str, shape: Shape, doc: &'static str) -> Self {
        Self { name, doc, shape, nullable: false }
    }

    const fn optional(name: &'static str, shape: Shape, doc: &'static str) -> Self {
        Self { name, doc, shape, nullable: true }
    }

    /// The type as documents write it.
    pub fn type_name(&self) -> &'static str {
        match self.shape {
            Shape::Int32 => "int32",
            Shape::Int64 => "int64",
            Shape::Float64 => "float64",
            Shape::Text => "string",
            Shape::Json => "JSON",
            Shape::Int8s => "list<int8>",
            Shape::Int32s => "list<int32>",
            Shape::Float32s => "list<float32>",
            Shape::Rewards => "list<float64>",
            Shape::Flag => "bool",
            Shape::Ids | Shape::SomeIds => "list<list<int32>>",
            Shape::SomeTexts => "list<list<string>>",
            Shape::Floats => "list<list<float32>>",
            Shape::Experts => "list<list<uint16>>",
            Shape::Texts => "list<string>",
            Shape::Jsons => "list<JSON>",
            Shape::Turns => "list<turn>",
            Shape::Messages => "list<message>",
        }
    }

    fn field(&self) -> Field {
        let list = |item: Field| DataType::List(Arc::new(item.with_name("element")));
        let lists = |item: Field| list(required("", list(item)));
        let plain = |ty: DataType| Field::new(self.name, ty, self.nullable);
        match self.shape {
            Shape::Int32 => plain(DataType::Int32),
            Shape::Int64 => plain(DataType::Int64),
            Shape::Float64 => plain(DataType::Float64),
            Shape::Text => plain(DataType::Utf8),
            Shape::Json => json_field(self.name),
            Shape::Int8s => plain(list(required("", DataType::Int8))),
            Shape::Int32s => plain(list(required("", DataType::Int32))),
            Shape::Float32s => plain(list(required("", DataType::Float32))),
            Shape::Rewards => plain(list(optional("", DataType::Float64))),
            Shape::Flag => plain(DataType::Boolean),
            Shape::Ids => plain(lists(required("", DataType::Int32))),
            Shape::SomeIds => plain(lists(optional("", DataType::Int32))),
            Shape::SomeTexts => plain(lists(optional("", DataType::Utf8))),
            Shape::Floats => plain(lists(required("", DataType::Float32))),
            Shape::Experts => plain(lists(required("", DataType::UInt16))),
            Shape::Texts => plain(list(required("", DataType::Utf8))),
            Shape::Jsons => plain(list(json_field(""))),
            Shape::Turns => plain(list(required("", DataType::Struct(turn_fields())))),
            Shape::Messages => plain(list(required("", DataType::Struct(message_fields())))),
        }
    }
}

/// The fields of an element of `turns`: `[start, end)` is the sampled span.
pub(crate) fn turn_fields() -> Fields {
    Fields::from(vec![
        required("call_id", DataType::Utf8),
        required("choice", DataType::Int32),
        required("start", DataType::Int32),
        required("end", DataType::Int32),
        optional("finish_reason", DataType::Utf8),
        optional("version_start", DataType::Int64),
        optional("version_end", DataType::Int64),
        optional("temperature", DataType::Float64),
        optional("reward", DataType::Float64),
        optional("continued", DataType::Boolean),
        optional("mc_return", DataType::Float64),
        required("model", DataType::Utf8),
    ])
}

/// The fields of a message of `prompt` or `completion`.
pub(crate) fn message_fields() -> Fields {
    let calls = DataType::List(Arc::new(json_field("element")));
    Fields::from(vec![
        required("role", DataType::Utf8),
        optional("content", DataType::Utf8),
        optional("name", DataType::Utf8),
        optional("tool_call_id", DataType::Utf8),
        optional("reasoning", DataType::Utf8),
        optional("tool_calls", calls),
    ])
}

fn required(name: &str, ty: DataType) -> Field {
    Field::new(name, ty, false)
}

fn optional(name: &str, ty: DataType) -> Field {
    Field::new(name, ty, true)
}

pub(crate) fn json_field(name: &str) -> Field {
    let extension = [("ARROW:extension:name", "arrow.json"), ("ARROW:extension:metadata", "")];
    let metadata: HashMap<_, _> =
        extension.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    required(name, DataType::Utf8).with_metadata(metadata)
}

pub(crate) fn is_json(field: &Field) -> bool {
    field.extension_type_name() == Some("arrow.json")
}

/// What `datasets` reads under the key `huggingface` of the file's metadata.
pub(crate) fn huggingface(schema: &Schema) -> Value {
    json!({ "info": { "features": features(schema.fields()) } })
}

fn features(fields: &Fields) -> Value {
    let entry = |field: &FieldRef| (field.name().clone(), feature(field));
    Value::Object(fields.iter().map(entry).collect::<Map<_, _>>())
}

fn feature(field: &FieldRef) -> Value {
    let value = |dtype: &str| json!({ "dtype": dtype, "_type": "Value" });
    match field.data_type() {
        _ if is_json(field) => json!({ "_type": "Json" }),
        DataType::List(item) => json!({ "feature": feature(item), "_type": "List" }),
        DataType::Struct(fields) => features(fields),
        DataType::Utf8 => value("string"),
        DataType::Float32 => value("float32"),
        DataType::Float64 => value("float64"),
        DataType::Boolean => value("bool"),
        // The integer types are spelled alike but for the case.
        integer => value(&integer.to_string().to_lowercase()),
    }
}

/// Who wrote a file.
pub(crate) fn created_by() -> String {
    format!("rolltape {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    #[test]
    fn the_user_page_shows_every_column() {
        let page = include_str!("../../../docs/export.md");
        for column in COLUMNS {
            let Column { name, doc, nullable, .. } = column;
            let null = if nullable { ", nullable" } else { "" };
            let line = format!("| `{name}` | {}{null} | {doc} |\n", column.type_name());
            assert!(page.contains(&line), "docs/export.md lacks the line\n{line}");
        }
        assert_eq!(page.matches("\n| `").count(), COLUMNS.len() + Reason::ALL.len());
    }

    #[test]
    fn the_page_of_the_feed_shows_its_column() {
        let Column { name, doc, .. } = FEED_ITEM;
        let line = format!("| `{name}` | {} | {doc} |\n", FEED_ITEM.type_name());
        assert!(
            include_str!("../../../docs/feed.md").contains(&line),
            "docs/feed.md lacks\n{line}"
        );
    }

    #[test]
    fn the_user_page_explains_every_reason() {
        let page = include_str!("../../../docs/export.md");
        for reason in Reason::ALL {
            let line = format!("| `{}` | {} |\n", reason.as_str(), reason.meaning());
            assert!(page.contains(&line), "docs/export.md lacks the line\n{line}");
        }
    }
}
