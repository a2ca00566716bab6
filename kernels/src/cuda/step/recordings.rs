//! Recorded steps by shape: which are kept, and when one that failed is tried again.

use std::collections::HashMap;

use super::plan::StepShape;
use crate::cuda::device::graph::Graph;
use crate::cuda::variant::Variant;

/// Maximum number of recorded steps; each takes memory of the driver.
const RECORDINGS_MAX: usize = 256;
/// Steps after which a recording that failed is tried again. It is mostly memory that was missing,
/// and a try costs about what launching one step kernel by kernel does.
const RETRY_STEPS: u64 = 64;
/// Steps behind the end of which the host is at most: before a step is launched, the host waits for
/// the words of the second step in front, which are copied once the third is over.
const STEPS_BEHIND: u64 = 3;

/// The shape and the kernels of a step.
pub(super) type RecordingKey = (StepShape, Variant);

/// The way in which the next step of a shape runs.
#[derive(Debug)]
pub(super) enum Replay {
    /// The shape came up once. The next step of it is recorded.
    RecordNext,
    Graph(Graph),
    /// Recording failed at the step of this number, mostly for want of memory. Steps are launched
    /// operation by operation.
    Failed(u64),
}

/// The record of a step shape that came up before.
#[derive(Debug)]
struct RecordedShape {
    replay: Replay,
    /// The device's epoch when it was recorded: a higher one means that its addresses may be gone.
    epoch: u64,
    /// The number of the last step of this shape.
    used: u64,
}

impl RecordedShape {
    /// Frees it before the step number `now` is launched. Waits for the device only if it may
    /// still run the recording.
    fn retire(mut self, now: u64) {
        if let Replay::Graph(graph) = &mut self.replay
            && self.used + STEPS_BEHIND <= now
        {
            graph.note_end();
        }
    }
}

/// The records of the shapes that came up last.
#[derive(Debug)]
pub(super) struct Recordings {
    by_key: HashMap<RecordingKey, RecordedShape>,
    most: usize,
}

impl Default for Recordings {
    fn default() -> Recordings {
        Recordings { by_key: HashMap::new(), most: RECORDINGS_MAX }
    }
}

impl Recordings {
    /// Number of steps that were recorded and are kept.
    pub(super) fn recorded(&self) -> usize {
        self.by_key.values().filter(|one| matches!(one.replay, Replay::Graph(_))).count()
    }

    /// Takes the record of a shape out for the step number `now`, if the shape came up before and
    /// its addresses are those of this epoch.
    pub(super) fn take(&mut self, key: &RecordingKey, epoch: u64, now: u64) -> Option<Replay> {
        let found = self.by_key.remove(key)?;
        if found.epoch != epoch {
            found.retire(now);
            return None;
        }
        match found.replay {
            Replay::Failed(at) if at + RETRY_STEPS <= now => Some(Replay::RecordNext),
            replay => Some(replay),
        }
    }

    /// Keeps the record of the step number `now`. If there are too many, that of the shape which
    /// did not come up for longest is freed.
    pub(super) fn keep(&mut self, key: RecordingKey, replay: Replay, epoch: u64, now: u64) {
        while self.by_key.len() >= self.most {
            let oldest = self.by_key.iter().min_by_key(|(_, one)| one.used).map(|(key, _)| *key);
            let Some(oldest) = oldest.and_then(|key| self.by_key.remove(&key)) else { break };
            oldest.retire(now);
        }
        self.by_key.insert(key, RecordedShape { replay, epoch, used: now });
    }

    /// Frees all of them.
    pub(super) fn clear(&mut self) {
        self.by_key.clear();
    }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;

    use super::super::{Cuda, CudaOptions};
    use super::*;
    use crate::cuda::element_type::ElementType;
    use crate::cuda::emulated::EmulatedGpu;
    use crate::cuda::emulated::tests::device;
    use crate::cuda::tensor::CudaBuffer;
    use crate::op::{Heads, Ops, Span, Step};

    /// Elements of a row of the widest step.
    const ELEMENTS: usize = 256;

