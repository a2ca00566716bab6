//! `--deterministic` behind thousands of positions, on an emulated GPU: equal bits alone, in a
//! batch and in pieces.

use super::*;
use crate::model::random;

/// The positions in front of each sequence.
const FRONTS: [usize; 2] = [8_000, 32_000];
/// The rows of each sequence: of the first, tall tiles on the emulated device.
const ROWS: [usize; 2] = [90, 21];
/// The pages of each sequence.
const PAGES_OF_EACH: [u32; 2] = [506, 2_002];

/// A model whose pages hold random keys and values.
fn long_model() -> Model<Cuda> {
    let (_keep, path) = config(json!({"max_position_embeddings": 32_768}));
    let config = random::model_folder(&path).unwrap().model;
    let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
    let ops = crate::emulated::open(&options, HEADS);
    let parameters = ModelParameters::load(&ops, &random::RandomWeights, &config).unwrap();
    let scratch = Scratch::new(&ops, &config, 0, 0).unwrap();
    let pages = PAGES_OF_EACH.iter().sum::<u32>() as usize;
    let size = ModelCapacity { positions: config.positions, pages, adapters: 0, states: 0 };
    let model = Model::new(ops, parameters, config, scratch, size).unwrap();
    let (ops, pages) = model.device_and_pages();
    ops.randomize(pages).unwrap();
    model
}

/// A sequence whose front was computed.
fn front(sequence: usize) -> SequenceCache {
    let first: u32 = PAGES_OF_EACH[..sequence].iter().sum();
    let pages = (first..first + PAGES_OF_EACH[sequence]).collect();
    SequenceCache { pages, len: FRONTS[sequence], ..SequenceCache::default() }
}

fn tokens(sequence: usize) -> Vec<u32> {
    (0..ROWS[sequence] as u32).map(|i| (i * 37 + sequence as u32) % 1999).collect()
}

#[test]
fn rows_behind_32_000_positions_have_the_same_bits_anyhow() {
    let _emulated = exclusive_gpu();
    let mut gpu = long_model();
    let alone = [0, 1].map(|sequence| {
        let mut cache = front(sequence);
        bits(&gpu.forward(&mut [chunk(&tokens(sequence), &mut cache)]).unwrap())
    });

    let mut caches = [front(0), front(1)];
    let ids = [tokens(0), tokens(1)];
    let chunks = ids.iter().zip(&mut caches).map(|(ids, cache)| chunk(ids, cache));
    let together = bits(&gpu.forward(&mut chunks.collect::<Vec<_>>()).unwrap());
    assert_eq!(together, alone.concat());

    for (sequence, pieces) in [(0, &[70, 1, 19][..]), (1, &[2, 19])] {
        let (mut cache, ids) = (front(sequence), tokens(sequence));
        let (mut rest, mut found) = (&ids[..], Vec::new());
        for size in pieces {
            let (piece, behind) = rest.split_at(*size);
            found.extend(bits(&gpu.forward(&mut [chunk(piece, &mut cache)]).unwrap()));
            rest = behind;
        }
        assert_eq!(found, alone[sequence], "sequence {sequence}");
    }
}
