//! The operands of layers with a recurrent state (gated delta rule).

/// Heads of a layer with a gated delta rule. A projected row is `[q | k | v | z | b | a]`: queries
/// and keys of the key heads, values and output gates of the value heads, and for each value head
/// the strength and the decay of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Number of key heads, and of query heads.
    pub key: usize,
    /// Number of value heads, a multiple of `key`. Neighbours share a key head.
    pub value: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value, a multiple of sixteen.
    pub value_dim: usize,
    /// Positions that the convolution reads, the row's own included; above zero.
    pub taps: usize,
}

impl DeltaHeads {
    /// Elements of the queries, keys and values of a row, which are convolved.
    pub fn channels(&self) -> usize {
        2 * self.key * self.key_dim + self.value_width()
    }

    /// Elements of the values of a row, which is also the width of a result.
    pub fn value_width(&self) -> usize {
        self.value * self.value_dim
    }

    /// Elements of a projected row.
    pub fn row(&self) -> usize {
        self.channels() + self.value_width() + 2 * self.value
    }
}

/// The recurrent states of one layer: `S` is a reference to the states of all layers.
#[derive(Debug)]
pub struct LayerStates<S> {
    /// States of all layers.
    pub states: S,
    /// Index among the layers with a state.
    pub layer: usize,
}

/// The rows that are convolved, and the weights of the convolution.
#[derive(Debug)]
pub struct ConvolutionInputs<'a, B> {
    /// Projected rows, `[T, heads.row()]`.
    pub projected: &'a B,
    /// Weights, `[channels, taps]`.
    pub kernel: &'a B,
}

/// The rows of a gated delta rule, and the weights of the decay of its state.
#[derive(Debug)]
pub struct DeltaInputs<'a, B> {
    /// Projected rows, `[T, heads.row()]`.
    pub projected: &'a B,
    /// Convolved rows, `[T, channels]`. Their contents are unspecified afterwards.
    pub convolved: &'a mut B,
    /// Logarithm of the rate of decay, `[value]`.
    pub decay: &'a B,
    /// Addend of `a`, `[value]`.
    pub bias: &'a B,
}

/// A slot that is given the state after some rows of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateMark {
    /// Number of rows of the span, above zero.
    pub rows: usize,
    /// Slot that is written.
    pub slot: u32,
}

/// The recurrent state of one span.
///
/// A slot that is written belongs to one span of a step, and no other span reads it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanState<'a> {
    /// Slot with the state before the first row; `None` for zeros. The same slot may be written.
    pub from: Option<u32>,
    /// Slots that are written, by rows, ascending. The last one has all rows.
    pub marks: &'a [StateMark],
}
