//! The writer's side of an episode's log: a track for the bytes of bodies, one for token ids.
//!
//! The bytes themselves are on disk. In memory are the hashes of the chunks, to find those that the
//! log holds already, and the newest bytes of each track, as the context that the next segment is
//! compressed with.

use std::collections::{HashMap, HashSet, VecDeque};

use episode::CallEnd;

use crate::encoding::pack::{Packed, hash, hash_ids, pack};
use crate::encoding::varint::push;
use crate::log::chunk::chunk_length;
use crate::log::extent::{Extent, SharedExtents, append, encode, shared};
use crate::log::fold::fold;
use crate::log::format::{BODIES, EXTENTS, FOLDED, TOKENS};
use crate::log::paths::{PathEnd, PathIndex, PromptMatch};
use crate::log::reader::DecodedSegment;
use crate::log::tokens::ChoicePath;

/// Bytes of a track that the next segment is compressed with.
const CONTEXT_BYTES: usize = 32 * 1024;
/// The context of a short segment, in its own lengths, and the least of it in bytes. Reading the
/// context costs more time than compressing the segment, and the newest of it helps most.
const CONTEXT_LENGTHS: usize = 8;
const SHORT_CONTEXT_BYTES: usize = 4 * 1024;
/// Bytes after which a segment is compressed without context, so that damage ends somewhere.
const RESET_BYTES: u64 = 1 << 20;
/// Requests whose extents are remembered: one for each agent that is likely to go on.
const REQUESTS_MAX: usize = 4;
/// Bases in a row, above which all extents of a body are written.
const DEPTH_MAX: i64 = 32;

/// The log of an episode.
#[derive(Debug)]
pub(crate) struct EpisodeLog {
    pub(crate) key: i64,
    bodies: Track,
    tokens: Track,
    /// The extent of each chunk, by the chunk's hash.
    chunks: HashMap<[u8; 16], Extent>,
    /// Requests that the next body may resemble, the newest first.
    requests: VecDeque<KnownRequest>,
    paths: PathIndex,
}

/// A sequence of bytes that only grows.
#[derive(Debug, Default)]
struct Track {
    length: u64,
    since_reset: u64,
    newest: Vec<u8>,
}

/// A request that is on disk.
#[derive(Debug)]
struct KnownRequest {
    body_key: i64,
    depth: i64,
    extents: Vec<Extent>,
}

/// Bytes that are added to a track.
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
pub(crate) struct EncodedBody {
    /// The new chunks, if there are any.
    pub(crate) segment: Option<Segment>,
    pub(crate) encoding: i64,
    pub(crate) base_key: Option<i64>,
    pub(crate) depth: i64,
    pub(crate) data: Vec<u8>,
    pub(crate) length: usize,
    pub(crate) hash: [u8; 16],
    extents: Vec<Extent>,
}

/// The token ids of a call as they are stored.
#[derive(Debug)]
pub(crate) struct EncodedTokens {
    /// The new ids, if there are any.
    pub(crate) segment: Option<Segment>,
    pub(crate) prompts: Vec<EncodedPrompt>,
    /// The byte of the track at which the ids of each choice begin.
    pub(crate) choices: Vec<u64>,
}

/// A prompt as it is stored: a parent's path up to a token, then ids of the track from byte `start`
/// on.
#[derive(Debug)]
pub(crate) struct EncodedPrompt {
    pub(crate) matched: PromptMatch,
    pub(crate) start: u64,
    pub(crate) hash: [u8; 16],
}

impl EpisodeLog {
    /// An empty log.
    pub(crate) fn new(key: i64) -> Self {
        Self {
            key,
            bodies: Track::default(),
            tokens: Track::default(),
            chunks: HashMap::new(),
            requests: VecDeque::new(),
            paths: PathIndex::new(),
        }
    }

