//! The hash of ids, by which their scores are known.

/// Returns the hash of ids.
pub(crate) fn hash_of(ids: impl Iterator<Item = u32>) -> String {
    let bytes: Vec<u8> = ids.flat_map(u32::to_le_bytes).collect();
    blake3::hash(&bytes).to_hex()[..32].to_owned()
}
