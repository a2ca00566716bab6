//! Texts and ids, of tokenizers that are built here.

mod stream;

use super::*;

/// Byte-level tokenizer: ids 0..256 are bytes, then two words and a special token.
fn tokenizer() -> Tokenizer {
    let mut alphabet: Vec<(u8, char)> = Vec::new();
    let mut next = 256;
    for byte in 0..=255_u8 {
        let shown = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if shown { u32::from(byte) } else { next };
        next += u32::from(!shown);
        alphabet.push((byte, char::from_u32(code).unwrap()));
    }
    let mut vocab: serde_json::Map<String, serde_json::Value> = alphabet
        .iter()
        .map(|(byte, letter)| (letter.to_string(), u32::from(*byte).into()))
        .collect();
    vocab.insert("ab".into(), 256.into());
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 257, "content": "<|end|>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    Tokenizer::load(folder.path()).unwrap()
}

fn pushed(ids: &[u32]) -> Vec<String> {
    let (tokenizer, mut detokenizer) = (tokenizer(), Detokenizer::after(&[], true));
    ids.iter().map(|id| detokenizer.push(&tokenizer, *id)).collect()
}

#[test]
fn a_text_survives_the_round_trip() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("ab <|end|>é", false).unwrap();
    assert_eq!(ids, [256, 32, 257, 0xC3, 0xA9]);
    assert_eq!(tokenizer.decode(&ids, false), "ab <|end|>é");
    assert_eq!(tokenizer.decode(&ids, true), "ab é");
    assert_eq!(tokenizer.id("<|end|>"), Some(257));
    assert_eq!((tokenizer.special_id("<|end|>"), tokenizer.special_id("ab")), (Some(257), None));
    assert_eq!(tokenizer.size(), 258);
}

#[test]
fn a_text_behind_others_is_no_start() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.encode_after("ab").unwrap(), [256]);
    assert_eq!(tokenizer.encode_after("<|end|>b").unwrap(), [257, 98]);
    assert_eq!(tokenizer.encode_after("").unwrap(), [0_u32; 0]);
}

#[test]
fn half_a_character_is_held_back() {
    let ids: Vec<u32> = "a€😀b".bytes().map(u32::from).collect();
    assert_eq!(pushed(&ids), ["a", "", "", "€", "", "", "", "😀", "b"]);
    assert_eq!(pushed(&[257, 256, 257, 0x20]), ["", "ab", "", " "]);
}

#[test]
fn tokens_without_text_are_not_held_on_to() {
    let (tokenizer, mut detokenizer) = (tokenizer(), Detokenizer::after(&[], true));
    for id in [257_u32, 9999].into_iter().cycle().take(20_000) {
        assert_eq!(detokenizer.push(&tokenizer, id), "");
    }
    assert!(detokenizer.ids.is_empty());
    let euro = "€".bytes().map(u32::from);
    let text: String =
        euro.flat_map(|id| [id, 257]).map(|id| detokenizer.push(&tokenizer, id)).collect();
    assert_eq!(text, "€");
    let mut shown = Detokenizer::after(&[], false);
    assert_eq!(shown.push(&tokenizer, 257), "<|end|>");
}

#[test]
fn a_text_is_never_cut_or_filled_up() {
    let mut json = tokenizer().to_json().unwrap();
    json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 2,
        "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 9}, "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": 257, "pad_type_id": 0, "pad_token": "<|end|>"});
    let tokenizer = Tokenizer::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("xyz", false).unwrap(), [120, 121, 122]);
    assert_eq!(tokenizer.encode_spans("xyz").unwrap().len(), 3);
}

