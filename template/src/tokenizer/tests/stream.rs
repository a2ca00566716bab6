//! The text of a growing list of ids is that of the library's own stream decoder, for tokenizers of
//! every kind.

use serde_json::{Value, json};

use super::*;

/// Words that each tokenizer here has, at the start of a word and inside one.
const WORDS: [&str; 6] = ["a", "he", "llo", "x", ".", "é"];
/// Texts of characters that no vocabulary has, so that they are spelled in bytes.
const TEXTS: [&str; 7] = ["😀🎉", "a 😀🎉 x", "世界", "👩🏽x", "é世é", " 한국어  he", "“he”—"];

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}

/// A tokenizer whose vocabulary has words, and each byte by its own name.
fn of_bytes(decoder: &Value, normalizer: &Value) -> Tokenizer {
    let mut vocab: serde_json::Map<String, Value> = ["<unk>", "<s>", "</s>"]
        .into_iter()
        .zip(0..)
        .map(|(it, id)| (it.into(), id.into()))
        .collect();
    let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
    let words = WORDS.iter().flat_map(|word| [(*word).to_owned(), format!("\u{2581}{word}")]);
    for token in bytes.chain(["\u{2581}".to_owned()]).chain(words) {
        vocab.insert(token, vocab.len().into());
    }
    let json = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": normalizer,
        "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                  "vocab": vocab, "merges": []},
    });
    Tokenizer::parse(json.to_string().as_bytes()).unwrap()
}

/// Llama 2, TinyLlama, Mistral, Yi: the first space of a text is no part of it.
fn stripping() -> Tokenizer {
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u{2581}"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]});
    of_bytes(&decoder, &normalizer)
}

/// The same with the decoder of newer files.
fn metaspace() -> Tokenizer {
    let spaces = json!({"type": "Metaspace", "replacement": "\u{2581}",
                        "prepend_scheme": "always", "split": false});
    let decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]});
    let normalizer = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    of_bytes(&decoder, &normalizer)
}

/// Gemma: bytes, and every space is a part of the text.
fn spaced() -> Tokenizer {
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]});
    let normalizer = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    of_bytes(&decoder, &normalizer)
}

/// BERT: words, and pieces that go on with a word.
fn word_piece() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for token in ["[UNK]".to_owned(), "[CLS]".to_owned()]
        .into_iter()
        .chain(WORDS.iter().flat_map(|word| [(*word).to_owned(), format!("##{word}")]))
    {
        vocab.insert(token, vocab.len().into());
    }
    let json = json!({
        "version": "1.0",
        "added_tokens": [special(0, "[UNK]"), special(1, "[CLS]")],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    });
    Tokenizer::parse(json.to_string().as_bytes()).unwrap()
}

/// T5: words with their probabilities.
fn unigram() -> Tokenizer {
    let words = WORDS.iter().flat_map(|word| [(*word).to_owned(), format!("\u{2581}{word}")]);
    let vocab: Vec<Value> = ["<unk>".to_owned(), "\u{2581}".to_owned()]
        .into_iter()
        .chain(words)
        .map(|token| json!([token, -1.5]))
        .collect();
    let spaces = json!({"type": "Metaspace", "replacement": "\u{2581}",
                        "prepend_scheme": "always", "split": true});
    let json = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>")],
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
    });
    Tokenizer::parse(json.to_string().as_bytes()).unwrap()
}

/// The library's own decoder, as vLLM uses it: all of the prompt before the first step, and a new
/// start where it finds that its text has changed.
fn expected(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32], skip: bool) -> Vec<String> {
    let (mut seen, mut prefix, mut index) = (prompt.to_vec(), String::new(), 0);
    let mut texts = Vec::new();
    for id in ids {
        let step = |seen: &mut Vec<u32>, prefix: &mut String, index: &mut usize| {
            let inner = &tokenizer.inner;
            tokenizers::step_decode_stream(inner, vec![*id], skip, seen, prefix, index)
        };
        let text = step(&mut seen, &mut prefix, &mut index).or_else(|_| {
            (seen, prefix, index) = (Vec::new(), String::new(), 0);
            step(&mut seen, &mut prefix, &mut index)
        });
        texts.push(text.unwrap().unwrap_or_default());
    }
    texts
}

