//! The schema of the `trajectories` file, which is the contract with trainers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use serde_json::{Map, Value, json};

/// Version of the columns below. A new column keeps the version. A column that is renamed, removed
/// or given another meaning makes a new one.
pub const SCHEMA_VERSION: i32 = 1;

/// One column: name, content and type.
#[derive(Debug, Clone, Copy)]
pub struct SchemaColumn {
    /// The name in the file.
    pub name: &'static str,
    /// Content, as the user's page describes it.
    pub doc: &'static str,
    /// True where a row may have null.
    pub nullable: bool,
    column_type: ColumnType,
}

/// The types that the columns need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnType {
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
    Annotations,
}

/// Every column of the file, in order.
pub const COLUMNS: [SchemaColumn; 54] = [
    SchemaColumn::required("schema_version", ColumnType::Int32, "version of this table: 1"),
    SchemaColumn::required("episode_id", ColumnType::Text, "one run of an agent under one id"),
    SchemaColumn::required("attempt", ColumnType::Int32, "which run of that episode, from 0"),
    SchemaColumn::required(
        "trajectory_id",
        ColumnType::Text,
        "episode_id/attempt/trajectory_index",
    ),
    SchemaColumn::required(
        "trajectory_index",
        ColumnType::Int32,
        "which path of this episode and attempt, from 0",
    ),
    SchemaColumn::required(
        "num_trajectories",
        ColumnType::Int32,
        "number of paths of this episode and attempt, exported or not",
    ),
    SchemaColumn::optional(
        "parent_trajectory_id",
        ColumnType::Text,
        "the path that this one left, exported or not; null for a conversation of its own",
    ),
    SchemaColumn::optional(
        "fork_position",
        ColumnType::Int32,
        "number of leading tokens that both share, 0 without ids; null as above",
    ),
    SchemaColumn::required(
        "kind",
        ColumnType::Text,
        "main, subagent, compaction, retry, sibling, auxiliary, fork",
    ),
    SchemaColumn::required("kind_reason", ColumnType::Text, "what says that it is of that kind"),
    SchemaColumn::optional(
        "group_id",
        ColumnType::Text,
        "episodes whose rewards are compared; rows are sorted by it, null last",
    ),
    SchemaColumn::optional("task_id", ColumnType::Text, "what the episode was asked to do"),
    SchemaColumn::required(
        "model",
        ColumnType::Text,
        "the server's name of the model, else the agent's, else empty",
    ),
    SchemaColumn::required(
        "tokenizer_fingerprint",
        ColumnType::Text,
        "which tokenizer the ids belong to; empty where not known",
    ),
    SchemaColumn::required(
        "input_ids",
        ColumnType::Int32s,
        "all token ids of the path, prompt included; empty without ids",
    ),
    SchemaColumn::required(
        "loss_mask",
        ColumnType::Int8s,
        "1 on sampled tokens to be trained in this row, 0 on all others",
    ),
    SchemaColumn::required(
        "logprobs",
        ColumnType::Float32s,
        "of the sampled token as the server reported it; 0.0 where not sampled or missing",
    ),
    SchemaColumn::required(
        "logprob_kind",
        ColumnType::Text,
        "processed, temperature, raw, unknown",
    ),
    SchemaColumn::required(
        "versions",
        ColumnType::Int32s,
        "policy version of each token; -1 where not sampled or not known",
    ),
    SchemaColumn::required(
        "prompt_len",
        ColumnType::Int32,
        "length of the first prompt: prompt_ids = input_ids[:prompt_len]",
    ),
    SchemaColumn::required(
        "turns",
        ColumnType::Turns,
        "the sampled spans, one for each call of the path",
    ),
    SchemaColumn::optional(
        "policy_version_min",
        ColumnType::Int64,
        "smallest version that a trained token may be of; null where none is known",
    ),
    SchemaColumn::optional(
        "policy_version_max",
        ColumnType::Int64,
        "largest version that a trained token may be of; null where none is known",
    ),
    SchemaColumn::optional(
        "mixed_versions",
        ColumnType::Flag,
        "whether trained tokens are of several versions; null where that is not known",
    ),
    SchemaColumn::optional(
        "staleness",
        ColumnType::Int64,
        "the trainer's version less policy_version_min; null unless asked for",
    ),
    SchemaColumn::optional(
        "reward",
        ColumnType::Float64,
        "the episode's last reward named `reward`; null is not zero",
    ),
    SchemaColumn::optional(
        "trajectory_reward",
        ColumnType::Float64,
        "the last reward named `reward` of this very path; null is not zero",
    ),
    SchemaColumn::optional(
        "token_rewards",
        ColumnType::Rewards,
        "rewards of calls and spans on their last tokens, null on all others; null without any",
    ),
    SchemaColumn::optional("advantage", ColumnType::Float64, "null unless asked for"),
    SchemaColumn::optional(
        "group_size",
        ColumnType::Int64,
        "selected attempts of the group; null unless asked for, as the next three",
    ),
    SchemaColumn::optional("group_scored", ColumnType::Int64, "those of them that have a reward"),
    SchemaColumn::optional(
        "group_reward_mean",
        ColumnType::Float64,
        "mean of their rewards; null where there are none",
    ),
    SchemaColumn::optional(
        "group_reward_std",
        ColumnType::Float64,
        "their standard deviation (ddof 1); null where there are fewer than two",
    ),
    SchemaColumn::required(
        "rewards",
        ColumnType::Json,
        "all statements: a list of {name, value, source, at, scope, call_id, choice, start, end, \
         given_by, given_from, key_name, over_calls, over_chain}",
    ),
    SchemaColumn::required(
        "row_weight",
        ColumnType::Float64,
        "trained tokens of this row over those of all rows of its episode and attempt",
    ),
    SchemaColumn::optional(
        "fidelity",
        ColumnType::Text,
        "exact where the engine reported the ids; null without ids",
    ),
    SchemaColumn::required("verdict", ColumnType::Text, "exact, usable, unusable"),
    SchemaColumn::required(
        "reasons",
        ColumnType::Texts,
        "why the verdict is not exact, sorted; empty when it is",
    ),
    SchemaColumn::required(
        "episode_verdict",
        ColumnType::Text,
        "the verdict on all paths of this episode and attempt, exported or not",
    ),
    SchemaColumn::required(
        "status",
        ColumnType::Text,
        "completed, truncated, aborted, failed, infrastructure_failed",
    ),
    SchemaColumn::required("prompt", ColumnType::Messages, "the messages of the path's first call"),
    SchemaColumn::required(
        "completion",
        ColumnType::Messages,
        "the messages that followed, the last answer included",
    ),
    SchemaColumn::required("tools", ColumnType::Jsons, "the tools that the first call offered"),
    SchemaColumn::required(
        "metadata",
        ColumnType::Json,
        "{labels, source, chain: {calls, digest}} of the episode",
    ),
    SchemaColumn::required(
        "unread_parts",
        ColumnType::Json,
        "parts of the messages that have no form in chat and are left out: {type: count}; \
         `unplaced_answer` counts answers that no message of the row holds",
    ),
    SchemaColumn::optional(
        "top_logprob_ids",
        ColumnType::SomeIds,
        "ids of the likeliest tokens beside each; an id is null where only a text is known",
    ),
    SchemaColumn::optional(
        "top_logprob_tokens",
        ColumnType::SomeTexts,
        "their texts; a text is null where only an id is known",
    ),
    SchemaColumn::optional("top_logprobs", ColumnType::Floats, "their logprobs"),
    SchemaColumn::optional(
        "kept_token_ids",
        ColumnType::Ids,
        "ids that truncated sampling left to choose from at each token",
    ),
    SchemaColumn::optional(
        "routed_experts",
        ColumnType::Experts,
        "the experts of each token, layer by layer; zeros where none are recorded",
    ),
    SchemaColumn::optional(
        "routed_experts_shape",
        ColumnType::Int32s,
        "[tokens, layers, k], or [tokens, layers * k] where the server says no more",
    ),
    SchemaColumn::optional(
        "routed_experts_mask",
        ColumnType::Int8s,
        "1 on tokens whose experts are recorded, 0 on all others",
    ),
    SchemaColumn::optional(
        "annotations",
        ColumnType::Annotations,
        "what trainers said of the tokens, the newest version of each name; null without any",
    ),
    SchemaColumn::optional(
        "kv_cache",
        ColumnType::Text,
        "numbers of the engine's KV cache, such as fp8_e4m3; null for the model's own, or not said",
    ),
];

