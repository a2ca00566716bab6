//! Profiles of an emulated GPU.

use serde_json::json;

use super::*;
use crate::emulated::exclusive_gpu;
use crate::model::random::tests::config;

fn options(batches: &[usize], context: usize) -> (tempfile::TempDir, ProfileOptions) {
    changed(json!({}), batches, context)
}

/// Options for a model with other fields in its configuration.
fn changed(
    fields: serde_json::Value,
    batches: &[usize],
    context: usize,
) -> (tempfile::TempDir, ProfileOptions) {
    let (keep, config) = config(fields);
    let (gpu, batches) = (GpuOptions::default(), batches.to_vec());
    (keep, ProfileOptions { gpu, config, batches, context, prompts: true, steps: 2 })
}

#[test]
fn every_operation_of_a_step_is_timed() {
    let emulated = exclusive_gpu();
    let before = emulated.get("graph_launches");
    let early_before = emulated.get("early_launches");
    let (_keep, options) = options(&[1, 17], 20);
    let profile = Profile::new(&options).unwrap();
    assert!(profile.rows.iter().all(|row| row.microseconds > 0.0) && profile.bandwidth > 0.0);
    let of = |case: &str, products: &str| -> Vec<&ProfileRow> {
        let wanted = |row: &&ProfileRow| row.case == case && row.products == products;
        profile.rows.iter().filter(wanted).collect()
    };
    // Norms twice a layer and at the end; attention rotates. Embedding, head, and two kernels
    // that draw.
    let one = of("batch 1, 20 positions each", "usual");
    assert_eq!(one.iter().map(|row| row.calls).sum::<usize>(), 2 * 7 + 1 + 1 + 1 + 2);
    let row = |rows: &[&ProfileRow], what: &str| -> (usize, usize) {
        let found = rows.iter().find(|row| row.what == what);
        found.map_or((0, 0), |row| (row.calls, row.bytes))
    };
    assert_eq!(row(&one, "gemm_spread 1x128x64"), (2, 2 * (64 + 128 * 64 + 128)));
    assert_eq!(row(&one, "gemm_spread 1x2000x64"), (1, 2 * (64 + 2000 * 64) + 4 * 2000));
    assert_eq!(row(&one, "gemm_spread_gated 1x192x64"), (2, 2 * (64 + 192 * 64 + 96)));
    let apart = of("batch 1, 20 positions each", "apart");
    assert_eq!(row(&apart, "silu_mul"), (2, 6 * 96));
    assert_eq!(row(&apart, "gemm_spread 1x192x64").0 + row(&apart, "attention_combine").0, 4);
    // Keys and values of 20 positions, a row in and out, and the sums of one split.
    let sums = 4 * 4 * (16 + 2);
    assert_eq!(row(&one, "rope_attention"), (2, 4 * 20 * 2 * 16 + 2 * 64 + sums));
    // Two launches in the place of one.
    let upright = of("batch 1, 20 positions each", "upright");
    let found: Vec<_> = upright.iter().map(|row| (row.what.as_str(), row.calls)).collect();
    assert_eq!(found, [("rope_write", 2), ("attention", 2)]);
    let library = of("batch 1, 20 positions each", "cublaslt");
    assert_eq!(row(&library, "cublaslt 1x128x64").0, 2);
    assert!(library.iter().all(|row| row.what.starts_with("cublaslt")));
    let in_order = of("batch 1, 20 positions each", "in order");
    assert_eq!(row(&in_order, "gemm_small 1x128x64").0, 2);
    let many = of("batch 17, 20 positions each", "usual");
    assert_eq!(row(&many, "cublaslt 32x128x64").0, 2);
    let same = of("batch 17, 20 positions each", "deterministic");
    assert_eq!(row(&same, "gemm_small_32 32x128x64").0, 2);
    assert_eq!(of("batch 17, 2 to 40 positions", "usual").len(), many.len());
    assert_eq!(row(&of("batch 17, 2 to 40 positions", "fixed"), "rope_attention").0, 2);

    let steps = |batch: usize| -> Vec<&str> {
        let case = format!("batch {batch}, 20 positions each");
        let steps = profile.steps.iter().filter(|step| step.case == case);
        steps.map(|step| step.variant).collect()
    };
    let one = [
        &["usual", "cublaslt", "in order", "deterministic", "fixed"][..],
        &["splits of 64", "splits of 128", "splits of 256", "upright", "late", "early", "apart"],
    ];
    assert_eq!(steps(1), one.concat());
    let many = [
        &["usual", "deterministic", "fixed", "upright", "late", "early"][..],
        &["whole depth", "in parts", "apart"],
    ];
    assert_eq!(steps(17), many.concat());
    assert!(profile.steps.iter().all(|step| step.microseconds > 0.0));
    assert!(emulated.get("graph_launches") > before);
    assert!(emulated.get("early_launches") > early_before);
}

