//! The experts of the rows of a step, on the device, and their copies to the host.

use std::collections::VecDeque;

use crate::cuda::device::Device;
use crate::cuda::device::event::CudaEvent;
use crate::cuda::device::memory::Pinned;
use crate::cuda::error::CudaError;
use crate::cuda::grid::experts::ExpertTiles;
use crate::cuda::tensor::{CudaMatrix, Storage};
use crate::op::{ExpertChoice, ExpertMatrices, OpError};

/// Maximum number of steps whose experts are being copied.
const STEPS: usize = 2;
/// Bytes of a tile: four words.
const TILE_BYTES: usize = 16;

/// The experts of the rows of a step, and room for what they compute.
#[derive(Debug)]
pub struct CudaRouting {
    pub(super) choice: ExpertChoice,
    /// The matrices of each layer; `None` if it has no experts.
    tables: Vec<Option<MatrixTable>>,
    /// For each layer, the experts of each row as words, likeliest first.
    pub(super) chosen: Storage,
    /// The weight of each of these experts, in the layer that was routed last.
    pub(super) weights: Storage,
    /// Pairs of a row and one of its experts, sorted by expert: the row of each place, the place of
    /// each pair, and the tiles of places.
    pub(super) rows: Storage,
    pub(super) places: Storage,
    pub(super) tiles: Storage,
    /// Gate and up by place, then the results by place.
    pub(super) wide: Storage,
    pub(super) activated: Storage,
    copies: ExpertCopies,
}

/// The addresses of a layer's matrices, which kernels read on the device.
#[derive(Debug)]
struct MatrixTable {
    /// Those of `gate_up` before those of `down`.
    addresses: Vec<u64>,
    on_device: Storage,
}

/// Experts of steps on their way to the host.
#[derive(Debug)]
struct ExpertCopies {
    steps: Vec<ExpertCopy>,
    next: usize,
    /// Copies that were not taken yet, the earliest first.
    waiting: VecDeque<usize>,
}

/// Pinned memory for the experts of one step.
#[derive(Debug)]
struct ExpertCopy {
    experts: Pinned<i32>,
    /// Rows of the step, padded.
    rows: usize,
    copied: CudaEvent,
}

impl CudaRouting {
    /// Allocates room for `layers` layers and steps of `rows` rows, whose pairs have results of
    /// `width` elements.
    pub(super) fn new(
        device: &Device,
        choice: ExpertChoice,
        layers: usize,
        rows: usize,
        width: usize,
    ) -> Result<CudaRouting, CudaError> {
        let empty = || Storage::new(device, 0);
        let copies = (0..STEPS).map(|_| ExpertCopy::new(device, layers * rows * choice.chosen));

        let mut routing = CudaRouting {
            choice,
            tables: (0..layers).map(|_| None).collect(),
            chosen: empty()?,
            weights: empty()?,
            rows: empty()?,
            places: empty()?,
            tiles: empty()?,
            wide: empty()?,
            activated: empty()?,
            copies: ExpertCopies {
                steps: copies.collect::<Result<_, _>>()?,
                next: 0,
                waiting: VecDeque::new(),
            },
        };

        routing.reserve(rows)?;
        routing.reserve_results(rows, width, width / 2)?;
        Ok(routing)
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.tables.len()
    }

    /// Makes room for the experts of a step of `rows` rows.
    pub(super) fn reserve(&mut self, rows: usize) -> Result<(), CudaError> {
        let pairs = rows * self.choice.chosen;
        let tiles = ExpertTiles::new(pairs, self.choice.experts).count;
        self.chosen.reserve(4 * pairs * self.tables.len())?;
        self.tiles.reserve(TILE_BYTES * tiles)?;
        let words = [&mut self.weights, &mut self.rows, &mut self.places];
        words.into_iter().try_for_each(|storage| storage.reserve(4 * pairs))
    }

    /// Makes room for what the pairs of a step of `rows` rows compute.
    pub(super) fn reserve_results(
        &mut self,
        rows: usize,
        width: usize,
        inner: usize,
    ) -> Result<(), CudaError> {
        let pairs = rows * self.choice.chosen;
        self.wide.reserve(2 * pairs * width)?;
        self.activated.reserve(2 * pairs * inner)
    }