/// Column that rows of the feed have in addition; see docs/feed.md.
pub(crate) const FEED_ITEM: SchemaColumn = SchemaColumn::required(
    "feed_item",
    ColumnType::Int64,
    "the position of the item that the row belongs to",
);

/// Columns that rows have in addition for each set of scores, with its name in place of `NAME`; see
/// docs/score.md.
pub(crate) const SCORE_COLUMNS: [SchemaColumn; 3] = [
    SchemaColumn::optional(
        "score_NAME_logprobs",
        ColumnType::Float32s,
        "logprob of each token under the model; 0.0 for the first; null where there are no scores",
    ),
    SchemaColumn::optional(
        "score_NAME_top_ids",
        ColumnType::Ids,
        "`--top` + 1 ids a token: the likeliest, and the token's own; -1 fills up; null without",
    ),
    SchemaColumn::optional(
        "score_NAME_top_logprobs",
        ColumnType::Floats,
        "their logprobs; minus infinity fills up",
    ),
];

/// The name of the scores and the part of the name of a column that says which of them it has.
pub(crate) fn score_column(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("score_")?;
    let parts = ["_top_logprobs", "_top_ids", "_logprobs"];
    parts.iter().find_map(|part| Some((rest.strip_suffix(part)?, *part)))
}

/// Returns the Arrow schema of rows with scores of these names.
pub(crate) fn scored_schema(names: &[String]) -> SchemaRef {
    let of_name = |name| SCORE_COLUMNS.iter().map(move |column| column.field_of(name));
    let scores = names.iter().map(String::as_str).flat_map(of_name);
    Arc::new(Schema::new(COLUMNS.iter().map(SchemaColumn::field).chain(scores).collect::<Fields>()))
}

