// The gate of the feed-forward part, which `silu_mul` and the gated products compute alike.

/// `gate / (1 + exp(-gate)) * up`.
__device__ __forceinline__ float gated(float gate, float up) {
    return gate / (1.0f + exp2_fast(-1.44269504f * gate)) * up;
}
