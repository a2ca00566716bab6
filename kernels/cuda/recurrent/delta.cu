// The gated delta rule: a state of `[key_dim, value_dim]` for every value head of a sequence, which
// every row changes.
//
//   delta_rule<<<(value heads * value_dim / 16, spans), 128>>>
//
// A block has 16 columns of the state of one head of one span, which depend on no other column, and
// walks over the rows. Eight lanes have a column: it stays in registers from the first row to the
// last. Rows are prepared sixteen at a time in shared memory: queries and keys of length one, the
// decay and the strength of the update. Static shared memory only.
//
// A long prompt waits for the chain from row to row, so whatever is not in it is kept out of its
// way: sixteen rows are fetched while those in front are walked over, keys and queries are in
// registers a row before they are used, and the result of a row is summed beside what the state
// knows of the next row's key.

/// The most elements of a key; there are four at a time.
#define KEY_MAX 128
#define DELTA_COLUMNS 16
#define DELTA_LANES 8
#define DELTA_THREADS 128
#define DELTA_ROWS 16
/// Four elements of a key at a time that a lane has of a column.
#define DELTA_QUADS (KEY_MAX / 4 / DELTA_LANES)
/// Addend of the square of a length.
#define LENGTH_EPS 1e-6f

/// The elements of a key that a lane has, as bf16; zeros beyond the end of the key.
struct KeyPack {
    uint2 packs[DELTA_QUADS];

    __device__ __forceinline__ void load(const bf16* from, int lane, int key_dim) {
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            const int at = 4 * (DELTA_LANES * i + lane);
            packs[i] = at < key_dim ? *(const uint2*)(from + at) : make_uint2(0, 0);
        }
    }
};

/// The elements of a key that a lane has: `4 * (DELTA_LANES * i + lane)` and the three behind it,
/// zeros beyond the end of the key.
struct KeyPart {
    float4 quads[DELTA_QUADS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) quads[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    __device__ __forceinline__ void unpack(const KeyPack& from) {
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            const uint2 pack = from.packs[i];
            quads[i] = make_float4(low_float(pack.x), high_float(pack.x), low_float(pack.y),
                                   high_float(pack.y));
        }
    }

    __device__ __forceinline__ void load(const float* from, int lane, int key_dim) {
        clear();
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            const int at = 4 * (DELTA_LANES * i + lane);
            if (at < key_dim) quads[i] = *(const float4*)(from + at);
        }
    }

    __device__ __forceinline__ void store(float* to, int lane, int key_dim) const {
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            const int at = 4 * (DELTA_LANES * i + lane);
            if (at < key_dim) *(float4*)(to + at) = quads[i];
        }
    }

    /// The product with another one, over the lanes of a column.
    __device__ __forceinline__ float dot(const KeyPart& other) const {
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            sums.x = fmaf(quads[i].x, other.quads[i].x, sums.x);
            sums.y = fmaf(quads[i].y, other.quads[i].y, sums.y);
            sums.z = fmaf(quads[i].z, other.quads[i].z, sums.z);
            sums.w = fmaf(quads[i].w, other.quads[i].w, sums.w);
        }
        return eight_lanes_sum((sums.x + sums.y) + (sums.z + sums.w));
    }

    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            quads[i].x *= factor;
            quads[i].y *= factor;
            quads[i].z *= factor;
            quads[i].w *= factor;
        }
    }

    /// Adds `factor` times another one.
    __device__ __forceinline__ void add(float factor, const KeyPart& other) {
#pragma unroll
        for (int i = 0; i < DELTA_QUADS; i++) {
            quads[i].x = fmaf(factor, other.quads[i].x, quads[i].x);
            quads[i].y = fmaf(factor, other.quads[i].y, quads[i].y);
            quads[i].z = fmaf(factor, other.quads[i].z, quads[i].z);
            quads[i].w = fmaf(factor, other.quads[i].w, quads[i].w);
        }
    }

    /// Divides by the length, and multiplies by `factor`.
    __device__ __forceinline__ void normalize(float factor) {
        scale(1.0f / sqrtf(dot(*this) + LENGTH_EPS));
        scale(factor);
    }
};

/// ln(1 + exp(x)).
__device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/// Rows that are prepared, in shared memory.
struct DeltaRows {
    float *queries, *keys, *values, *gates;
};

/// A row on its way: what this thread's lane has of it.
struct DeltaRow {
    KeyPack query, key;
    unsigned values;
    bf16 strength, decay;
};

/// What a lane has in registers of the row that comes next.
struct DeltaAhead {
    KeyPart query;
    float value, kept, strength;
    /// What the state knows of its key.
    float known;

    __device__ __forceinline__ void load(const DeltaRows& rows, int at, int own, int lane) {
        query.load(rows.queries + at * KEY_MAX, lane, KEY_MAX);
        value = rows.values[at * DELTA_COLUMNS + own];
        kept = rows.gates[at * 2];
        strength = rows.gates[at * 2 + 1];
    }
};

/// The places of one head and of the block's columns in the first row of a span.
struct DeltaInput {
    const bf16 *query, *key, *values, *strength, *decay;
    int channels, row_width, key_dim;
    /// exp of the logarithm of the rate of decay, and the addend of `decay`.
    float rate, bias;

    /// Begins to load the row of this thread, one of DELTA_ROWS from `first` on. Past the last row
    /// it is that again.
    __device__ __forceinline__ DeltaRow fetch(int first, int rows) const {
        const int row = min(first + (int)threadIdx.x / DELTA_LANES, rows - 1);
        const int lane = threadIdx.x % DELTA_LANES;
        const long long in = (long long)row * channels, beside = (long long)row * row_width;
        DeltaRow fetched;
        fetched.query.load(query + in, lane, key_dim);
        fetched.key.load(key + in, lane, key_dim);
        fetched.values = *(const unsigned*)(values + in + lane * 2);
        fetched.strength = strength[beside];
        fetched.decay = decay[beside];
        return fetched;
    }

