//! What reaches the engine thread, and what it is told between two steps.
//!
//! Calls and commands come through one bounded channel, in the order in which they were sent. A
//! command is carried out when no step is under way, also when there is nothing else to do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernels::{OpError, Ops};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::core::Core;
use crate::queue::Submission;

/// Commands that may be under way at once.
pub(crate) const COMMANDS: usize = 64;

/// What reaches the engine thread.
pub(crate) enum Mail {
    Call(Submission),
    /// The permit bounds the commands that are under way.
    Command(Command, OwnedSemaphorePermit),
}

/// What becomes of replies under way, and of calls that come, when generation is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Replies end as they are; calls that come are refused.
    Abort,
    /// Replies end by themselves first; calls that come are refused.
    Wait,
    /// Replies stand still and calls wait, with what was computed for them.
    Keep,
    /// As [`Mode::Keep`], but everything is computed again afterwards.
    Recompute,
}

/// Parts of an engine that can sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) scheduling: bool,
    pub(crate) weights: bool,
    pub(crate) cache: bool,
}

impl Parts {
    pub(crate) fn any(self) -> bool {
        self.scheduling || self.weights || self.cache
    }
}

/// What the engine thread is told; each answers once it is done.
pub(crate) enum Command {
    /// The weights have another label from now on.
    Rename {
        version: Arc<str>,
        done: oneshot::Sender<()>,
    },
    /// Generation stops; `clear` says what becomes of replies under way if weights change before
    /// it goes on: computed again, or not. The answer is whether it did stop: while replies end by
    /// themselves, it may be told to go on.
    Pause {
        mode: Mode,
        clear: bool,
        done: oneshot::Sender<bool>,
    },
    Resume {
        done: oneshot::Sender<()>,
    },
    /// Ends everything. Answers with how many replies that were.
    AbortAll {
        done: oneshot::Sender<usize>,
    },
    /// Some replies were told to end, which is not seen while generation is paused.
    DropAbandoned {
        done: oneshot::Sender<()>,
    },
    /// Forgets the prefixes that are known, and with `running` what runs is computed again.
    ResetPrefixes {
        running: bool,
        done: oneshot::Sender<()>,
    },
    /// Puts the weights on the dock to be read. Answers with whether there are any.
    Lend {
        done: oneshot::Sender<bool>,
    },
    /// Takes the weights that stand on the dock. If they are the `same`, they only get a new label.
    Exchange {
        version: Arc<str>,
        same: bool,
        done: oneshot::Sender<Result<Duration, OpError>>,
    },
    /// Gives memory back. Weights go to the host's memory, or nowhere if `drop` says so.
    Sleep {
        parts: Parts,
        drop: bool,
        done: oneshot::Sender<Result<(), OpError>>,
    },
    /// Takes memory again; once no part sleeps, generation goes on. Answers with what still sleeps.
    Wake {
        parts: Parts,
        done: oneshot::Sender<Result<Parts, OpError>>,
    },
}

/// What a caller can do about a device that failed for good.
const LOST: &str = "the GPU failed, and this process cannot use it again; the log says of what, \
     and a restart ends that";

/// Nothing was staged to take.
const NOT_STAGED: OpError =
    OpError::Shape { op: "exchange", operand: "staged weights", expected: 1, found: 0 };

/// How the engine stands. The engine thread writes it, and whoever wants to know reads it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// The label of the weights.
    pub(crate) version: Arc<str>,
    pub(crate) paused: Option<Mode>,
    pub(crate) pauses: Pauses,
    pub(crate) asleep: Parts,
    /// Whether there are weights.
    pub(crate) loaded: bool,
    /// Whether the device failed for good.
    pub(crate) lost: bool,
}

/// How often and how long generation was paused, the pauses of sleep among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pauses {
    pub(crate) count: u64,
    /// All that are over, together.
    over: Duration,
    since: Option<Instant>,
}

impl Pauses {
    /// Seconds of all pauses, the one that lasts included.
    pub(crate) fn seconds(&self, now: Instant) -> f64 {
        let lasts = self.since.map(|since| now.saturating_duration_since(since));
        (self.over + lasts.unwrap_or_default()).as_secs_f64()
    }

