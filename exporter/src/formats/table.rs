//! Tables: records turned into Arrow arrays by a list of columns, each a name and a getter.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array,
    Int64Array, RecordBatch, StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;

use super::replay::Routing;
use crate::rows::columns::{list, messages, strings, texts};
use crate::rows::messages::Message;
use crate::rows::schema::{json_field, message_fields};

/// Why no record was made of a row; a word for the report.
pub(crate) type Refused = &'static str;

/// One column of a record `T`.
pub(crate) struct Column<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) nullable: bool,
    pub(crate) of: Of<T>,
}

/// What a column holds, and how it is got from a record. `None` is null.
pub(crate) enum Of<T: 'static> {
    Bool(fn(&T) -> Option<bool>),
    Int(fn(&T) -> Option<i64>),
    Float(fn(&T) -> Option<f64>),
    Text(fn(&T) -> Option<String>),
    /// One JSON document.
    Json(fn(&T) -> Option<String>),
    Bools(fn(&T) -> Option<Vec<bool>>),
    Int8s(fn(&T) -> Option<Vec<i8>>),
    Ints(fn(&T) -> Option<Vec<i32>>),
    Float32s(fn(&T) -> Option<Vec<f32>>),
    Texts(fn(&T) -> Option<Vec<String>>),
    /// One JSON document each.
    Jsons(fn(&T) -> Option<Vec<String>>),
    /// The model's thoughts are called `reasoning_content`, as chat templates do.
    Messages(fn(&T) -> Option<Vec<Message>>),
    Struct(&'static [Column<T>]),
    /// The same, null where it says so.
    StructIf(fn(&T) -> bool, &'static [Column<T>]),
    Bytes(fn(&T) -> Option<Vec<u8>>),
    /// Lists of lists: experts by layer by token.
    Routing(fn(&T) -> Option<Routing>),
}

impl<T> Column<T> {
    pub(crate) const fn new(name: &'static str, of: Of<T>) -> Self {
        Self { name, nullable: false, of }
    }

    pub(crate) const fn optional(name: &'static str, of: Of<T>) -> Self {
        Self { name, nullable: true, of }
    }

    fn field(&self) -> Field {
        let list = list_of;
        let ty = match self.of {
            Of::Bool(_) => DataType::Boolean,
            Of::Int(_) => DataType::Int64,
            Of::Float(_) => DataType::Float64,
            Of::Text(_) => DataType::Utf8,
            Of::Json(_) => return json_field(self.name).with_nullable(self.nullable),
            Of::Bools(_) => list(DataType::Boolean),
            Of::Int8s(_) => list(DataType::Int8),
            Of::Ints(_) => list(DataType::Int32),
            Of::Float32s(_) => list(DataType::Float32),
            Of::Texts(_) => list(DataType::Utf8),
            Of::Jsons(_) => DataType::List(Arc::new(json_field("element"))),
            Of::Messages(_) => list(DataType::Struct(template_fields())),
            Of::Struct(columns) | Of::StructIf(_, columns) => DataType::Struct(fields(columns)),
            Of::Bytes(_) => DataType::Binary,
            Of::Routing(_) => list(list_of(list_of(DataType::Int32))),
        };
        Field::new(self.name, ty, self.nullable)
    }

    fn array(&self, field: &Field, records: &[T]) -> Result<ArrayRef, ArrowError> {
        Ok(match self.of {
            Of::Bool(get) => Arc::new(records.iter().map(get).collect::<BooleanArray>()),
            Of::Int(get) => Arc::new(records.iter().map(get).collect::<Int64Array>()),
            Of::Float(get) => Arc::new(records.iter().map(get).collect::<Float64Array>()),
            Of::Text(get) | Of::Json(get) => text_column(records, get)?,
            Of::Bools(get) => lists(field, records, get, |v| Arc::new(BooleanArray::from(v)))?,
            Of::Int8s(get) => lists(field, records, get, |v| Arc::new(Int8Array::from(v)))?,
            Of::Ints(get) => lists(field, records, get, |v| Arc::new(Int32Array::from(v)))?,
            Of::Float32s(get) => lists(field, records, get, |v| Arc::new(Float32Array::from(v)))?,
            Of::Texts(get) | Of::Jsons(get) => text_lists(field, records, get)?,
            Of::Messages(get) => message_lists(field, records, get)?,
            Of::Struct(columns) => {
                let arrays = arrays(columns, &fields(columns), records)?;
                Arc::new(StructArray::try_new(fields(columns), arrays, None)?)
            }
            Of::StructIf(is, columns) => {
                let arrays = arrays(columns, &fields(columns), records)?;
                let nulls = records.iter().map(is).collect::<NullBuffer>();
                Arc::new(StructArray::try_new(fields(columns), arrays, Some(nulls))?)
            }
            Of::Bytes(get) => Arc::new(records.iter().map(get).collect::<BinaryArray>()),
            Of::Routing(get) => routings(field, records, get)?,
        })
    }
}

fn lists<T, V>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<Vec<V>>,
    array: impl Fn(Vec<V>) -> ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let mut lengths = Vec::with_capacity(records.len());
    let mut values = Vec::new();
    for found in records.iter().map(get) {
        lengths.push(found.as_ref().map(Vec::len));
        values.extend(found.into_iter().flatten());
    }
    list(field, lengths.into_iter(), array(values))
}

