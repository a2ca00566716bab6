//! The errors of operations, and the checks of sizes that every device makes.

/// Error of an operation.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// An operand does not have the size that the others imply.
    #[error("`{op}`: `{operand}` has {found} elements, expected {expected}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The operand, as the trait names it.
        operand: &'static str,
        /// Expected number of elements, or of which it must be a multiple.
        expected: usize,
        /// Number of elements that were found.
        found: usize,
    },
    /// An index points outside its table.
    #[error("`{op}`: index {index} is outside a table of {rows} rows")]
    Index {
        /// The operation.
        op: &'static str,
        /// The offending index.
        index: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// The device is out of memory.
    #[error("`{op}`: no memory for {bytes} bytes")]
    Memory {
        /// The operation.
        op: &'static str,
        /// Bytes that were requested.
        bytes: usize,
    },
    /// The device failed.
    #[error("`{op}`: {reason}")]
    Device {
        /// The operation.
        op: &'static str,
        /// Message of the device or its driver.
        reason: String,
    },
}

/// Checks that `operand` has exactly the `expected` number of elements.
pub(crate) fn check_len(
    op: &'static str,
    operand: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), OpError> {
    if found == expected {
        return Ok(());
    }
    Err(OpError::Shape { op, operand, expected, found })
}

/// Checks that `count` rows from `row` on are within a table of `rows` rows.
pub(crate) fn check_rows(
    op: &'static str,
    row: usize,
    count: usize,
    rows: usize,
) -> Result<(), OpError> {
    match row.checked_add(count) {
        Some(end) if end <= rows => Ok(()),
        _ => Err(OpError::Index { op, index: row.saturating_add(count), rows }),
    }
}

/// Checks that `found` is a multiple of `unit`, which is not zero, and returns how many times.
pub(crate) fn check_multiple(
    op: &'static str,
    operand: &'static str,
    found: usize,
    unit: usize,
) -> Result<usize, OpError> {
    match unit {
        0 => Err(OpError::Shape { op, operand, expected: 1, found: 0 }),
        _ if found.is_multiple_of(unit) => Ok(found / unit),
        _ => Err(OpError::Shape { op, operand, expected: unit, found }),
    }
}

/// Checks that `index` is within a table of `rows` rows.
pub(crate) fn check_index(op: &'static str, index: usize, rows: usize) -> Result<(), OpError> {
    if index < rows {
        return Ok(());
    }
    Err(OpError::Index { op, index, rows })
}

/// Checks that the slot of every row is one of `count` slots of adapters.
pub(crate) fn check_slots(slots: &[Option<usize>], count: usize) -> Result<(), OpError> {
    slots.iter().flatten().try_for_each(|slot| check_index("add_low_rank", *slot, count))
}
