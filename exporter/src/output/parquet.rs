//! Properties of Parquet files.

use ::parquet::basic::{Compression, Encoding, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{KeyValue, SortingColumn};
use ::parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use ::parquet::schema::types::ColumnPath;
use arrow::datatypes::{DataType, Field, Schema};
use serde_json::Value;

use crate::rows::schema::{SCHEMA_VERSION, created_by, huggingface, score_column};

/// Bytes of the records of a row group, before compression. Memory is bounded by this, one batch
/// and one episode.
pub(crate) const GROUP_BYTES: usize = 128 << 20;
/// Level of zstd compression.
const ZSTD_LEVEL: i32 = 3;
/// Bytes of a page of token ids, before compression. Attempts at one task share much of what they
/// read, and compression finds it within a page.
const IDS_PAGE_BYTES: usize = 8 << 20;

/// A column of values in Parquet, which a column of the table may have several of.
struct ColumnLeaf<'a> {
    path: Vec<String>,
    /// The field of the table or of a struct that it belongs to.
    name: &'a str,
    data_type: &'a DataType,
}

/// Returns the properties of a file whose rows are in the order of the columns `sorted_by`,
/// ascending, null last. The same rows must make the same bytes, so nothing here may depend on a
/// clock or the machine.
pub(crate) fn properties(
    schema: &Schema,
    sorted_by: &[&str],
) -> Result<WriterProperties, ParquetError> {
    let leaves = leaves(schema);
    let mut builder = WriterProperties::builder()
        .set_created_by(created_by())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_key_value_metadata(Some(vec![
            entry("rolltape_schema_version", &SCHEMA_VERSION.into()),
            entry("huggingface", &huggingface(schema)),
        ]));

    let sorting: Vec<_> =
        sorted_by.iter().filter_map(|name| sorting_column(&leaves, name)).collect();
    if !sorting.is_empty() {
        builder = builder.set_sorting_columns(Some(sorting));
    }
    Ok(leaves.into_iter().fold(builder, encoded).build())
}

/// Sets how the values of a column are encoded.
fn encoded(builder: WriterPropertiesBuilder, leaf: ColumnLeaf<'_>) -> WriterPropertiesBuilder {
    let (is_ids, name) = (leaf.is_ids(), leaf.name);
    let is_logprobs = name == "logprobs" || score_column(name).is_some();
    let path = ColumnPath::from(leaf.path);
    match (is_ids, is_logprobs) {
        (false, true) => builder
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::BYTE_STREAM_SPLIT),
        // Numbers in a dictionary are packed into bits, where compression finds nothing again.
        (true, _) => builder
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_data_page_size_limit(path, IDS_PAGE_BYTES),
        _ => builder,
    }
}

impl ColumnLeaf<'_> {
    /// Returns true for ids of tokens and of experts.
    fn is_ids(&self) -> bool {
        let is_named = self.name.ends_with("ids")
            || self.name.ends_with("experts")
            || ["tokens", "target_tokens", "model_input", "labels"].contains(&self.name);
        is_named && self.path.len() > 1 && self.data_type.is_integer()
    }
}

/// Returns the columns of values, in the order of the file.
fn leaves(schema: &Schema) -> Vec<ColumnLeaf<'_>> {
    let mut found = Vec::new();
    for field in schema.fields() {
        add_leaves(&mut found, Vec::new(), field, field.name());
    }
    found
}

fn add_leaves<'a>(
    found: &mut Vec<ColumnLeaf<'a>>,
    above: Vec<String>,
    field: &'a Field,
    name: &'a str,
) {
    let mut path = above;
    path.push(field.name().clone());
    match field.data_type() {
        DataType::List(element) => {
            path.push("list".to_owned());
            add_leaves(found, path, element, name);
        }
        DataType::Struct(fields) => {
            for field in fields {
                add_leaves(found, path.clone(), field, field.name());
            }
        }
        data_type => found.push(ColumnLeaf { path, name, data_type }),
    }
}

