//! A body as pieces of its reel, and the pieces of a body as what differs from another one's.

use crate::varint::{push, take, unzigzag, zigzag};

/// A stretch of a reel's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl Piece {
    pub(crate) fn end(self) -> u64 {
        self.start + self.length
    }
}

/// Puts `piece` behind `pieces`; what goes on where the last one ends becomes one with it.
pub(crate) fn append(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.end() == piece.start => last.length += piece.length,
        _ => pieces.push(piece),
    }
}

/// How many pieces two lists have in common at their beginnings and, beside those, at their ends.
pub(crate) fn common(a: &[Piece], b: &[Piece]) -> (usize, usize) {
    let lead = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let trail = a[lead..].iter().rev().zip(b[lead..].iter().rev()).take_while(|(a, b)| a == b);
    (lead, trail.count())
}

/// `pieces` as bytes: how many of the base's pieces it starts and ends with, and what is between.
pub(crate) fn encode(pieces: &[Piece], base: &[Piece]) -> Vec<u8> {
    let (lead, trail) = common(pieces, base);
    let mut out = Vec::new();
    push(&mut out, lead as u64);
    push(&mut out, trail as u64);
    let mut end = lead.checked_sub(1).map_or(0, |last| pieces[last].end());
    for piece in &pieces[lead..pieces.len() - trail] {
        push(&mut out, zigzag(piece.start.wrapping_sub(end) as i64));
        push(&mut out, piece.length);
        end = piece.end();
    }
    out
}

/// The way back from [`encode`]; `None` when `bytes` do not fit `base`.
pub(crate) fn decode(mut bytes: &[u8], base: &[Piece]) -> Option<Vec<Piece>> {
    let bytes = &mut bytes;
    let lead = usize::try_from(take(bytes)?).ok()?;
    let trail = usize::try_from(take(bytes)?).ok()?;
    let trail = base.get(base.len().checked_sub(trail)?..)?;
    let mut pieces = base.get(..lead)?.to_vec();
    let mut end = pieces.last().map_or(0, |last| last.end());
    while !bytes.is_empty() {
        let start = end.wrapping_add(unzigzag(take(bytes)?) as u64);
        let piece = Piece { start, length: take(bytes)? };
        end = start.checked_add(piece.length)?;
        pieces.push(piece);
    }
    pieces.extend(trail);
    Some(pieces)
}

/// The bytes that `pieces` of `reel` make up; `None` when one is not in it.
pub(crate) fn gather(pieces: &[Piece], reel: &[u8]) -> Option<Vec<u8>> {
    // No piece that is there is longer than the reel; damaged lengths must not ask for memory.
    let length = |piece: &Piece| piece.length.min(reel.len() as u64) as usize;
    let mut body = Vec::with_capacity(pieces.iter().map(length).sum());
    for piece in pieces {
        let start = usize::try_from(piece.start).ok()?;
        let end = usize::try_from(piece.start.checked_add(piece.length)?).ok()?;
        body.extend_from_slice(reel.get(start..end)?);
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> impl Strategy<Value = Vec<Piece>> {
        let piece =
            (0u64..1 << 40, 1u64..1 << 30).prop_map(|(start, length)| Piece { start, length });
        proptest::collection::vec(piece, 0..20)
    }

    proptest! {
        #[test]
        fn lists_come_back(
            (base, middle) in (list(), list()),
            (lead, trail) in (0usize..20, 0usize..20),
        ) {
            let trail = base.len().saturating_sub(trail);
            let grown = [&base[..lead.min(base.len())], &middle, &base[trail..]].concat();
            for pieces in [&base, &middle, &grown] {
                for base in [&base, &Vec::new()] {
                    prop_assert_eq!(decode(&encode(pieces, base), base), Some(pieces.clone()));
                }
            }
        }

        #[test]
        fn any_bytes_are_a_list_or_none(bytes: Vec<u8>, base in list()) {
            if let Some(pieces) = decode(&bytes, &base) {
                gather(&pieces, b"a short reel");
            }
        }
    }

    #[test]
    fn what_goes_on_is_one_piece() {
        let mut pieces = Vec::new();
        for (start, length) in [(0, 5), (5, 5), (20, 1), (10, 2)] {
            append(&mut pieces, Piece { start, length });
        }
        assert_eq!(
            pieces.iter().map(|p| (p.start, p.length)).collect::<Vec<_>>(),
            [(0, 10), (20, 1), (10, 2)]
        );
        assert_eq!(gather(&pieces[..1], b"0123456789").unwrap(), b"0123456789");
        assert_eq!(gather(&pieces, b"0123456789"), None);
    }
}