    /// Adds a body.
    pub(crate) fn add_body(&mut self, body: &[u8]) -> EncodedBody {
        let folded = fold(body);
        let body_hash = hash(body);
        let known = folded.is_none().then_some(body_hash);
        let (extents, new_bytes) = self.locate(folded.as_deref().unwrap_or(body), known);

        let base = self
            .requests
            .iter()
            .map(|request| (request, shared(&extents, &request.extents)))
            .max_by_key(|(_, SharedExtents { lead, trail })| lead + trail)
            .filter(|(request, shared)| request.depth < DEPTH_MAX && shared.lead > 0)
            .map(|(request, _)| request);
        EncodedBody {
            segment: self.bodies.append(BODIES, &new_bytes),
            encoding: if folded.is_some() { FOLDED } else { EXTENTS },
            base_key: base.map(|base| base.body_key),
            depth: base.map_or(0, |base| base.depth + 1),
            data: encode(&extents, base.map_or(&[], |base| &base.extents)),
            length: body.len(),
            hash: body_hash,
            extents,
        }
    }

    /// The bytes of bodies that the log would hold with `body`. An estimate from above where that
    /// is not more than `bytes_max`.
    pub(crate) fn bytes_with(&self, body: &[u8], bytes_max: u64) -> u64 {
        let most = self.bodies.length + body.len() as u64;
        if most <= bytes_max {
            return most;
        }
        let (mut new_bytes, mut left, mut seen) = (0, body, HashSet::new());
        while !left.is_empty() {
            let (chunk, rest) = left.split_at(chunk_length(left));
            left = rest;
            let chunk_hash = hash(chunk);
            if !self.chunks.contains_key(&chunk_hash) && seen.insert(chunk_hash) {
                new_bytes += chunk.len() as u64;
            }
        }
        self.bodies.length + new_bytes
    }

    /// Lets later bodies be encoded against this one, a request.
    pub(crate) fn remember_request(&mut self, body_key: i64, body: EncodedBody) {
        // A request that was continued is not needed any more: this one begins like it.
        self.requests.retain(|known| Some(known.body_key) != body.base_key);
        let EncodedBody { depth, extents, .. } = body;
        self.push_request(KnownRequest { body_key, depth, extents });
    }

    fn push_request(&mut self, request: KnownRequest) {
        self.requests.truncate(REQUESTS_MAX - 1);
        self.requests.push_front(request);
    }

    /// The extents of `bytes`, and those of its bytes that the log does not hold yet. `known` is
    /// the hash of all of them, if it is known.
    fn locate(&mut self, bytes: &[u8], known: Option<[u8; 16]>) -> (Vec<Extent>, Vec<u8>) {
        let (mut extents, mut new_bytes) = (Vec::new(), Vec::new());
        let mut left = bytes;
        while !left.is_empty() {
            let (chunk, rest) = left.split_at(chunk_length(left));
            left = rest;
            // A short body is one chunk.
            let chunk_hash = known.filter(|_| chunk.len() == bytes.len());
            let chunk_hash = chunk_hash.unwrap_or_else(|| hash(chunk));
            let extent = *self.chunks.entry(chunk_hash).or_insert_with(|| {
                let start = self.bodies.length + new_bytes.len() as u64;
                new_bytes.extend_from_slice(chunk);
                Extent { start, length: chunk.len() as u64 }
            });
            append(&mut extents, extent);
        }
        (extents, new_bytes)
    }

    /// Adds the token ids of a call.
    pub(crate) fn add_tokens(&mut self, ended: &CallEnd) -> EncodedTokens {
        let mut new_bytes = Vec::new();
        let mut add_run = |ids: &[u32]| {
            let start = self.tokens.length + new_bytes.len() as u64;
            ids.iter().for_each(|id| push(&mut new_bytes, u64::from(*id)));
            start
        };

        let mut prompts = Vec::with_capacity(ended.prompts.len());
        for prompt in &ended.prompts {
            let matched = self.paths.find(prompt);
            let start = add_run(&prompt[matched.shared()..]);
            prompts.push(EncodedPrompt { matched, start, hash: hash_ids(prompt) });
        }
        let mut choices = Vec::with_capacity(ended.choices.len());
        for choice in &ended.choices {
            choices.push(add_run(choice.token_ids.as_deref().unwrap_or_default()));
        }

        EncodedTokens { segment: self.tokens.append(TOKENS, &new_bytes), prompts, choices }
    }

