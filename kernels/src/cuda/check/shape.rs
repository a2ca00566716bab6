//! Changes of logits against plain loops: masks, biases and penalties have the bits of the host's.

use super::Checker;
use crate::cuda::params::{CountSeed, RowShape};
use crate::cuda::{Arg, CudaError, Memory, grid};
use crate::op::IN_PROMPT;
use crate::random::Random;

/// Ids of a reply with their words.
type SaidIds = Vec<(u32, u32)>;

/// The changes of a row, and what the reply said.
#[derive(Clone, Default)]
struct LogitChanges {
    mask: Option<Vec<u32>>,
    biases: Vec<(u32, f32)>,
    /// Ids with their words, and the three penalties.
    penalties: Option<(SaidIds, [f32; 3])>,
}

impl LogitChanges {
    /// Random changes of a kind for `vocab` ids: bits of it are the mask, the biases, the
    /// penalties, and which of them are on.
    fn of(random: &mut Random, kind: usize, vocab: usize) -> LogitChanges {
        let mut changes = LogitChanges::default();
        if kind & 1 > 0 {
            changes.mask = Some((0..vocab.div_ceil(32)).map(|_| random.bits() as u32).collect());
        }
        let some: Vec<u32> = (0..vocab as u32).filter(|_| random.below(3) == 0).collect();

        if kind & 2 > 0 {
            changes.biases = some.iter().map(|id| (*id, random.signed() * 9.0)).collect();
        }
        if kind & 4 > 0 {
            let word = |random: &mut Random| match random.below(3) {
                0 => IN_PROMPT,
                1 => 1 + random.below(5) as u32,
                _ => IN_PROMPT | (1 + random.below(0x7fff - 1) as u32),
            };
            let said = (0..vocab as u32).rev().step_by(2).map(|id| (id, word(random))).collect();
            let numbers = match kind & 8 {
                0 => [1.0, 0.0, 1.5],
                _ => [1.3, 0.7 * random.signed(), -0.3],
            };
            changes.penalties = Some((said, numbers));
        }
        changes
    }

