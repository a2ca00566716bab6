//! The engine thread: schedule, run, postprocess.
//!
//! One thread owns the model. Callers reach it through a bounded queue and hear from it through the
//! outlets of their requests.

use std::ops::Range;
use std::sync::Arc;

use kernels::{Drawn, OpError, Ops};
use template::Tokenizer;
use tokio::sync::mpsc::Receiver;

use crate::control::{Board, Hold, Mail};
use crate::model::{Chunk, Model, Want};
use crate::sample::LogprobsMode;
use crate::schedule::Scheduler;
use crate::sequence::Finish;
use crate::update::Dock;

/// What the engine thread owns.
pub(crate) struct Core<O: Ops> {
    pub(crate) model: Model<O>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scheduler: Scheduler,
    /// The label of the weights.
    pub(crate) version: Arc<str>,
    /// Counts weights, the first included.
    pub(crate) weights: u64,
    pub(crate) board: Arc<Board>,
    pub(crate) hold: Hold,
    pub(crate) dock: Arc<Dock<O>>,
    pub(crate) logprobs_mode: LogprobsMode,
}

/// A core whatever its device is.
pub(crate) trait Worker: Send {
    /// Takes mail between steps until nobody can send any more.
    fn work_off(self: Box<Self>, inbox: Receiver<Mail>);
}

impl<O: Ops + 'static> Worker for Core<O> {
    fn work_off(self: Box<Self>, inbox: Receiver<Mail>) {
        self.run(inbox);
    }
}

impl<O: Ops> Core<O> {
    /// A thread's worth of engine, which nothing was asked of yet.
    pub(crate) fn new(
        model: Model<O>,
        tokenizer: Arc<Tokenizer>,
        scheduler: Scheduler,
        (board, dock): (Arc<Board>, Arc<Dock<O>>),
        logprobs_mode: LogprobsMode,
    ) -> Core<O> {
        Core {
            model,
            tokenizer,
            scheduler,
            version: board.read().version,
            weights: 1,
            board,
            hold: Hold::default(),
            dock,
            logprobs_mode,
        }
    }

    /// Takes mail between steps until nobody can send any more.
    pub(crate) fn run(mut self, mut inbox: Receiver<Mail>) {
        loop {
            if !self.has_work() {
                match inbox.blocking_recv() {
                    Some(mail) => self.take(mail),
                    None => return,
                }
            }
            while let Ok(mail) = inbox.try_recv() {
                self.take(mail);
            }
            if self.has_work() {
                self.step();
                self.drain();
            }
        }
    }

    fn step(&mut self) {
        self.scheduler.drop_abandoned();
        self.scheduler.admit(self.weights);
        self.work();
        self.scheduler.gauge();
    }

    fn work(&mut self) {
        let counts = self.scheduler.plan();
        if counts.iter().all(|count| *count == 0) {
            if !counts.is_empty() {
                self.fail("none of the running sequences can go on");
            }
            return;
        }
        match self.forward(&counts) {
            Ok((rows, mut chosen)) => {
                self.scheduler.publish();
                self.postprocess(&rows, &mut chosen);
                self.model.recycle(chosen.logits);
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Ends all that run: whatever went wrong would go wrong again.
    fn fail(&mut self, error: &str) {
        tracing::error!(error, "a step failed; its replies end here");
        let reason: Arc<str> = format!("the engine could not go on: {error}").into();
        for sequence in std::mem::take(&mut self.scheduler.running) {
            self.scheduler.finish(sequence, Finish::Failed(Arc::clone(&reason)));
        }
    }

    /// Runs `counts[i]` tokens of each sequence `i`. Returns whose rows of logits follow.
    fn forward(&mut self, counts: &[usize]) -> Result<(Vec<Rows>, Chosen), OpError> {
        let (mut chunks, mut rows) = (Vec::new(), Vec::new());
        let draws = self.model.draws();
        for (sequence, &count) in self.scheduler.running.iter_mut().zip(counts) {
            let samples = count > 0 && count == sequence.uncomputed();
            let want = match (sequence.scores_prompt(count), samples) {
                (true, _) => Want::All,
                (false, true) => Want::Last,
                (false, false) => Want::None,
            };
            let from = sequence.cache.len;
            let first = match want {
                Want::All => from,
                Want::Last => from + count - 1,
                Want::None => from + count,
            };
            let drawable = draws && want == Want::Last;
            let at = sequence.sampled();
            let draw = drawable.then(|| sequence.sampler.draw(at, self.logprobs_mode)).flatten();
            rows.push(Rows { positions: first..from + count, samples, drawn: draw.is_some() });
            if count > 0 {
                chunks.push(Chunk {
                    tokens: &sequence.tokens[from..from + count],
                    cache: &mut sequence.cache,
                    want,
                    adapter: sequence.request.adapter.as_ref(),
                    draw,
                    feedback: None,
                });
            }
        }
        self.model.run(&mut chunks)?;
        let chosen = self.chosen(&rows)?;
        Ok((rows, chosen))
    }

    /// Waits for what the host chooses from, and for what the device chose.
    fn chosen(&mut self, rows: &[Rows]) -> Result<Chosen, OpError> {
        let (mut host, mut wanted) = (Vec::new(), 0);
        for rows in rows {
            let next = wanted + rows.positions.len();
            host.extend((wanted..next).filter(|_| !rows.drawn));
            wanted = next;
        }
        // Tokens are taken also where the logits fail to come: they are of this step.
        let drawn = if host.len() < wanted { self.model.drawn() } else { Ok(Vec::new()) };
        let logits = self.model.logits(&host)?;
        Ok(Chosen { drawn: drawn?.into_iter().flatten().collect(), logits })
    }

    fn postprocess(&mut self, rows: &[Rows], chosen: &mut Chosen) {
        let mut logits = chosen.logits.chunks_exact_mut(self.model.vocab());
        let mut drawn = std::mem::take(&mut chosen.drawn).into_iter();
        let running = std::mem::take(&mut self.scheduler.running);
        for (mut sequence, rows) in running.into_iter().zip(rows) {
            let mut last = None;
            if !rows.drawn {
                for (position, row) in rows.positions.clone().zip(&mut logits) {
                    sequence.score_prompt(position, row);
                    last = Some(row);
                }
            }
            let (at, mode) = (sequence.sampled(), self.logprobs_mode);
            let sampler = &mut sequence.sampler;
            let token = match last.filter(|_| rows.samples) {
                Some(row) => Some(sampler.sample(row, at, mode)),
                None if rows.drawn => drawn.next().map(|drawn| sampler.take(drawn, mode)),
                None => None,
            };
            let finish = token.and_then(|token| {
                self.scheduler.count_sampled(&sequence);
                sequence.push(token, &self.version, &self.tokenizer)
            });
            match finish {
                Some(finish) => self.scheduler.finish(sequence, finish),
                None => {
                    sequence.deliver();
                    self.scheduler.running.push(sequence);
                }
            }
        }
    }
}

/// What a step gives: logits of the rows that the host chooses from, and tokens of the others.
struct Chosen {
    logits: Vec<f32>,
    drawn: Vec<Drawn>,
}

/// Which rows of a step's logits belong to a sequence.
struct Rows {
    /// Positions of the sequence that they follow.
    positions: Range<usize>,
    /// Whether the last of them gives the next token.
    samples: bool,
    /// Whether the device chooses that token; then there is only this row.
    drawn: bool,
}

#[cfg(test)]
mod tests;