    /// The address of the experts that the rows of a step of `rows` rows chose in `layer`.
    pub(super) fn chosen_in(&self, layer: usize, rows: usize) -> u64 {
        self.chosen.address() + (4 * layer * rows * self.choice.chosen) as u64
    }

    /// Returns the addresses of the tables of `gate_up` and of `down` in a layer.
    ///
    /// A table is written in the first step, and after weights have moved to another memory. In
    /// both cases no step is recorded.
    pub(super) fn tables(
        &mut self,
        device: &Device,
        layer: usize,
        experts: &ExpertMatrices<'_, CudaMatrix>,
    ) -> Result<[u64; 2], CudaError> {
        let matrices = experts.gate_up.iter().chain(experts.down);
        let addresses: Vec<u64> = matrices.map(|matrix| matrix.storage.address()).collect();
        let bytes = size_of_val(&addresses[..]);
        let table = match &mut self.tables[layer] {
            Some(table) => table,
            none => {
                let on_device = Storage::new(device, bytes)?;
                none.insert(MatrixTable { addresses: Vec::new(), on_device })
            }
        };
        if table.addresses != addresses {
            table.on_device.memory().write(0, &addresses)?;
            table.addresses = addresses;
        }
        let first = table.on_device.address();
        Ok([first, first + (bytes / 2) as u64])
    }

    /// Starts the copy of the experts of a step of `rows` rows to the host.
    pub(crate) fn fetch(&mut self, rows: usize) -> Result<(), OpError> {
        let op = "fetch_routing";
        let ExpertCopies { steps, next, waiting } = &mut self.copies;
        if waiting.len() == STEPS {
            let reason = "the experts of earlier steps were not taken".to_owned();
            return Err(OpError::Device { op, reason });
        }
        let (index, count) = (*next, self.tables.len() * rows * self.choice.chosen);
        let started = steps[index].start(&self.chosen, rows, count);
        started.map_err(|error| error.of(op))?;
        *next = (index + 1) % STEPS;
        waiting.push_back(index);
        Ok(())
    }

    /// Drops the experts that were not taken.
    pub(crate) fn drop_waiting(&mut self) {
        self.copies.waiting.clear();
    }

    /// Waits for the earliest step whose experts were not taken, and appends those of its first
    /// `rows` rows: for each row those of all layers.
    pub(crate) fn take(&mut self, rows: usize, out: &mut Vec<u16>) -> Result<(), OpError> {
        let op = "take_routing";
        let Some(index) = self.copies.waiting.pop_front() else {
            let reason = "the experts of no step were fetched".to_owned();
            return Err(OpError::Device { op, reason });
        };
        let copy = &self.copies.steps[index];
        copy.copied.wait().map_err(|error| error.of(op))?;
        if rows > copy.rows {
            return Err(OpError::Index { op, index: rows - 1, rows: copy.rows });
        }

        let width = self.choice.chosen;
        for row in 0..rows {
            for (layer, table) in self.tables.iter().enumerate() {
                let experts = &copy.experts[(layer * copy.rows + row) * width..][..width];
                // The device has written nothing for a layer without experts.
                let is_mixture = table.is_some();
                out.extend(
                    experts.iter().map(|expert| if is_mixture { *expert as u16 } else { 0 }),
                );
            }
        }
        Ok(())
    }
}

impl ExpertCopy {
    fn new(device: &Device, count: usize) -> Result<ExpertCopy, CudaError> {
        Ok(ExpertCopy {
            experts: Pinned::new(device, count)?,
            rows: 0,
            copied: CudaEvent::new(device)?,
        })
    }

    /// Starts a copy of `count` words.
    fn start(&mut self, from: &Storage, rows: usize, count: usize) -> Result<(), CudaError> {
        let device = from.memory().device();
        if self.experts.len() < count {
            *self = ExpertCopy::new(device, count)?;
        }
        // SAFETY: the copy is read behind its event, and used again once it was taken.
        unsafe { from.memory().read_later(&mut self.experts, count)? };
        self.rows = rows;
        self.copied.record()
    }
}
