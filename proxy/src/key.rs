//! API keys that name an episode: signed, so that nobody can make one up, and with an end.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use episode::{EpisodeId, Micros};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What such a key starts with.
const PREFIX: &str = "rt-";

type Signature = Hmac<Sha256>;

/// Makes keys and reads them.
#[derive(Clone)]
pub(crate) struct Signer(Vec<u8>);

/// A key that was not made here, was changed, or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadKey;

impl Signer {
    pub(crate) fn new(secret: Vec<u8>) -> Self {
        Self(secret)
    }

    /// A key for one attempt at an episode, good until `until`.
    pub(crate) fn mint(&self, episode: &EpisodeId, attempt: u32, until: Micros) -> String {
        let claim = format!("{episode} {attempt} {until}");
        let signature = self.signature(claim.as_bytes()).finalize().into_bytes();
        format!("{PREFIX}{}.{}", BASE64.encode(&claim), BASE64.encode(signature))
    }

    /// The attempt that `key` names; `None` when it is no key of this kind.
    pub(crate) fn read(&self, key: &str, now: Micros) -> Option<Result<(EpisodeId, u32), BadKey>> {
        let body = key.strip_prefix(PREFIX)?;
        Some(self.claim(body, now).ok_or(BadKey))
    }

    fn claim(&self, body: &str, now: Micros) -> Option<(EpisodeId, u32)> {
        let (claim, signature) = body.split_once('.')?;
        let claim = BASE64.decode(claim).ok()?;
        let signature = BASE64.decode(signature).ok()?;
        self.signature(&claim).verify_slice(&signature).ok()?;
        let claim = String::from_utf8(claim).ok()?;
        let mut parts = claim.split(' ');
        let (episode, attempt) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let until: Micros = parts.next()?.parse().ok()?;
        (now < until).then_some((episode, attempt))
    }

    fn signature(&self, claim: &[u8]) -> Signature {
        let mut signature =
            Signature::new_from_slice(&self.0).expect("HMAC takes a secret of any length");
        signature.update(claim);
        signature
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_made_here_are_read_and_only_while_they_last() {
        let signer = Signer::new(vec![7; 32]);
        let episode: EpisodeId = "run:1".parse().unwrap();
        let key = signer.mint(&episode, 3, 100);
        assert_eq!(signer.read(&key, 99), Some(Ok((episode.clone(), 3))));
        assert_eq!(signer.read(&key, 100), Some(Err(BadKey)));
        assert_eq!(Signer::new(vec![8; 32]).read(&key, 0), Some(Err(BadKey)));
        let forged = key.replace(&BASE64.encode("run:1 3 100"), &BASE64.encode("run:2 3 100"));
        assert_ne!(forged, key);
        for bad in [forged.as_str(), "rt-", "rt-a.b", &key[..key.len() - 2]] {
            assert_eq!(signer.read(bad, 0), Some(Err(BadKey)), "{bad}");
        }
        assert_eq!(signer.read("sk-123", 0), None);
    }
}
