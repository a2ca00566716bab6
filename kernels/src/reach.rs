//! How much of something a device takes at a time.

/// How far the operations of a device reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Rows of a step that suit the device.
    pub usual_rows: usize,
    /// Rows of a step at most.
    pub rows: usize,
    /// Ids of a vocabulary at most.
    pub vocab: usize,
}

impl Default for Reach {
    fn default() -> Reach {
        Reach { usual_rows: 512, rows: usize::MAX, vocab: usize::MAX }
    }
}
