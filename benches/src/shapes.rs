//! The shapes of calls: what is asked, and what the upstream answers.

use std::fmt::Write;

/// Pause between the chunks of a paced stream, in milliseconds.
const PACE_MS: u64 = 20;
/// The same of a storm: 91 chunks in 9.1 s, as a busy engine samples.
const STORM_PACE_MS: u64 = 100;
/// Tokens of a prompt in a storm.
const STORM_PROMPT_TOKENS: usize = 120_000;

/// A shape of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    /// 1 KB in, 32 tokens out, whole.
    Small,
    /// 32 KB in, 8,192 prompt ids and 256 tokens with logprobs out, whole.
    Rollout,
    /// 50 chunks, 20 ms apart.
    Stream,
    /// 256 chunks as fast as they can be sent.
    Burst,
    /// 31 turns of one episode, up to a prompt of 99,000 tokens.
    History,
    /// A stream of 16.9 MB whose reader stalls.
    Stalled,
    /// Prompts of 120,000 tokens (480 KB), and replies of 90 tokens in 9 s.
    Storm,
}

impl Shape {
    /// Number of turns of one episode.
    pub(crate) fn turns(self) -> usize {
        match self {
            Self::History => 31,
            _ => 16,
        }
    }

    /// Number of turns that differ: those of a history that grows.
    pub(crate) fn distinct_turns(self) -> usize {
        match self {
            Self::History | Self::Storm => self.turns(),
            _ => 1,
        }
    }

    /// Pause between the pieces of a reply, in milliseconds.
    pub(crate) fn pace_ms(self) -> u64 {
        match self {
            Self::Stream => PACE_MS,
            Self::Storm => STORM_PACE_MS,
            _ => 0,
        }
    }

    /// The body of the request of a turn.
    pub(crate) fn request(self, turn: usize) -> Vec<u8> {
        let is_streamed = matches!(self, Self::Stream | Self::Burst | Self::Stalled | Self::Storm);
        let chars = match self {
            Self::Rollout => 32_000,
            Self::Storm => 4 * STORM_PROMPT_TOKENS,
            _ => 850,
        };
        let added_chars = if self == Self::Storm { 2_000 } else { 12_000 };
        let mut messages = message("system", &words(chars, 0));
        if self.distinct_turns() > 1 {
            for earlier in 0..turn {
                messages += ",";
                messages += &message("assistant", &words(400, 2 * earlier + 1));
                messages += ",";
                messages += &message("user", &words(added_chars, 2 * earlier + 2));
            }
        }
        format!(r#"{{"model":"m","stream":{is_streamed},"messages":[{messages}]}}"#).into_bytes()
    }

    /// The reply to a turn, as the pieces that the upstream sends.
    pub(crate) fn reply(self, turn: usize) -> Vec<Vec<u8>> {
        match self {
            Self::Small => vec![document(256, 32)],
            Self::Rollout => vec![document(8_192, 256)],
            Self::History => vec![document(3_200 * (turn + 1), 128)],
            Self::Stream => stream(256, 50, 12),
            Self::Burst => vec![stream(256, 256, 12).concat()],
            Self::Stalled => stream(256, 1_030, 16_000),
            Self::Storm => stream(STORM_PROMPT_TOKENS + 600 * turn, 90, 12),
        }
    }
}

fn message(role: &str, text: &str) -> String {
    format!(r#"{{"role":"{role}","content":"{text}"}}"#)
}

/// Text of `chars` characters that differs by `seed` and does not repeat.
fn words(chars: usize, seed: usize) -> String {
    let mut text = String::with_capacity(chars + 16);
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    while text.len() < chars {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let word = state >> 48;
        let _ = write!(text, "w{word:x} ");
    }
    text.truncate(chars);
    text
}

/// A whole reply of a chat with the ids of its prompt, and ids and logprobs of what was sampled.
fn document(prompt_tokens: usize, tokens: usize) -> Vec<u8> {
    let prompt = ids(prompt_tokens, 1);
    let sampled = ids(tokens, 7);
    let content = (0..tokens).map(logprob).collect::<Vec<_>>().join(",");

    let text = "word ".repeat(tokens);
    let message = message("assistant", &text);
    let choice =
        format!(r#"{{"index":0,"message":{message},"logprobs":{{"content":[{content}]}},"#)
            + &format!(r#""finish_reason":"stop","token_ids":[{sampled}]}}"#);
    let usage = format!(
        r#"{{"prompt_tokens":{prompt_tokens},"completion_tokens":{tokens},"total_tokens":{}}}"#,
        prompt_tokens + tokens
    );

    let body = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","#
        .to_owned()
        + &format!(r#""choices":[{choice}],"usage":{usage},"prompt_token_ids":[{prompt}]}}"#);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

fn ids(count: usize, seed: usize) -> String {
    let id = |at: usize| ((at * 7919 + seed * 104_729) % 150_000).to_string();
    (0..count).map(id).collect::<Vec<_>>().join(",")
}

fn logprob(at: usize) -> String {
    let value = (at * 37 % 1000) as f64 / 997.0;
    let entry = format!(r#""token":"word ","logprob":-{value:.6},"bytes":[119,111,114,100,32]"#);
    format!(r#"{{{entry},"top_logprobs":[{{{entry}}}]}}"#)
}

/// The head of a stream, its chunks of one token each, and its end.
fn stream(prompt_tokens: usize, chunks: usize, chars: usize) -> Vec<Vec<u8>> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let mut pieces = vec![head.as_bytes().to_vec()];
    for at in 0..chunks {
        let ids = if at == 0 {
            format!(r#","prompt_token_ids":[{}]"#, ids(prompt_tokens, 1))
        } else {
            String::new()
        };

        let text = "x".repeat(chars);
        let finish = if at + 1 == chunks { r#""stop""# } else { "null" };
        let content = logprob(at);
        let choice = format!(
            r#"{{"index":0,"delta":{{"content":"{text}"}},"logprobs":{{"content":[{content}]}},"#
        ) + &format!(r#""finish_reason":{finish},"token_ids":[{at}]}}"#);

        let event = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"#
            .to_owned()
            + &format!("\"model\":\"m\",\"choices\":[{choice}]{ids}}}\n\n");
        pieces.push(chunk(event.as_bytes()));
    }

    pieces.push([chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat());
    pieces
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
