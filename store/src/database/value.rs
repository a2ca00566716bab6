//! Values that a statement takes, and the names of columns.

/// A value of a statement; `None` is null.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Integer(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// A column of a row.
pub(crate) enum Column<'a> {
    First,
    Named(&'a str),
}

impl Column<'_> {
    /// The name for an error.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::First => "0",
            Self::Named(name) => name,
        }
    }
}

macro_rules! values {
    ($($variant:ident: $($from:ty),*;)*) => {$($(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(Some(value.into()))
            }
        }
        impl From<Option<$from>> for Value {
            fn from(value: Option<$from>) -> Self {
                Self::$variant(value.map(Into::into))
            }
        }
    )*)*};
}

values! {
    Integer: i64, i32, u32, u16;
    Real: f64;
    Text: String, &str, &String;
    Bytes: Vec<u8>;
}
