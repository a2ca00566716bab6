//! Folders that cannot be served.

mod refused;

use std::error::Error;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Engine, EngineOptions, refuse_gguf};

/// A copy of a model that may be damaged.
fn copy(model: &str) -> TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(model);
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

fn tiny() -> TempDir {
    copy("engine/models/tiny")
}

fn change(folder: &TempDir, file: &str, field: &str, value: Value) {
    let path = folder.path().join(file);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    std::fs::write(path, config.to_string()).unwrap();
}

/// The error with all its causes, as a command line would print it.
fn error(folder: &TempDir, options: EngineOptions) -> String {
    let error = Engine::load(folder.path(), options).unwrap_err();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn check(folder: &TempDir, expected: &[&str]) {
    let text = error(folder, EngineOptions::default());
    for part in expected {
        assert!(text.contains(part), "`{text}` lacks `{part}`");
    }
}

#[test]
fn whole_folders_of_both_forms_load() {
    for model in ["engine/models/tiny", "tests/tapes/engine/llama"] {
        let folder = copy(model);
        let options = EngineOptions { served_model_name: Some("m".into()), ..Default::default() };
        assert_eq!(Engine::load(folder.path(), options).unwrap().model_name(), "m");
    }
}

#[test]
fn a_field_that_does_not_fit_is_named() {
    let cases = [
        ("architectures", json!(["GPT2LMHeadModel"]), "`architectures` is `GPT2LMHeadModel`"),
        ("hidden_size", json!("96"), "`hidden_size` is \"96\", not a positive whole number"),
        ("num_hidden_layers", json!(4), "tensor `model.layers.3."),
        ("intermediate_size", json!(280), "[288, 96], but `config.json` implies [280, 96]"),
        ("num_hidden_layers", json!(2), "the configuration has no place for it"),
        ("vocab_size", json!(390), "the tokenizer has 393 ids, more than `vocab_size` = 390"),
        ("tie_word_embeddings", json!(false), "tensor `lm_head.weight` is missing from"),
    ];
    for (field, value, expected) in cases {
        let folder = tiny();
        change(&folder, "config.json", field, value);
        check(&folder, &[expected]);
    }
    let folder = tiny();
    change(&folder, "generation_config.json", "temperature", json!("hot"));
    check(&folder, &["generation_config.json", "field `temperature` is \"hot\", not a number"]);
}

#[test]
fn a_file_that_is_absent_or_damaged_is_named() {
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = tiny();
        let path = folder.path().join(file);
        std::fs::remove_file(&path).unwrap();
        check(&folder, &[file]);
        std::fs::write(&path, "{").unwrap();
        check(&folder, &[file]);
    }
    let folder = tiny();
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
    check(&folder, &["model.safetensors` is not a whole safetensors file"]);
}

#[test]
fn an_option_that_does_not_fit_is_named() {
    let long = EngineOptions { max_model_len: Some(2048), ..EngineOptions::default() };
    let expected = "option `max_model_len` is 2048, but the model allows at most 1024";
    assert_eq!(error(&tiny(), long), expected);
    let none = EngineOptions { max_num_seqs: 0, ..EngineOptions::default() };
    assert_eq!(error(&tiny(), none), "option `max_num_seqs` must be at least 1");
}

#[test]
fn a_gguf_file_is_named_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
    let refused = |path: &Path| refuse_gguf(path).err().map(|error| error.to_string());
    assert_eq!(refused(&first), None);
    std::fs::write(&second, b"GGUF\x03\0\0\0 and more").unwrap();
    std::fs::write(&first, b"GGU").unwrap();
    let told =
        Some(format!("`{}` is a GGUF file, which the engine does not read", second.display()));
    assert_eq!([refused(&second), refused(folder.path())], [told.clone(), told]);
    assert_eq!([refused(&first), refused(tiny().path())], [None, None]);

    // A model folder may have such a file beside its own.
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    assert_eq!(refused(folder.path()), None);
}
