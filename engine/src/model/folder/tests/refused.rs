//! Damaged and odd folders, each with the sentence that it gets. The sentences are a table of the
//! manual.

use std::collections::BTreeMap;
use std::fs;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::options::DeviceChoice;

const START: &str = "<!-- refused -->\n\n";
const END: &str = "\n<!-- /refused -->";

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const DOWN: &str = "model.layers.1.mlp.down_proj.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A tensor of a file.
type Stored = (Dtype, Vec<usize>, Vec<u8>);
type Tensors = BTreeMap<String, Stored>;

/// A folder that is refused: a description, and the damage.
type Damaged = (String, TempDir);

fn read(folder: &TempDir) -> Tensors {
    let bytes = fs::read(folder.path().join(WEIGHTS)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let stored =
        |view: &TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    file.iter().map(|(name, view)| (name.to_owned(), stored(&view))).collect()
}

fn write(folder: &TempDir, file: &str, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    fs::write(folder.path().join(file), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The tiny model with other tensors.
fn edited(edit: impl FnOnce(&mut Tensors)) -> TempDir {
    let folder = tiny();
    let mut tensors = read(&folder);
    edit(&mut tensors);
    write(&folder, WEIGHTS, &tensors);
    folder
}

/// The tiny model with one element of a tensor changed.
fn with_element(tensor: &str, value: f32) -> TempDir {
    edited(|tensors| {
        tensors.get_mut(tensor).unwrap().2[8..12].copy_from_slice(&value.to_le_bytes())
    })
}

/// The tiny model with a head beside its tied embedding.
fn with_head(change: impl FnOnce(&mut Stored)) -> TempDir {
    edited(|tensors| {
        let mut head = tensors[EMBEDDING].clone();
        change(&mut head);
        tensors.insert(HEAD.to_owned(), head);
    })
}

/// The tiny model with a file that has these bytes.
fn with_file(file: &str, bytes: &[u8]) -> TempDir {
    let folder = tiny();
    fs::write(folder.path().join(file), bytes).unwrap();
    folder
}

/// The tiny model with the first bytes of one of its files.
fn cut(file: &str, keep: impl Fn(usize) -> usize) -> TempDir {
    let folder = tiny();
    let path = folder.path().join(file);
    let bytes = fs::read(&path).unwrap();
    fs::write(path, &bytes[..keep(bytes.len())]).unwrap();
    folder
}

fn without(file: &str) -> TempDir {
    let folder = tiny();
    fs::remove_file(folder.path().join(file)).unwrap();
    folder
}

/// The tiny model in two files, by this index.
fn in_two_files(index: impl FnOnce(&mut Value), is_whole: bool) -> TempDir {
    let folder = tiny();
    let tensors = read(&folder);
    let (first, second) = ("model-1.safetensors", "model-2.safetensors");
    let file = |name: &str| if name < "model.layers.1" { first } else { second };
    let map: BTreeMap<&String, &str> = tensors.keys().map(|name| (name, file(name))).collect();
    let mut json = json!({ "weight_map": map });
    index(&mut json);
    fs::write(folder.path().join(INDEX), json.to_string()).unwrap();
    fs::remove_file(folder.path().join(WEIGHTS)).unwrap();
    let (low, high): (Tensors, Tensors) =
        tensors.into_iter().partition(|(name, _)| file(name) == first);
    write(&folder, first, &low);
    if is_whole {
        write(&folder, second, &high);
    }
    folder
}

fn configurations() -> Vec<Damaged> {
    let field = |model: &str, field: &str, value: Value| {
        let folder = copy(model);
        let text = format!("`{field}` is `{value}`");
        change(&folder, CONFIG, field, value);
        (text, folder)
    };
    let tiny = |name: &str, value: Value| field("engine/models/tiny", name, value);
    let mut all = vec![
        tiny("architectures", json!(["GPT2LMHeadModel"])),
        tiny("hidden_size", json!("96")),
        tiny("hidden_size", json!(0)),
        tiny("intermediate_size", json!(280)),
        tiny("num_hidden_layers", json!(4)),
        tiny("num_hidden_layers", json!(2)),
        tiny("num_key_value_heads", json!(2)),
        tiny("head_dim", json!(31)),
        tiny("vocab_size", json!(390)),
        tiny("max_position_embeddings", json!(-1)),
        tiny("rms_norm_eps", json!(-1e-6)),
        tiny("rope_parameters", json!({"rope_type": "longrope", "rope_theta": 1e4})),
        tiny("rope_parameters", json!({"rope_type": "default", "rope_theta": 0})),
        tiny("hidden_act", json!("gelu")),
        tiny("attention_bias", json!(true)),
        tiny("tie_word_embeddings", json!(false)),
        tiny("eos_token_id", json!("<|im_end|>")),
        tiny("quantization_config", json!({"quant_method": "fp8"})),
        tiny("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        field("engine/models/tiny-hybrid", "attention_bias", json!(true)),
        field("engine/models/tiny-moe", "num_experts", json!(3)),
    ];
    all[19].0 = "`attention_bias` of a hybrid is `true`".to_owned();
    all[20].0 = "`num_experts` of a mixture is `3`".to_owned();
    all
}

fn files() -> Vec<Damaged> {
    [
        ("`config.json` is absent", without(CONFIG)),
        ("`config.json` is cut", cut(CONFIG, |len| len / 2)),
        ("`config.json` is an empty object", with_file(CONFIG, b"{}")),
        ("`tokenizer.json` is absent", without("tokenizer.json")),
        ("`tokenizer.json` is cut", cut("tokenizer.json", |len| len / 2)),
        (
            "`generation_config.json` is a list that is cut",
            with_file("generation_config.json", b"["),
        ),
        ("the chat template does not end", with_file("chat_template.jinja", b"{% for m in")),
        ("the weights are absent", without(WEIGHTS)),
        ("the weights are an empty file", cut(WEIGHTS, |_| 0)),
        ("the weights lack their last 4 bytes", cut(WEIGHTS, |len| len - 4)),
        ("the weights end in their header", cut(WEIGHTS, |_| 100)),
        ("the weights are a page of HTML", with_file(WEIGHTS, b"<html>not found</html>")),
        ("a file of the index is absent", in_two_files(|_| {}, false)),
        (
            "the index has a tensor in another file",
            in_two_files(|index| index["weight_map"][DOWN] = json!("model-1.safetensors"), true),
        ),
        (
            "the index names a file outside of the folder",
            in_two_files(|index| index["weight_map"][DOWN] = json!("../a.safetensors"), true),
        ),
        ("the index is empty", in_two_files(|index| index["weight_map"] = json!({}), true)),
    ]
    .map(|(text, folder)| (text.to_owned(), folder))
    .into()
}

fn tensors() -> Vec<Damaged> {
    let remove = |name: &str| edited(|tensors| drop(tensors.remove(name)));
    let swapped = edited(|tensors| tensors.get_mut(DOWN).unwrap().1.reverse());
    let doubles = edited(|tensors| {
        let (dtype, shape, bytes) = tensors.get_mut("model.norm.weight").unwrap();
        *dtype = Dtype::F64;
        bytes.extend(vec![0; shape[0] * 4]);
    });
    let bias = edited(|tensors| {
        let bias = (Dtype::F32, vec![96], vec![0; 4 * 96]);
        tensors.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), bias);
    });
    let hybrid_bias = {
        let folder = copy("engine/models/tiny-hybrid");
        let mut tensors = read(&folder);
        let bias = (Dtype::F32, vec![192], vec![0; 4 * 192]);
        tensors.insert("model.layers.3.self_attn.q_proj.bias".to_owned(), bias);
        write(&folder, WEIGHTS, &tensors);
        folder
    };
    let noise = |head: &mut Stored| head.2[4..8].copy_from_slice(&0.5_f32.to_le_bytes());
    let short = |head: &mut Stored| {
        head.1[0] -= 1;
        head.2.truncate(4 * 96 * 392);
    };
    [
        ("a tensor is missing", remove("model.norm.weight")),
        ("a tensor has another shape", swapped),
        ("a tensor has another type", doubles),
        ("an element is NaN", with_element(DOWN, f32::NAN)),
        ("an element of a norm is infinite", with_element("model.norm.weight", f32::INFINITY)),
        ("an element of the embedding is minus infinity", {
            with_element(EMBEDDING, f32::NEG_INFINITY)
        }),
        ("a head differs from the tied embedding", with_head(noise)),
        ("a head beside a tied embedding has another shape", with_head(short)),
        ("there is a bias that the configuration does not have", bias),
        ("there is a bias of gated attention", hybrid_bias),
    ]
    .map(|(text, folder)| (text.to_owned(), folder))
    .into()
}

/// The rows of one table.
fn table(damaged: Vec<Damaged>) -> String {
    let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
    let mut rows = "| damage | sentence |\n| --- | --- |\n".to_owned();
    for (text, folder) in damaged {
        let place = format!("{}/", folder.path().display());
        let sentence = error(&folder, options.clone()).replace(&place, "");
        let row = format!("{text} \n {}", sentence.replace('\n', " ")).replace('|', "\\|");
        rows += &format!("| {} |\n", row.replace('\n', "|"));
    }
    rows
}

/// `UPDATE_DOCS=1 cargo test -p engine refused` writes the table.
#[test]
fn every_damaged_folder_gets_its_sentence() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/refused.md");
    let page = fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(START).expect("the tables have a start");
    let (listed, after) = rest.split_once(END).expect("the tables have an end");

    let sections =
        [("Values of config.json", configurations()), ("Files", files()), ("Tensors", tensors())];
    let made = sections.map(|(title, damaged)| format!("## {title}\n\n{}", table(damaged)));
    let made = made.join("\n");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, format!("{before}{START}{made}{END}{after}")).unwrap();
    } else {
        assert_eq!(listed, made, "run with UPDATE_DOCS=1");
    }
}

#[test]
fn a_head_that_equals_the_tied_embedding_is_taken() {
    let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
    assert!(Engine::load(with_head(|_| {}).path(), options).is_ok());
}
