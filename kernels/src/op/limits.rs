//! The sizes that a device supports and prefers.

/// Limits of a device's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Number of rows of a step that suits the device.
    pub usual_rows: usize,
    /// Maximum number of rows of a step.
    pub rows: usize,
    /// Maximum number of ids of a vocabulary.
    pub vocab: usize,
}

impl Default for DeviceLimits {
    fn default() -> DeviceLimits {
        DeviceLimits { usual_rows: 512, rows: usize::MAX, vocab: usize::MAX }
    }
}
