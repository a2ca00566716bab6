//! API keys that name an attempt. A key is signed, so that nobody else can make one, and expires.
//!
//! The secrets that sign are kept outside the store, in a place that several processes may share.
//! The newest one signs. Older ones verify until they end.

use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use episode::{AttemptId, Micros};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::bounds::{SIGNING_SECRETS_AGE_MAX, SIGNING_SECRETS_MAX};
use crate::config::signing_secrets::SigningSecretPlace;

/// The prefix of every such key.
pub(super) const PREFIX: &str = "rt-";

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Bytes of the hash that is a key's id.
const ID_BYTES: usize = 8;

type Signature = Hmac<Sha256>;

/// Makes and verifies keys.
pub(crate) struct KeySigner {
    place: Option<Arc<dyn SigningSecretPlace>>,
    secrets: Mutex<ReadSecrets>,
}

/// The secrets, the newest first, and the time at which they were read.
struct ReadSecrets {
    secrets: Vec<Secret>,
    read_at: Instant,
}

/// A secret that signs, or that signed until a newer one took its place.
#[derive(Clone)]
struct Secret {
    bytes: Vec<u8>,
    /// The time from which its keys are refused.
    ends_at: Option<Micros>,
}

/// A key that was made elsewhere, was changed, or has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidKey;

/// A key that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedKey {
    pub(crate) attempt: AttemptId,
    /// The hash of what it says.
    pub(crate) id: String,
}

impl KeySigner {
    /// A signer with the secrets of `place`. If it has none, it gets `old`, or else a new one.
    ///
    /// # Errors
    /// An error if the place cannot be used.
    pub(crate) fn open(
        place: Option<Arc<dyn SigningSecretPlace>>,
        old: Option<Vec<u8>>,
    ) -> io::Result<Self> {
        let bytes = match old {
            Some(old) => old,
            None => random_bytes()?,
        };
        let mut secrets = vec![Secret { bytes, ends_at: None }];
        if let Some(place) = &place {
            place.create(&text_of(&secrets))?;
            secrets = read_secrets(place.as_ref())?;
        }
        let secrets = Mutex::new(ReadSecrets { secrets, read_at: Instant::now() });
        Ok(Self { place, secrets })
    }

    /// A key for one attempt at an episode, valid until `expires_at`, and its id.
    pub(crate) fn sign(&self, attempt: &AttemptId, expires_at: Micros) -> (String, String) {
        let claim = format!("{} {} {expires_at}", attempt.episode, attempt.attempt);
        let signature = match self.current().secrets.first() {
            Some(secret) => secret.signature(claim.as_bytes()).finalize().into_bytes(),
            // There is always one.
            None => Default::default(),
        };
        let key = format!("{PREFIX}{}.{}", BASE64.encode(&claim), BASE64.encode(signature));
        (key, id_of(claim.as_bytes()))
    }

    /// The key that `text` is; `None` if it is not of this kind.
    pub(crate) fn verify(&self, text: &str, now: Micros) -> Option<Result<SignedKey, InvalidKey>> {
        let body = text.strip_prefix(PREFIX)?;
        Some(self.verified_claim(body, now).ok_or(InvalidKey))
    }

    /// Signs with a new secret from now on. Keys of the earlier ones hold until `ends_at`.
    ///
    /// # Errors
    /// An error if the new secret cannot be kept.
    pub(crate) fn rotate(&self, now: Micros, ends_at: Micros) -> io::Result<()> {
        let newest = Secret { bytes: random_bytes()?, ends_at: None };
        let mut current = self.current();
        let mut secrets = rotated(newest.clone(), &current.secrets, now, ends_at);
        if let Some(place) = &self.place {
            place.update(&mut |content| {
                // Another process may have rotated them since they were read.
                let held = parse_secrets(&content.unwrap_or_default())?;
                secrets = rotated(newest.clone(), &held, now, ends_at);
                Ok(text_of(&secrets))
            })?;
        }
        *current = ReadSecrets { secrets, read_at: Instant::now() };
        Ok(())
    }

    fn verified_claim(&self, body: &str, now: Micros) -> Option<SignedKey> {
        let (claim, signature) = body.split_once('.')?;
        let (claim, signature) = (BASE64.decode(claim).ok()?, BASE64.decode(signature).ok()?);
        let is_signed = self
            .current()
            .secrets
            .iter()
            .filter(|secret| secret.holds(now))
            .any(|secret| secret.signature(&claim).verify_slice(&signature).is_ok());
        if !is_signed {
            return None;
        }

        let mut parts = str::from_utf8(&claim).ok()?.split(' ');
        let (episode, attempt) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let expires_at: Micros = parts.next()?.parse().ok()?;
        (now < expires_at)
            .then(|| SignedKey { attempt: AttemptId { episode, attempt }, id: id_of(&claim) })
    }

    /// The secrets, read again if they are old: another process may have rotated them.
    fn current(&self) -> MutexGuard<'_, ReadSecrets> {
        let mut current = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = &self.place
            && current.read_at.elapsed() > SIGNING_SECRETS_AGE_MAX
        {
            current.read_at = Instant::now();
            match read_secrets(place.as_ref()) {
                Ok(secrets) => current.secrets = secrets,
                Err(error) => tracing::error!(%error, "the signing secrets cannot be read again"),
            }
        }
        current
    }
}

impl Secret {
    fn holds(&self, now: Micros) -> bool {
        self.ends_at.is_none_or(|ends_at| now < ends_at)
    }

    fn signature(&self, claim: &[u8]) -> Signature {
        let mut signature =
            Signature::new_from_slice(&self.bytes).expect("HMAC takes a secret of any length");
        signature.update(claim);
        signature
    }
}