#[test]
fn prompts_are_timed_by_all_kernels_that_may_take_them() {
    let _emulated = exclusive_gpu();
    let (_keep, options) = options(&[1], 65);
    let profile = Profile::new(&options).unwrap();
    let one = "prompt of 128 rows";
    let behind = "prompt of 128 rows behind 512 positions";
    for (case, positions) in [(one, 128), (behind, 640)] {
        let of = |products: &str, what: &str| -> Vec<(usize, usize)> {
            let rows = profile.rows.iter().filter(|row| row.case == case);
            let wanted = rows.filter(|row| row.products == products && row.what == what);
            wanted.map(|row| (row.calls, row.bytes)).collect()
        };
        // Keys and values of all positions, and a result of each row.
        let bytes = 4 * positions * 2 * 16 + 2 * 128 * 64;
        assert_eq!(of("usual", "attention_tall"), [(2, bytes)]);
        assert_eq!(of("warps", "attention_tall"), [(2, bytes)]);
        assert_eq!(of("wide", "attention"), [(2, bytes)]);
        assert_eq!(of("usual", "rope_write").len() + of("wide", "rope_write").len(), 1);
        let steps = profile.steps.iter().filter(|step| step.case == case);
        let labels: Vec<&str> = steps.map(|step| step.variant).collect();
        assert_eq!(labels, ["usual", "warps", "wide"]);
    }
}

#[test]
fn the_operations_of_a_mixture_are_timed() {
    let _emulated = exclusive_gpu();
    let mixture = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": true,
    });
    let (_keep, options) = changed(mixture, &[1, 8], 20);
    let profile = Profile::new(&options).unwrap();
    let row = |case: &str, what: &str| -> (usize, usize) {
        let found = profile.rows.iter().find(|row| row.case == case && row.what == what);
        found.map_or((0, 0), |row| (row.calls, row.bytes))
    };
    let one = "batch 1, 20 positions each";
    // Two layers; one row uses two experts.
    assert_eq!(row(one, "gemm_small 1x4x64"), (2, 2 * (64 + 4 * 64) + 4 * 4));
    assert_eq!(row(one, "route"), (2, 4 * (4 + 2 * 2)));
    assert_eq!(row(one, "sort_pairs"), (2, 12 * 2));
    let gate_up = 2 * (2 * 64 * 64 + 2 * (64 + 64));
    assert_eq!(row(one, "expert_gemm_small 2x64x64"), (2, gate_up));
    assert_eq!(row(one, "silu_mul"), (2, 6 * 2 * 32));
    let joined = 2 * (2 * 64 * 64 + 2 * (32 + 64));
    assert_eq!(row(one, "expert_gemm_small_gated 2x64x64"), (2, joined));
    let down = 2 * (2 * 64 * 32 + 2 * (64 + 32));
    assert_eq!(row(one, "expert_gemm_small 2x64x32"), (2, down));
    assert_eq!(row(one, "combine_experts"), (2, 2 * 64 * 3));
    // Eight rows use all experts on average.
    let (_, bytes) = row("batch 8, 20 positions each", "expert_gemm_small 16x64x64");
    assert_eq!(bytes, 2 * (4 * 64 * 64 + 16 * (64 + 64)));
}

#[test]
fn the_operations_of_a_hybrid_are_timed() {
    let _emulated = exclusive_gpu();
    let hybrid = json!({
        "architectures": ["Qwen3_5ForCausalLM"],
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    });
    let (_keep, options) = changed(hybrid, &[1, 8], 20);
    let profile = Profile::new(&options).unwrap();
    let row = |case: &str, what: &str| -> (usize, usize) {
        let found = profile.rows.iter().find(|row| row.case == case && row.what == what);
        found.map_or((0, 0), |row| (row.calls, row.bytes))
    };
    let one = "batch 1, 20 positions each";
    // Queries and keys of 2 heads of 24, values and gates of 4 of 16, strengths and decays.
    let (channels, width) = (2 * 2 * 24 + 4 * 16, 4 * 16);
    assert_eq!(row(one, "gemm_spread 1x232x64").0, 1);
    assert_eq!(row(one, "convolve"), (1, 2 * channels * (1 + 3 + 3 + 1)));
    let state = 2 * 4 * 24 * width;
    let rows = 2 * (channels + width + 2 * 4);
    assert_eq!(row(one, "delta_rule"), (1, state + rows));
    assert_eq!(row(one, "gated_norm"), (1, 6 * width));
    assert_eq!(row(one, "rope_write_part"), (1, 4 * 128));
    assert_eq!(row(one, "sigmoid_mul"), (1, 6 * 64));
    assert_eq!(row("batch 8, 20 positions each", "delta_rule").1, 8 * (state + rows));
}

#[test]
fn splits_of_one_size_have_the_bytes_of_their_sums() {
    let _emulated = exclusive_gpu();
    let (_keep, mut options) = options(&[1], 200);
    options.prompts = false;
    let profile = Profile::new(&options).unwrap();
    assert!(profile.steps.iter().all(|step| step.case.starts_with("batch 1, ")));
    let bytes = |products: &str| {
        let case = "batch 1, 200 positions each";
        let mut rows = profile.rows.iter().filter(|row| row.case == case);
        rows.find(|row| row.products == products && row.what == "rope_attention").unwrap().bytes
    };
    // Sums of four, two and one splits, of 18 numbers for each of four heads.
    let sums = 4 * 4 * (16 + 2);
    let found = ["splits of 64", "splits of 128", "splits of 256"].map(bytes);
    assert_eq!(found, [4, 2, 1].map(|count| found[2] + (count - 1) * sums));
}

#[test]
fn cases_without_room_are_left_out() {
    let _emulated = exclusive_gpu();
    let (_keep, options) = options(&[1, 1 << 20], 20);
    let profile = Profile::new(&options).unwrap();
    assert_eq!(profile.left_out.len(), 2);
    assert!(profile.left_out[0].starts_with("batch 1048576, 20 positions"));
    let fits = |case: &str| case.starts_with("batch 1, ") || case.starts_with("prompt of 32 ");
    assert!(profile.rows.iter().all(|row| fits(&row.case)));
}
