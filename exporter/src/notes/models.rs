//! Counts by the name of a model, within bounds: agents and upstreams choose the names.

use std::collections::BTreeMap;

/// Most models that are counted each for itself.
const MODELS_MAX: usize = 100;
/// Characters of a name that are shown.
const NAME_CHARS_MAX: usize = 200;
/// The name under which all further models are counted.
const FURTHER: &str = "(further models)";

/// Adds a count of a model.
pub(crate) fn count_model(counts: &mut BTreeMap<String, u64>, name: &str, count: u64) {
    let shown = name.char_indices().nth(NAME_CHARS_MAX).map_or(name, |(end, _)| &name[..end]);
    let named = counts.len() - usize::from(counts.contains_key(FURTHER));
    let has_room = named < MODELS_MAX || counts.contains_key(shown);
    let key = if has_room { shown } else { FURTHER };
    *counts.entry(key.to_owned()).or_default() += count;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_models_is_counted_in_bounds() {
        let (mut counts, mut twice) = (BTreeMap::new(), BTreeMap::new());
        for number in 0..10_000 {
            count_model(&mut counts, &format!("{number:05}{}", "x".repeat(10_000)), 1);
        }
        assert_eq!(counts.len(), MODELS_MAX + 1);
        assert_eq!((counts.values().sum::<u64>(), counts[FURTHER]), (10_000, 9_900));
        assert!(counts.keys().all(|name| name.len() <= NAME_CHARS_MAX));

        for _ in 0..2 {
            counts.iter().for_each(|(name, count)| count_model(&mut twice, name, *count));
        }
        assert_eq!((twice.len(), twice[FURTHER]), (MODELS_MAX + 1, 19_800));
    }
}