fn list_of(ty: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", ty, false)))
}

fn routings<T>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<Routing>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<Routing>> = records.iter().map(get).collect();
    let of_layers = Field::new("element", list_of(DataType::Int32), false);
    let of_tokens = Field::new("element", list_of(of_layers.data_type().clone()), false);
    let values = found.iter().flatten().flat_map(|r| r.values.iter().map(|v| i32::from(*v)));
    let values = Arc::new(Int32Array::from_iter_values(values));
    let all = || found.iter().flatten();
    let each = all().flat_map(|r| vec![Some(r.inner[1]); r.tokens() * r.inner[0]]);
    let layers = all().flat_map(|r| vec![Some(r.inner[0]); r.tokens()]);
    let values = list(&of_layers, each, values)?;
    let values = list(&of_tokens, layers, values)?;
    list(field, found.iter().map(|r| r.as_ref().map(Routing::tokens)), values)
}

fn text_column<T>(records: &[T], get: fn(&T) -> Option<String>) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<String>> = records.iter().map(get).collect();
    strings(found.iter().map(Option::as_deref))
}

fn text_lists<T>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<Vec<String>>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<Vec<String>>> = records.iter().map(get).collect();
    texts(field, found.iter().map(|row| row.as_ref().map(|texts| texts.iter())))
}

fn message_lists<T>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<Vec<Message>>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<Vec<Message>>> = records.iter().map(get).collect();
    let all: Vec<&Message> = found.iter().flatten().flatten().collect();
    let (_, columns, nulls) = messages(&all)?.into_parts();
    let values = StructArray::try_new(template_fields(), columns, nulls)?;
    list(field, found.iter().map(|m| m.as_ref().map(Vec::len)), Arc::new(values))
}

/// The fields of a message, in the names that chat templates read.
fn template_fields() -> Fields {
    let renamed = |field: &Arc<Field>| match field.name().as_str() {
        "reasoning" => Arc::new(field.as_ref().clone().with_name("reasoning_content")),
        _ => Arc::clone(field),
    };
    message_fields().iter().map(renamed).collect()
}

fn fields<T>(columns: &[Column<T>]) -> Fields {
    columns.iter().map(Column::field).collect()
}

fn arrays<T>(
    columns: &[Column<T>],
    fields: &Fields,
    records: &[T],
) -> Result<Vec<ArrayRef>, ArrowError> {
    columns.iter().zip(fields).map(|(column, field)| column.array(field, records)).collect()
}

/// Records of one kind that wait to be made into a batch.
pub(crate) struct Table<T: 'static> {
    columns: &'static [Column<T>],
    schema: SchemaRef,
    pending: Vec<T>,
    bytes: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(columns: &'static [Column<T>]) -> Self {
        let schema = Arc::new(Schema::new_with_metadata(fields(columns), HashMap::new()));
        Self { columns, schema, pending: Vec::new(), bytes: 0 }
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Adds a record of about so many bytes.
    pub(crate) fn push(&mut self, record: T, bytes: usize) {
        self.pending.push(record);
        self.bytes += bytes;
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// What was added since the last batch.
    pub(crate) fn batch(&mut self) -> Result<RecordBatch, ArrowError> {
        let arrays = arrays(self.columns, self.schema.fields(), &self.pending)?;
        self.pending.clear();
        self.bytes = 0;
        RecordBatch::try_new(self.schema(), arrays)
    }
}
