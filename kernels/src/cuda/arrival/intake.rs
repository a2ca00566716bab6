//! Tensors are checked, converted and hashed in the memory of the device where they arrived.

use std::ops::Range;
use std::sync::Arc;

use super::checksum::{DIGEST_WORDS, HashInput};
use super::{Arrival, ArrivedValues};
use crate::cuda::device::Device;
use crate::cuda::device::memory::{Memory, Pinned};
use crate::cuda::element_type::ElementType;
use crate::cuda::error::CudaError;
use crate::cuda::grid;
use crate::cuda::kernels::{Arg, Kernels};
use crate::cuda::program::source::{FAMILIES, Family};

/// The family of kernels.
const FAMILY: &str = "arrival";

/// Its kernels do not depend on the size of heads.
const ANY_HEAD_DIM: usize = 64;

/// Words that the device reports of a tensor: one that tells if an element is infinite or NaN, then
/// the digest.
const REPORT_WORDS: usize = 1 + DIGEST_WORDS;

/// Border at which each result of a conversion begins.
const BORDER: usize = 256;

/// The type of elements that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivingType {
    /// 32-bit floats.
    F32,
    /// bf16 numbers.
    Bf16,
    /// float16 numbers, which are converted by way of 32-bit floats.
    F16,
}

impl ArrivingType {
    /// Bytes of an element.
    fn size(self) -> usize {
        match self {
            ArrivingType::F32 => 4,
            ArrivingType::Bf16 | ArrivingType::F16 => 2,
        }
    }
}

/// A tensor to be taken in.
#[derive(Debug, Clone)]
pub struct IntakeOrder {
    /// Its bytes in the memory.
    pub bytes: Range<usize>,
    /// The type of its elements.
    pub from: ArrivingType,
    /// The type that they are to have.
    pub to: ElementType,
    /// Bytes that are hashed in front of the converted elements.
    pub head: Vec<u8>,
}

