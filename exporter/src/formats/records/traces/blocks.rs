//! Blocks of prompts: stretches of 512 ids, each known by what it holds and all before it.

use std::collections::HashMap;

/// Ids of a block, as in the traces of Mooncake. The last block of a prompt may have fewer.
pub(super) const BLOCK_IDS: usize = 512;

/// Hash of a block and of everything before it.
type BlockHash = [u8; 16];

/// The blocks of all prompts, each with the one before it.
///
/// A hash stays in here: files have numbers only, from which no id follows.
#[derive(Debug, Default)]
pub(super) struct BlockTree {
    places: HashMap<BlockHash, u32>,
    /// Place of the block before each block.
    before: Vec<Option<u32>>,
}

/// The blocks of one prompt.
#[derive(Debug)]
pub(super) struct PromptBlocks {
    /// Place of the last one; none for a prompt without ids.
    last: Option<u32>,
}

impl BlockTree {
    /// Adds the blocks of a prompt. Two models share none, as they share no cache.
    pub(super) fn add(&mut self, model: &str, ids: &[u32]) -> PromptBlocks {
        let mut hash = first_half(blake3::hash(model.as_bytes()));
        let mut last = None;
        for block in ids.chunks(BLOCK_IDS) {
            hash = next(hash, block);
            let place = self.before.len() as u32;
            last = Some(*self.places.entry(hash).or_insert_with(|| {
                self.before.push(last);
                place
            }));
        }
        PromptBlocks { last }
    }
}

/// Numbers of blocks, from 0 in the order in which they are asked for.
#[derive(Debug, Default)]
pub(super) struct BlockNumbers {
    given: HashMap<u32, i32>,
}

impl BlockNumbers {
    /// Returns the numbers of the blocks of a prompt, the first block first.
    pub(super) fn of(&mut self, blocks: &BlockTree, prompt: &PromptBlocks) -> Vec<i32> {
        let before = |place: &u32| blocks.before[*place as usize];
        let mut places: Vec<u32> = std::iter::successors(prompt.last, before).collect();
        places.reverse();

        let mut numbers = Vec::with_capacity(places.len());
        for place in places {
            let next = self.given.len() as i32;
            numbers.push(*self.given.entry(place).or_insert(next));
        }
        numbers
    }
}

/// Returns the hash of a block behind what `before` is the hash of.
fn next(before: BlockHash, block: &[u32]) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&before);
    for id in block {
        hasher.update(&id.to_le_bytes());
    }
    first_half(hasher.finalize())
}

fn first_half(hash: blake3::Hash) -> BlockHash {
    let mut half = [0; 16];
    half.copy_from_slice(&hash.as_bytes()[..16]);
    half
}
