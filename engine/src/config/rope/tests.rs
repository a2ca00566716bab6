//! Frequencies against figures worked out in 64 bits by the formulas of `transformers` 5.23.

use serde_json::json;

use super::*;

fn rope(theta: f64, fields: Value) -> Rope {
    let config =
        json!({"max_position_embeddings": 64, "rope_theta": theta, "rope_scaling": fields});
    Rope::parse(&config).unwrap()
}

fn check(rope: &Rope, dim: usize, expected: &[f64]) {
    let found = rope.frequencies(dim);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((f64::from(found) / expected - 1.0).abs() < 2e-6, "{found} for {expected}");
    }
}

#[test]
fn frequencies_are_those_of_the_formulas() {
    let linear = rope(100.0, json!({"rope_type": "linear", "factor": 2.0}));
    check(&linear, 8, &[0.5, 1.581_138_83e-1, 5e-2, 1.581_138_83e-2]);
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0});
    let expected = [1.0, 2.443845994e-01, 1.304225604e-02, 3.952847075e-03];
    let slow = [1.25e-3, 3.952847075e-04, 1.25e-4, 3.952847075e-05];
    check(&rope(10_000.0, llama3), 16, &[expected, slow].concat());
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    let expected = [1.0, 3.584420279e-01, 1.244795587e-01, 4.124418151e-02];
    let slow = [1.264911064e-02, 3.333803580e-03, 1.405853313e-03, 5.928434264e-04];
    check(&rope(1000.0, yarn), 16, &[expected, slow].concat());
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "beta_fast": 8, "beta_slow": 2, "truncate": false});
    let expected = [1.0, 2.791745471e-01, 2.599659159e-02, 7.905694150e-03];
    let slow = [2.5e-3, 7.905694150e-04, 2.5e-4, 7.905694150e-05];
    check(&rope(10_000.0, yarn), 16, &[expected, slow].concat());
}

#[test]
fn yarn_s_attention_factor_is_given_or_follows_from_the_factor() {
    let amplitude = |changes: Value| {
        let mut fields = json!({"rope_type": "yarn", "factor": 4.0});
        for (key, value) in changes.as_object().unwrap() {
            fields[key] = value.clone();
        }
        rope(10_000.0, fields).amplitude()
    };
    assert!((amplitude(json!({})) - 1.138_629_4).abs() < 1e-6);
    assert_eq!(amplitude(json!({"attention_factor": 0.5})), 0.5);
    assert_eq!(amplitude(json!({"factor": 1.0})), 1.0);
    let both = json!({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0});
    assert!((amplitude(both) - 0.921_042_4).abs() < 1e-6);
}

#[test]
fn a_scaled_model_reaches_as_far_as_the_factor_says() {
    let yarn = |original| {
        let fields = json!({"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": original});
        rope(10_000.0, fields)
    };
    assert_eq!(yarn(json!(32)).positions(64), 128);
    assert_eq!(yarn(Value::Null).positions(64), 256);
    assert_eq!(yarn(json!(16)).positions(64), 64);
}

#[test]
fn of_both_forms_in_one_file_transformers_takes_the_older() {
    let config = json!({"max_position_embeddings": 64, "rope_theta": 5.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}});
    let found = Rope::parse(&config).unwrap();
    assert_eq!(found, Rope { theta: 5.0, scaling: RopeScaling::Linear { factor: 2.0 } });
}
