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

use crate::formats::trainers::replay::ExpertRouting;
use crate::rows::columns::{list, messages, nested, strings, texts};
use crate::rows::messages::RowMessage;
use crate::rows::schema::{json_field, message_fields};

/// One column of a record `T`.
pub(crate) struct RecordColumn<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) nullable: bool,
    pub(crate) getter: Getter<T>,
}

/// Gets the value of a column from a record. The variant is the type of the column, and `None` is
/// null.
pub(crate) enum Getter<T: 'static> {
    Bool(fn(&T) -> Option<bool>),
    Int(fn(&T) -> Option<i64>),
    Float(fn(&T) -> Option<f64>),
    Text(fn(&T) -> Option<String>),
    /// One JSON document.
    Json(fn(&T) -> Option<String>),
    Bools(fn(&T) -> Option<Vec<bool>>),
    Int8s(fn(&T) -> Option<Vec<i8>>),
    Ints(fn(&T) -> Option<Vec<i32>>),
    /// Lists of integers.
    IntRows(fn(&T) -> Option<Vec<Vec<i32>>>),
    Float32s(fn(&T) -> Option<Vec<f32>>),
    /// Lists of numbers.
    FloatRows(fn(&T) -> Option<Vec<Vec<f32>>>),
    Texts(fn(&T) -> Option<Vec<String>>),
    /// One JSON document each.
    Jsons(fn(&T) -> Option<Vec<String>>),
    /// Messages whose reasoning is called `reasoning_content`, as chat templates call it.
    Messages(fn(&T) -> Option<Vec<RowMessage>>),
    Struct(&'static [RecordColumn<T>]),
    /// A struct that is null where the function returns false.
    StructIf(fn(&T) -> bool, &'static [RecordColumn<T>]),
    Bytes(fn(&T) -> Option<Vec<u8>>),
    /// Experts by layer by token, as lists of lists of lists.
    ExpertRouting(fn(&T) -> Option<ExpertRouting>),
}

impl<T> RecordColumn<T> {
    pub(crate) const fn new(name: &'static str, getter: Getter<T>) -> Self {
        Self { name, nullable: false, getter }
    }

    pub(crate) const fn optional(name: &'static str, getter: Getter<T>) -> Self {
        Self { name, nullable: true, getter }
    }

    fn field(&self) -> Field {
        if let Getter::Json(_) = self.getter {
            return json_field(self.name).with_nullable(self.nullable);
        }
        Field::new(self.name, self.getter.data_type(), self.nullable)
    }

    fn array(&self, field: &Field, records: &[T]) -> Result<ArrayRef, ArrowError> {
        Ok(match self.getter {
            Getter::Bool(get) => Arc::new(records.iter().map(get).collect::<BooleanArray>()),
            Getter::Int(get) => Arc::new(records.iter().map(get).collect::<Int64Array>()),
            Getter::Float(get) => Arc::new(records.iter().map(get).collect::<Float64Array>()),
            Getter::Text(get) | Getter::Json(get) => text_column(records, get)?,
            Getter::Bytes(get) => Arc::new(records.iter().map(get).collect::<BinaryArray>()),

            // Lists.
            Getter::Bools(get) => lists(field, records, get, |v| Arc::new(BooleanArray::from(v)))?,
            Getter::Int8s(get) => lists(field, records, get, |v| Arc::new(Int8Array::from(v)))?,
            Getter::Ints(get) => lists(field, records, get, |v| Arc::new(Int32Array::from(v)))?,
            Getter::IntRows(get) => int_rows(field, records, get)?,
            Getter::Float32s(get) => {
                lists(field, records, get, |v| Arc::new(Float32Array::from(v)))?
            }
            Getter::FloatRows(get) => float_rows(field, records, get)?,
            Getter::Texts(get) | Getter::Jsons(get) => text_lists(field, records, get)?,
            Getter::Messages(get) => message_lists(field, records, get)?,
            Getter::ExpertRouting(get) => routings(field, records, get)?,

            // Structs, whose columns read the same record.
            Getter::Struct(columns) => struct_column(columns, records, None)?,
            Getter::StructIf(is_present, columns) => {
                let validity = records.iter().map(is_present).collect::<NullBuffer>();
                struct_column(columns, records, Some(validity))?
            }
        })
    }
}

impl<T> Getter<T> {
    fn data_type(&self) -> DataType {
        match self {
            Self::Bool(_) => DataType::Boolean,
            Self::Int(_) => DataType::Int64,
            Self::Float(_) => DataType::Float64,
            Self::Text(_) | Self::Json(_) => DataType::Utf8,
            Self::Bytes(_) => DataType::Binary,

            Self::Bools(_) => list_of(DataType::Boolean),
            Self::Int8s(_) => list_of(DataType::Int8),
            Self::Ints(_) => list_of(DataType::Int32),
            Self::IntRows(_) => list_of(list_of(DataType::Int32)),
            Self::Float32s(_) => list_of(DataType::Float32),
            Self::FloatRows(_) => list_of(list_of(DataType::Float32)),
            Self::Texts(_) => list_of(DataType::Utf8),
            Self::Jsons(_) => DataType::List(Arc::new(json_field("element"))),
            Self::Messages(_) => list_of(DataType::Struct(template_fields())),
            Self::ExpertRouting(_) => list_of(list_of(list_of(DataType::Int32))),

            Self::Struct(columns) | Self::StructIf(_, columns) => {
                DataType::Struct(fields(*columns))
            }
        }
    }
}

fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", element, false)))
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

fn int_rows<T>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<Vec<Vec<i32>>>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<Vec<Vec<i32>>>> = records.iter().map(get).collect();
    let values = found.iter().flatten().flatten().flatten().copied();
    nested(field, lengths(&found), Arc::new(Int32Array::from_iter_values(values)))
}

