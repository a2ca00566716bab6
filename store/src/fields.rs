//! Rows of either database, and what their columns hold.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

use crate::near::NearRow;

/// A row.
#[derive(Debug)]
pub(crate) enum Row {
    File(SqliteRow),
    Near(NearRow),
    Server(PgRow),
}

/// What a column can hold. Integers are 64 bits wide in both databases.
pub(crate) trait Field<'r>: Sized {
    fn of_sqlite(row: &'r SqliteRow, column: &Column<'_>) -> Result<Self, sqlx::Error>;
    fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error>;
    fn of_near(row: &'r NearRow, column: &Column<'_>) -> Result<Self, sqlx::Error>;
}

/// Which column.
pub(crate) enum Column<'a> {
    First,
    Named(&'a str),
}

impl Column<'_> {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::First => "0",
            Self::Named(name) => name,
        }
    }
}

impl Row {
    /// The value of a column.
    pub(crate) fn try_get<'r, T: Field<'r>>(&'r self, name: &str) -> Result<T, sqlx::Error> {
        self.at(&Column::Named(name))
    }

    /// The value of the first column.
    pub(crate) fn first<'r, T: Field<'r>>(&'r self) -> Result<T, sqlx::Error> {
        self.at(&Column::First)
    }

    fn at<'r, T: Field<'r>>(&'r self, column: &Column<'_>) -> Result<T, sqlx::Error> {
        match self {
            Self::File(row) => T::of_sqlite(row, column),
            Self::Near(row) => T::of_near(row, column),
            Self::Server(row) => T::of_postgres(row, column),
        }
    }
}

/// What both databases decode by themselves.
macro_rules! fields {
    ($($field:ty),*) => {$(
        impl<'r> Field<'r> for $field {
            fn of_sqlite(row: &'r SqliteRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                match column {
                    Column::First => row.try_get(0),
                    Column::Named(name) => row.try_get(name),
                }
            }
            fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                match column {
                    Column::First => row.try_get(0),
                    Column::Named(name) => row.try_get(name),
                }
            }
            fn of_near(row: &'r NearRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
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

/// Smaller integers.
macro_rules! narrower {
    ($($field:ty),*) => {$(
        impl<'r> Field<'r> for $field {
            fn of_sqlite(row: &'r SqliteRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow(i64::of_sqlite(row, column)?, column)
            }
            fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow(i64::of_postgres(row, column)?, column)
            }
            fn of_near(row: &'r NearRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                narrow(i64::of_near(row, column)?, column)
            }
        }
        impl<'r> Field<'r> for Option<$field> {
            fn of_sqlite(row: &'r SqliteRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                let wide = <Option<i64>>::of_sqlite(row, column)?;
                wide.map(|wide| narrow(wide, column)).transpose()
            }
            fn of_postgres(row: &'r PgRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                let wide = <Option<i64>>::of_postgres(row, column)?;
                wide.map(|wide| narrow(wide, column)).transpose()
            }
            fn of_near(row: &'r NearRow, column: &Column<'_>) -> Result<Self, sqlx::Error> {
                let wide = <Option<i64>>::of_near(row, column)?;
                wide.map(|wide| narrow(wide, column)).transpose()
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
