//! Steps that were asked of the device, and what is read of them.
//!
//! Where the device draws all tokens of a step, the step may stay under way: the next one takes
//! the tokens from the device's memory and is launched before anybody has read them. Reading them,
//! looking for ends and telling callers then costs the device no time. What makes that exact:
//!
//! - The device does one step after the other. A page that is let go of, published or given to
//!   somebody else while a step is under way is written and read by *later* steps only as it should
//!   be: whatever the step under way does to it is done by then.
//! - A reply whose end nobody could foresee has a row in the step that was launched meanwhile. That
//!   row writes to a page that no other sequence has, as its last token was not known when it could
//!   have been published, and its token falls under the table: nobody looks for it. Whose end can
//!   be foreseen, by its length, gets no row.
//! - What could make a token differ from the one that is read later waits until nothing is under
//!   way: commands (so weights and labels are those that sampled), and giving way to others.

use std::ops::Range;

use kernels::{Drawn, OpError, Ops};

use crate::core::Core;
use crate::model::{Chunk, Want};
use crate::sequence::{Finish, Sequence};

/// What stands for a token that only the device knows.
const UNKNOWN: [u32; 1] = [0];

/// A step that was launched and that nobody has read.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Of the sequences that something is read for; by rank, highest first.
    pub(crate) rows: Vec<Rows>,
    /// The wanted rows that the host chooses from.
    host: Vec<usize>,
    /// Wanted rows in all.
    wanted: usize,
}

/// Which rows of a step's logits belong to a sequence.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Whose they are; no two that run have the same.
    pub(crate) rank: (i64, u64),
    /// Positions of the sequence that they follow.
    positions: Range<usize>,
    /// Whether the last of them gives the next token.
    samples: bool,
    /// Who chooses, and from where on.
    source: Source,
}

/// Who chooses the token after a row.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The device, in this wanted row; there are no others then.
    Device(usize),
    /// The host; the first row among those that it chooses from.
    Host(usize),
}

/// What a step gives: logits of the rows that the host chooses from, and tokens of the others.
struct Chosen {
    logits: Vec<f32>,
    drawn: Vec<Option<Drawn>>,
}

impl Flight {
    /// Whether it can stay under way: whatever its rows give is on the device.
    pub(crate) fn is_of_device(&self) -> bool {
        self.host.is_empty()
    }

    fn add(
        &mut self,
        sequence: &Sequence,
        positions: Range<usize>,
        (samples, drawn): (bool, bool),
    ) {
        let next = self.wanted + positions.len();
        let source = if drawn {
            Source::Device(self.wanted)
        } else {
            let first = self.host.len();
            self.host.extend(self.wanted..next);
            Source::Host(first)
        };
        if !positions.is_empty() {
            self.rows.push(Rows { rank: sequence.rank(), positions, samples, source });
        }
        self.wanted = next;
    }

    fn of(&self, sequence: &Sequence) -> Option<&Rows> {
        let found = self.rows.binary_search_by_key(&sequence.rank(), |rows| rows.rank);
        found.ok().map(|at| &self.rows[at])
    }

    /// Which of the tokens that the device draws in this step is the sequence's next.
    fn token_of(&self, sequence: &Sequence) -> Option<usize> {
        self.of(sequence).and_then(|rows| match rows.source {
            Source::Device(at) => Some(at),
            Source::Host(_) => None,
        })
    }
}

impl<O: Ops> Core<O> {
    /// Asks for `counts[i]` tokens of each sequence `i`.
    pub(crate) fn launch(&mut self, counts: &[usize]) -> Result<Flight, OpError> {
        let (mut flight, mut chunks) = (Flight::default(), Vec::new());
        let draws = self.model.draws();
        for (sequence, &count) in self.scheduler.running.iter_mut().zip(counts) {
            if count == 0 {
                continue;
            }
            let (from, samples) = (sequence.cache.len, count == sequence.uncomputed());
            let (want, first) = match (sequence.scores_prompt(count), samples) {
                (true, _) => (Want::All, from),
                (false, true) => (Want::Last, from + count - 1),
                (false, false) => (Want::None, from + count),
            };
            let drawable = draws && want == Want::Last;
            let at = sequence.next_position();
            let draw = drawable.then(|| sequence.sampler.draw(at, self.logprobs_mode)).flatten();
            flight.add(sequence, first..from + count, (samples, draw.is_some()));
            let feedback = self.flight.as_ref().and_then(|before| before.token_of(sequence));
            sequence.ahead += usize::from(samples);
            chunks.push(Chunk {
                tokens: if feedback.is_some() {
                    &UNKNOWN
                } else {
                    &sequence.tokens[from..from + count]
                },
                cache: &mut sequence.cache,
                want,
                adapter: sequence.request.adapter.as_ref(),
                draw,
                feedback,
            });
        }
        self.model.run(&mut chunks)?;
        // Who waits for the same pages finds them from the next step on.
        self.scheduler.publish();
        Ok(flight)
    }

    /// Reads the step under way, if there is one.
    pub(crate) fn settle(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        match self.read(&flight) {
            Ok(mut chosen) => {
                // Pages whose last token was not known when they were computed.
                self.scheduler.publish();
                self.land(&flight, &mut chosen);
                self.model.recycle(chosen.logits);
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Waits for what the host chooses from, and for what the device chose.
    fn read(&mut self, flight: &Flight) -> Result<Chosen, OpError> {
        // Tokens are taken also where the logits fail to come: they are of this step.
        let any = flight.host.len() < flight.wanted;
        let drawn = if any { self.model.drawn() } else { Ok(Vec::new()) };
        let logits = self.model.logits(&flight.host)?;
        Ok(Chosen { drawn: drawn?, logits })
    }

    /// Gives sequences their tokens. What was for those that are gone is let go.
    fn land(&mut self, flight: &Flight, chosen: &mut Chosen) {
        for mut sequence in std::mem::take(&mut self.scheduler.running) {
            let rows = flight.of(&sequence);
            match rows.and_then(|rows| self.take_in(&mut sequence, rows, chosen)) {
                Some(finish) => self.scheduler.finish(sequence, finish),
                None => {
                    sequence.deliver();
                    self.scheduler.running.push(sequence);
                }
            }
        }
    }

    /// Gives a sequence what its rows say, and says whether its reply ends with that.
    fn take_in(&self, sequence: &mut Sequence, rows: &Rows, chosen: &mut Chosen) -> Option<Finish> {
        let (at, mode) = (sequence.sampled(), self.logprobs_mode);
        sequence.ahead -= usize::from(rows.samples);
        let token = match rows.source {
            Source::Device(row) => {
                let drawn = chosen.drawn.get_mut(row).and_then(Option::take);
                drawn.map(|drawn| sequence.sampler.take(drawn, mode))
            }
            Source::Host(first) => {
                let logits = chosen.logits.chunks_exact_mut(self.model.vocab()).skip(first);
                let mut last = None;
                for (position, row) in rows.positions.clone().zip(logits) {
                    sequence.score_prompt(position, row);
                    last = Some(row);
                }
                last.filter(|_| rows.samples).map(|row| sequence.sampler.sample(row, at, mode))
            }
        }?;
        self.scheduler.count_sampled(sequence);
        sequence.push(token, &self.version, &self.tokenizer)
    }
}