    /// LogitChanges logits as the host does.
    fn apply(&self, logits: &mut [f32]) {
        if let Some(mask) = &self.mask {
            let bit = |id: usize| mask[id / 32] >> (id % 32) & 1;
            let masked = logits.iter_mut().enumerate().filter(|(id, _)| bit(*id) == 0);
            masked.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        self.biases.iter().for_each(|(id, bias)| logits[*id as usize] += bias);
        let Some((said, [repetition, frequency, presence])) = &self.penalties else { return };
        for (id, word) in said {
            let (logit, places) = (&mut logits[*id as usize], word & (IN_PROMPT - 1));
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            if places > 0 {
                *logit -= frequency * places as f32;
                *logit -= presence;
            }
        }
    }
}

/// The words of a batch, and where shapes and seeds are in them.
struct ShapeWords {
    words: Vec<u32>,
    seeds_at: usize,
    seeds: usize,
}

impl ShapeWords {
    /// Row `i` has the logits of row `rows - 1 - i`, and its reply the slot `2 * i + 1`.
    fn of(rows: &[LogitChanges]) -> ShapeWords {
        let seeds_at = rows.len() * RowShape::WORDS;
        let seeds = rows.iter().filter(|row| row.penalties.is_some()).count();
        let mut words = vec![0; seeds_at + seeds * CountSeed::WORDS];
        let mut seed_at = seeds_at;
        for (index, row) in rows.iter().enumerate() {
            let biases = words.len() as i32;
            words.extend(row.biases.iter().flat_map(|(id, bias)| [*id, bias.to_bits()]));
            let mask = row.mask.as_ref().map_or(-1, |_| words.len() as i32);
            words.extend(row.mask.iter().flatten());

            let mut slot = -1;
            let [repetition, frequency, presence] = match &row.penalties {
                None => [1.0, 0.0, 0.0],
                Some((said, numbers)) => {
                    slot = 2 * index as i32 + 1;
                    let (first, count) = (words.len() as i32, said.len() as i32);
                    words.extend(said.iter().flat_map(|(id, word)| [*id, *word]));
                    let seed = CountSeed { slot, first, count }.words();
                    words[seed_at..][..seed.len()].copy_from_slice(&seed);
                    seed_at += seed.len();
                    *numbers
                }
            };
            let (logits, bias_count) = ((rows.len() - 1 - index) as i32, row.biases.len() as i32);
            let row = RowShape {
                row: logits,
                slot,
                repetition,
                frequency,
                presence,
                biases,
                bias_count,
                mask,
            };
            words[index * RowShape::WORDS..][..RowShape::WORDS].copy_from_slice(&row.words());
        }
        ShapeWords { words, seeds_at, seeds }
    }
}

/// Checks `begin_counts` and `shape_logits`.
pub(super) fn shape(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let is_real = checker.speeds.is_some();
    let small = [(1, 1), (37, 40), (1025, 1028), (2503, 2503)];
    let large = [(50_257, 50_257), (151_936, 151_936)];
    for (vocab, stride) in small.into_iter().chain(large.into_iter().filter(|_| is_real)) {
        let random = &mut checker.random;
        let rows: Vec<LogitChanges> =
            (0..16).map(|kind| LogitChanges::of(random, kind, vocab)).collect();
        let logits = random.floats(rows.len() * stride, 9.0);
        compare(checker, &rows, &logits, (vocab, stride))?;
    }
    Ok(())
}

/// LogitChanges a batch, and compares all logits and counts with the host's.
fn compare(
    checker: &mut Checker<'_>,
    rows: &[LogitChanges],
    logits: &[f32],
    (vocab, stride): (usize, usize),
) -> Result<(), CudaError> {
    let ShapeWords { words, seeds_at, seeds } = ShapeWords::of(rows);
    let words = checker.upload(&words)?;
    let counts = checker.poisoned(2 * rows.len() * grid::count_bytes(vocab))?;
    let (given, shaped) = (checker.upload(logits)?, checker.poisoned(size_of_val(logits))?);
    let seeds_from = Arg::Pointer(words.address() + 4 * seeds_at as u64);
    let begin = [seeds_from, Arg::from(&words), Arg::from(&counts), Arg::from(vocab)];
    let pointers = [&given, &words, &words, &counts, &shaped].map(Arg::from);
    let change = [&pointers[..], &[vocab, stride].map(Arg::from)].concat();
    // SAFETY: all sizes are those that the kernels' header requires.
    unsafe {
        checker.kernels.launch("begin_counts", grid::begin_counts(seeds), &begin)?;
        checker.kernels.launch("shape_logits", grid::shape_logits(rows.len(), vocab), &change)?;
    }

    let (found, mut wrong) = (shaped.to_vec::<f32>()?, Vec::new());
    for (index, row) in rows.iter().enumerate() {
        let mut expected = logits[(rows.len() - 1 - index) * stride..][..vocab].to_vec();
        row.apply(&mut expected);
        let found = &found[index * stride..][..vocab];
        let bits = |values: &[f32]| values.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
        if bits(found) != bits(&expected) {
            wrong.push(index);
        }
    }
    checker.equal(&format!("shape {vocab} ids, wrong rows"), &wrong, &[]);
    let counted = wrong_counts(rows, &counts, vocab)?;
    checker.equal(&format!("shape {vocab} ids, wrong counts"), &counted, &[]);
    Ok(())
}

/// The rows whose slot does not have the counts that it began with, and zeros.
fn wrong_counts(
    rows: &[LogitChanges],
    counts: &Memory,
    vocab: usize,
) -> Result<Vec<usize>, CudaError> {
    let (counts, width) = (counts.to_vec::<u16>()?, grid::count_bytes(vocab) / 2);
    let is_wrong = |(index, row): &(usize, &LogitChanges)| {
        let Some((said, _)) = &row.penalties else { return false };
        let mut expected = vec![0; width];
        said.iter().for_each(|(id, word)| expected[*id as usize] = *word as u16);
        counts[(2 * index + 1) * width..][..width] != expected
    };
    Ok(rows.iter().enumerate().filter(is_wrong).map(|(index, _)| index).collect())
}
