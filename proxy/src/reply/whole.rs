//! Reading documents whole.

use std::pin::pin;

use bytes::Bytes;
use http::body::BoxError;
use http::body::coding::{Coding, DecodeError, decoded_bytes_max};
use http::body::request_body::RequestLimits;
use http::bounds::BODY_COPIES;
use http::clock::now;
use http::memory::MemoryLease;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Frame, Incoming};

use crate::error::CallError;
use crate::record::recording::Recording;
use crate::reply::opening::Beginning;

/// A document that was read whole.
pub(crate) struct WholeReply {
    pub(crate) bytes: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// A document that could not be read whole, with what was read before the error.
pub(crate) struct ReadFailure {
    pub(crate) read: Bytes,
    pub(crate) error: CallError,
}

/// Reads on and decodes a document of at most `bytes_max`.
pub(crate) async fn read_whole(
    beginning: Beginning,
    body: Incoming,
    coding: Coding,
    recording: &mut Recording,
    bytes_max: usize,
) -> Result<WholeReply, ReadFailure> {
    let mut body = pin!(body);
    let Beginning { coded: mut read, mut trailers, .. } = beginning;

    while let Some(frame) = body.frame().await {
        recording.add_arrival(now);
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => read.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return Err(ReadFailure::broken(read.freeze(), coding, error)),
        }
        if read.len() > bytes_max {
            return Err(CallError::ReplyTooLong(bytes_max).into());
        }
        recording.hold_beside(read.len() * BODY_COPIES);
        if let Some(memory) = recording.memory_mut() {
            memory.room().await.map_err(CallError::from)?;
        }
    }

    let work_memory = recording.memory_mut().map(|memory| memory.sibling());
    let bytes = decode_whole(coding, read.freeze(), bytes_max, work_memory).await?;
    recording.hold_beside(bytes.len() * BODY_COPIES);
    Ok(WholeReply { bytes, trailers })
}

/// Decodes a document. A coded one is decoded elsewhere: that can take long. `memory` stays with
/// the work, which goes on if the agent leaves.
async fn decode_whole(
    coding: Coding,
    read: Bytes,
    bytes_max: usize,
    mut memory: Option<MemoryLease>,
) -> Result<Bytes, ReadFailure> {
    if coding == Coding::Identity {
        return Ok(read);
    }
    let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
    if let Some(memory) = &mut memory {
        let decoded_max = decoded_bytes_max(read.len() as u64).min(limits.max);
        memory.hold(usize::try_from(decoded_max).unwrap_or(bytes_max));
        memory.room().await.map_err(CallError::from)?;
    }
    let coded = read.clone();
    let work = move || (coding.decode(&coded, limits), memory);

    let decoded = tokio::task::spawn_blocking(work).await.map(|(decoded, _memory)| decoded);
    decoded.unwrap_or(Err(DecodeError::Unknown)).map_err(|error| match error {
        DecodeError::TooLong | DecodeError::NotKept => CallError::ReplyTooLong(bytes_max).into(),
        DecodeError::TooDense(max) => CallError::ReplyTooDense(max).into(),
        DecodeError::Damaged(error) => ReadFailure::broken(read, coding, error),
        DecodeError::Unknown => ReadFailure::broken(read, coding, "its coding is not known"),
    })
}

impl From<CallError> for ReadFailure {
    fn from(error: CallError) -> Self {
        Self { read: Bytes::new(), error }
    }
}

impl ReadFailure {
    /// A document that broke off, with as much of it as can be decoded.
    pub(crate) fn broken(read: Bytes, coding: Coding, error: impl Into<BoxError>) -> Self {
        let decoded = coding.decoder(read.len()).and_then(|mut decoder| decoder.push(read).ok());
        let error = CallError::Broken(error.into().to_string());
        Self { read: decoded.unwrap_or_default(), error }
    }
}