    /// One begins, unless one lasts already.
    fn begin(&mut self, now: Instant) {
        self.count += u64::from(self.since.is_none());
        self.since = self.since.or(Some(now));
    }

    fn end(&mut self, now: Instant) {
        let lasted = self.since.take().map(|since| now.saturating_duration_since(since));
        self.over += lasted.unwrap_or_default();
    }
}

impl Standing {
    /// Why no new reply can begin or wait, if none can.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if self.lost {
            return Some(LOST);
        }
        if self.asleep.any() {
            return Some("the engine sleeps; `POST /wake_up` ends that");
        }
        if !self.loaded {
            return Some(
                "the engine has no weights after a sleep of level 2; \
                 `POST /update_weights` with all of them ends that",
            );
        }
        match self.paused {
            Some(Mode::Abort | Mode::Wait) => {
                Some("generation is paused; `POST /resume` ends that")
            }
            _ => None,
        }
    }
}

/// [`Standing`] as many share it.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Standing>);

impl Board {
    /// The board of an engine that runs.
    pub(crate) fn new(version: Arc<str>) -> Board {
        let (asleep, pauses) = (Parts::default(), Pauses::default());
        let (paused, loaded, lost) = (None, true, false);
        Board(Mutex::new(Standing { version, paused, pauses, asleep, loaded, lost }))
    }

    /// The device failed for good.
    pub(crate) fn lose(&self) {
        if !std::mem::replace(&mut self.lock().lost, true) {
            tracing::error!("{LOST}");
        }
    }

