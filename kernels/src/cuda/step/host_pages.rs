//! Keys and values in pinned memory of the host: copies of pages, on a stream of their own.

use crate::cuda::device::Device;
use crate::cuda::device::event::CudaEvent;
use crate::cuda::device::memory::Pinned;
use crate::cuda::device::strided::StridedRows;
use crate::cuda::error::CudaError;
use crate::cuda::tensor::CudaPages;
use crate::op::{OpError, PageMove, PageMoves, check_index, check_len};

/// Places in pinned memory, each for the keys and then the values of a page in all layers.
#[derive(Debug)]
pub(crate) struct HostPages {
    memory: Pinned<u8>,
    /// Places.
    count: usize,
    /// Bytes of a place.
    bytes: usize,
    /// The second stream, in whose order all copies are made.
    stream: Device,
    /// Behind the steps that were launched before the copies.
    computed: CudaEvent,
    /// Behind the copies.
    moved: CudaEvent,
    /// True if copies are under way that no step has been told to wait for.
    is_awaited_later: bool,
}

impl HostPages {
    /// Allocates the places.
    pub(crate) fn new(device: &Device, bytes: usize, count: usize) -> Result<HostPages, CudaError> {
        let stream = device.with_new_stream()?;
        Ok(HostPages {
            memory: Pinned::new(&stream, bytes.saturating_mul(count))?,
            count,
            bytes,
            computed: CudaEvent::new(device)?,
            moved: CudaEvent::new(&stream)?,
            stream,
            is_awaited_later: false,
        })
    }

    /// Starts copies behind all steps that were launched so far.
    fn start(&mut self, pages: &CudaPages, moves: &[PageMove]) -> Result<(), OpError> {
        let (op, failed) = ("move_pages", |error: CudaError| error.of("move_pages"));
        if moves.is_empty() {
            return Ok(());
        }
        let side = pages.side();
        check_len(op, "pages", 2 * side * pages.layers, self.bytes)?;
        self.computed.record().map_err(failed)?;
        self.stream.wait_for(&self.computed).map_err(failed)?;

        for PageMove { page, place, to } in moves {
            let (page, place) = (*page as usize, *place as usize);
            check_index(op, page, pages.count)?;
            check_index(op, place, self.count)?;
            let (offset, pitch, rows) = (side * page, side * pages.count, pages.layers);
            let keys = StridedRows { offset, at: self.bytes * place, width: side, pitch, rows };
            let values = StridedRows { at: keys.at + keys.bytes(), ..keys };
            for (on_device, rows) in [(&pages.keys, keys), (&pages.values, values)] {
                // SAFETY: the host never looks at the pinned memory. On the device, what is read
                // and written here was computed before `computed`, and no later step writes it
                // before it has waited for `moved`.
                let copied = unsafe {
                    on_device.memory().copy_rows_later(&self.stream, rows, &self.memory, *to)
                };
                copied.map_err(failed)?;
            }
        }
        self.moved.record().map_err(failed)
    }

    /// Starts copies before and beside the next step of `device`, and has the step wait for those
    /// before it.
    pub(crate) fn start_all(
        &mut self,
        device: &Device,
        pages: &CudaPages,
        moves: &PageMoves,
    ) -> Result<(), OpError> {
        self.start(pages, &moves.before)?;
        if self.is_awaited_later || !moves.before.is_empty() {
            device.wait_for(&self.moved).map_err(|error| error.of("move_pages"))?;
        }
        self.start(pages, &moves.beside)?;
        self.is_awaited_later = !moves.beside.is_empty();
        Ok(())
    }
}