/// The secrets after a new one took the place of those that were held. These end at `ends_at`, or
/// earlier.
fn rotated(newest: Secret, held: &[Secret], now: Micros, ends_at: Micros) -> Vec<Secret> {
    let earlier = held.iter().map(|secret| Secret {
        ends_at: Some(secret.ends_at.map_or(ends_at, |earlier| earlier.min(ends_at))),
        ..secret.clone()
    });
    let mut secrets = vec![newest];
    secrets.extend(earlier.filter(|secret| secret.holds(now)));
    secrets.truncate(SIGNING_SECRETS_MAX);
    secrets
}

/// The id of a key, which tells nothing of its signature.
fn id_of(claim: &[u8]) -> String {
    Sha256::digest(claim).iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Secrets as text: one a line, the newest first, older ones with the time at which they end.
fn text_of(secrets: &[Secret]) -> String {
    let mut text = String::new();
    for secret in secrets {
        text += &BASE64.encode(&secret.bytes);
        if let Some(ends_at) = secret.ends_at {
            text += &format!(" {ends_at}");
        }
        text.push('\n');
    }
    text
}

fn read_secrets(place: &dyn SigningSecretPlace) -> io::Result<Vec<Secret>> {
    parse_secrets(&place.read()?.unwrap_or_default())
}

fn parse_secrets(text: &str) -> io::Result<Vec<Secret>> {
    let secrets: Option<Vec<Secret>> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut parts = line.split_whitespace();
            let bytes = BASE64.decode(parts.next()?).ok()?;
            let ends_at = parts.next().map(str::parse).transpose().ok()?;
            (bytes.len() >= SECRET_BYTES / 2).then_some(Secret { bytes, ends_at })
        })
        .collect();
    let unusable = || io::Error::new(io::ErrorKind::InvalidData, "it holds no signing secret");
    secrets.filter(|secrets| !secrets.is_empty()).ok_or_else(unusable)
}

fn random_bytes() -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; SECRET_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl std::fmt::Debug for KeySigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySigner")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::signing_secrets::SecretChange;

    fn signer(byte: u8) -> KeySigner {
        KeySigner::open(None, Some(vec![byte; 32])).unwrap()
    }

    /// A place in memory.
    #[derive(Debug, Default)]
    struct Memory(Mutex<Option<String>>);

    impl SigningSecretPlace for Memory {
        fn read(&self) -> io::Result<Option<String>> {
            Ok(self.0.lock().unwrap().clone())
        }

        fn create(&self, content: &str) -> io::Result<()> {
            self.0.lock().unwrap().get_or_insert_with(|| content.to_owned());
            Ok(())
        }

        fn update(&self, change: &mut SecretChange<'_>) -> io::Result<()> {
            let mut held = self.0.lock().unwrap();
            *held = Some(change(held.clone())?);
            Ok(())
        }
    }

    #[test]
    fn only_keys_made_here_are_read_and_only_while_they_last() {
        let signer = signer(7);
        let attempt: AttemptId = "run:1/3".parse().unwrap();
        let (key, id) = signer.sign(&attempt, 100);
        let signed = SignedKey { attempt, id };
        assert_eq!(signer.verify(&key, 99), Some(Ok(signed)));
        assert_eq!(signer.verify(&key, 100), Some(Err(InvalidKey)));
        assert_eq!(super::tests::signer(8).verify(&key, 0), Some(Err(InvalidKey)));
        let forged = key.replace(&BASE64.encode("run:1 3 100"), &BASE64.encode("run:2 3 100"));
        assert_ne!(forged, key);
        for bad in [forged.as_str(), "rt-", "rt-a.b", &key[..key.len() - 2]] {
            assert_eq!(signer.verify(bad, 0), Some(Err(InvalidKey)), "{bad}");
        }
        assert_eq!(signer.verify("sk-123", 0), None);
    }

    #[test]
    fn keys_of_an_earlier_secret_end_at_the_time_given() {
        let signer = signer(7);
        let attempt = "e/0".parse().unwrap();
        let (old, _) = signer.sign(&attempt, 1_000);
        signer.rotate(10, 50).unwrap();
        let (new, _) = signer.sign(&attempt, 1_000);
        assert!(signer.verify(&old, 49).unwrap().is_ok());
        assert!(signer.verify(&old, 50).unwrap().is_err());
        assert!(signer.verify(&new, 999).unwrap().is_ok());
        signer.rotate(20, 900).unwrap();
        assert!(signer.verify(&old, 60).unwrap().is_err(), "a time that was given is not extended");
    }

    #[test]
    fn the_secrets_of_a_place_outlive_their_process() {
        let place: Arc<Memory> = Arc::default();
        let open = |old| KeySigner::open(Some(Arc::clone(&place) as _), old).unwrap();
        let attempt = "e/0".parse().unwrap();
        let first = open(Some(vec![7; 32]));
        let (key, _) = first.sign(&attempt, 1_000);
        assert!(open(None).verify(&key, 0).unwrap().is_ok());
        assert!(
            open(Some(vec![8; 32])).verify(&key, 0).unwrap().is_ok(),
            "the first content stays"
        );
        first.rotate(10, 50).unwrap();
        assert!(open(None).verify(&key, 49).unwrap().is_ok());
        assert!(open(None).verify(&key, 50).unwrap().is_err());
        // Two processes that rotate within a second keep each other's secret.
        let (one, other) = (open(None), open(None));
        one.rotate(60, 500).unwrap();
        let (key, _) = one.sign(&attempt, 1_000);
        other.rotate(61, 500).unwrap();
        assert!(open(None).verify(&key, 70).unwrap().is_ok());
        place.update(&mut |_| Ok("nonsense".to_owned())).unwrap();
        assert!(KeySigner::open(Some(Arc::clone(&place) as _), None).is_err());
    }
}
