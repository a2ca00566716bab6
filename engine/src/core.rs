//! The engine thread: schedule, run, postprocess.
//!
//! One thread owns the model. Callers reach it through a bounded queue and hear from it through the
//! outlets of their requests.

use std::sync::Arc;

use kernels::{OpError, Ops};
use template::Tokenizer;
use tokio::sync::mpsc::Receiver;

use crate::model::{Chunk, Model, Want};
use crate::sample::{LogprobsMode, sample};
use crate::schedule::{Scheduler, Submission};
use crate::sequence::Finish;

/// What the engine thread owns.
pub(crate) struct Core<O: Ops> {
    pub(crate) model: Model<O>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scheduler: Scheduler,
    /// The label of the weights.
    pub(crate) version: Arc<str>,
    pub(crate) logprobs_mode: LogprobsMode,
}

impl<O: Ops> Core<O> {
    /// Serves submissions until nobody can send any more.
    pub(crate) fn run(mut self, mut inbox: Receiver<Submission>) {
        loop {
            if self.scheduler.is_idle() {
                match inbox.blocking_recv() {
                    Some(submission) => self.scheduler.enqueue(submission),
                    None => return,
                }
            }
            while let Ok(submission) = inbox.try_recv() {
                self.scheduler.enqueue(submission);
            }
            self.step();
        }
    }

    fn step(&mut self) {
        self.scheduler.drop_abandoned();
        self.scheduler.admit();
        let counts = self.scheduler.plan();
        match self.forward(&counts) {
            Ok((sampling, logits)) => self.postprocess(&sampling, &logits),
            Err(error) => {
                tracing::error!(%error, "a step failed; its replies end here");
                for sequence in std::mem::take(&mut self.scheduler.running) {
                    self.scheduler.release(sequence.end(Finish::Failed));
                }
            }
        }
    }

    /// Runs `counts[i]` tokens of each sequence `i`. Returns who samples, and their logits.
    fn forward(&mut self, counts: &[usize]) -> Result<(Vec<bool>, Vec<f32>), OpError> {
        let (mut chunks, mut sampling) = (Vec::new(), Vec::new());
        for (sequence, &count) in self.scheduler.running.iter_mut().zip(counts) {
            let samples = count > 0 && count == sequence.uncomputed();
            sampling.push(samples);
            if count > 0 {
                let from = sequence.cache.len;
                chunks.push(Chunk {
                    tokens: &sequence.tokens[from..from + count],
                    cache: &mut sequence.cache,
                    want: if samples { Want::Last } else { Want::None },
                });
            }
        }
        if chunks.is_empty() {
            return Ok((sampling, Vec::new()));
        }
        let logits = self.model.forward(&mut chunks)?;
        Ok((sampling, logits))
    }

    fn postprocess(&mut self, sampling: &[bool], logits: &[f32]) {
        let mut rows = logits.chunks_exact(self.model.vocab());
        let running = std::mem::take(&mut self.scheduler.running);
        for (mut sequence, samples) in running.into_iter().zip(sampling) {
            let row = if *samples { rows.next() } else { None };
            let finish = row.and_then(|row| {
                let mut allowed = std::borrow::Cow::Borrowed(row);
                for id in sequence.forbidden() {
                    if let Some(logit) = allowed.to_mut().get_mut(id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                let (params, at) = (&sequence.request.params, sequence.sampled());
                let token = sample(&allowed, params, at, self.logprobs_mode);
                sequence.push(token, &self.version, &self.tokenizer)
            });
            match finish {
                Some(finish) => self.scheduler.release(sequence.end(finish)),
                None => {
                    sequence.deliver();
                    self.scheduler.running.push(sequence);
                }
            }
        }
    }
}
