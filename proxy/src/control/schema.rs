//! The fields of a request body, read off the type that it is deserialized into.

use serde::de::value::{Error, MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess};
use serde::de::{Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// A field of a JSON object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(super) name: &'static str,
    /// JSON's name of its type; `None` for any type.
    pub(super) json_type: Option<&'static str>,
}

/// The fields of the struct `T`, in the order in which it declares them. `T` is deserialized from
/// values that note their own type.
pub(super) fn fields_of<T: DeserializeOwned>() -> Vec<Field> {
    let mut fields = Vec::new();
    // An error can only be one of `T` itself, after all fields were read.
    let _ = T::deserialize(StructProbe(&mut fields));
    fields
}

/// A deserializer that offers every field of a struct.
struct StructProbe<'a>(&'a mut Vec<Field>);

impl<'de> Deserializer<'de> for StructProbe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only a struct has fields"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(FieldProbes { names: names.iter(), fields: self.0 })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct FieldProbes<'a> {
    names: std::slice::Iter<'static, &'static str>,
    fields: &'a mut Vec<Field>,
}

impl<'de> MapAccess<'de> for FieldProbes<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        self.fields.push(Field { name, json_type: None });
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let field = self.fields.last_mut().ok_or_else(|| Error::custom("a value without a key"))?;
        seed.deserialize(TypeProbe(&mut field.json_type))
    }
}

/// A deserializer that notes the type that is asked for, and gives an empty value.
struct TypeProbe<'a>(&'a mut Option<&'static str>);

impl<'de> Deserializer<'de> for TypeProbe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Some("integer");
        visitor.visit_u32(0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Some("integer");
        visitor.visit_i64(0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Some("number");
        visitor.visit_f64(0.0)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Some("string");
        visitor.visit_str("")
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Some("array");
        visitor.visit_seq(SeqDeserializer::new(std::iter::empty::<&str>()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Some("object");
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
        score: Option<f64>,
        labels: Option<Map<String, Value>>,
        list: Vec<Value>,
        any: Value,
    }

    #[test]
    fn the_fields_of_a_struct_have_the_types_of_json() {
        let fields: Vec<_> =
            fields_of::<Body>().into_iter().map(|field| (field.name, field.json_type)).collect();
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