/// The kernel that takes elements in.
enum IntakeKernel {
    /// It only reads them.
    Check(&'static str),
    /// It writes converted ones.
    Convert(&'static str),
}

impl IntakeOrder {
    /// Number of elements.
    fn len(&self) -> usize {
        self.bytes.len() / self.from.size()
    }

    fn kernel(&self) -> IntakeKernel {
        match (self.from, self.to) {
            (ArrivingType::F32, ElementType::F32) => IntakeKernel::Check("check_f32"),
            (ArrivingType::Bf16, ElementType::Bf16) => IntakeKernel::Check("check_bf16"),
            (ArrivingType::F32, ElementType::Bf16) => IntakeKernel::Convert("round_f32"),
            (ArrivingType::F16, ElementType::Bf16) => IntakeKernel::Convert("round_f16"),
            (ArrivingType::F16, ElementType::F32) => IntakeKernel::Convert("widen_f16"),
            (ArrivingType::Bf16, ElementType::F32) => IntakeKernel::Convert("widen_bf16"),
        }
    }

    /// Checks that the bytes are whole elements within a memory of so many bytes, at an even
    /// address.
    fn check(&self, len: usize) -> Result<(), CudaError> {
        let Range { start, end } = self.bytes;
        let fits = start <= end && end <= len && start.is_multiple_of(2);
        if fits && self.bytes.len().is_multiple_of(self.from.size()) {
            return Ok(());
        }
        Err(CudaError::Bounds { offset: start, bytes: self.bytes.len(), len })
    }
}

/// The kernels that take tensors in, and their scratch memory.
#[derive(Debug)]
pub struct Intake {
    kernels: Kernels,
    workspace: Memory,
    /// Bytes that go to the workspace, and the reports that come back.
    heads: Pinned<u32>,
    reports: Pinned<u32>,
}

/// The offsets within the workspace: first the reports of all tensors, then their heads one behind
/// another, then nodes of hashes.
struct Workspace {
    heads: Vec<usize>,
    nodes: usize,
    bytes: usize,
}

/// The places of the elements of tensors: among those that arrived, or among the converted ones.
struct ElementPlaces {
    places: Vec<ElementPlace>,
    /// Bytes of the converted elements.
    converted: usize,
}

#[derive(Debug, Clone, Copy)]
enum ElementPlace {
    Arrived(usize),
    Converted(usize),
}

impl Intake {
    /// Loads the kernels.
    ///
    /// # Errors
    /// An error of the compiler or the driver.
    pub fn new(device: &Device) -> Result<Intake, CudaError> {
        let families: Vec<Family> =
            FAMILIES.iter().copied().filter(|family| family.name == FAMILY).collect();
        let kernels = Kernels::load(device, &families, ANY_HEAD_DIM)?;
        let workspace = Memory::new(device, 0)?;
        let (heads, reports) = (Pinned::new(device, 0)?, Pinned::new(device, 0)?);
        Ok(Intake { kernels, workspace, heads, reports })
    }

    /// Takes tensors in, and waits until that is done. Nothing changes in `memory`, whose device is
    /// that of the intake.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the device has no room for converted elements;
    /// [`CudaError::Bounds`] if an order exceeds the memory; an error of the driver.
    pub fn take(&mut self, memory: &Memory, orders: &[IntakeOrder]) -> Result<TakenIn, CudaError> {
        orders.iter().try_for_each(|order| order.check(memory.bytes()))?;
        let places = ElementPlaces::of(orders);
        let converted = Memory::new(self.kernels.device(), places.converted)?;
        let workspace = self.prepare(orders)?;
        for (index, order) in orders.iter().enumerate() {
            let report = self.workspace.address() + (index * REPORT_WORDS * 4) as u64;
            let address = match places.places[index] {
                ElementPlace::Arrived(start) => memory.address() + start as u64,
                ElementPlace::Converted(start) => converted.address() + start as u64,
            };
            self.launch_step(order, report, memory.address(), address)?;
            let head = self.workspace.address() + workspace.heads[index] as u64;
            let input = HashInput {
                head: (head, order.head.len()),
                elements: (address, order.len() * order.to.size()),
            };
            let nodes = self.workspace.address() + workspace.nodes as u64;
            // SAFETY: the workspace was made for these orders, and this waits for the device before
            // any of the memories can go.
            unsafe { input.hash(&self.kernels, nodes, report + 4)? };
        }

        let count = orders.len() * REPORT_WORDS;
        // SAFETY: they are read behind the end of all work, this copy included.
        unsafe { self.workspace.read_later(&mut self.reports, count)? };
        self.kernels.device().synchronize()?;
        let words = self.reports[..count].to_vec();
        let elements = orders.iter().map(|order| (order.to, order.len())).collect();
        Ok(TakenIn { words, places: places.places, elements, converted })
    }

    /// Starts the check or the conversion of a tensor. `to` is the address of the results.
    fn launch_step(
        &self,
        order: &IntakeOrder,
        report: u64,
        memory: u64,
        to: u64,
    ) -> Result<(), CudaError> {
        let from = Arg::Pointer(memory + order.bytes.start as u64);
        let (report, count) = (Arg::Pointer(report), Arg::Long(order.len() as u64));
        let grid = grid::flat(order.len());
        // SAFETY: the bytes of the order were checked, and there is room for the results.
        unsafe {
            match order.kernel() {
                IntakeKernel::Check(kernel) => {
                    self.kernels.launch(kernel, grid, &[report, from, count])
                }
                IntakeKernel::Convert(kernel) => {
                    self.kernels.launch(kernel, grid, &[report, Arg::Pointer(to), from, count])
                }
            }
        }
    }

    /// Makes room in the workspace, clears the reports, and uploads the heads.
    fn prepare(&mut self, orders: &[IntakeOrder]) -> Result<Workspace, CudaError> {
        let workspace = Workspace::of(orders);
        if self.workspace.bytes() < workspace.bytes {
            let device = self.kernels.device().clone();
            // The old memory is freed first: there may be no room for both.
            self.workspace = Memory::new(&device, 0)?;
            self.workspace = Memory::new(&device, workspace.bytes)?;
        }

        let mut bytes = vec![0_u8; orders.len() * REPORT_WORDS * 4];
        bytes.extend(orders.iter().flat_map(|order| &order.head));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let words = bytes.as_chunks().0;
        if self.heads.len() < words.len() {
            let (device, count) = (self.kernels.device(), words.len().next_power_of_two());
            self.heads = Pinned::new(device, count)?;
            self.reports = Pinned::new(device, count)?;
        }
        for (to, word) in self.heads.iter_mut().zip(words) {
            *to = u32::from_ne_bytes(*word);
        }
        // SAFETY: they are changed again behind the end of this work, for which each call waits.
        unsafe { self.workspace.write_later(&self.heads, words.len())? };
        Ok(workspace)
    }
}

impl Workspace {
    fn of(orders: &[IntakeOrder]) -> Workspace {
        let mut at = orders.len() * REPORT_WORDS * 4;
        let mut heads = Vec::with_capacity(orders.len());
        for order in orders {
            heads.push(at);
            at += order.head.len();
        }
        let scratch = |order: &IntakeOrder| {
            let elements = (0, order.len() * order.to.size());
            HashInput { head: (0, order.head.len()), elements }.scratch_bytes()
        };
        let nodes = at.next_multiple_of(BORDER);
        let bytes = nodes + orders.iter().map(scratch).max().unwrap_or_default();
        Workspace { heads, nodes, bytes }
    }
}

impl ElementPlaces {
    fn of(orders: &[IntakeOrder]) -> ElementPlaces {
        let mut converted = 0_usize;
        let mut place = |order: &IntakeOrder| match order.kernel() {
            IntakeKernel::Check(_) => ElementPlace::Arrived(order.bytes.start),
            IntakeKernel::Convert(_) => {
                let start = converted.next_multiple_of(BORDER);
                converted = start + order.len() * order.to.size();
                ElementPlace::Converted(start)
            }
        };
        let places = orders.iter().map(&mut place).collect();
        ElementPlaces { places, converted }
    }
}

/// Tensors that were taken in.
#[derive(Debug)]
pub struct TakenIn {
    /// The reports of the device.
    words: Vec<u32>,
    places: Vec<ElementPlace>,
    /// The type and the number of the elements of each.
    elements: Vec<(ElementType, usize)>,
    converted: Memory,
}

/// A tensor that was taken in.
#[derive(Debug)]
pub struct ArrivedTensor {
    /// The elements in the type that was ordered.
    pub values: ArrivedValues,
    /// True if none of them is infinite or NaN.
    pub is_finite: bool,
    /// BLAKE3 of the head and the elements.
    pub hash: [u8; DIGEST_WORDS * 4],
}

impl TakenIn {
    /// The tensors, in the order of the orders. `memory` is the one that they were taken from.
    pub fn keep(self, memory: Memory) -> Vec<ArrivedTensor> {
        let arrived = Arc::new(Arrival::new(memory));
        let converted = Arc::new(Arrival::new(self.converted));
        let reports = self.words.as_chunks::<REPORT_WORDS>().0;
        let tensors = reports.iter().zip(&self.places).zip(&self.elements);
        tensors
            .map(|(([bad, digest @ ..], place), (element, len))| {
                let (arrival, start) = match place {
                    ElementPlace::Arrived(start) => (&arrived, *start),
                    ElementPlace::Converted(start) => (&converted, *start),
                };
                let mut hash = [0; DIGEST_WORDS * 4];
                for (bytes, word) in hash.as_chunks_mut().0.iter_mut().zip(digest) {
                    *bytes = word.to_le_bytes();
                }
                let (arrival, element, len) = (Arc::clone(arrival), *element, *len);
                let values = ArrivedValues { arrival, element, start, len };
                ArrivedTensor { values, is_finite: *bad == 0, hash }
            })
            .collect()
    }
}
