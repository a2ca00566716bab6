//! Head norms, rotation and the write to pages, against their reference.

use super::elementwise::HALF_UNIT;
use super::{Checker, fp8, wide};
use crate::bf16::narrow;
use crate::cuda::{Arg, CudaError, CudaPages, Memory, Pod, grid};
use crate::op::{Heads, KvFormat, PAGE};

const EPS: f32 = 1e-6;
/// Positions of the rotation table.
const POSITIONS: usize = 61;
/// Pages of the layer.
const PAGES: usize = 5;

/// The inputs of one launch.
struct RopeCase {
    query_heads: usize,
    kv_heads: usize,
    dim: usize,
    /// Elements of a head that are rotated.
    width: usize,
    /// Addend of the weights of norms.
    offset: f32,
    qkv: Vec<u16>,
    /// Weights for queries and for keys.
    norms: Option<[Vec<f32>; 2]>,
    table: Vec<f32>,
    positions: Vec<i32>,
    /// The slot of each row in the pages; -1 to write nothing.
    slots: Vec<i32>,
}

/// The tensors after a launch, with the numbers of pages of bf16 or with the bytes of any.
struct RopeOutput<T> {
    qkv: Vec<u16>,
    keys: Vec<T>,
    values: Vec<T>,
}

/// The shape of a launch.
struct RopeShape {
    rows: usize,
    /// Heads of queries, and of keys.
    heads: (usize, usize),
    has_norms: bool,
}

impl RopeCase {
    fn new(checker: &mut Checker<'_>, shape: &RopeShape, width: usize) -> RopeCase {
        let RopeShape { rows, heads: (query_heads, kv_heads), has_norms } = *shape;
        let dim = checker.head_dim;
        // Every row has a slot of its own: 7 and 16 * PAGES have no common divisor.
        let mut slots: Vec<i32> = (0..rows).map(|row| (row * 7 % (PAGE * PAGES)) as i32).collect();
        if rows > 2 {
            slots[rows / 2] = -1;
        }

        let random = &mut checker.random;
        let norms = [random.floats(dim, 2.0), random.floats(dim, 2.0)];
        RopeCase {
            query_heads,
            kv_heads,
            dim,
            width,
            offset: if rows.is_multiple_of(2) { 0.0 } else { 1.0 },
            qkv: random.halves(rows * (query_heads + 2 * kv_heads) * dim, 3.0),
            norms: has_norms.then_some(norms),
            table: random.floats(POSITIONS * width, 1.0),
            positions: (0..rows).map(|_| random.below(POSITIONS) as i32).collect(),
            slots,
        }
    }

    /// Number of heads of a row: of queries, keys and values.
    fn heads(&self) -> usize {
        self.query_heads + 2 * self.kv_heads
    }

    /// Computes one head of a row.
    fn reference(&self, row: usize, head: usize) -> Vec<f32> {
        let dim = self.dim;
        let from = &self.qkv[(row * self.heads() + head) * dim..][..dim];
        let mut values: Vec<f64> = from.iter().map(|bits| wide(*bits)).collect();
        let is_value = head >= self.query_heads + self.kv_heads;
        if is_value {
            return values.into_iter().map(|value| value as f32).collect();
        }

        // Queries and keys have weights of their own.
        if let Some(norms) = &self.norms {
            let weight = &norms[usize::from(head >= self.query_heads)];
            let squares: f64 = values.iter().map(|value| value * value).sum();
            let scale = 1.0 / (squares / dim as f64 + f64::from(EPS)).sqrt();
            for (value, weight) in values.iter_mut().zip(weight) {
                *value *= scale * f64::from(*weight + self.offset);
            }
        }

        // Of what is rotated, the first half is rotated against the second.
        let (width, half) = (self.width, self.width / 2);
        let rotation = &self.table[self.positions[row] as usize * width..][..width];
        let (cosines, sines) = rotation.split_at(half);
        let mut out: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        for i in 0..half {
            let (cosine, sine) = (f64::from(cosines[i]), f64::from(sines[i]));
            let (low, high) = (values[i], values[i + half]);
            out[i] = (low * cosine - high * sine) as f32;
            out[i + half] = (high * cosine + low * sine) as f32;
        }
        out
    }

