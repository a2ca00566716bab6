//! Launches that were recorded once and run again as one, and marks in the order of work.

use cudarc::driver::sys;

use super::device::Device;
use super::error::CudaError;

/// What was recorded: launches with the arguments that they had.
#[derive(Debug)]
pub(super) struct Graph {
    device: Device,
    handle: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `walk` asks for; nothing of it runs.
    pub(super) fn record<E: From<CudaError>>(
        device: &Device,
        walk: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        device.bind()?;
        let stream = device.inner.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours, and nothing is being recorded.
        let code = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
        CudaError::check("cuStreamBeginCapture", code)?;
        let walked = walk();
        let mut graph = std::ptr::null_mut();
        // The recording ends also where the walk failed: the stream is of no use until then.
        // SAFETY: it was begun above.
        let code = unsafe { sys::cuStreamEndCapture(stream, &mut graph) };
        let made = walked.and_then(|()| Ok(CudaError::check("cuStreamEndCapture", code)?));
        let made = made.and_then(|()| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the graph is whole.
            let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut handle, graph, 0) };
            CudaError::check("cuGraphInstantiate", code)?;
            Ok(Graph { device: device.clone(), handle })
        });
        if !graph.is_null() {
            // SAFETY: what runs is a copy; this one is destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        made
    }

    /// Asks for all of it.
    pub(super) fn launch(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: whoever keeps a graph keeps what its launches point to, or drops the graph.
        let code = unsafe { sys::cuGraphLaunch(self.handle, self.device.inner.stream) };
        CudaError::check("cuGraphLaunch", code)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        // SAFETY: nothing of it runs any more, and it is destroyed once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
    }
}

/// A place in the order of work that can be waited for.
#[derive(Debug)]
pub(super) struct Mark {
    device: Device,
    handle: sys::CUevent,
    set: bool,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Mark {}

impl Mark {
    /// A mark that nobody has to wait for.
    pub(super) fn new(device: &Device) -> Result<Mark, CudaError> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the driver writes a handle.
        CudaError::check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Mark { device: device.clone(), handle, set: false })
    }

    /// Puts the mark behind all that was asked for until now.
    pub(super) fn set(&mut self) -> Result<(), CudaError> {
        self.device.bind()?;
        self.set = true;
        let stream = self.device.inner.stream;
        // SAFETY: both handles live.
        CudaError::check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream) })
    }

    /// Waits until the device has come to the mark.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        if !self.set {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the handle lives.
        CudaError::check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: it was created, and is destroyed once; the driver waits where it has to.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}