/// Returns the Arrow schema of the feed: that of the file, and [`FEED_ITEM`].
pub(crate) fn feed_schema() -> SchemaRef {
    Arc::new(Schema::new(
        COLUMNS.iter().chain([&FEED_ITEM]).map(SchemaColumn::field).collect::<Fields>(),
    ))
}

/// Returns the Arrow schema. JSON columns carry the extension `arrow.json`, which Parquet stores as
/// the logical type JSON, so that readers decode them.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(COLUMNS.iter().map(SchemaColumn::field).collect::<Fields>()))
}

impl SchemaColumn {
    const fn required(name: &'static str, column_type: ColumnType, doc: &'static str) -> Self {
        Self { name, doc, column_type, nullable: false }
    }

    const fn optional(name: &'static str, column_type: ColumnType, doc: &'static str) -> Self {
        Self { name, doc, column_type, nullable: true }
    }

    /// Returns the type as documents write it.
    pub fn type_name(&self) -> &'static str {
        match self.column_type {
            ColumnType::Int32 => "int32",
            ColumnType::Int64 => "int64",
            ColumnType::Float64 => "float64",
            ColumnType::Flag => "bool",
            ColumnType::Text => "string",
            ColumnType::Json => "JSON",

            // Lists, one element a token, turn, message or tool.
            ColumnType::Int8s => "list<int8>",
            ColumnType::Int32s => "list<int32>",
            ColumnType::Float32s => "list<float32>",
            ColumnType::Rewards => "list<float64>",
            ColumnType::Texts => "list<string>",
            ColumnType::Jsons => "list<JSON>",
            ColumnType::Turns => "list<turn>",
            ColumnType::Messages => "list<message>",
            ColumnType::Annotations => "list<annotation>",

            // One inner list a token.
            ColumnType::Ids | ColumnType::SomeIds => "list<list<int32>>",
            ColumnType::SomeTexts => "list<list<string>>",
            ColumnType::Floats => "list<list<float32>>",
            ColumnType::Experts => "list<list<uint16>>",
        }
    }

    fn field(&self) -> Field {
        if self.column_type == ColumnType::Json {
            return json_field(self.name);
        }
        Field::new(self.name, self.data_type(), self.nullable)
    }

    /// Returns the field with the name of scores in its own.
    fn field_of(&self, scores: &str) -> Field {
        self.field().with_name(self.name.replace("NAME", scores))
    }

    fn data_type(&self) -> DataType {
        match self.column_type {
            ColumnType::Int32 => DataType::Int32,
            ColumnType::Int64 => DataType::Int64,
            ColumnType::Float64 => DataType::Float64,
            ColumnType::Flag => DataType::Boolean,
            ColumnType::Text | ColumnType::Json => DataType::Utf8,

            ColumnType::Int8s => list(required("", DataType::Int8)),
            ColumnType::Int32s => list(required("", DataType::Int32)),
            ColumnType::Float32s => list(required("", DataType::Float32)),
            ColumnType::Rewards => list(optional("", DataType::Float64)),
            ColumnType::Texts => list(required("", DataType::Utf8)),
            ColumnType::Jsons => list(json_field("")),
            ColumnType::Turns => list(required("", DataType::Struct(turn_fields()))),
            ColumnType::Messages => list(required("", DataType::Struct(message_fields()))),
            ColumnType::Annotations => list(required("", DataType::Struct(annotation_fields()))),

            // One inner list a token. The optional elements are null where only the other of an id
            // and its text is known.
            ColumnType::Ids => list_of_lists(required("", DataType::Int32)),
            ColumnType::SomeIds => list_of_lists(optional("", DataType::Int32)),
            ColumnType::SomeTexts => list_of_lists(optional("", DataType::Utf8)),
            ColumnType::Floats => list_of_lists(required("", DataType::Float32)),
            ColumnType::Experts => list_of_lists(required("", DataType::UInt16)),
        }
    }
}