fn found(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32], skip: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::after(prompt, skip);
    ids.iter().map(|id| detokenizer.push(tokenizer, *id)).collect()
}

/// Checks prompts and replies of any ids, and of texts.
fn check(name: &str, tokenizer: &Tokenizer, rounds: u32) {
    let size = u32::try_from(tokenizer.size()).unwrap();
    let mut state = 1_u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for round in 0..rounds {
        let mut some = |most: u32| -> Vec<u32> {
            let count = next(most);
            // Half of the ids are beyond the bytes, so that there are words between them.
            (0..count)
                .map(|_| if next(2) == 0 { next(size + 2) } else { size - 1 - next(size.min(14)) })
                .collect()
        };
        let (mut prompt, ids) = (some(40), some(60));
        // A prompt that ends inside a character is not a text.
        while tokenizer.decode(&prompt, true).ends_with(REPLACEMENT)
            || tokenizer.decode(&prompt, false).ends_with(REPLACEMENT)
        {
            prompt.pop();
        }
        for skip in [true, false] {
            let (found, expected) =
                (found(tokenizer, &prompt, &ids, skip), expected(tokenizer, &prompt, &ids, skip));
            assert_eq!(found, expected, "{name}, {round}: {prompt:?} {ids:?}");
        }
    }

    for (text, prompt) in TEXTS.iter().flat_map(|text| [(text, ""), (text, "x he")]) {
        let prompt = tokenizer.encode(prompt, false).unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        let said = found(tokenizer, &prompt, &ids, true);
        assert_eq!(said, expected(tokenizer, &prompt, &ids, true), "{name}: {text}");
        assert_eq!(said.concat(), tokenizer.decode_after(&prompt, &ids, true), "{name}: {text}");
    }
}

#[test]
fn the_text_is_that_of_the_librarys_stream() {
    check("byte level", &tokenizer(), 60);
    check("bytes, stripping", &stripping(), 60);
    check("bytes, metaspace", &metaspace(), 60);
    check("bytes, spaced", &spaced(), 60);
    check("word pieces", &word_piece(), 60);
    check("unigram", &unigram(), 60);
}

#[test]
fn characters_that_are_spelled_in_bytes_stand_beside_each_other() {
    let tokenizer = stripping();
    for text in TEXTS {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(found(&tokenizer, &[], &ids, true).concat(), *text);
    }
}

#[test]
fn the_first_space_of_a_reply_is_kept() {
    let tokenizer = stripping();
    let prompt = tokenizer.encode("x</s><s>", false).unwrap();
    let ids = tokenizer.encode("he a", false).unwrap();
    assert_eq!(found(&tokenizer, &prompt, &ids, true).concat(), " he a");
    assert_eq!(found(&tokenizer, &[1], &ids, true).concat(), "he a");
    assert_eq!(tokenizer.decode_after(&prompt, &ids, true), " he a");
}

#[test]
fn a_run_of_bytes_that_are_no_characters_is_bounded() {
    let tokenizer = stripping();
    let mut detokenizer = Detokenizer::after(&[], true);
    let byte = tokenizer.id("<0xFF>").unwrap();
    let text: String = (0..2000).map(|_| detokenizer.push(&tokenizer, byte)).collect();
    assert!(detokenizer.ids.len() <= Detokenizer::OPEN_IDS_MAX);
    assert!(text.chars().count() >= 1000);
}

/// The tokenizers that `tests/python/families/install.sh` fetches.
#[test]
fn the_text_is_that_of_the_librarys_stream_for_real_tokenizers() {
    let home = std::env::var_os("ROLLTAPE_FAMILIES_HOME").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/python/families/.fetched"),
        PathBuf::from,
    );
    let Ok(files) = std::fs::read_dir(home.join("tokenizers")) else { return };
    for file in files {
        let path = file.unwrap().path();
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        check(&path.display().to_string(), &tokenizer, 3);
    }
}
