//! An episode's reel: one log of all bytes that are new in its bodies, one of its token ids, and
//! what must be known of them to say of the next body or prompt what is new in it.
//!
//! Agents send their history again with every call. A body is stored as pieces of the reel, which
//! grows only by those stretches of it that are not there yet; a prompt as a parent's path and the
//! ids behind it. The bytes themselves are on disk; here are the hashes of the stretches, and the
//! newest bytes as the context that the next ones are compressed with.

use std::collections::{HashMap, VecDeque};

use episode::Ended;

use crate::cut::cut;
use crate::events::fold;
use crate::pack::{Packed, hash, hash_ids, pack};
use crate::paths::{Paths, Walked};
use crate::pieces::{Piece, append, common, encode};
use crate::trace::ChoicePath;
use crate::varint::push;

/// Bytes of a track that the next ones are compressed with.
const CONTEXT_BYTES: usize = 32 * 1024;
/// Bytes after which a segment stands alone, so that damage ends somewhere.
const RESET_BYTES: u64 = 1 << 20;
/// Requests whose pieces are remembered: one for each agent that is likely to go on.
const REQUESTS_MAX: usize = 4;
/// Bases in a row, above which all pieces of a body are written down.
const DEPTH_MAX: i64 = 32;

/// A body is pieces of the reel.
pub(crate) const PIECES: i64 = 2;
/// A body is pieces of the reel that are a folded stream of events.
pub(crate) const FOLDED: i64 = 3;

/// The log of bodies.
pub(crate) const TEXTS: i64 = 0;
/// The log of token ids.
pub(crate) const TOKENS: i64 = 1;

/// The writer's side of a reel.
#[derive(Debug)]
pub(crate) struct Reel {
    pub(crate) key: i64,
    texts: Track,
    tokens: Track,
    stretches: HashMap<[u8; 16], Piece>,
    requests: VecDeque<Request>,
    paths: Paths,
}

/// A log that grows.
#[derive(Debug, Default)]
pub(crate) struct Track {
    length: u64,
    since_reset: u64,
    newest: Vec<u8>,
}

/// A request that later ones may be like.
#[derive(Debug)]
struct Request {
    body_key: i64,
    depth: i64,
    pieces: Vec<Piece>,
}

/// What is to be added to a log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) track: i64,
    pub(crate) start: u64,
    pub(crate) length: usize,
    pub(crate) context: usize,
    pub(crate) packed: Packed,
}

/// A body as it is stored.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) segment: Option<Segment>,
    pub(crate) encoding: i64,
    pub(crate) base_key: Option<i64>,
    pub(crate) depth: i64,
    pub(crate) data: Vec<u8>,
    pub(crate) length: usize,
    pub(crate) hash: [u8; 16],
    pieces: Vec<Piece>,
}

/// The token ids of a call as they are stored.
#[derive(Debug)]
pub(crate) struct Ids {
    pub(crate) segment: Option<Segment>,
    pub(crate) prompts: Vec<Prompt>,
    /// Where the ids of each choice begin.
    pub(crate) choices: Vec<u64>,
}

/// A prompt as it is stored: a parent's path up to a token, and ids of the reel.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) walked: Walked,
    pub(crate) start: u64,
    pub(crate) hash: [u8; 16],
}

impl Reel {
    /// An empty one.
    pub(crate) fn new(key: i64) -> Self {
        Self {
            key,
            texts: Track::default(),
            tokens: Track::default(),
            stretches: HashMap::new(),
            requests: VecDeque::new(),
            paths: Paths::new(),
        }
    }

    /// Adds a body.
    pub(crate) fn body(&mut self, body: &[u8]) -> Body {
        let folded = fold(body);
        let (pieces, fresh) = self.place(folded.as_deref().unwrap_or(body));
        let base = self.requests.iter().max_by_key(|request| {
            let (lead, trail) = common(&pieces, &request.pieces);
            lead + trail
        });
        let base =
            base.filter(|base| base.depth < DEPTH_MAX && common(&pieces, &base.pieces).0 > 0);
        Body {
            segment: self.texts.append(TEXTS, &fresh),
            encoding: if folded.is_some() { FOLDED } else { PIECES },
            base_key: base.map(|base| base.body_key),
            depth: base.map_or(0, |base| base.depth + 1),
            data: encode(&pieces, base.map_or(&[], |base| &base.pieces)),
            length: body.len(),
            hash: hash(body),
            pieces,
        }
    }

    /// Lets later bodies be like this one, a request.
    pub(crate) fn remember(&mut self, body_key: i64, body: Body) {
        self.requests.retain(|known| Some(known.body_key) != body.base_key);
        self.requests.truncate(REQUESTS_MAX - 1);
        let (depth, pieces) = (body.depth, body.pieces);
        self.requests.push_front(Request { body_key, depth, pieces });
    }