    pub(crate) fn read(&self) -> Standing {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        // Fields are written one by one, and each is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the engine thread keeps of the commands that it was given.
#[derive(Default)]
pub(crate) struct Hold {
    /// Generation stands still.
    frozen: bool,
    /// Those who wait until all replies have ended.
    draining: Vec<oneshot::Sender<bool>>,
    /// Whether replies go on with old keys and values should weights change.
    keep_cache: bool,
    /// Generation was paused by sleep, and goes on when nothing sleeps any more.
    slept: bool,
}

/// Tells whoever asked; they may be gone, and it is done all the same.
fn tell<T>(done: oneshot::Sender<T>, answer: T) {
    done.send(answer).ok();
}

impl<O: Ops> Core<O> {
    /// Takes in what came. A step that is under way is read before a command is carried out.
    pub(crate) fn take(&mut self, mail: Mail) {
        match mail {
            Mail::Call(submission) => self.scheduler.enqueue(submission),
            Mail::Command(command, _permit) => {
                self.settle();
                self.obey(command);
            }
        }
        self.scheduler.gauge();
    }

    /// Whether a step would do something.
    pub(crate) fn has_work(&self) -> bool {
        let can = self.board.lock();
        let able = !self.hold.frozen && !can.asleep.any() && can.loaded;
        able && !self.scheduler.is_idle()
    }

    /// Freezes what was to stand still when the last reply had ended, if that is now.
    pub(crate) fn drain(&mut self) {
        if !self.hold.draining.is_empty() && self.scheduler.is_idle() {
            self.hold.frozen = true;
            self.hold.draining.drain(..).for_each(|done| tell(done, true));
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Rename { version, done } => {
                self.rename(version);
                tell(done, ());
            }
            Command::Pause { mode, clear, done } => self.pause(mode, clear, done),
            Command::Resume { done } => {
                self.resume();
                tell(done, ());
            }
            Command::AbortAll { done } => tell(done, self.scheduler.abort_all()),
            Command::DropAbandoned { done } => {
                self.scheduler.drop_abandoned();
                tell(done, ());
            }
            Command::ResetPrefixes { running, done } => {
                self.scheduler.reset_prefixes(running);
                tell(done, ());
            }
            Command::Lend { done } => {
                self.dock.lend(self.model.parameters.clone());
                tell(done, self.model.parameters.is_some());
            }
            Command::Exchange { version, same, done } => tell(done, self.exchange(version, same)),
            Command::Sleep { parts, drop, done } => tell(done, self.sleep(parts, drop)),
            Command::Wake { parts, done } => tell(done, self.wake(parts)),
        }
        self.drain();
    }

    pub(crate) fn rename(&mut self, version: Arc<str>) {
        self.board.lock().version = Arc::clone(&version);
        self.version = version;
    }

    fn pause(&mut self, mode: Mode, clear: bool, done: oneshot::Sender<bool>) {
        let mut board = self.board.lock();
        let stuck = board.asleep.any() || !board.loaded;
        if mode == Mode::Wait && stuck && !self.scheduler.is_idle() {
            // The replies that it waits for would never end.
            return tell(done, false);
        }
        board.paused = Some(mode);
        board.pauses.begin(Instant::now());
        drop(board);
        self.hold.keep_cache = !clear;
        match mode {
            Mode::Abort => {
                self.scheduler.abort_all();
            }
            Mode::Recompute => self.scheduler.retract(),
            Mode::Wait | Mode::Keep => {}
        }
        self.hold.draining.push(done);
        // Replies that an earlier pause has kept go on to their ends.
        self.hold.frozen = mode != Mode::Wait;
        if self.hold.frozen {
            self.hold.draining.drain(..).for_each(|done| tell(done, true));
        }
    }

    fn resume(&mut self) {
        let mut board = self.board.lock();
        board.paused = None;
        board.pauses.end(Instant::now());
        drop(board);
        self.hold.frozen = false;
        self.hold.slept &= self.board.lock().asleep.any();
        self.hold.keep_cache = false;
        self.hold.draining.drain(..).for_each(|done| tell(done, false));
    }

    /// Returns how long generation stood still for it.
    fn exchange(&mut self, version: Arc<str>, same: bool) -> Result<Duration, OpError> {
        let begun = Instant::now();
        let mut staged = self.dock.take_staged();
        if !same {
            let replaced = staged.as_mut().ok_or(NOT_STAGED).and_then(|it| self.model.replace(it));
            self.board.lock().loaded = self.model.parameters.is_some();
            replaced?;
            self.weights += 1;
            self.scheduler.renew(!self.hold.keep_cache);
        }
        self.rename(version);
        let pause = begun.elapsed();
        // Whoever staged them has time to drop what was replaced.
        self.dock.leave(staged);
        Ok(pause)
    }

    fn sleep(&mut self, parts: Parts, drop: bool) -> Result<(), OpError> {
        if parts.cache {
            self.scheduler.renew(true);
            // No step may run with what is left if this fails half-way.
            self.board.lock().asleep.cache = true;
            self.model.drop_pages()?;
        }
        // Whoever read them and went must not keep them in memory.
        self.dock.lend(None);
        if drop {
            self.model.parameters = None;
        }
        let laid = if parts.weights { self.model.lay_down() } else { Ok(()) };
        let mut board = self.board.lock();
        board.loaded = self.model.parameters.is_some();
        laid?;
        self.hold.slept |= parts.scheduling;
        board.asleep.scheduling |= parts.scheduling;
        board.asleep.weights |= parts.weights;
        Ok(())
    }

    /// What could be woken before a failure is awake; the rest may be tried again.
    fn wake(&mut self, parts: Parts) -> Result<Parts, OpError> {
        let before = self.board.lock().asleep;
        if before.weights && parts.weights {
            self.model.take_up()?;
            self.board.lock().asleep.weights = false;
        }
        if before.cache && parts.cache {
            self.model.take_pages(self.scheduler.pages_total())?;
            self.board.lock().asleep.cache = false;
        }
        let mut asleep = self.board.lock().asleep;
        // Nobody who names the other two should have to name this one.
        asleep.scheduling &= !parts.scheduling && (asleep.weights || asleep.cache);
        self.board.lock().asleep = asleep;
        // Only what sleep itself has paused goes on; a trainer's pause is the trainer's to end.
        if !asleep.any() && std::mem::take(&mut self.hold.slept) {
            self.resume();
        }
        Ok(asleep)
    }
}
