//! Places in texts by the tokens in front of them.
//!
//! - [`OwnText`]: the places of one text, which its owner holds.
//! - [`SiblingTexts`]: several texts that grow side by side, with their places.
//!
//! A place is looked up by the last eight tokens, and else by the last three. There is one entry
//! for all tokens of a hash, and the newest place takes it. So the tokens of
//! a place that was found are compared, and noting a token and finding a place take the same time
//! however long a text is.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use crate::bounds::SIBLING_TOKENS_MAX;
use crate::sample::mix;

/// The fewest tokens by which a place is found.
pub(super) const NGRAM: usize = 3;

/// Numbers of tokens by which places are found, in the order of trying.
const NGRAMS: [usize; 2] = [8, NGRAM];

/// The longest common ending that is told from longer ones.
const ENDING_MAX: usize = 32;

/// The entries of the first table of a text.
const ENTRIES_MIN: usize = 1 << 10;

/// Tokens that may come next, and the number of tokens that two texts have in common before them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LikelyNext {
    pub(super) ids: Vec<u32>,
    pub(super) ending: usize,
}

/// Places by the tokens in front of them.
#[derive(Debug)]
struct NgramTable<P> {
    /// For each number of tokens, the places by the hash of so many.
    entries: [Vec<Option<P>>; NGRAMS.len()],
}

impl<P: Copy> NgramTable<P> {
    fn new(entries: usize) -> NgramTable<P> {
        NgramTable { entries: [(); NGRAMS.len()].map(|()| vec![None; entries.next_power_of_two()]) }
    }

    /// The number of entries for each number of tokens.
    fn len(&self) -> usize {
        self.entries[0].len()
    }

    /// Notes a place behind the last tokens of `before`.
    fn note(&mut self, before: &[u32], place: P) {
        for (entries, count) in self.entries.iter_mut().zip(NGRAMS) {
            if let Some(hash) = hash_of(before, count) {
                let mask = entries.len() - 1;
                entries[hash & mask] = Some(place);
            }
        }
    }

    /// The newest places that may have the last tokens of `before` in front of them, each with the
    /// number of these tokens.
    fn find(&self, before: &[u32]) -> impl Iterator<Item = (usize, P)> {
        self.entries.iter().zip(NGRAMS).filter_map(|(entries, count)| {
            let index = hash_of(before, count)? & (entries.len() - 1);
            Some((count, entries[index]?))
        })
    }
}

/// A hash of the last `count` tokens of a text, if it has so many.
fn hash_of(text: &[u32], count: usize) -> Option<usize> {
    let last = &text[text.len().checked_sub(count)?..];
    Some(last.iter().fold(0, |hash, id| mix(hash ^ u64::from(*id))) as usize)
}

/// The places of one text.
#[derive(Debug, Default)]
pub(super) struct OwnText {
    table: Option<NgramTable<NonZeroU32>>,
    /// Tokens that were noted.
    noted: usize,
}

impl OwnText {
    /// Notes the new tokens of a text.
    pub(super) fn note(&mut self, text: &[u32]) {
        let room = self.table.as_ref().map_or(0, NgramTable::len);
        if text.len() > room {
            self.table = Some(NgramTable::new((2 * text.len()).max(ENTRIES_MIN)));
            self.noted = 0;
        }
        let Some(table) = &mut self.table else { return };
        for at in self.noted..text.len() {
            let place = u32::try_from(at).ok().and_then(NonZeroU32::new);
            place.into_iter().for_each(|place| table.note(&text[..at], place));
        }
        self.noted = text.len();
    }

    /// Returns at most `most` tokens that came behind the last ones of the text. A text that
    /// repeats itself is continued beyond its end.
    pub(super) fn continuation(&self, text: &[u32], most: usize) -> Option<LikelyNext> {
        self.table.as_ref()?.find(text).find_map(|(needed, place)| {
            let at = place.get() as usize;
            let ending = common_ending(text.get(..at)?, text, needed)?;
            let period = text.len() - at;
            Some(LikelyNext { ids: (0..most).map(|i| text[at + i % period]).collect(), ending })
        })
    }
}

/// A place in one of several texts.
#[derive(Clone, Copy, Debug)]
struct SiblingPlace {
    /// The number of the text, cut to 32 bits.
    text: u32,
    at: NonZeroU32,
}

/// Texts that grow side by side.
#[derive(Debug)]
pub(super) struct SiblingTexts {
    table: NgramTable<SiblingPlace>,
    /// The texts by age, oldest first.
    texts: VecDeque<Vec<u32>>,
    /// The number of the oldest.
    first: u64,
    /// Tokens of all texts.
    tokens: usize,
    /// The moment at which a text was last looked up or noted.
    pub(super) used: u64,
}

impl SiblingTexts {
    /// No texts.
    pub(super) fn new() -> SiblingTexts {
        SiblingTexts {
            table: NgramTable::new(2 * SIBLING_TOKENS_MAX),
            texts: VecDeque::new(),
            first: 0,
            tokens: 0,
            used: 0,
        }
    }