fn list(element: Field) -> DataType {
    DataType::List(Arc::new(element.with_name("element")))
}

fn list_of_lists(element: Field) -> DataType {
    list(required("", list(element)))
}

/// Returns the fields of an element of `turns`, in which `[start, end)` is the sampled span.
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
        optional("message", DataType::Int32),
    ])
}

/// Returns the fields of an element of `annotations`. `values` has one element a token.
pub(crate) fn annotation_fields() -> Fields {
    Fields::from(vec![
        required("name", DataType::Utf8),
        required("version", DataType::Utf8),
        required("values", list(optional("", DataType::Float32))),
    ])
}

/// Returns the fields of a message of `prompt` or `completion`.
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

/// Returns the value of the key `huggingface` in the file's metadata, which `datasets` reads.
pub(crate) fn huggingface(schema: &Schema) -> Value {
    json!({ "info": { "features": features(schema.fields()) } })
}

fn features(fields: &Fields) -> Value {
    let entry = |field: &FieldRef| (field.name().clone(), feature(field));
    Value::Object(fields.iter().map(entry).collect::<Map<_, _>>())
}

fn feature(field: &FieldRef) -> Value {
    match field.data_type() {
        _ if is_json(field) => json!({ "_type": "Json" }),
        DataType::List(item) => json!({ "feature": feature(item), "_type": "List" }),
        DataType::Struct(fields) => features(fields),
        DataType::Utf8 => plain_feature("string"),
        DataType::Float32 => plain_feature("float32"),
        DataType::Float64 => plain_feature("float64"),
        DataType::Boolean => plain_feature("bool"),
        // The integer types are spelled alike but for the case.
        integer => plain_feature(&integer.to_string().to_lowercase()),
    }
}

fn plain_feature(dtype: &str) -> Value {
    json!({ "dtype": dtype, "_type": "Value" })
}

/// Returns the name and version of the program that wrote a file.
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
            let SchemaColumn { name, doc, nullable, .. } = column;
            let null = if nullable { ", nullable" } else { "" };
            let line = format!("| `{name}` | `{}`{null} | {doc} |\n", column.type_name());
            assert!(page.contains(&line), "docs/export.md lacks the line\n{line}");
        }
        assert_eq!(page.matches("\n| `").count(), COLUMNS.len() + Reason::ALL.len());
    }

    #[test]
    fn the_page_of_the_feed_shows_its_column() {
        let SchemaColumn { name, doc, .. } = FEED_ITEM;
        let line = format!("| `{name}` | `{}` | {doc} |\n", FEED_ITEM.type_name());
        assert!(
            include_str!("../../../docs/feed.md").contains(&line),
            "docs/feed.md lacks\n{line}"
        );
    }

    #[test]
    fn the_page_of_scores_shows_their_columns() {
        let page = include_str!("../../../docs/score.md");
        for column in SCORE_COLUMNS {
            let SchemaColumn { name, doc, .. } = column;
            let line = format!("| `{name}` | `{}` | {doc} |\n", column.type_name());
            assert!(page.contains(&line), "docs/score.md lacks the line\n{line}");
        }
        assert_eq!(score_column("score_a_b_top_ids"), Some(("a_b", "_top_ids")));
        assert_eq!(score_column("score_a_logprobs"), Some(("a", "_logprobs")));
        assert!(COLUMNS.iter().all(|column| score_column(column.name).is_none()));
        let fields = scored_schema(&["t".to_owned()]);
        assert_eq!(fields.field(COLUMNS.len()).name(), "score_t_logprobs");
        assert_eq!(scored_schema(&[]), schema());
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
