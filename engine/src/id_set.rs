//! A set of token ids, as bits.

/// The ids of a vocabulary that may come next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IdSet {
    /// 32 ids a word, the lowest first. Bits beyond the vocabulary are not set.
    words: Vec<u32>,
}

impl IdSet {
    /// All ids of a vocabulary.
    pub(crate) fn all(vocab: usize) -> IdSet {
        let mut words = vec![u32::MAX; vocab / 32];
        if !vocab.is_multiple_of(32) {
            words.push((1 << (vocab % 32)) - 1);
        }
        IdSet { words }
    }

    /// These ids of a vocabulary.
    pub(crate) fn of(vocab: usize, ids: &[u32]) -> IdSet {
        let mut set = IdSet { words: vec![0; vocab.div_ceil(32)] };
        ids.iter().filter(|id| (**id as usize) < vocab).for_each(|id| set.insert(*id));
        set
    }

    /// Returns true if no id is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Adds an id of the vocabulary.
    pub(crate) fn insert(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }

    /// Removes ids.
    pub(crate) fn remove(&mut self, ids: impl Iterator<Item = u32>) {
        for id in ids {
            if let Some(word) = self.words.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
    }

    /// Removes the ids whose bits are not set in `words`. Words that are missing remove nothing.
    pub(crate) fn keep(&mut self, words: &[u32]) {
        self.words.iter_mut().zip(words).for_each(|(word, kept)| *word &= kept);
    }

    /// Removes the ids that are not in another set.
    pub(crate) fn keep_of(&mut self, other: &IdSet) {
        self.keep(&other.words);
    }

    /// Sets the logits of all other ids to minus infinity.
    pub(crate) fn mask(&self, logits: &mut [f32]) {
        for (word, logits) in self.words.iter().zip(logits.chunks_mut(32)) {
            match *word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                bits => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if bits & (1 << bit) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }

    /// The bits, 32 ids a word.
    pub(crate) fn into_words(self) -> Vec<u32> {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_ids_of_its_vocabulary_and_no_others() {
        for vocab in [1, 31, 32, 33, 384] {
            let all = IdSet::all(vocab);
            assert!((0..vocab as u32).all(|id| all.contains(id)) && !all.contains(vocab as u32));
            let mut some = IdSet::of(vocab, &[0, vocab as u32 - 1, vocab as u32, 5000]);
            let mut logits = vec![1.0; vocab];
            some.mask(&mut logits);
            let kept = logits.iter().filter(|logit| **logit == 1.0).count();
            assert_eq!(kept, vocab.min(2), "{vocab}");

            some.remove([0, vocab as u32 - 1, 9999].into_iter());
            assert!(some.is_empty());
            let mut both = all.clone();
            both.keep_of(&IdSet::of(vocab, &[0]));
            assert_eq!(both, IdSet::of(vocab, &[0]));
            both.keep(&[]);
            assert_eq!(both.into_words()[0], 1);
        }
    }
}
