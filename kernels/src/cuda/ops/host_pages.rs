//! Copies of pages between the device and pinned memory of the host.

use super::launch::op_error;
use crate::cuda::step::Cuda;
use crate::cuda::step::host_pages::HostPages;
use crate::cuda::tensor::CudaPages;
use crate::op::{Heads, OpError, PageMoves, check_len};

impl Cuda {
    /// Computes [`crate::Ops::keep_host_pages`].
    pub(crate) fn allocate_host_pages(
        &mut self,
        heads: Heads,
        layers: usize,
        count: usize,
    ) -> Result<(), OpError> {
        let bytes = 2 * CudaPages::side_bytes(heads, self.kv) * layers;
        let made = HostPages::new(&self.device, bytes, count);
        self.host_pages = Some(made.map_err(op_error("keep_host_pages"))?);
        Ok(())
    }

    /// Computes [`crate::Ops::move_pages`].
    pub(crate) fn copy_pages(
        &mut self,
        pages: &CudaPages,
        moves: &PageMoves,
    ) -> Result<(), OpError> {
        match &mut self.host_pages {
            Some(host) => host.start_all(&self.device, pages, moves),
            None => check_len("move_pages", "moves", moves.before.len() + moves.beside.len(), 0),
        }
    }
}
