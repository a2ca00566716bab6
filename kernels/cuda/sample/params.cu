// From logits to tokens: filters, the draw, logprobs, ranks and the likeliest ids.
//
// Two launches a step, R rows of parameters, `tiles = (vocab + 1023) / 1024`:
//
//   sample_tiles<<<((tiles + 7) / 8, R), 256>>>(logits, params, tiles, shaped, vocab, stride)
//   sample_rows <<<R, 1024>>>(logits, params, tiles, ids, scores, top, shaped, counts, vocab,
//                             stride, most)
//
// In front of them two more if rows have masks, biases or penalties, S rows of `RowShape`, and N
// replies whose tokens are not counted yet:
//
//   begin_counts<<<N, 1024>>>(seeds, words, counts, vocab)
//   shape_logits<<<(tiles, S), 256>>>(logits, shapes, words, counts, shaped, vocab, stride)
//
// No dynamic shared memory. `vocab` is 1 to 1,048,576; a row of logits begins every `stride`
// elements (`stride >= vocab`; 16-byte loads where `stride % 4 == 0`, single ones elsewhere).
//
// extern "C" __global__ void sample_tiles(
//     const float* logits,         // [rows, stride]
//     const SampleParams* params,  // [R]
//     SampleTile* tiles,           // [R, tiles], 24 bytes each: scratch between the two
//     const float* shaped,         // [S, stride]; may be null if no row is shaped
//     int vocab, int stride);
//
// extern "C" __global__ void sample_rows(
//     const float* logits, const SampleParams* params, const SampleTile* tiles,
//     int* ids,                    // [R]: what `embed` takes as `sampled`; -1 for padding
//     SampleScores* scores,        // [R]; not written where `top_n < 0` or for padding
//     SampleCandidate* top,        // [R, most]; the first `top_n` of a row are written
//     const float* shaped,
//     unsigned short* counts,      // [slots, count_stride(vocab)]; may be null without penalties
//     int vocab, int stride, int most);  // most <= 32, top_n <= most
//
// `begin_counts` and `shape_logits` are described in `shape.cu`.

// How to choose one token; 48 bytes.
struct SampleParams {
    float temperature;  // below 1e-5 is greedy: no filters, logits as they are
    float top_p;        // 1 is off
    float min_p;        // 0 is off
    int top_k;          // 0 is off
    int top_n;          // likeliest ids to report; -1 for no scores at all
    int row;            // of the logits; -1 for padding
    unsigned long long seed;
    int position;       // of the token in its reply, which counts the draws
    int raw;            // 1: rank and order are those of the model's own logits, 0: the processed
    int shaped;         // row of the changed logits that are drawn from; -1 for the model's own
    int slot;           // of the counts of its reply, which the token is added to; -1 for none
};

// 16 bytes.
struct SampleScores {
    int id;
    float processed;  // logprob under what was sampled from
    float raw;        // logprob under the model's own distribution
    int rank;         // ids at least as likely, itself among them
};

// 16 bytes. Likeliest first, of equals the lower id first; filtered ids have `processed` = -inf.
struct SampleCandidate {
    int id;
    float processed;
    float raw;
    int pad;
};

// Of 1,024 ids, one for each thread of `sample_rows`.
struct SampleTile {
    double processed;  // sum of exp(value - highest value of the tile)
    double raw;
    float highest;  // of the logits that are drawn from, before temperature
    float raw_highest;
};

#define TILE 1024  // ids
#define BINS 2048
#define BINS_A_UNIT 64
#define LIST 4096
#define MOST 32
#define GREEDY_BELOW 1e-5f

// Bits of the weight of a logit, relative to its bin, which is below 2^24; in two halves below 2^12,
// whose sums over 2^20 ids fit 32 bits each. Shared memory adds 32-bit integers by itself, but not
// longer ones.
#define WEIGHT_BITS 24
#define HALF_BITS 12
// A whole weight of one in the sum over all bins; 2^20 of them fit 63 bits.
#define ONE 8796093022208.0
