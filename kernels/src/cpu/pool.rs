//! Threads that share the work of one operation and sleep between steps.
//!
//! [`Pool::run`] calls a function once for every task index, on the calling thread and on the
//! workers. Tasks are claimed one at a time, so a thread that the system suspends delays one task
//! only. A worker spins for a few microseconds, in which the next operation of a step may come, and
//! is then parked, so that an idle engine takes no processor time.
#![expect(unsafe_code, reason = "workers call a function that the caller keeps alive for them")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

/// Times that a worker looks for a new job before it is parked: about twenty microseconds.
const SPINS: usize = 2_000;

/// The calling thread and its workers.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs; a caller that does not get it works alone.
    turn: Mutex<()>,
}

/// The state that all threads share.
#[derive(Debug)]
struct Shared {
    state: Mutex<PoolState>,
    /// Signals a new job.
    wake: Condvar,
    /// Signals that the last worker has left the job.
    done: Condvar,
    /// A copy of `PoolState::jobs` that is read without the lock.
    jobs: AtomicUsize,
    /// The first task of the job that no thread has claimed.
    next: AtomicUsize,
}

/// The state under the lock.
#[derive(Debug)]
struct PoolState {
    job: Option<Job>,
    /// Number of jobs so far.
    jobs: usize,
    /// Number of workers in the job.
    active: usize,
    /// Number of parked workers.
    parked: usize,
    panicked: bool,
    stop: bool,
}

/// A function that is called with the index of each task.
type TaskFn<'a> = dyn Fn(usize) + Sync + 'a;

/// A function and the number of its tasks.
#[derive(Clone, Copy, Debug)]
struct Job {
    work: *const TaskFn<'static>,
    tasks: usize,
}

// SAFETY: the function is `Sync`, and `Pool::run` keeps it alive until every worker has left the
// job.
unsafe impl Send for Job {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Nothing panics while it holds the lock, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until all are claimed.
    fn claim(&self, tasks: usize, work: &TaskFn<'_>) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(task);
        }
    }

    /// Runs the loop of a worker, until the pool is dropped.
    fn work(&self) {
        let mut seen = 0;
        loop {
            for _ in 0..SPINS {
                if self.jobs.load(Ordering::Relaxed) != seen {
                    break;
                }
                std::hint::spin_loop();
            }

            let mut state = self.lock();
            while state.jobs == seen && !state.stop {
                state.parked += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.parked -= 1;
            }
            if state.stop {
                return;
            }
            seen = state.jobs;
            let Some(job) = state.job else { continue };
            state.active += 1;
            drop(state);

            // SAFETY: this worker counts as active, so the caller of `run` keeps the function.
            let work = unsafe { &*job.work };
            let result = catch_unwind(AssertUnwindSafe(|| self.claim(job.tasks, work)));

            let mut state = self.lock();
            state.panicked |= result.is_err();
            state.active -= 1;
            if state.active == 0 {
                self.done.notify_one();
            }
        }
    }
}

/// A guard that ends a job when it is dropped, also by a panic: it lets no worker enter any more,
/// and waits for those in the job to leave.
struct JobGuard<'a>(&'a Shared);

impl Drop for JobGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.job = None;
        while state.active > 0 {
            state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Pool {
    /// Starts a pool of `threads` threads, of which the caller is one.
    pub(super) fn new(threads: usize) -> Pool {
        let state =
            PoolState { job: None, jobs: 0, active: 0, parked: 0, panicked: false, stop: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            done: Condvar::new(),
            jobs: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
        });
        // If the system starts no more threads, the existing ones do the work.
        let workers = (1..threads).filter_map(|index| start_worker(&shared, index).ok()).collect();
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    /// Number of threads, the caller's included.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` once with every number below `tasks`, in any order and on any thread.
    pub(super) fn run(&self, tasks: usize, work: &TaskFn<'_>) {
        let turn = match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if tasks < 2 || self.workers.is_empty() || turn.is_none() {
            (0..tasks).for_each(work);
            return;
        }

        // SAFETY: only the lifetime changes. `guard` is dropped before this function returns or
        // unwinds, and then no worker has the function any more.
        let job_work =
            unsafe { std::mem::transmute::<*const TaskFn<'_>, *const TaskFn<'static>>(work) };
        let job = Job { work: job_work, tasks };

        let mut state = self.shared.lock();
        self.shared.next.store(0, Ordering::Relaxed);
        state.job = Some(job);
        state.jobs += 1;
        state.panicked = false;
        self.shared.jobs.store(state.jobs, Ordering::Relaxed);
        let parked = state.parked;
        let guard = JobGuard(&self.shared);
        drop(state);

        if parked > 0 {
            self.shared.wake.notify_all();
        }
        self.shared.claim(tasks, work);
        drop(guard);
        assert!(!self.shared.lock().panicked, "a worker panicked");
    }
}

fn start_worker(shared: &Arc<Shared>, index: usize) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(format!("kernels-{index}")).spawn(move || shared.work())
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.jobs.fetch_add(1, Ordering::Relaxed);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A panic of a worker was reported by the job it happened in.
            worker.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Every task runs once, whatever the threads do.

    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 7, 100].into_iter().cycle().take(500) {
                let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                pool.run(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn callers_from_many_threads_and_from_within_a_task_are_served() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(5, &|_| {
                            pool.run(3, &|task| {
                                sum.fetch_add(task, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 50 * 5 * 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            let run = || pool.run(8, &|task| assert_ne!(task, 5));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            pool.run(8, &|_| {});
        }
    }
}
