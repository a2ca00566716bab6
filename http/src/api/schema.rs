//! The fields of a request body, read off the type that it is deserialized into.

use std::fmt::Display;

use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess};
use serde::de::{Error, Visitor};
use serde::forward_to_deserialize_any;

/// A field of a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// JSON's name of its type; `None` for any type.
    pub json_type: Option<&'static str>,
    /// True if it may be null.
    pub is_nullable: bool,
    /// True if it must be there.
    pub is_required: bool,
    /// True if it is known and refused when it is set. The documents leave it out.
    pub is_refused: bool,
}

/// Declarations of fields that may be absent and null.
impl Field {
    const fn optional(name: &'static str, json_type: Option<&'static str>) -> Self {
        Self { name, json_type, is_nullable: true, is_required: false, is_refused: false }
    }

    /// A field of any type.
    pub const fn any(name: &'static str) -> Self {
        Self::optional(name, None)
    }

    /// A list.
    pub const fn array(name: &'static str) -> Self {
        Self::optional(name, Some("array"))
    }

    /// A boolean.
    pub const fn boolean(name: &'static str) -> Self {
        Self::optional(name, Some("boolean"))
    }

    /// A whole number.
    pub const fn integer(name: &'static str) -> Self {
        Self::optional(name, Some("integer"))
    }

    /// A number.
    pub const fn number(name: &'static str) -> Self {
        Self::optional(name, Some("number"))
    }

    /// An object.
    pub const fn object(name: &'static str) -> Self {
        Self::optional(name, Some("object"))
    }

    /// A field that is refused when it is set.
    pub const fn refused(name: &'static str) -> Self {
        Self { is_refused: true, ..Self::any(name) }
    }

    /// A text.
    pub const fn string(name: &'static str) -> Self {
        Self::optional(name, Some("string"))
    }

    /// Fields of any type.
    pub const fn any_of<const N: usize>(names: [&'static str; N]) -> [Self; N] {
        let mut fields = [Self::any(""); N];
        let mut at = 0;
        while at < N {
            fields[at] = Self::any(names[at]);
            at += 1;
        }
        fields
    }
}

/// The fields of the struct `T`, in the order in which it declares them.
///
/// `T` is deserialized from values that note the type that is asked for. Then it is deserialized
/// from fewer fields, to see which ones it misses.
pub fn fields_of<T: DeserializeOwned>() -> Vec<Field> {
    let mut fields = Vec::new();
    let _ = T::deserialize(StructProbe { fields: &mut fields, offered: None });

    let mut required = Vec::new();
    while let Err(ProbeError { missing: Some(name) }) =
        T::deserialize(StructProbe { fields: &mut Vec::new(), offered: Some(&required) })
    {
        required.push(name);
    }
    for field in &mut fields {
        field.is_required = required.contains(&field.name);
    }
    fields
}

/// An error of a deserialization.
#[derive(Debug, thiserror::Error)]
#[error("no value")]
struct ProbeError {
    /// The field that was missing, if that is the error.
    missing: Option<&'static str>,
}

impl Error for ProbeError {
    fn custom<M: Display>(_: M) -> Self {
        Self { missing: None }
    }

    fn missing_field(name: &'static str) -> Self {
        Self { missing: Some(name) }
    }
}

/// A deserializer that offers the fields of a struct.
struct StructProbe<'a> {
    /// Receives the fields that were read.
    fields: &'a mut Vec<Field>,
    /// The fields that are present; `None` for all.
    offered: Option<&'a [&'static str]>,
}

impl<'de> Deserializer<'de> for StructProbe<'_> {
    type Error = ProbeError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeError> {
        Err(ProbeError::custom("only a struct has fields"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        let names = self.offered.unwrap_or(names).iter();
        visitor.visit_map(FieldProbes { names, fields: self.fields })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct FieldProbes<'a> {
    names: std::slice::Iter<'a, &'static str>,
    fields: &'a mut Vec<Field>,
}

impl<'de> MapAccess<'de> for FieldProbes<'_> {
    type Error = ProbeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ProbeError> {
        let Some(name) = self.names.next() else { return Ok(None) };
        let field = Field { is_nullable: false, ..Field::any(name) };
        self.fields.push(field);
        let name: StrDeserializer<'_, ProbeError> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ProbeError> {
        let no_key = || ProbeError::custom("a value without a key");
        seed.deserialize(TypeProbe(self.fields.last_mut().ok_or_else(no_key)?))
    }
}

/// A deserializer that notes the type that is asked for, and gives an empty value.
struct TypeProbe<'a>(&'a mut Field);

impl<'de> Deserializer<'de> for TypeProbe<'_> {
    type Error = ProbeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.is_nullable = true;
        visitor.visit_some(self)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.json_type = Some("integer");
        visitor.visit_u32(0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.json_type = Some("integer");
        visitor.visit_i64(0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.json_type = Some("number");
        visitor.visit_f64(0.0)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.json_type = Some("string");
        visitor.visit_str("")
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.json_type = Some("array");
        visitor.visit_seq(SeqDeserializer::new(std::iter::empty::<&str>()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.0.json_type = Some("object");
        visitor.visit_map(MapDeserializer::new(std::iter::empty::<(&str, &str)>()))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i128 u8 u16 u64 u128 f32 char str bytes byte_buf unit unit_struct
        newtype_struct tuple tuple_struct struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Map, Value};

    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its fields are of interest")]
    struct Body {
        id: String,
        count: Option<u32>,
        #[serde(deserialize_with = "Option::deserialize")]
        score: Option<f64>,
        labels: Option<Map<String, Value>>,
        list: Vec<Value>,
        any: Value,
    }

    #[test]
    fn the_fields_of_a_struct_have_the_types_of_json() {
        let fields = fields_of::<Body>();
        let required: Vec<_> = fields.iter().filter(|f| f.is_required).map(|f| f.name).collect();
        assert_eq!(required, ["id", "score", "list", "any"]);
        let nullable: Vec<_> = fields.iter().filter(|f| f.is_nullable).map(|f| f.name).collect();
        assert_eq!(nullable, ["count", "score", "labels"]);
        let fields: Vec<_> = fields.iter().map(|field| (field.name, field.json_type)).collect();
        let expected = [
            ("id", Some("string")),
            ("count", Some("integer")),
            ("score", Some("number")),
            ("labels", Some("object")),
            ("list", Some("array")),
            ("any", None),
        ];
        assert_eq!(fields, expected);
    }
}