fn float_rows<T>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<Vec<Vec<f32>>>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<Vec<Vec<f32>>>> = records.iter().map(get).collect();
    let values = found.iter().flatten().flatten().flatten().copied();
    nested(field, lengths(&found), Arc::new(Float32Array::from_iter_values(values)))
}

/// Returns the lengths of the lists of each row.
fn lengths<V>(found: &[Option<Vec<Vec<V>>>]) -> impl Iterator<Item = Option<Vec<usize>>> {
    found.iter().map(|rows| rows.as_ref().map(|rows| rows.iter().map(Vec::len).collect()))
}

fn routings<T>(
    field: &Field,
    records: &[T],
    get: fn(&T) -> Option<ExpertRouting>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<ExpertRouting>> = records.iter().map(get).collect();
    let present = || found.iter().flatten();
    let values = present().flat_map(|r| r.values.iter().map(|expert| i32::from(*expert)));
    let experts = Int32Array::from_iter_values(values);

    // From the innermost lists outwards: experts of a layer, layers of a token, tokens.
    let of_layer = Field::new("element", list_of(DataType::Int32), false);
    let of_token = Field::new("element", list_of(list_of(DataType::Int32)), false);
    let layer_lengths = present().flat_map(|r| vec![Some(r.experts); r.tokens() * r.layers]);
    let token_lengths = present().flat_map(|r| vec![Some(r.layers); r.tokens()]);
    let layers = list(&of_layer, layer_lengths, Arc::new(experts))?;
    let tokens = list(&of_token, token_lengths, layers)?;
    list(field, found.iter().map(|r| r.as_ref().map(ExpertRouting::tokens)), tokens)
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
    get: fn(&T) -> Option<Vec<RowMessage>>,
) -> Result<ArrayRef, ArrowError> {
    let found: Vec<Option<Vec<RowMessage>>> = records.iter().map(get).collect();
    let all: Vec<&RowMessage> = found.iter().flatten().flatten().collect();
    let (_, columns, nulls) = messages(&all)?.into_parts();
    let values = StructArray::try_new(template_fields(), columns, nulls)?;
    list(field, found.iter().map(|m| m.as_ref().map(Vec::len)), Arc::new(values))
}

fn struct_column<T>(
    columns: &[RecordColumn<T>],
    records: &[T],
    validity: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let fields = fields(columns);
    let columns: Vec<&RecordColumn<T>> = columns.iter().collect();
    let arrays = arrays(&columns, &fields, records)?;
    Ok(Arc::new(StructArray::try_new(fields, arrays, validity)?))
}

/// Returns the fields of a message under the names that chat templates read.
fn template_fields() -> Fields {
    let fields = message_fields();
    let renamed = fields.iter().map(|field| match field.name().as_str() {
        "reasoning" => Arc::new(field.as_ref().clone().with_name("reasoning_content")),
        _ => Arc::clone(field),
    });
    renamed.collect()
}

fn fields<'a, T>(columns: impl IntoIterator<Item = &'a RecordColumn<T>>) -> Fields
where
    T: 'static,
{
    columns.into_iter().map(RecordColumn::field).collect()
}

fn arrays<T>(
    columns: &[&RecordColumn<T>],
    fields: &Fields,
    records: &[T],
) -> Result<Vec<ArrayRef>, ArrowError> {
    columns.iter().zip(fields).map(|(column, field)| column.array(field, records)).collect()
}

fn schema_of<T>(columns: &[&'static RecordColumn<T>]) -> SchemaRef {
    let fields = fields(columns.iter().copied());
    Arc::new(Schema::new_with_metadata(fields, HashMap::new()))
}

/// Records of one kind that wait to be made into a batch.
pub(crate) struct Table<T: 'static> {
    columns: Vec<&'static RecordColumn<T>>,
    schema: SchemaRef,
    pending: Vec<T>,
    bytes: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(columns: &'static [RecordColumn<T>]) -> Self {
        let columns: Vec<_> = columns.iter().collect();
        let schema = schema_of(&columns);
        Self { columns, schema, pending: Vec::new(), bytes: 0 }
    }

    /// Adds columns. No record may wait.
    pub(crate) fn extend(&mut self, columns: &'static [RecordColumn<T>]) {
        self.columns.extend(columns);
        self.schema = schema_of(&self.columns);
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Adds a record that takes about this many bytes.
    pub(crate) fn push(&mut self, record: T, bytes: usize) {
        self.pending.push(record);
        self.bytes += bytes;
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// Makes a batch of the records since the last one.
    pub(crate) fn take_batch(&mut self) -> Result<RecordBatch, ArrowError> {
        let arrays = arrays(&self.columns, self.schema.fields(), &self.pending)?;
        self.pending.clear();
        self.bytes = 0;
        RecordBatch::try_new(self.schema(), arrays)
    }
}