    /// Lets later prompts continue the choices of a call, whose ids were added as `tokens`.
    pub(crate) fn remember_paths(
        &mut self,
        call_key: i64,
        ended: &CallEnd,
        tokens: &EncodedTokens,
    ) {
        for choice in &ended.choices {
            let Some(prompt) = tokens.prompts.get(choice.prompt_index as usize) else { continue };
            let path = PathEnd {
                call_key,
                choice: choice.index,
                depth: prompt.matched.depth(),
                sampled: choice.token_ids.as_deref().unwrap_or_default(),
            };
            self.paths.add(&prompt.matched, path);
        }
    }

    /// The memory that this occupies, roughly, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let extents: usize = self.requests.iter().map(|request| request.extents.capacity()).sum();
        self.bodies.newest.capacity()
            + self.tokens.newest.capacity()
            + self.chunks.capacity() * (size_of::<([u8; 16], Extent)>() + 1)
            + extents * size_of::<Extent>()
            + self.paths.weight()
    }

    /// Frees memory at the cost of compression. Whole allocations are freed: what is left of one
    /// that shrank would leave holes that nothing fits.
    pub(crate) fn shrink(&mut self) {
        self.bodies.newest = Vec::new();
        self.tokens.newest = Vec::new();
        self.requests.truncate(1);
    }
}

impl Track {
    /// Adds bytes; there is no segment where there are none.
    fn append(&mut self, track: i64, bytes: &[u8]) -> Option<Segment> {
        if bytes.is_empty() {
            return None;
        }
        if self.since_reset > RESET_BYTES {
            self.since_reset = 0;
            self.newest.clear();
        }
        let start = self.length;
        let context = self.newest.len().min(context_length(bytes.len()));
        let packed = pack(bytes, &self.newest[self.newest.len() - context..]);
        self.grow(bytes);
        Some(Segment { track, start, length: bytes.len(), context, packed })
    }

    fn grow(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.since_reset += bytes.len() as u64;

        // The newest bytes slide through an allocation of at most `CONTEXT_BYTES`.
        let newest = &bytes[bytes.len().saturating_sub(CONTEXT_BYTES)..];
        let outdated = (self.newest.len() + newest.len()).saturating_sub(CONTEXT_BYTES);
        self.newest.drain(..outdated);
        if self.newest.len() + newest.len() > CONTEXT_BYTES / 2 {
            self.newest.reserve_exact(CONTEXT_BYTES - self.newest.len());
        }
        self.newest.extend_from_slice(newest);
    }

    fn restore(&mut self, bytes: &[u8], context: usize) {
        if context == 0 {
            (self.since_reset, self.newest) = (0, Vec::new());
        }
        self.grow(bytes);
    }
}

/// The longest context of a segment of `length` bytes.
fn context_length(length: usize) -> usize {
    length.saturating_mul(CONTEXT_LENGTHS).clamp(SHORT_CONTEXT_BYTES, CONTEXT_BYTES)
}

/// Restoring a log that was read back.
impl EpisodeLog {
    /// Takes back a segment. Its chunks are cut again at the same places.
    pub(crate) fn restore_segment(&mut self, segment: &DecodedSegment<'_>) {
        if segment.track == TOKENS {
            return self.tokens.restore(segment.bytes, segment.context);
        }
        let mut start = self.bodies.length;
        self.bodies.restore(segment.bytes, segment.context);

        let mut bytes = segment.bytes;
        while !bytes.is_empty() {
            let (chunk, rest) = bytes.split_at(chunk_length(bytes));
            bytes = rest;
            let extent = Extent { start, length: chunk.len() as u64 };
            start = extent.end();
            self.chunks.entry(hash(chunk)).or_insert(extent);
        }
    }

    /// Takes back a request. The newest comes last.
    pub(crate) fn restore_request(&mut self, body_key: i64, depth: i64, extents: Vec<Extent>) {
        self.push_request(KnownRequest { body_key, depth, extents });
    }

    /// Takes back the path of a choice.
    pub(crate) fn restore_path(&mut self, call_key: i64, path: &ChoicePath) {
        let matched = self.paths.find(&path.prompt);
        let ChoicePath { choice, depth, sampled, .. } = path;
        self.paths.add(&matched, PathEnd { call_key, choice: *choice, depth: *depth, sampled });
    }
}
