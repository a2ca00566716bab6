//! An episode whose agent reads the files of this repository, one after the other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use episode::{
    CallEnd, CallId, CallStart, Choice, Fidelity, Lineage, Outcome, Route, Tag, TagSource,
    TokenCounts,
};
use serde_json::{Value, json};
use uuid::Uuid;

/// Characters that a tool gives and that the model says, a turn.
const TOOL_CHARS: usize = 2_900;
const SAID_CHARS: usize = 1_000;

/// One call, and what is new in it.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) begun: CallStart,
    pub(crate) ended: CallEnd,
    /// New messages' texts, the reply's included.
    pub(crate) text: String,
    /// New token ids, the reply's included.
    pub(crate) ids: Vec<u32>,
}

/// `count` turns of about 1,000 tokens each.
pub(crate) fn turns(count: usize, streamed: bool) -> Vec<Turn> {
    let mut files = Files::new();
    let mut vocabulary = Vocabulary::new(&files.text);
    let tools = tools(&files.take(6_000));
    let system = files.take(6_000);
    let mut messages = vec![json!({ "role": "system", "content": system })];
    let mut path = vocabulary.ids(&tools.to_string());
    let mut text = tools.to_string() + &system;
    path.extend(vocabulary.ids(&system));
    let mut ids = path.clone();
    let mut turns = Vec::new();
    for turn in 0..count {
        let heard = files.take(TOOL_CHARS);
        let role = if turn == 0 { "user" } else { "tool" };
        messages.push(
            json!({ "role": role, "tool_call_id": format!("call_{turn}"), "content": heard }),
        );
        let new = vocabulary.ids(&heard);
        path.extend(&new);
        ids.extend(new);
        text += &heard;
        let said = files.take(SAID_CHARS);
        let sampled = vocabulary.ids(&said);
        let begun = begun(turn, &messages, &tools);
        let ended =
            ended(&begun, (&said, &vocabulary.words), (path.clone(), sampled.clone()), streamed);
        text += &said;
        ids.extend(&sampled);
        path.extend(sampled);
        messages.push(json!({ "role": "assistant", "content": said }));
        turns.push(Turn {
            begun,
            ended,
            text: std::mem::take(&mut text),
            ids: std::mem::take(&mut ids),
        });
    }
    turns
}

fn tools(description: &str) -> Value {
    let tool = |name: &str, description: &str| {
        json!({ "type": "function", "function": {
            "name": name, "description": description,
            "parameters": { "type": "object", "properties": { "path": { "type": "string" } } },
        } })
    };
    json!([
        tool("read", description),
        tool("write", "Writes a file."),
        tool("run", "Runs a command.")
    ])
}