    /// The pieces of `bytes`, and those bytes of it that are not in the reel yet.
    fn place(&mut self, mut bytes: &[u8]) -> (Vec<Piece>, Vec<u8>) {
        let (mut pieces, mut fresh) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let (stretch, rest) = bytes.split_at(cut(bytes));
            bytes = rest;
            let piece = *self.stretches.entry(hash(stretch)).or_insert_with(|| {
                let start = self.texts.length + fresh.len() as u64;
                fresh.extend_from_slice(stretch);
                Piece { start, length: stretch.len() as u64 }
            });
            append(&mut pieces, piece);
        }
        (pieces, fresh)
    }

    /// Adds the token ids of a call.
    pub(crate) fn ids(&mut self, ended: &Ended) -> Ids {
        let mut fresh = Vec::new();
        let mut run = |ids: &[u32]| {
            let start = self.tokens.length + fresh.len() as u64;
            ids.iter().for_each(|id| push(&mut fresh, u64::from(*id)));
            start
        };
        let prompts = ended.prompts.iter().map(|prompt| {
            let walked = self.paths.walk(prompt);
            let shared = walked.parent.map_or(0, |parent| parent.shared);
            Prompt { start: run(&prompt[shared..]), walked, hash: hash_ids(prompt) }
        });
        let prompts: Vec<_> = prompts.collect();
        let sampled = ended.choices.iter();
        let choices = sampled.map(|c| run(c.token_ids.as_deref().unwrap_or_default())).collect();
        Ids { segment: self.tokens.append(TOKENS, &fresh), prompts, choices }
    }

    /// Lets later prompts go on from the call with these ids.
    pub(crate) fn follow(&mut self, call_key: i64, ended: &Ended, ids: &Ids) {
        for choice in &ended.choices {
            let at = choice.prompt_index as usize;
            if let (Some(prompt), Some(stored)) = (ended.prompts.get(at), ids.prompts.get(at)) {
                let sampled = choice.token_ids.as_deref().unwrap_or_default();
                let choice = ((call_key, choice.index), stored.walked.depth());
                self.paths.add(choice, (&stored.walked, prompt.len()), sampled);
            }
        }
    }

    /// About how many bytes this occupies.
    pub(crate) fn weight(&self) -> usize {
        let pieces: usize = self.requests.iter().map(|request| request.pieces.capacity()).sum();
        size_of::<Self>()
            + self.texts.newest.capacity()
            + self.tokens.newest.capacity()
            + self.stretches.capacity() * (size_of::<([u8; 16], Piece)>() + 1)
            + pieces * size_of::<Piece>()
            + self.paths.weight()
    }

    /// Gives up what makes it compress well, for the sake of memory. Whole allocations are given
    /// up: what is left of one that shrank would leave holes that nothing fits.
    pub(crate) fn shrink(&mut self) {
        self.texts.newest = Vec::new();
        self.tokens.newest = Vec::new();
        self.requests.truncate(1);
    }
}

impl Track {
    /// Adds `fresh`, which is nothing to store when it is empty.
    fn append(&mut self, track: i64, fresh: &[u8]) -> Option<Segment> {
        if fresh.is_empty() {
            return None;
        }
        if self.since_reset > RESET_BYTES {
            self.since_reset = 0;
            self.newest.clear();
        }
        let (start, context) = (self.length, self.newest.len());
        let packed = pack(fresh, &self.newest);
        self.grow(fresh);
        Some(Segment { track, start, length: fresh.len(), context, packed })
    }

    fn grow(&mut self, fresh: &[u8]) {
        self.length += fresh.len() as u64;
        self.since_reset += fresh.len() as u64;
        let newest = &fresh[fresh.len().saturating_sub(CONTEXT_BYTES)..];
        let old = (self.newest.len() + newest.len()).saturating_sub(CONTEXT_BYTES);
        self.newest.drain(..old);
        if self.newest.len() + newest.len() > CONTEXT_BYTES / 2 {
            self.newest.reserve_exact(CONTEXT_BYTES - self.newest.len());
        }
        self.newest.extend_from_slice(newest);
    }

    fn restore(&mut self, fresh: &[u8], context: usize) {
        if context == 0 {
            (self.since_reset, self.newest) = (0, Vec::new());
        }
        self.grow(fresh);
    }
}

/// A reel as it was read back, to go on with.
impl Reel {
    /// Takes back a segment. What was cut when it was written is cut again at the same places.
    pub(crate) fn restore(&mut self, track: i64, mut fresh: &[u8], context: usize) {
        if track == TOKENS {
            return self.tokens.restore(fresh, context);
        }
        let mut start = self.texts.length;
        self.texts.restore(fresh, context);
        while !fresh.is_empty() {
            let (stretch, rest) = fresh.split_at(cut(fresh));
            fresh = rest;
            let piece = Piece { start, length: stretch.len() as u64 };
            start = piece.end();
            self.stretches.entry(hash(stretch)).or_insert(piece);
        }
    }

    /// Takes back a request, the newest last.
    pub(crate) fn restore_request(&mut self, body_key: i64, depth: i64, pieces: Vec<Piece>) {
        self.requests.truncate(REQUESTS_MAX - 1);
        self.requests.push_front(Request { body_key, depth, pieces });
    }

    /// Takes back the path of a choice.
    pub(crate) fn restore_path(&mut self, call_key: i64, path: &ChoicePath) {
        let walked = self.paths.walk(&path.prompt);
        let choice = ((call_key, path.choice), path.depth);
        self.paths.add(choice, (&walked, path.prompt.len()), &path.sampled);
    }
}