    /// Launches the kernel that writes pages of a format.
    fn launch<T: Pod>(
        &self,
        checker: &Checker<'_>,
        format: KvFormat,
    ) -> Result<RopeOutput<T>, CudaError> {
        let heads = Heads { query: self.query_heads, kv: self.kv_heads, dim: self.dim };
        let side_bytes = PAGES * CudaPages::side_bytes(heads, format);
        let (keys, values) = (checker.poisoned(side_bytes)?, checker.poisoned(side_bytes)?);
        let qkv = checker.upload(&self.qkv)?;
        let norms: Option<[Memory; 2]> = match &self.norms {
            Some([query, key]) => Some([checker.upload(query)?, checker.upload(key)?]),
            None => None,
        };
        let [query_norm, key_norm] =
            [0, 1].map(|side| Arg::opt(norms.as_ref().map(|norms| &norms[side])));
        let table = checker.upload(&self.table)?;
        let (positions, slots) = (checker.upload(&self.positions)?, checker.upload(&self.slots)?);

        let mut args = vec![
            Arg::from(&qkv),
            query_norm,
            key_norm,
            Arg::from(&table),
            Arg::from(&positions),
            Arg::from(&slots),
            Arg::from(&keys),
            Arg::from(&values),
            Arg::from(self.query_heads),
            Arg::from(self.kv_heads),
            Arg::from(EPS),
            Arg::from(self.offset),
        ];
        let (mut name, rows) = ("rope_write", self.slots.len());
        let mut grid = grid::rope(rows, self.heads(), self.dim);
        if self.width < self.dim {
            (name, grid) = ("rope_write_part", grid::rope_part(rows, self.heads()));
            args.push(Arg::from(self.width));
        }
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch(&fp8::kernel(name, format), grid, &args)? };
        Ok(RopeOutput { qkv: qkv.to_vec()?, keys: keys.to_vec()?, values: values.to_vec()? })
    }

    /// Compares queries, keys and values, and checks that nothing else was written.
    fn compare(&self, checker: &mut Checker<'_>, what: &str, found: &RopeOutput<u16>) {
        let dim = self.dim;
        let (mut queries, mut expected_queries) = (Vec::new(), Vec::new());
        let (mut written, mut expected_written) = (Vec::new(), Vec::new());
        let mut is_poison = vec![true; found.keys.len()];
        for (row, slot) in self.slots.iter().enumerate() {
            for head in 0..self.query_heads {
                queries.extend_from_slice(&found.qkv[(row * self.heads() + head) * dim..][..dim]);
                expected_queries.extend(self.reference(row, head));
            }

            // Rows without a slot write nothing.
            let Ok(slot) = usize::try_from(*slot) else { continue };
            for kv in 0..self.kv_heads {
                let at = ((slot / PAGE * self.kv_heads + kv) * PAGE + slot % PAGE) * dim;
                let (key, value) = (self.query_heads + kv, self.query_heads + self.kv_heads + kv);
                for (pages, head) in [(&found.keys, key), (&found.values, value)] {
                    written.extend_from_slice(&pages[at..][..dim]);
                    expected_written.extend(self.reference(row, head));
                }
                is_poison[at..][..dim].fill(false);
            }
        }

        let rotated = format!("{what}, queries");
        checker.compare_bf16(&rotated, &queries, &expected_queries, HALF_UNIT);
        checker.compare_bf16(&format!("{what}, pages"), &written, &expected_written, HALF_UNIT);
        for (side, pages) in [("keys", &found.keys), ("values", &found.values)] {
            let rest = pages.iter().zip(&is_poison).filter(|(_, is_poison)| **is_poison);
            let unwritten: Vec<u16> = rest.map(|(bits, _)| *bits).collect();
            let poison = vec![0xFFFF; unwritten.len()];
            checker.equal(&format!("{what}, other {side}"), &unwritten, &poison);
        }
    }
}

