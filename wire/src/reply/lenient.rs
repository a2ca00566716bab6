//! Values of a reply, read by whoever expects nothing: a value of another kind costs only itself.
//!
//! - [`Lenient`]: a value of the kind that is read, or the knowledge that there was another.
//! - [`Expected`]: the kinds.
//! - [`Held`]: an object whose members are read.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value that a server may spell in another way than expected. Null is as good as none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Lenient<T> {
    /// No value.
    #[default]
    Absent,
    Value(T),
    /// A value of another kind.
    Other,
}

/// An object.
pub(super) type Held<T> = Lenient<Object<T>>;

/// An object whose members are read by `T`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Object<T>(pub(super) T);

/// A kind of value that is read out of JSON of any kind; `None` stands for another kind.
pub(super) trait Expected<'de>: Sized {
    fn of_text(_text: Cow<'de, str>) -> Option<Self> {
        None
    }

    fn of_flag(_flag: bool) -> Option<Self> {
        None
    }

    fn of_number(_number: Number) -> Option<Self> {
        None
    }

    /// Reads all of a list.
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    /// Reads all of an object.
    fn of_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// A number as it was spelled: whole and not negative, or any other.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Natural(u64),
    Other(f64),
}

impl Number {
    /// The number that a text spells.
    fn of_text(text: &str) -> Option<Self> {
        let natural = text.parse().ok().map(Self::Natural);
        natural.or_else(|| text.parse().ok().filter(|n: &f64| n.is_finite()).map(Self::Other))
    }

    /// The number, if it is a natural one, however it is spelled: `12.0` is 12.
    fn natural(self) -> Option<u64> {
        match self {
            Self::Natural(number) => Some(number),
            Self::Other(number) => {
                let is_natural = number >= 0.0 && number.fract() == 0.0 && number < 2_f64.powi(64);
                is_natural.then_some(number as u64)
            }
        }
    }
}

impl<T> Lenient<T> {
    /// The value, if it is of the kind.
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Other => None,
        }
    }

    /// Takes the value out of its place.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Absent)
    }

    /// The value, if it is of the kind.
    pub(super) fn as_value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Other => None,
        }
    }

    /// This value, or `other` where there is none.
    pub(super) fn or(self, other: Self) -> Self {
        match self {
            Self::Absent => other,
            known => known,
        }
    }

    /// Returns true for a value of another kind.
    pub(super) fn is_other(&self) -> bool {
        matches!(self, Self::Other)
    }
}

impl<T> Lenient<Object<T>> {
    /// The members, if it is an object.
    pub(super) fn members(self) -> Option<T> {
        self.value().map(|object| object.0)
    }
}

impl<T> From<Option<T>> for Lenient<T> {
    fn from(read: Option<T>) -> Self {
        read.map_or(Self::Other, Self::Value)
    }
}

impl<'de, T: Expected<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A member that is missing is an option of none.
        deserializer.deserialize_option(AnyKind(PhantomData))
    }
}

struct AnyKind<T>(PhantomData<T>);

impl<'de, T: Expected<'de>> Visitor<'de> for AnyKind<T> {
    type Value = Lenient<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of any kind")
    }

    fn visit_none<E>(self) -> Result<Lenient<T>, E> {
        Ok(Lenient::Absent)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Lenient<T>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Lenient<T>, E> {
        Ok(T::of_flag(flag).into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Lenient<T>, E> {
        Ok(T::of_number(Number::Natural(number)).into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Lenient<T>, E> {
        Ok(T::of_number(Number::Other(number as f64)).into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Lenient<T>, E> {
        Ok(T::of_number(Number::Other(number)).into())
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Lenient<T>, E> {
        Ok(T::of_text(Cow::Borrowed(text)).into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Lenient<T>, E> {
        Ok(T::of_text(Cow::Owned(text.to_owned())).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Lenient<T>, A::Error> {
        T::of_list(list).map(Lenient::from)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Lenient<T>, A::Error> {
        T::of_object(object).map(Lenient::from)
    }
}

impl<'de, T: Deserialize<'de>> Expected<'de> for Object<T> {
    fn of_object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(object)).map(|members| Some(Self(members)))
    }
}

impl Expected<'_> for u64 {
    fn of_text(text: Cow<'_, str>) -> Option<Self> {
        Number::of_text(&text).and_then(Number::natural)
    }

    fn of_number(number: Number) -> Option<Self> {
        number.natural()
    }
}

impl Expected<'_> for u32 {
    fn of_text(text: Cow<'_, str>) -> Option<Self> {
        u64::of_text(text).and_then(|number| Self::try_from(number).ok())
    }

    fn of_number(number: Number) -> Option<Self> {
        number.natural().and_then(|number| Self::try_from(number).ok())
    }
}

impl Expected<'_> for f64 {
    fn of_text(text: Cow<'_, str>) -> Option<Self> {
        Number::of_text(&text).and_then(Self::of_number)
    }

    fn of_number(number: Number) -> Option<Self> {
        Some(match number {
            Number::Natural(number) => number as Self,
            Number::Other(number) => number,
        })
    }
}

impl Expected<'_> for bool {
    fn of_flag(flag: bool) -> Option<Self> {
        Some(flag)
    }
}

impl Expected<'_> for String {
    fn of_text(text: Cow<'_, str>) -> Option<Self> {
        Some(text.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a, T: Expected<'a>>(json: &'a str) -> Lenient<T> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_number_is_read_however_it_is_spelled() {
        for spelled in ["12", "12.0", "1.2e1", "\"12\"", "\"12.0\""] {
            assert_eq!(read::<u32>(spelled), Lenient::Value(12), "{spelled}");
            assert_eq!(read::<u64>(spelled), Lenient::Value(12), "{spelled}");
            assert_eq!(read::<f64>(spelled), Lenient::Value(12.0), "{spelled}");
        }
        assert_eq!(read::<f64>("\"-0.5\""), Lenient::Value(-0.5));
        assert_eq!(read::<u64>("18446744073709551615"), Lenient::Value(u64::MAX));
    }

    #[test]
    fn a_value_of_another_kind_is_told_from_none() {
        for other in ["-1", "1.5", "\"x\"", "\"NaN\"", "{\"a\":[1]}", "[1,{}]", "true", "1e300"] {
            assert_eq!(read::<u32>(other), Lenient::Other, "{other}");
        }
        assert_eq!(read::<u64>("123456789012345678901234"), Lenient::Other);
        assert_eq!(read::<u32>("4294967296"), Lenient::Other);
        assert_eq!(read::<String>("7"), Lenient::Other);
        assert_eq!(read::<bool>("\"true\""), Lenient::Other);
        assert_eq!(read::<u32>("null"), Lenient::Absent);
    }

    #[test]
    fn an_object_is_read_and_anything_else_is_passed_over() {
        #[derive(Debug, Default, PartialEq, serde::Deserialize)]
        struct Usage {
            prompt: Lenient<u64>,
        }
        let of = |json: &str| serde_json::from_str::<Held<Usage>>(json).unwrap().members();
        let prompt = |json: &str| of(json).map(|usage| usage.prompt);
        assert_eq!(prompt(r#"{"prompt":3,"more":[{}]}"#), Some(Lenient::Value(3)));
        assert_eq!(prompt(r#"{"prompt":{}}"#), Some(Lenient::Other));
        assert_eq!((of("[3]"), of("\"x\""), of("null")), (None, None, None));
    }
}
