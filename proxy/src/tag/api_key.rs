//! API keys that name an attempt. A key is signed, so that nobody else can make one, and expires.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use episode::{EpisodeId, Micros};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::record::attempts::AttemptKey;

/// The prefix of every such key.
const PREFIX: &str = "rt-";

type Signature = Hmac<Sha256>;

/// Makes and verifies keys with the secret of the store.
#[derive(Clone)]
pub(crate) struct KeySigner(Vec<u8>);

/// A key that was made elsewhere, was changed, or has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidKey;

impl KeySigner {
    pub(crate) fn new(secret: Vec<u8>) -> Self {
        Self(secret)
    }

    /// A key for one attempt at an episode, valid until `expires_at`.
    pub(crate) fn sign(&self, episode: &EpisodeId, attempt: u32, expires_at: Micros) -> String {
        let claim = format!("{episode} {attempt} {expires_at}");
        let signature = self.signature(claim.as_bytes()).finalize().into_bytes();
        format!("{PREFIX}{}.{}", BASE64.encode(&claim), BASE64.encode(signature))
    }

    /// The attempt that `key` names; `None` if it is not a key of this kind.
    pub(crate) fn verify(&self, key: &str, now: Micros) -> Option<Result<AttemptKey, InvalidKey>> {
        let body = key.strip_prefix(PREFIX)?;
        Some(self.verified_claim(body, now).ok_or(InvalidKey))
    }

    fn verified_claim(&self, body: &str, now: Micros) -> Option<AttemptKey> {
        let (claim, signature) = body.split_once('.')?;
        let claim = BASE64.decode(claim).ok()?;
        self.signature(&claim).verify_slice(&BASE64.decode(signature).ok()?).ok()?;

        let mut parts = str::from_utf8(&claim).ok()?.split(' ');
        let attempt = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let expires_at: Micros = parts.next()?.parse().ok()?;
        (now < expires_at).then_some(attempt)
    }

    fn signature(&self, claim: &[u8]) -> Signature {
        let mut signature =
            Signature::new_from_slice(&self.0).expect("HMAC takes a secret of any length");
        signature.update(claim);
        signature
    }
}

impl std::fmt::Debug for KeySigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySigner")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_made_here_are_read_and_only_while_they_last() {
        let signer = KeySigner::new(vec![7; 32]);
        let episode: EpisodeId = "run:1".parse().unwrap();
        let key = signer.sign(&episode, 3, 100);
        assert_eq!(signer.verify(&key, 99), Some(Ok((episode.clone(), 3))));
        assert_eq!(signer.verify(&key, 100), Some(Err(InvalidKey)));
        assert_eq!(KeySigner::new(vec![8; 32]).verify(&key, 0), Some(Err(InvalidKey)));
        let forged = key.replace(&BASE64.encode("run:1 3 100"), &BASE64.encode("run:2 3 100"));
        assert_ne!(forged, key);
        for bad in [forged.as_str(), "rt-", "rt-a.b", &key[..key.len() - 2]] {
            assert_eq!(signer.verify(bad, 0), Some(Err(InvalidKey)), "{bad}");
        }
        assert_eq!(signer.verify("sk-123", 0), None);
    }
}