fn begun(turn: usize, messages: &[Value], tools: &Value) -> CallStart {
    let body = json!({
        "messages": messages, "model": "Qwen/Qwen3-8B", "stream": false,
        "temperature": 1.0, "tools": tools, "tool_choice": "auto",
    });
    CallStart {
        call_id: CallId(Uuid::now_v7()),
        tag: Tag {
            episode: "growth".parse().unwrap(),
            attempt: 0,
            group: Some("g".parse().unwrap()),
            task: None,
            labels: Vec::new(),
            source: TagSource::Path,
        },
        started_at: 1_790_000_000_000_000 + turn as i64 * 1_000_000,
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        route: Route::Chat,
        model: Some("Qwen/Qwen3-8B".to_owned()),
        request: body.to_string().into(),
        sampling: Some(r#"{"temperature":1.0}"#.to_owned()),
        lineage: Lineage::default(),
    }
}

fn ended(
    begun: &CallStart,
    (said, words): (&str, &[String]),
    (prompt, sampled): (Vec<u32>, Vec<u32>),
    streamed: bool,
) -> CallEnd {
    let id = format!("chatcmpl-{}", begun.call_id);
    let created = begun.started_at / 1_000_000;
    let usage =
        TokenCounts { prompt: Some(prompt.len() as u64), completion: Some(sampled.len() as u64) };
    let texts = sampled.iter().map(|id| words[*id as usize].as_str());
    let head = json!({ "id": id, "created": created, "model": "Qwen/Qwen3-8B" });
    let reply = if streamed { stream(&head, texts) } else { document(&head, said) };
    let logprobs = sampled
        .iter()
        .zip(0u64..)
        .map(|(id, at)| logprob(u64::from(*id) + (at << 32) + created as u64));
    let choice = Choice {
        index: 0,
        prompt_index: 0,
        logprobs: logprobs.collect(),
        token_ids: Some(sampled),
        finish_reason: Some("stop".to_owned()),
        stop_reason: None,
        versions: Vec::new(),
        fidelity: Fidelity::Exact,
        token_columns: Vec::new(),
    };
    CallEnd {
        first_byte_at: Some(begun.started_at + 50_000),
        status: Some(200),
        reply: reply.into(),
        model: Some("Qwen/Qwen3-8B".to_owned()),
        prompts: vec![prompt],
        choices: vec![choice],
        usage,
        logprob_kind: "processed".to_owned(),
        ..CallEnd::without_reply(begun.call_id, begun.started_at + 900_000, Outcome::Complete)
    }
}

fn stream<'a>(head: &Value, texts: impl Iterator<Item = &'a str>) -> String {
    let chunk = |delta: Value, reason: Option<&str>| {
        let mut chunk = head.clone();
        chunk["object"] = json!("chat.completion.chunk");
        chunk["choices"] = json!([{
            "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason,
            "token_ids": null,
        }]);
        format!("data: {chunk}\n\n")
    };
    let first = chunk(json!({ "role": "assistant", "content": "" }), None);
    let chunks: String = texts.map(|text| chunk(json!({ "content": text }), None)).collect();
    first + &chunks + &chunk(json!({}), Some("stop")) + "data: [DONE]\n\n"
}

fn document(head: &Value, said: &str) -> String {
    let mut document = head.clone();
    document["object"] = json!("chat.completion");
    document["choices"] = json!([{
        "index": 0, "message": { "role": "assistant", "content": said, "tool_calls": [] },
        "logprobs": null, "finish_reason": "stop", "token_ids": null,
    }]);
    document.to_string()
}

/// Mostly near zero, as a trained model's are: minus the cube of an exponential variable.
fn logprob(seed: u64) -> f32 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let uniform = ((x >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -(-uniform.ln()).powi(3) as f32 / 6.0
}

/// The files of the repository as one text.
struct Files {
    text: String,
    at: usize,
}

impl Files {
    fn new() -> Self {
        let mut paths = Vec::new();
        find(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut paths);
        paths.sort();
        let text = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        Self { text, at: 0 }
    }

    fn take(&mut self, chars: usize) -> String {
        let rest = &self.text[self.at..];
        let end = rest.char_indices().nth(chars).expect("the repository is long enough").0;
        self.at += end;
        rest[..end].to_owned()
    }
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir()
            && !name.starts_with('.')
            && !["target", "node_modules"].contains(&name.as_str())
        {
            find(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "md") {
            found.push(path);
        }
    }
}

/// Words, by frequency: the commonest is 0.
struct Vocabulary {
    ids: HashMap<String, u32>,
    words: Vec<String>,
}

impl Vocabulary {
    fn new(text: &str) -> Self {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        words(text).for_each(|word| *counts.entry(word).or_default() += 1);
        let mut words: Vec<_> = counts.into_iter().collect();
        words.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let words: Vec<String> = words.into_iter().map(|(word, _)| word.to_owned()).collect();
        let ids = words.iter().cloned().zip(0..).collect();
        Self { ids, words }
    }

    fn ids(&mut self, text: &str) -> Vec<u32> {
        let Self { ids, words: list } = self;
        let id = |word: &str| {
            *ids.entry(word.to_owned()).or_insert_with(|| {
                list.push(word.to_owned());
                list.len() as u32 - 1
            })
        };
        words(text).map(id).collect()
    }
}

/// A text as tokenizers cut it: a word with the space before it, at most six letters; signs alone.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut chars = rest.char_indices().skip(1).take(6);
        let end = chars.find(|(_, c)| !c.is_alphanumeric()).map(|(at, _)| at);
        let end =
            end.or_else(|| rest.char_indices().nth(7).map(|(at, _)| at)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}