fn sorting_column(leaves: &[ColumnLeaf<'_>], name: &str) -> Option<SortingColumn> {
    let at = leaves.iter().position(|leaf| leaf.path == [name])?;
    let column_idx = i32::try_from(at).ok()?;
    Some(SortingColumn { column_idx, descending: false, nulls_first: false })
}

/// Returns an entry of a file's metadata.
pub(crate) fn entry(key: &str, value: &Value) -> KeyValue {
    KeyValue::new(key.to_owned(), value.to_string())
}

#[cfg(test)]
mod tests {
    use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use ::parquet::basic::{ColumnOrder, LogicalType};
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Float32Type, Int32Type};
    use serde_json::json;
    use sha2::{Digest, Sha256};

    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::input::exported::LookedAt;
    use crate::input::plan::{AttemptNumbers, PlannedAttempt};
    use crate::output::sink::{ExportSink, ManifestNotes};
    use crate::rows::row::Row;
    use crate::rows::schema::schema;
    use crate::tests::fixture::{call, episode, rows_of, text_call, with_bodies};
    use crate::{COLUMNS, Options, WriteError};

    fn sample_rows() -> Vec<Row> {
        let user = json!({ "role": "user", "content": "hi" });
        let arguments = json!({ "name": "f", "arguments": "{\"n\": 1}" });
        let said = json!({ "role": "assistant", "content": null,
            "tool_calls": [{ "id": "c", "type": "function", "function": arguments }] });
        let told = json!({ "role": "tool", "content": "2", "tool_call_id": "c" });
        rows_of(&episode(vec![
            with_bodies(call(1, &[1, 2], &[&[3], &[4, 5]]), std::slice::from_ref(&user), ""),
            with_bodies(call(2, &[1, 2, 3, 6], &[&[7]]), &[user.clone(), said, told], "done"),
            text_call(3, &[user], "other"),
        ]))
    }

    #[tokio::main(flavor = "current_thread")]
    async fn write(out: &Path, overwrite: bool) -> Result<Vec<PathBuf>, WriteError> {
        let options = Options { out: out.to_owned().into(), overwrite, ..Options::default() };
        let mut sink = ExportSink::create(&options, &[]).await?;
        let attempt = episode(Vec::new());
        let planned = PlannedAttempt::new(attempt.record.clone());
        sink.expect(std::slice::from_ref(&planned), LookedAt::default(), None);
        sink.start_attempt(&attempt, Vec::new(), &planned).await?;
        for row in sample_rows() {
            sink.add_row(row, AttemptNumbers::default()).await?;
        }
        sink.end(false).await?;
        Ok(sink.publish(ManifestNotes::default()).await?.files)
    }

    #[test]
    fn the_file_reads_back_with_the_schema_of_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(&folder.path().join("out"), false).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&files[0]).unwrap());
        let reader = reader.unwrap();
        assert_eq!(reader.schema().fields(), schema().fields());
        let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
        assert_eq!(batches.len(), 1);
        let ids = batches[0]["input_ids"].as_list::<i32>();
        assert_eq!(ids.len(), 3);
        assert_eq!(ids.value(0).as_primitive::<Int32Type>().values(), &[1, 2, 3, 6, 7]);
        assert_eq!(ids.value(2).len(), 0);
        let logprobs = batches[0]["logprobs"].as_list::<i32>().value(0);
        assert_eq!(logprobs.as_primitive::<Float32Type>().values(), &[0.0, 0.0, -0.5, 0.0, -0.5]);
    }

    #[test]
    fn json_columns_have_the_logical_type_wherever_they_stand() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(&folder.path().join("a.parquet"), false).unwrap();
        let reader = SerializedFileReader::new(File::open(&files[0]).unwrap()).unwrap();
        let metadata = reader.metadata().file_metadata();
        let json: Vec<String> = metadata
            .schema_descr()
            .columns()
            .iter()
            .filter(|c| c.logical_type_ref() == Some(&LogicalType::Json))
            .map(|c| c.path().string())
            .collect();
        assert_eq!(
            json,
            [
                "rewards",
                "prompt.list.element.tool_calls.list.element",
                "completion.list.element.tool_calls.list.element",
                "tools.list.element",
                "metadata",
                "unread_parts",
            ]
        );
        assert!(metadata.created_by().unwrap().starts_with("rolltape "));
        let group = reader.metadata().row_group(0);
        let logprobs = group.columns().iter().find(|c| c.column_path().parts()[0] == "logprobs");
        let encodings: Vec<_> = logprobs.unwrap().encodings().collect();
        assert!(encodings.contains(&Encoding::BYTE_STREAM_SPLIT), "{encodings:?}");
    }

    #[test]
    fn readers_find_the_order_the_floats_and_the_episodes() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(&folder.path().join("a.parquet"), false).unwrap();
        let reader = SerializedFileReader::new(File::open(&files[0]).unwrap()).unwrap();
        let (metadata, group) = (reader.metadata().file_metadata(), reader.metadata().row_group(0));
        let columns = metadata.schema_descr().columns();
        let name = |at: i32| columns[usize::try_from(at).unwrap()].path().string();
        let sorted = group.sorting_columns().unwrap().iter().map(|by| name(by.column_idx));
        let order = ["group_id", "episode_id", "attempt", "trajectory_index"];
        assert_eq!(sorted.collect::<Vec<_>>(), order);

        let orders = metadata.column_orders().unwrap();
        let is_known = |order: &ColumnOrder| matches!(order, ColumnOrder::TYPE_DEFINED_ORDER(_));
        assert!(orders.len() == columns.len() && orders.iter().all(is_known), "{orders:?}");
        let chunk = |of: &str| group.columns().iter().find(|c| c.column_path().string() == of);
        let weights = chunk("row_weight").unwrap().statistics().unwrap();
        assert!(weights.min_bytes_opt().is_some() && weights.max_bytes_opt().is_some());
        let has_dictionary = |of: &str| chunk(of).unwrap().dictionary_page_offset().is_some();
        assert!(!has_dictionary("input_ids.list.element"));
        assert!(has_dictionary("loss_mask.list.element"));

        let entries = metadata.key_value_metadata().unwrap();
        let entry = entries.iter().find(|entry| entry.key == "rolltape_row_groups").unwrap();
        let groups: Value = serde_json::from_str(entry.value.as_deref().unwrap()).unwrap();
        assert_eq!(groups, json!([{ "rows": 3, "episodes": [sample_rows()[0].episode_id] }]));
    }

    #[test]
    fn the_same_rows_make_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let read = |files: Vec<PathBuf>| files.iter().map(|f| fs::read(f).unwrap()).collect();
        let first: Vec<Vec<u8>> = read(write(&out, false).unwrap());
        let second: Vec<Vec<u8>> = read(write(&out, false).unwrap());
        assert_eq!(first, second);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 4, "a temporary file is left");
    }

    #[test]
    fn the_file_is_what_arrow_makes_of_all_rows_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), false).unwrap();
        let (rows, schema) = (sample_rows(), schema());
        let sorted_by = ["group_id", "episode_id", "attempt", "trajectory_index"];
        let properties = properties(&schema, &sorted_by).unwrap();
        let batch = crate::rows::columns::batch(&schema, &rows).unwrap();
        let writer = ::parquet::arrow::ArrowWriter::try_new(Vec::new(), schema, Some(properties));
        let mut writer = writer.unwrap();
        writer.write(&batch).unwrap();
        let groups = json!([{ "rows": rows.len(), "episodes": [rows[0].episode_id] }]);
        writer.append_key_value_metadata(entry("rolltape_row_groups", &groups));
        let columns = writer.finish().unwrap().file_metadata().schema_descr().num_columns();
        crate::output::footer::use_type_order(writer.inner_mut(), columns).unwrap();
        assert!(fs::read(&files[0]).unwrap() == *writer.inner());
    }

    #[test]
    fn what_others_wrote_is_replaced_only_when_told() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("mine.parquet");
        fs::write(&out, "mine").unwrap();
        assert!(matches!(write(&out, false), Err(WriteError::Foreign { path }) if path == out));
        assert_eq!(fs::read(&out).unwrap(), b"mine");
        let files = write(&out, true).unwrap();
        assert_eq!(files[2], folder.path().join("mine.manifest.json"));
        write(&out, false).unwrap();
    }

    #[test]
    fn the_manifest_names_the_file_and_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), false).unwrap();
        let manifest: Value = serde_json::from_slice(&fs::read(&files[2]).unwrap()).unwrap();
        let written = fs::read(&files[0]).unwrap();
        let (bytes, sha256) = (written.len(), hex(&Sha256::digest(&written)));
        let entry = json!({
            "path": "trajectories.parquet", "rows": 3, "bytes": bytes, "sha256": sha256 });
        assert_eq!(manifest["files"][0], entry);
        assert_eq!(manifest["files"][1]["path"], "_forks.pq");
        assert_eq!(
            (&manifest["format"], &manifest["rows"]),
            (&json!("rolltape-trajectories"), &json!(3))
        );
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn every_column_has_a_line_of_its_own() {
        let mut names: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COLUMNS.len());
        assert!(COLUMNS.iter().all(|c| !c.doc.is_empty()));
    }
}