    /// Prepares the row of this thread in shared memory.
    __device__ __forceinline__ void prepare(const DeltaRow& row, const DeltaRows& to) const {
        const int own = threadIdx.x / DELTA_LANES, lane = threadIdx.x % DELTA_LANES;
        KeyPart q, k;
        q.unpack(row.query);
        k.unpack(row.key);
        q.normalize(1.0f / sqrtf((float)key_dim));
        k.normalize(1.0f);
        q.store(to.queries + own * KEY_MAX, lane, KEY_MAX);
        k.store(to.keys + own * KEY_MAX, lane, KEY_MAX);
        to.values[own * DELTA_COLUMNS + lane * 2] = low_float(row.values);
        to.values[own * DELTA_COLUMNS + lane * 2 + 1] = high_float(row.values);
        if (lane > 0) return;
        to.gates[own * 2] = expf(-rate * softplus(to_float(row.decay) + bias));
        to.gates[own * 2 + 1] = 1.0f / (1.0f + expf(-to_float(row.strength)));
    }
};

/// For each value head with its state S, row by row: q and k of its key head are divided by their
/// lengths, q also by the root of `key_dim`; S *= exp(-exp(decay) * softplus(a + bias)), S += k
/// (v - S k) sigmoid(b), and out is q S. convolved `[T, channels]` has q and k of the `key_heads`,
/// then v of the `value_heads`; projected `[T, row_width]` has b, then a of the value heads at its
/// end; decay and bias `[value_heads]`; out `[T, value_heads * value_dim]`. states is `[slots,
/// value_heads, value_dim, key_dim]`. `key_dim` is a multiple of 4 up to KEY_MAX, `value_dim` one
/// of 16, `row_width` is even.
extern "C" __global__ void __launch_bounds__(DELTA_THREADS, 4) delta_rule(
    bf16* out, const bf16* convolved, const bf16* projected, const float* decay, const float* bias,
    float* states, const int4* spans, const int2* marks, int key_heads, int value_heads,
    int key_dim, int value_dim, int row_width) {
    take_over();
    __shared__ __align__(16) float queries[DELTA_ROWS * KEY_MAX], keys[DELTA_ROWS * KEY_MAX];
    __shared__ float values[DELTA_ROWS * DELTA_COLUMNS], gates[DELTA_ROWS * 2];
    const DeltaRows rows = {queries, keys, values, gates};
    const int4 span = spans[blockIdx.y];
    if (span.x < 0) return;
    const int parts = value_dim / DELTA_COLUMNS, head = blockIdx.x / parts;
    const int key_head = head / (value_heads / key_heads), width = value_heads * value_dim;
    const int first_column = blockIdx.x * DELTA_COLUMNS, channels = 2 * key_heads * key_dim + width;
    const bf16* const in = convolved + (long long)span.x * channels;
    const bf16* const end = projected + (span.x + 1ll) * row_width;
    const DeltaInput input = {in + key_head * key_dim,
                              in + (key_heads + key_head) * key_dim,
                              in + 2 * key_heads * key_dim + first_column,
                              end - 2 * value_heads + head,
                              end - value_heads + head,
                              channels,
                              row_width,
                              key_dim,
                              expf(decay[head]),
                              bias[head]};

    const int own = threadIdx.x / DELTA_LANES, lane = threadIdx.x % DELTA_LANES;
    const long long slot_size = (long long)width * key_dim;
    const long long place = (long long)(first_column + own) * key_dim;
    bf16* const to = out + (long long)span.x * width + first_column + own;
    const int2* next_mark = marks + span.w;
    int2 mark = *next_mark;
    KeyPart state;
    state.clear();
    if (span.z >= 0) state.load(states + span.z * slot_size + place, lane, key_dim);

    DeltaRow ahead = input.fetch(0, span.y);
    for (int first = 0; first < span.y; first += DELTA_ROWS) {
        const int count = min(span.y - first, DELTA_ROWS);
        if (first > 0) __syncthreads();
        input.prepare(ahead, rows);
        __syncthreads();
        if (first + DELTA_ROWS < span.y) ahead = input.fetch(first + DELTA_ROWS, span.y);

        DeltaAhead next = {};
        next.load(rows, 0, own, lane);
        KeyPart keys_of[2];
        keys_of[0].load(keys, lane, KEY_MAX);
        keys_of[1].load(keys + min(1, count - 1) * KEY_MAX, lane, KEY_MAX);
        next.known = keys_of[0].dot(state);
        // Keys take turns in two sets of registers: that of a row makes room for the next but one.
        auto step = [&](int at, KeyPart& key, const KeyPart& key_behind) {
            const int row = first + at;
            const float delta = fmaf(-next.known, next.kept, next.value) * next.strength;
            state.scale(next.kept);
            state.add(delta, key);
            // Behind the last row that is prepared, the next batch begins anew.
            key.load(keys + min(at + 2, count - 1) * KEY_MAX, lane, KEY_MAX);
            next.known = key_behind.dot(state);
            const float result = next.query.dot(state);
            next.load(rows, min(at + 1, count - 1), own, lane);
            if (lane == 0) to[(long long)row * width] = to_bf16(result);
            if (row + 1 < mark.x) return;
            state.store(states + mark.y * slot_size + place, lane, key_dim);
            if (row + 1 < span.y) mark = *++next_mark;
        };
        for (int at = 0; at < count; at += 2) {
            step(at, keys_of[0], keys_of[1]);
            if (at + 1 < count) step(at + 1, keys_of[1], keys_of[0]);
        }
    }
}
