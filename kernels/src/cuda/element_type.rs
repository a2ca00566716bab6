//! The types of elements on the GPU.

/// Type of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// bf16 numbers.
    Bf16,
}

impl ElementType {
    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            ElementType::F32 => 4,
            ElementType::Bf16 => 2,
        }
    }
}