    /// Appends tokens to the text of this number, and returns its number: another if it is new or
    /// was dropped. The oldest texts are dropped where there are too many tokens.
    pub(super) fn note(&mut self, number: Option<u64>, ids: &[u32]) -> u64 {
        let known = number.filter(|number| self.index_of(*number).is_some());
        let number = known.unwrap_or_else(|| {
            self.texts.push_back(Vec::new());
            self.first + self.texts.len() as u64 - 1
        });
        let Some(text) = self.index_of(number).and_then(|index| self.texts.get_mut(index)) else {
            return number;
        };

        for id in ids {
            let at = u32::try_from(text.len()).ok().and_then(NonZeroU32::new);
            let place = at.map(|at| SiblingPlace { text: number as u32, at });
            place.into_iter().for_each(|place| self.table.note(text, place));
            text.push(*id);
        }
        self.tokens += ids.len();
        while self.tokens > SIBLING_TOKENS_MAX {
            let dropped = self.texts.pop_front().map_or(self.tokens, |text| text.len());
            self.tokens -= dropped;
            self.first += 1;
        }
        number
    }

    /// Returns at most `most` tokens that came behind the last ones of `text` in one of the texts.
    pub(super) fn continuation(&self, text: &[u32], most: usize) -> Option<LikelyNext> {
        self.table.find(text).find_map(|(needed, SiblingPlace { text: number, at })| {
            let other = self.texts.get(number.wrapping_sub(self.first as u32) as usize)?;
            let at = at.get() as usize;
            let ending = common_ending(other.get(..at)?, text, needed)?;
            Some(LikelyNext { ids: other[at..].iter().take(most).copied().collect(), ending })
        })
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        (index < self.texts.len()).then_some(index)
    }
}

/// The number of last tokens that both have, if it is at least `needed`.
fn common_ending(one: &[u32], other: &[u32], needed: usize) -> Option<usize> {
    let pairs = one.iter().rev().zip(other.iter().rev());
    let count = pairs.take(ENDING_MAX).take_while(|(one, other)| one == other).count();
    (count >= needed).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<u32> {
        text.chars().map(u32::from).collect()
    }

    fn own(text: &str, most: usize) -> Option<(String, usize)> {
        let mut index = OwnText::default();
        let text = ids(text);
        // As it grows.
        (0..=text.len()).for_each(|len| index.note(&text[..len]));
        index.continuation(&text, most).map(said)
    }

    fn said(found: LikelyNext) -> (String, usize) {
        (found.ids.iter().filter_map(|id| char::from_u32(*id)).collect(), found.ending)
    }

    #[test]
    fn a_text_continues_as_it_did_where_it_had_the_same_ending() {
        assert_eq!(own("the cat sat; the cat", 6), Some((" sat; ".into(), 7)));
        assert_eq!(own("abcabd abc", 2), Some(("ab".into(), 3)));
        assert_eq!(own("nothing like it", 3), None);
        assert_eq!(own("ab", 3), None);
        // The newest place counts, but one with more tokens in common.
        assert_eq!(own("counting 1, nothing 2, counting ", 1), Some(("1".into(), 9)));
        assert_eq!(own("abcX abcY;abc", 1), Some(("Y".into(), 3)));
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on() {
        assert_eq!(own("xaaaa", 4), Some(("aaaa".into(), 3)));
        assert_eq!(own("-abab", 4), None);
        assert_eq!(own("-ababab", 5), Some(("ababa".into(), 4)));
    }

    #[test]
    fn a_long_text_is_found_again_after_its_table_grew() {
        let mut index = OwnText::default();
        let mut text: Vec<u32> = Vec::new();
        for i in 0..20_000_u32 {
            text.push(i % 7_919);
            index.note(&text);
        }
        let found = index.continuation(&text, 3).unwrap();
        let next = (20_000 % 7_919..).take(3).collect::<Vec<u32>>();
        assert_eq!(found, LikelyNext { ids: next, ending: ENDING_MAX });
        assert!(index.table.unwrap().len() <= 4 * text.len());
    }

    #[test]
    fn siblings_are_found_until_they_are_dropped() {
        let mut texts = SiblingTexts::new();
        let first = texts.note(None, &ids("run the tests"));
        let second = texts.note(None, &ids("look "));
        assert_ne!(first, second);
        assert_eq!(texts.note(Some(first), &ids(" again")), first);
        assert_eq!(texts.note(Some(second), &ids("around")), second);
        let find = |texts: &SiblingTexts, text| texts.continuation(&ids(text), 8).map(said);
        assert_eq!(find(&texts, "I run the t"), Some(("ests aga".into(), 9)));
        assert_eq!(find(&texts, "tests"), Some((" again".into(), 5)));
        assert_eq!(find(&texts, " arou"), Some(("nd".into(), 5)));
        assert_eq!(find(&texts, "elsewhere"), None);

        // Both make room, and a text that was dropped begins anew.
        texts.note(None, &vec![7; SIBLING_TOKENS_MAX]);
        assert_eq!(find(&texts, "I run the t"), None);
        let anew = texts.note(Some(first), &ids("run them all"));
        assert!(anew > second);
        assert_eq!(find(&texts, "now run"), Some((" them al".into(), 3)));
        assert!(texts.tokens <= SIBLING_TOKENS_MAX);
    }
}
