//! Extents of a log: a body is a list of them, and a list is stored as what differs from an earlier
//! body's list.

use crate::encoding::varint::{push, take, unzigzag, zigzag};

/// A stretch of a log's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl Extent {
    pub(crate) fn end(self) -> u64 {
        self.start + self.length
    }
}

/// The numbers of extents that two lists share at their beginnings and at their ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedExtents {
    pub(crate) lead: usize,
    /// Not counting those of `lead`.
    pub(crate) trail: usize,
}

/// Adds `extent` to a list. An extent that starts where the last one ends is merged with it.
pub(crate) fn append(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.end() == extent.start => last.length += extent.length,
        _ => extents.push(extent),
    }
}

/// Compares two lists.
pub(crate) fn shared(a: &[Extent], b: &[Extent]) -> SharedExtents {
    let lead = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let trail = a[lead..].iter().rev().zip(b[lead..].iter().rev()).take_while(|(a, b)| a == b);
    SharedExtents { lead, trail: trail.count() }
}

/// Encodes a list against `base`: the numbers of extents shared at both ends, then those between.
pub(crate) fn encode(extents: &[Extent], base: &[Extent]) -> Vec<u8> {
    let SharedExtents { lead, trail } = shared(extents, base);
    let mut out = Vec::new();
    push(&mut out, lead as u64);
    push(&mut out, trail as u64);

    // Starts are relative to the end of the extent before, which they are often close to.
    let mut end = lead.checked_sub(1).map_or(0, |last| extents[last].end());
    for extent in &extents[lead..extents.len() - trail] {
        push(&mut out, zigzag(extent.start.wrapping_sub(end) as i64));
        push(&mut out, extent.length);
        end = extent.end();
    }
    out
}

/// The inverse of [`encode`]; `None` when `bytes` do not fit `base`.
pub(crate) fn decode(mut bytes: &[u8], base: &[Extent]) -> Option<Vec<Extent>> {
    let bytes = &mut bytes;
    let lead = usize::try_from(take(bytes)?).ok()?;
    let trail = usize::try_from(take(bytes)?).ok()?;
    let shared_end = base.get(base.len().checked_sub(trail)?..)?;

    let mut extents = base.get(..lead)?.to_vec();
    let mut end = extents.last().map_or(0, |last| last.end());
    while !bytes.is_empty() {
        let start = end.wrapping_add(unzigzag(take(bytes)?) as u64);
        let extent = Extent { start, length: take(bytes)? };
        end = start.checked_add(extent.length)?;
        extents.push(extent);
    }
    extents.extend(shared_end);
    Some(extents)
}

/// The bytes of `log` that a list of extents covers; `None` when one is not in it.
pub(crate) fn gather(extents: &[Extent], log: &[u8]) -> Option<Vec<u8>> {
    // Damaged lengths must not decide how much memory is allocated: no extent that is in the log is
    // longer than it.
    let length = |extent: &Extent| extent.length.min(log.len() as u64) as usize;
    let mut body = Vec::with_capacity(extents.iter().map(length).sum());
    for extent in extents {
        let start = usize::try_from(extent.start).ok()?;
        let end = usize::try_from(extent.start.checked_add(extent.length)?).ok()?;
        body.extend_from_slice(log.get(start..end)?);
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> impl Strategy<Value = Vec<Extent>> {
        let extent =
            (0u64..1 << 40, 1u64..1 << 30).prop_map(|(start, length)| Extent { start, length });
        proptest::collection::vec(extent, 0..20)
    }

    proptest! {
        #[test]
        fn lists_come_back(
            (base, middle) in (list(), list()),
            (lead, trail) in (0usize..20, 0usize..20),
        ) {
            let trail = base.len().saturating_sub(trail);
            let grown = [&base[..lead.min(base.len())], &middle, &base[trail..]].concat();
            for extents in [&base, &middle, &grown] {
                for base in [&base, &Vec::new()] {
                    prop_assert_eq!(decode(&encode(extents, base), base), Some(extents.clone()));
                }
            }
        }

        #[test]
        fn any_bytes_are_a_list_or_none(bytes: Vec<u8>, base in list()) {
            if let Some(extents) = decode(&bytes, &base) {
                gather(&extents, b"a short log");
            }
        }
    }

    #[test]
    fn adjacent_extents_are_merged() {
        let mut extents = Vec::new();
        for (start, length) in [(0, 5), (5, 5), (20, 1), (10, 2)] {
            append(&mut extents, Extent { start, length });
        }
        assert_eq!(
            extents.iter().map(|p| (p.start, p.length)).collect::<Vec<_>>(),
            [(0, 10), (20, 1), (10, 2)]
        );
        assert_eq!(gather(&extents[..1], b"0123456789").unwrap(), b"0123456789");
        assert_eq!(gather(&extents, b"0123456789"), None);
    }
}