/// Rows, heads of queries and of keys, and whether heads are normed.
const SHAPES: [(usize, (usize, usize), bool); 4] =
    [(1, (14, 2), true), (5, (16, 8), false), (9, (3, 3), true), (33, (8, 1), false)];

/// Checks `rope_write` and `rope_write_part`, with head norms and without, and with rows that write
/// nothing.
pub(super) fn rope_write(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, heads, has_norms) in SHAPES {
        let dim = checker.head_dim;
        for width in [dim, dim / 4, dim - 2] {
            let shape = RopeShape { rows, heads, has_norms };
            let case = RopeCase::new(checker, &shape, width);
            let norms = if has_norms { " with norms" } else { "" };
            let what = format!("rope_write of {width}, {rows} rows of {heads:?}{norms}");
            let found = case.launch(checker, KvFormat::Native)?;
            case.compare(checker, &what, &found);
        }
    }
    Ok(())
}

/// Numbers in value heads, of one row each: their scales are at the borders.
const ODD_VALUES: [f32; 8] = [
    f32::NAN,
    f32::INFINITY,
    f32::MAX,
    f32::MIN_POSITIVE,
    // The largest e4m3, times powers of two, and the next bf16 behind it.
    448.0,
    450.0,
    -57_344.0,
    60_000.0,
];

/// Checks `rope_write_fp8` and `rope_write_part_fp8`: their pages are those of bf16, rounded, and
/// their queries are the same bits.
pub(super) fn rope_write_fp8(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, heads, has_norms) in SHAPES {
        let dim = checker.head_dim;
        for width in [dim, dim / 4] {
            let shape = RopeShape { rows, heads, has_norms };
            let mut case = RopeCase::new(checker, &shape, width);
            let (stride, first_value) = (case.heads() * dim, (heads.0 + heads.1) * dim);
            for (row, number) in ODD_VALUES.iter().enumerate().take(rows - 1) {
                // Of the least number a whole head.
                let count = if number.abs() < 1.0 { dim } else { 1 };
                case.qkv[row * stride + first_value..][..count].fill(narrow(*number));
            }
            // A row of zeros.
            case.qkv[(rows - 1) * stride + first_value..][..dim].fill(0);

            let bf16 = case.launch::<u16>(checker, KvFormat::Native)?;
            let fp8 = case.launch::<u8>(checker, KvFormat::Fp8)?;
            let what = format!("rope_write_fp8 of {width}, {rows} rows of {heads:?}");
            let queries = |qkv: &[u16]| -> Vec<u16> {
                qkv.chunks(stride).flat_map(|row| row[..heads.0 * dim].to_vec()).collect()
            };
            let (found, expected) = (queries(&fp8.qkv), queries(&bf16.qkv));
            checker.equal(&format!("{what}, queries"), &found, &expected);
            let keys = case.expected_fp8(&bf16.keys);
            checker.equal(&format!("{what}, keys"), &fp8.keys, &keys);
            let values = case.expected_fp8(&bf16.values);
            checker.equal(&format!("{what}, values"), &fp8.values, &values);
        }
    }
    Ok(())
}

impl RopeCase {
    /// Rounds the rows that pages of bf16 got. Nothing else is written.
    fn expected_fp8(&self, numbers: &[u16]) -> Vec<u8> {
        let mut pages = fp8::pages(numbers, self.dim);
        let block = PAGE * (self.dim + 1);
        for (at, byte) in pages.iter_mut().enumerate() {
            let place = match at % block {
                number if number < PAGE * self.dim => number / self.dim,
                scale => scale - PAGE * self.dim,
            };
            let slot = at / block / self.kv_heads * PAGE + place;
            if !self.slots.contains(&(slot as i32)) {
                *byte = 0xFF;
            }
        }
        pages
    }
}
