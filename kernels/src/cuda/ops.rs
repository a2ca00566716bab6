//! The GPU as [`Ops`]: checks of shapes, and the launches that each operation is.
//!
//! Counts are those of the step's padded [`super::plan::Shape`]. What a padding row holds is not
//! said; no row's result depends on another's.

use std::ops::Range;

use super::adapters::Adapters;
use super::ask::{at, at_or_none, exact, of, width_of};
use super::clock;
use super::launch::Arg;
use super::product;
use super::shape::{self, product::SMALL_ROWS};
use super::state::Cuda;
use super::tensor::{Buffer, Kind, Live, Matrix, Pages};
use crate::op::{Drawn, Heads, Home, LowRank, OpError, Ops, PAGE, Rotation, Step, TOP_MAX, Values};
use crate::reach::Reach;

/// What columns of a product's operands are a multiple of.
const DEPTH_UNIT: usize = 8;

impl Ops for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Pages = Pages;
    type Adapters = Adapters;

    fn twin(&self) -> Result<Cuda, OpError> {
        self.beside().map_err(of("twin"))
    }

    fn upload(&self, values: &[f32]) -> Result<Buffer, OpError> {
        Buffer::of(&self.device, values, self.spills).map_err(of("upload"))
    }

    fn scratch(&self, rows: usize, width: usize) -> Result<Buffer, OpError> {
        self.buffer(Kind::Half, Cuda::padded(rows) * width)
    }

    fn logits(&self, rows: usize, width: usize) -> Result<Buffer, OpError> {
        self.buffer(Kind::Single, Cuda::padded(rows) * width)
    }

    fn download(
        &self,
        buffer: &mut Buffer,
        (width, rows): (usize, &[usize]),
        to: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        if buffer.kind != Kind::Single {
            return Err(OpError::Shape {
                op: "download",
                operand: "buffer",
                expected: 4,
                found: 2,
            });
        }
        to.resize(rows.len() * width, 0.0);
        let mut done = 0;
        // Rows that lie side by side are one copy.
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            let part = &mut to[done * width..][..run.len() * width];
            buffer.live.memory().read(run[0] * width * 4, part).map_err(of("download"))?;
            done += run.len();
        }
        Ok(())
    }

    fn matrix(&self, parts: &[Values<'_>], rows: usize, columns: usize) -> Result<Matrix, OpError> {
        exact("matrix", "parts", parts.iter().map(Values::len).sum(), rows * columns)?;
        exact("matrix", "columns", columns % DEPTH_UNIT, 0)?;
        let made = Matrix::new(&self.device, parts, (rows, columns), self.spills);
        made.map_err(of("matrix"))
    }

    fn room(&self, share: f64) -> Result<Option<u64>, OpError> {
        let (free, total) = self.device.memory().map_err(of("room"))?;
        let spared = (total as f64 * (1.0 - share)) as u64;
        Ok(Some((free as u64).saturating_sub(spared)))
    }

    fn reach(&self) -> Reach {
        let total = self.device.memory().map_or(0, |(_, total)| total);
        let usual_rows = shape::usual_rows(self.device.capability(), total);
        Reach { usual_rows, rows: shape::ROWS_MAX, vocab: shape::SampleParams::VOCAB_MAX }
    }

    fn is_lost(&self) -> bool {
        // What took the context down is what every call says from then on.
        self.device.synchronize().is_err()
    }

    fn rounds(&self) -> bool {
        true
    }

    fn draws(&self) -> bool {
        true
    }

    fn run(
        &mut self,
        step: &Step<'_>,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        self.step(step, walk)
    }

    fn drawn(&mut self) -> Result<Vec<Option<Drawn>>, OpError> {
        self.draws.take().map_err(of("drawn"))
    }

    fn adapters(&self, slots: usize, rows: usize, columns: usize) -> Result<Adapters, OpError> {
        Adapters::new(&self.device, slots, (rows, columns)).map_err(of("adapters"))
    }

    fn set_adapter(
        &self,
        adapters: &mut Adapters,
        slot: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        adapters.set(slot, addition)
    }

    fn read_matrix(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.rows_of(matrix, rows, out)
    }

    fn read_buffer(&self, buffer: &Buffer, out: &mut Vec<f32>) -> Result<(), OpError> {
        self.numbers_of(buffer, out)
    }

    fn replace_matrix(&self, live: &mut Matrix, staged: &mut Matrix) -> Result<(), OpError> {
        self.copy(&mut live.live, &mut staged.live, "replace_matrix")
    }

    fn replace_buffer(&self, live: &mut Buffer, staged: &mut Buffer) -> Result<(), OpError> {
        self.copy(&mut live.live, &mut staged.live, "replace_buffer")
    }

    fn move_matrix(&self, matrix: &mut Matrix, to: Home) -> Result<(), OpError> {
        self.move_live(&mut matrix.live, to, "move_matrix")
    }

    fn move_buffer(&self, buffer: &mut Buffer, to: Home) -> Result<(), OpError> {
        self.move_live(&mut buffer.live, to, "move_buffer")
    }

    fn give_back(&mut self) -> Result<(), OpError> {
        Cuda::give_back(self).map_err(of("give_back"))
    }

    fn page_bytes(&self, heads: Heads) -> usize {
        2 * heads.kv * heads.dim * PAGE * 2
    }

    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Pages, OpError> {
        exact("pages", "heads", heads.row(), self.heads.row())?;
        let bytes = self.page_bytes(heads) / 2 * layers * count;
        let new = || Live::new(&self.device, bytes).map_err(of("pages"));
        let (keys, values) = (new()?, new()?);
        // A weight of zero times what was there before must be zero.
        keys.memory().fill(0).map_err(of("pages"))?;
        values.memory().fill(0).map_err(of("pages"))?;
        Ok(Pages { keys, values, heads, layers, count })
    }

    fn embed(&self, _: &Step<'_>, table: &Matrix, out: &mut Buffer) -> Result<(), OpError> {
        let rows = self.shape().rows;
        self.note(|bounds| bounds.vocab = table.rows);
        out.resize(rows * table.columns).map_err(of("embed"))?;
        let places = self.places();
        let (ids, feedback) = (self.word(places.ids), self.word(places.feedback));
        let drawn = at(&self.draws.ids);
        let args = [at(&out.live), at(&table.live), ids, feedback, drawn, Arg::from(table.columns)];
        self.launch("embed", shape::embed(rows, table.columns), &args)
    }

    fn add_norm(
        &self,
        sum: &mut Buffer,
        delta: Option<&Buffer>,
        (weight, eps): (&Buffer, f32),
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let (rows, hidden) = (self.shape().rows, weight.len);
        exact("add_norm", "sum", sum.len, rows * hidden)?;
        exact("add_norm", "delta", delta.map_or(sum.len, |delta| delta.len), sum.len)?;
        out.resize(sum.len).map_err(of("add_norm"))?;
        let args = [
            at(&sum.live),
            at_or_none(delta),
            at(&weight.live),
            at(&out.live),
            Arg::from(hidden),
            Arg::from(eps),
        ];
        self.launch("add_rms_norm", shape::norm(rows, hidden), &args)
    }

    fn gather_norm(
        &self,
        step: &Step<'_>,
        (sum, delta): (&mut Buffer, &Buffer),
        norm: (&Buffer, f32),
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.add_norm(sum, Some(delta), norm, out)?;
        // Where all rows are wanted, in their order, that was it.
        if self.plan.records || step.wanted.iter().copied().eq(0..step.ids.len()) {
            return Ok(());
        }
        let ((weight, eps), wanted) = (norm, self.shape().wanted);
        let hidden = weight.len;
        out.resize(wanted * hidden).map_err(of("gather_norm"))?;
        let rows = self.word(self.places().wanted);
        let args = [
            at(&sum.live),
            rows,
            at(&weight.live),
            at(&out.live),
            Arg::from(hidden),
            Arg::from(eps),
        ];
        self.launch("gather_norm", shape::norm(wanted, hidden), &args)
    }

    fn matmul(&self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Result<(), OpError> {
        let (n, k) = (w.rows, w.columns);
        let m = x.len / k;
        exact("matmul", "x", x.len, m * k)?;
        out.resize(m * n).map_err(of("matmul"))?;
        let wide = out.kind == Kind::Single;
        let few = self.clock.as_ref().map_or(SMALL_ROWS, |clock| clock.library_above(SMALL_ROWS));
        if let Some(products) = self.products.as_ref().filter(|_| m > few) {
            let how = product::Shape { m, n, k, wide };
            let addresses = (x.live.at(), w.live.at(), out.live.at());
            // SAFETY: all three are of the shape, and freed behind the work that uses them.
            let asked = unsafe { products.borrow_mut().multiply(how, addresses) };
            if asked.map_err(of("matmul"))? {
                return self.note_time("matmul", || clock::product("cublaslt", [m, n, k], wide));
            }
        }
        let (name, grid) = if m <= SMALL_ROWS {
            ("gemm_small", shape::product::gemm_small(m, n, self.device.processors()))
        } else {
            ("gemm", shape::product::gemm(m, n))
        };
        let args = [
            at(&out.live),
            at(&x.live),
            at(&w.live),
            Arg::from(m),
            Arg::from(n),
            Arg::from(k),
            Arg::Int(wide.into()),
        ];
        self.launch(name, grid, &args)
    }

    fn add_low_rank(
        &self,
        step: &Step<'_>,
        x: &Buffer,
        adapters: (&Adapters, Range<usize>),
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.low_rank(step, x, adapters, out)
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Buffer) -> Result<(), OpError> {
        let (rows, width) = (self.shape().rows, bias.len);
        exact("add_bias", "x", x.len, rows * width)?;
        let args = [at(&x.live), at(&bias.live), Arg::from(width)];
        self.launch("add_bias", shape::wide(rows, width), &args)
    }

    fn rope_write(
        &self,
        _: &Step<'_>,
        qkv: &mut Buffer,
        rotation: &Rotation<'_, Buffer>,
        (pages, layer): (&mut Pages, usize),
    ) -> Result<(), OpError> {
        let (rows, heads, places) = (self.shape().rows, pages.heads, self.places());
        exact("rope_write", "qkv", qkv.len, rows * heads.row())?;
        let positions = rotation.table.len / heads.dim;
        let count = pages.count;
        self.note(|bounds| (bounds.positions, bounds.pages) = (positions, count));
        let (keys, values) = pages.layer(layer)?;
        let norms = rotation.norms;
        let args = [
            at(&qkv.live),
            at_or_none(norms.map(|norms| norms.0)),
            at_or_none(norms.map(|norms| norms.1)),
            at(&rotation.table.live),
            self.word(places.positions),
            self.word(places.slots),
            keys,
            values,
            Arg::from(heads.query),
            Arg::from(heads.kv),
            Arg::from(rotation.eps),
        ];
        self.launch("rope_write", shape::rope(rows, heads.query + 2 * heads.kv, heads.dim), &args)
    }

    fn attention(
        &self,
        _: &Step<'_>,
        qkv: &Buffer,
        (pages, layer): (&Pages, usize),
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let (counts, heads, places) = (self.shape(), pages.heads, self.places());
        exact("attention", "qkv", qkv.len, counts.rows * heads.row())?;
        out.resize(counts.rows * heads.query_width()).map_err(of("attention"))?;
        let (keys, values) = pages.layer(layer)?;
        let sizes = [Arg::from(heads.query), Arg::from(heads.kv)];
        let args = [
            at(&out.live),
            at(&qkv.live),
            keys,
            values,
            self.word(places.tiles),
            self.word(places.span_row),
            self.word(places.span_start),
            self.word(places.table_at),
            self.word(places.tables),
            at(&self.partial),
            sizes[0],
            sizes[1],
            Arg::Float(1.0 / (heads.dim as f32).sqrt()),
        ];
        self.launch("attention", shape::attention::grid(counts.tiles, heads), &args)?;
        let args = [
            at(&out.live),
            at(&self.partial),
            self.word(places.first_tile),
            self.word(places.tile_count),
            self.word(places.span_row),
            sizes[0],
            sizes[1],
        ];
        self.launch("attention_combine", shape::attention::combine(counts.decodes, heads), &args)
    }

    fn silu_mul(&self, gate_up: &Buffer, width: usize, out: &mut Buffer) -> Result<(), OpError> {
        let rows = self.shape().rows;
        exact("silu_mul", "gate_up", gate_up.len, rows * 2 * width)?;
        out.resize(rows * width).map_err(of("silu_mul"))?;
        let args = [at(&gate_up.live), at(&out.live), Arg::from(width)];
        self.launch("silu_mul", shape::wide(rows, width), &args)
    }

    fn draw(&self, _: &Step<'_>, logits: &Buffer, vocab: usize) -> Result<(), OpError> {
        let counts = self.shape();
        if !counts.draws {
            return Ok(());
        }
        let wanted = counts.wanted;
        exact("draw", "logits", width_of("draw", "logits", logits.len, wanted)?, vocab)?;
        let tiles = Arg::Pointer(self.draws.tiles(wanted, vocab).map_err(of("draw"))?);
        let (params, row) = (self.word(self.places().draws), Arg::from(vocab));
        let args = [at(&logits.live), params, tiles, row, row];
        self.launch("sample_tiles", shape::sample_tiles(wanted, vocab), &args)?;
        let args = [
            at(&logits.live),
            params,
            tiles,
            at(&self.draws.ids),
            at(&self.draws.scores),
            at(&self.draws.top),
            row,
            row,
            Arg::from(TOP_MAX),
        ];
        self.launch("sample_rows", shape::sample_rows(wanted), &args)
    }
}