    /// A device whose steps are one kernel.
    struct Steps {
        cuda: Cuda,
        gate: CudaBuffer,
        x: CudaBuffer,
        emulated: &'static EmulatedGpu,
        _guard: MutexGuard<'static, ()>,
    }

    impl Steps {
        fn new(most: usize) -> Steps {
            let (guard, emulated, _) = device();
            let heads = Heads { query: 2, kv: 1, dim: 64 };
            // No kernel is tried at the start.
            let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
            let mut cuda = Cuda::open(&options, heads).unwrap();
            cuda.recordings.most = most;
            let [gate, x] = [(); 2].map(|()| {
                let mut buffer = cuda.buffer(ElementType::Bf16, ELEMENTS).unwrap();
                buffer.resize(ELEMENTS).unwrap();
                buffer.storage.memory().fill(0).unwrap();
                buffer
            });
            Steps { cuda, gate, x, emulated, _guard: guard }
        }

        /// Runs a step of so many sequences, and returns the recordings, the replays and the waits
        /// for the device that it took.
        fn step(&mut self, rows: usize) -> [i64; 3] {
            let counts = || {
                ["recordings", "graph_launches", "synchronizations"].map(|n| self.emulated.get(n))
            };
            let before = counts();
            let spans: Vec<Span<'_>> =
                (0..rows).map(|row| Span { rows: row..row + 1, start: 0, pages: &[0] }).collect();
            let (ids, positions) = (vec![0; rows], vec![0; rows]);
            let wanted: Vec<usize> = (0..rows).collect();
            let step = Step {
                ids: &ids,
                positions: &positions,
                spans: &spans,
                wanted: &wanted,
                ..Step::default()
            };
            let (gate, x) = (&self.gate, &mut self.x);
            self.cuda.run_step(&step, &mut |cuda| cuda.sigmoid_mul(gate, x)).unwrap();
            let after = counts();
            [0, 1, 2].map(|i| after[i] - before[i])
        }

        /// Whether the last of some steps of one shape is recorded or replayed.
        fn steps(&mut self, rows: usize, count: usize) -> [i64; 2] {
            let found = (0..count).map(|_| self.step(rows)).last().unwrap_or_default();
            [found[0], found[1]]
        }
    }

    #[test]
    fn a_recording_that_failed_is_tried_again() {
        let mut steps = Steps::new(8);
        assert!(steps.emulated.set("fail_recording", 1));
        // The first is launched as it is, and the second cannot be recorded.
        assert_eq!(steps.steps(1, 2), [0, 0]);
        // There is memory again, but nobody tries for a while.
        assert_eq!(steps.steps(1, RETRY_STEPS as usize - 1), [0, 0]);
        assert_eq!(steps.steps(1, 1), [1, 1]);
        assert_eq!(steps.steps(1, 1), [0, 1]);
        assert_eq!(steps.cuda.recorded(), 1);
    }

    #[test]
    fn the_shape_that_came_up_longest_ago_gives_way() {
        let mut steps = Steps::new(3);
        // Numbers of rows with shapes of their own.
        for rows in [1, 2, 4, 1] {
            steps.steps(rows, 2);
        }
        assert_eq!(steps.cuda.recorded(), 3);
        // The steps of two rows go. Their last one is over, which the host knows without waiting:
        // it waits for the words of the second step in front alone.
        let waits = steps.step(8)[2];
        let usual = steps.step(1)[2];
        assert_eq!(waits, usual);
        for (rows, is_kept) in [(1, true), (4, true), (2, false)] {
            assert_eq!(steps.step(rows)[1], i64::from(is_kept), "{rows} rows");
        }
        assert_eq!(steps.emulated.get("faults"), 0);
    }

    #[test]
    fn a_recording_that_may_run_is_waited_for() {
        let mut steps = Steps::new(1);
        // The largest comes first, so that no later one frees memory, for which the device is
        // waited for.
        for rows in [8, 4, 2, 1] {
            // Each takes the place of the one before it, which has just been launched.
            assert_eq!(steps.steps(rows, 3), [0, 1]);
        }
        steps.cuda.device().synchronize().unwrap();
        assert_eq!(steps.emulated.get("faults"), 0);
    }
}
