//! Graphs: launches that were recorded once and are replayed as one.

use cudarc::driver::sys;

use super::Device;
use crate::cuda::error::CudaError;

/// A recording of launches, with the arguments that they had.
#[derive(Debug)]
pub(crate) struct Graph {
    device: Device,
    handle: sys::CUgraphExec,
    /// True if the device may still run its launches.
    may_run: bool,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Records the launches that `walk` makes. None of them runs.
    pub(crate) fn record<E: From<CudaError>>(
        device: &Device,
        walk: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        device.bind()?;
        let stream = device.inner.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours, and nothing is being recorded.
        let code = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
        CudaError::check("cuStreamBeginCapture", code)?;

        // The recording is ended even if the walk failed: the stream cannot be used before.
        let walked = walk();
        let mut template = std::ptr::null_mut();
        // SAFETY: it was begun above.
        let code = unsafe { sys::cuStreamEndCapture(stream, &mut template) };
        let graph = walked
            .and_then(|()| Ok(CudaError::check("cuStreamEndCapture", code)?))
            .and_then(|()| Ok(Graph::instantiate(device, template)?));

        if !template.is_null() {
            // SAFETY: the instance is a copy; the template is destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(template) };
        }
        graph
    }

    fn instantiate(device: &Device, template: sys::CUgraph) -> Result<Graph, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the recording was ended without an error, so the template is complete.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut handle, template, 0) };
        CudaError::check("cuGraphInstantiate", code)?;
        Ok(Graph { device: device.clone(), handle, may_run: false })
    }

    /// Starts all recorded launches.
    pub(crate) fn launch(&mut self) -> Result<(), CudaError> {
        self.device.bind()?;
        self.may_run = true;
        // SAFETY: the owner of a graph keeps the memory that its launches use, or drops the graph.
        let code = unsafe { sys::cuGraphLaunch(self.handle, self.device.inner.stream) };
        CudaError::check("cuGraphLaunch", code)
    }

    /// Notes that all its launches are over, so that dropping it need not wait for the device.
    pub(crate) fn note_end(&mut self) {
        self.may_run = false;
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.may_run {
            self.device.synchronize().ok();
        }
        self.device.bind().ok();
        // SAFETY: none of its launches runs any more, and it is destroyed once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
    }
}