#[test]
fn the_longest_token_is_known_where_nothing_of_a_text_is_lost() {
    let longest = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = tokenizer().to_json().unwrap();
        change(&mut json);
        Tokenizer::parse(json.to_string().as_bytes()).unwrap().max_token_bytes()
    };
    assert_eq!(longest(&|_| ()), Some("<|end|>".len()));
    assert_eq!(longest(&|json| json["normalizer"] = serde_json::json!({"type": "NFC"})), Some(21));
    let lower = serde_json::json!({"type": "Lowercase"});
    assert_eq!(longest(&|json| json["normalizer"] = lower.clone()), None);
    assert_eq!(longest(&|json| json["added_tokens"][0]["lstrip"] = true.into()), None);
    let apart = serde_json::json!({"type": "Whitespace"});
    assert_eq!(longest(&|json| json["pre_tokenizer"] = apart.clone()), None);
    let gone = |json: &mut serde_json::Value| {
        json["model"]["vocab"].as_object_mut().unwrap().remove("!");
    };
    assert_eq!(longest(&gone), None);
}

#[test]
fn bytes_that_are_no_character_come_out_once_that_is_sure() {
    let mut ids = vec![0xFF; 100];
    ids.extend("é!".bytes().map(u32::from));
    let text = pushed(&ids).concat();
    assert_eq!(text, format!("{}é!", "\u{FFFD}".repeat(100)));
}

#[test]
fn a_name_is_empty_until_its_character_is_whole() {
    let (tokenizer, mut names) = (tokenizer(), TokenStrings::default());
    let found: Vec<String> =
        [0x61, 0xE2, 0x82, 0xAC, 257].iter().map(|id| names.push(&tokenizer, *id)).collect();
    assert_eq!(found, ["a", "", "", "€", "<|end|>"]);
    names.push(&tokenizer, 0xC3);
    assert_eq!(names.peek(&tokenizer, 0xA9), "é");
    assert_eq!(names.peek(&tokenizer, 0x62), "b");
}

#[test]
fn tokens_that_stand_beside_the_file_are_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: serde_json::Value| {
        std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    let ids = |text: &str, vocab: usize| {
        Tokenizer::load_within(folder.path(), vocab).unwrap().encode(text, false).unwrap()
    };
    write("tokenizer.json", tokenizer().to_json().unwrap());
    write("added_tokens.json", serde_json::json!({"<y>": 259, "<x>": 258}));
    write(
        "tokenizer_config.json",
        serde_json::json!({"pad_token": "<pad>", "bos_token": "ab",
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "lstrip": false}}),
    );
    assert_eq!(ids("a<x>b<y><pad><|end|>", 300), [97, 258, 98, 259, 260, 257]);
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!((tokenizer.special_id("<pad>"), tokenizer.special_id("<x>")), (Some(260), None));
    assert_eq!(tokenizer.special_id("ab"), Some(256));

    // A model without rows for them does not get them.
    assert_eq!(ids("<x>", 259), [258]);
    assert_eq!(ids("<y>", 259), [60, 121, 62]);

    let token = |content: &str| serde_json::json!({"content": content, "special": true});
    write(
        "tokenizer_config.json",
        serde_json::json!({"additional_special_tokens": ["<z>"],
        "added_tokens_decoder": {"257": token("<|end|>"), "258": token("<extra>")}}),
    );
    assert_eq!(ids("a<extra><z>", 300), [97, 258, 259]);
    assert_eq!(ids("<x>", 300), [60, 120, 62]);

    std::fs::write(folder.path().join("tokenizer_config.json"), "[").unwrap();
    let error = Tokenizer::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}

#[test]
fn only_the_start_of_a_text_is_treated_as_one() {
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 4, "content": "<s>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}",
            "prepend_scheme": "first", "split": false},
        "model": {"type": "BPE", "merges": [],
            "vocab": {"\u{2581}": 0, "a": 1, "b": 2, "?": 3, "<s>": 4}},
    });
    let tokenizer = Tokenizer::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [0, 1, 2]);
    assert_eq!(tokenizer.encode_after("ab").unwrap(), [1, 2]);
    assert_eq!(tokenizer.encode_after("<s>ab").unwrap(), [4, 1, 2]);
    assert!(tokenizer.encode_after("").unwrap().is_empty());
}
