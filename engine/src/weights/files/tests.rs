//! Damaged files: each error names the file and the reason.

use std::collections::HashMap;
use std::fs;

use safetensors::tensor::TensorView;
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// Writes tensors of type `F32`, by default, and shape `[2, 2]`.
fn write(folder: &TempDir, file: &str, tensors: &[(&str, Dtype)]) {
    let data = [0_u8; 16];
    let view =
        |dtype: Dtype| TensorView::new(dtype, vec![2, 2], &data[..dtype.bitsize() / 2]).unwrap();
    let tensors: HashMap<&str, TensorView<'_>> =
        tensors.iter().map(|(name, dtype)| (*name, view(*dtype))).collect();
    let path = folder.path().join(file);
    fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

fn index(folder: &TempDir, map: &Value) {
    let index = json!({"weight_map": map});
    fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
}

#[test]
fn both_layouts_of_experts_give_the_same_matrices() {
    let prefix = "model.layers.0.mlp.experts";
    let (joined, down) = (format!("{prefix}.gate_up_proj"), format!("{prefix}.down_proj"));
    let elements = |count: u16| (0..count).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let (wide, narrow) = (elements(2 * 6 * 4), elements(2 * 4 * 3));
    let tensors = [
        (&*joined, TensorView::new(Dtype::BF16, vec![2, 6, 4], &wide).unwrap()),
        (&*down, TensorView::new(Dtype::BF16, vec![2, 4, 3], &narrow).unwrap()),
    ];
    let folder = folder();
    let file = safetensors::serialize(tensors, None).unwrap();
    fs::write(folder.path().join("a.safetensors"), file).unwrap();
    index(&folder, &json!({&*joined: "a.safetensors", &*down: "a.safetensors"}));

    let weights = WeightFiles::open(folder.path()).unwrap();
    for (name, shape, first) in [
        ("0.gate_proj", [3, 4], 0),
        ("0.up_proj", [3, 4], 12),
        ("1.up_proj", [3, 4], 36),
        ("1.down_proj", [4, 3], 12),
    ] {
        let found = weights.take(&format!("{prefix}.{name}.weight"), &shape).unwrap();
        let Tensor::Bf16(found) = found else { panic!("{name} was widened") };
        assert_eq!(found, (first..first + 12).collect::<Vec<u16>>(), "{name}");
    }
    let left = weights.check_all_taken(false).unwrap_err().to_string();
    assert!(left.contains("experts.0.down_proj.weight"), "{left}");
    let shape = weights.take(&format!("{prefix}.0.gate_proj.weight"), &[2, 4]).unwrap_err();
    assert!(shape.to_string().contains("its shape is [3, 4]"), "{shape}");
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn refused(folder: &TempDir, expected: &[&str]) {
    let error = WeightFiles::open(folder.path()).unwrap_err().to_string();
    for part in expected {
        assert!(error.contains(part), "`{error}` lacks `{part}`");
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let folder = folder();
    write(&folder, SINGLE, &[("a", Dtype::F32), ("b", Dtype::BF16)]);
    let path = folder.path().join(SINGLE);
    let whole = fs::read(&path).unwrap();
    assert!(WeightFiles::open(folder.path()).is_ok());
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        refused(&folder, &["model.safetensors` is not a whole safetensors file"]);
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    refused(&folder, &["but its header describes"]);
}

#[test]
fn a_header_that_lies_is_refused() {
    let folder = folder();
    let path = folder.path().join(SINGLE);
    let write = |header: &str, data: usize| {
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header.as_bytes(), &vec![0; data]].concat();
        fs::write(&path, bytes).unwrap();
    };
    let entry = |shape: &str, from: usize, to: usize| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    write(&entry("[2]", 0, 8), 8);
    assert!(WeightFiles::open(folder.path()).is_ok());
    let lies = [
        entry("[3]", 0, 8),
        entry("[1]", 4, 8),
        entry("[2]", 8, 0),
        entry("[4611686018427387904, 4]", 0, 8),
    ];
    for lie in lies {
        write(&lie, 8);
        refused(&folder, &["its header cannot be read"]);
    }
    write("[]", 8);
    refused(&folder, &["its header cannot be read"]);
    fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    refused(&folder, &["does not fit a file of 8"]);
}

#[test]
fn an_index_must_name_files_that_hold_what_it_says() {
    let folder = folder();
    write(&folder, "one.safetensors", &[("a", Dtype::F32)]);
    write(&folder, "two.safetensors", &[("b", Dtype::F32)]);
    let both = json!({"a": "one.safetensors", "b": "two.safetensors"});
    index(&folder, &both);
    assert_eq!(WeightFiles::open(folder.path()).unwrap().tensors.len(), 2);
    let cases = [
        (json!({"a": "three.safetensors"}), "three.safetensors"),
        (json!({"a": "two.safetensors", "b": "two.safetensors"}), "tensor `a` is not in"),
        (json!({"a": "one.safetensors", "c": "two.safetensors"}), "tensor `c` is not in"),
        (json!({"a": 1}), "has 1 for `a`, which is not a file name"),
        (json!({"a": "../one.safetensors"}), "has `../one.safetensors` for `a`"),
        (json!({}), "is empty"),
        (json!([]), "is not an object of file names"),
    ];
    for (map, expected) in cases {
        index(&folder, &map);
        refused(&folder, &[expected]);
    }
    index(&folder, &both);
    write(&folder, "two.safetensors", &[("a", Dtype::F32), ("b", Dtype::F32)]);
    refused(&folder, &["cannot use tensor `a` of", "two.safetensors", "one.safetensors` has it"]);
}

#[test]
fn tensors_are_taken_by_shape_and_type() {
    let folder = folder();
    let all = [("a", Dtype::F32), ("b", Dtype::BF16), ("c", Dtype::F16), ("d", Dtype::I32)];
    write(&folder, SINGLE, &all);
    let weights = WeightFiles::open(folder.path()).unwrap();
    assert!(matches!(weights.take("a", &[2, 2]), Ok(Tensor::F32(values)) if values.len() == 4));
    assert!(matches!(weights.take("b", &[2, 2]), Ok(Tensor::Bf16(values)) if values.len() == 4));
    assert!(matches!(weights.take("c", &[2, 2]), Ok(Tensor::F32(values)) if values.len() == 4));
    let error = |name, shape: &[usize]| weights.take(name, shape).unwrap_err().to_string();
    assert!(error("d", &[2, 2]).ends_with("its type is I32; supported: F32, BF16, F16"));
    assert!(error("a", &[4]).ends_with("[2, 2], but `config.json` implies [4]"));
    assert!(error("e", &[2, 2]).starts_with("tensor `e` is missing from"));
}

#[test]
fn weights_without_a_place_are_refused() {
    let folder = folder();
    let names = ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "v_head.weight"];
    write(&folder, SINGLE, &names.map(|name| (name, Dtype::F32)));
    let weights = WeightFiles::open(folder.path()).unwrap();
    assert!(weights.check_all_taken(true).is_ok());
    let error = weights.check_all_taken(false).unwrap_err().to_string();
    assert!(error.contains("tensor `lm_head.weight` of"), "{error}");
    write(&folder, SINGLE, &[("model.layers.0.self_attn.q_proj.bias", Dtype::F32)]);
    let weights = WeightFiles::open(folder.path()).unwrap();
    assert!(weights.check_all_taken(true).is_err());
    weights.take("model.layers.0.self_attn.q_proj.bias", &[2, 2]).unwrap();
    assert!(weights.check_all_taken(true).is_ok());
}
