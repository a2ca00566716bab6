//! Rows of either database, and the types that their columns decode to.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::database::local::LocalRow;
use crate::database::value::Column;

/// A row of a result.
#[derive(Debug)]
pub(crate) enum Row {
    Local(LocalRow),
    Postgres(PgRow),
}

/// A type that a column decodes to. Integers are 64 bits wide in both databases.
pub(crate) trait Field<'r>: Sized {
    fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error>;
    fn of_local(row: &'r LocalRow, column: &Column<'_>) -> Result<Self, sqlx::Error>;
}

impl Row {
    /// The value of the column `name`.
    pub(crate) fn try_get<'r, T: Field<'r>>(&'r self, name: &str) -> Result<T, sqlx::Error> {
        self.at(&Column::Named(name))
    }

    /// The value of the first column.
    pub(crate) fn first<'r, T: Field<'r>>(&'r self) -> Result<T, sqlx::Error> {
        self.at(&Column::First)
    }

    fn at<'r, T: Field<'r>>(&'r self, column: &Column<'_>) -> Result<T, sqlx::Error> {
        match self {
            Self::Local(row) => T::of_local(row, column),
            Self::Postgres(row) => T::of_postgres(row, column),
        }
    }
}

/// Types that both drivers decode themselves.
macro_rules! fields {
    ($($field:ty),*) => {$(
        impl<'r> Field<'r> for $field {
            fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                match column {
                    Column::First => row.try_get(0),
                    Column::Named(name) => row.try_get(name),
                }
            }
            fn of_local(row: &'r LocalRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                row.get(column)
            }
        }
    )*};
}

fields!(
    bool,
    i64,
    Option<i64>,
    Option<f64>,
    String,
    Option<String>,
    &'r [u8],
    Vec<u8>,
    Option<Vec<u8>>,
    Option<&'r [u8]>
);

/// Smaller integers: decoded as `i64`, then narrowed.
macro_rules! narrower {
    ($($field:ty),*) => {$(
        impl<'r> Field<'r> for $field {
            fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow(i64::of_postgres(row, column)?, column)
            }
            fn of_local(row: &'r LocalRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow(i64::of_local(row, column)?, column)
            }
        }
        impl<'r> Field<'r> for Option<$field> {
            fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow_optional(<Option<i64>>::of_postgres(row, column)?, column)
            }
            fn of_local(row: &'r LocalRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow_optional(<Option<i64>>::of_local(row, column)?, column)
            }
        }
    )*};
}

narrower!(u32, u16, usize);

fn narrow<T>(wide: i64, column: &Column<'_>) -> Result<T, sqlx::Error>
where
    T: TryFrom<i64, Error: std::error::Error + Send + Sync + 'static>,
{
    T::try_from(wide).map_err(|error| sqlx::Error::ColumnDecode {
        index: column.name().to_owned(),
        source: Box::new(error),
    })
}

fn narrow_optional<T>(wide: Option<i64>, column: &Column<'_>) -> Result<Option<T>, sqlx::Error>
where
    T: TryFrom<i64, Error: std::error::Error + Send + Sync + 'static>,
{
    wide.map(|wide| narrow(wide, column)).transpose()
}
