//! Thoughts in the place where OpenAI's server has them encrypted.
//!
//! Agents that keep nothing on a server ask for `reasoning.encrypted_content` and send it back as
//! they got it, and of the thoughts themselves some send nothing. So the thoughts travel there: a
//! name with a version, then base64 of a checksum and the text. Nothing is remembered, any process
//! reads what another one wrote.
//!
//! It hides nothing and proves nothing. Who makes one up puts words into its own prompt, which it
//! could do with `content` as well; the checksum is there to tell what was cut or changed on the
//! way, so that no half of a thought is sent on.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What ours begin with. Another form of what follows would be another number.
const MARK: &str = "rolltape-thoughts-1.";

/// Bytes of the checksum.
const SUM_BYTES: usize = 8;

/// The thoughts as an opaque text.
pub(super) fn seal(thoughts: &str) -> String {
    let bytes = [&sum(thoughts.as_bytes()).to_be_bytes()[..], thoughts.as_bytes()].concat();
    format!("{MARK}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// The thoughts in a text of [`seal`]; `None` for what another server wrote, and for one that is
/// not whole.
pub(super) fn unseal(sealed: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(MARK)?).ok()?;
    let (said, thoughts) = bytes.split_first_chunk::<SUM_BYTES>()?;
    let is_whole = u64::from_be_bytes(*said) == sum(thoughts);
    is_whole.then(|| String::from_utf8(thoughts.to_vec()).ok()).flatten()
}

/// FNV-1a over 64 bits.
fn sum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(sum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(sum(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(sum(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn thoughts_come_back_as_they_were() {
        for thoughts in ["", "hm", "a\n\"b\" \u{e9}\u{1f600}\0", &"long ".repeat(10_000)] {
            let sealed = seal(thoughts);
            assert_eq!(unseal(&sealed).as_deref(), Some(thoughts));
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            assert!(sealed.chars().all(plain), "it needs no escaping anywhere");
        }
    }

    #[test]
    fn what_is_not_ours_or_not_whole_is_nothing() {
        let sealed = seal("let me see");
        for end in 0..sealed.len() {
            assert_eq!(unseal(&sealed[..end]), None, "{end}");
        }
        for at in MARK.len()..sealed.len() {
            let mut other = sealed.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(unseal(&String::from_utf8(other).unwrap()), None, "{at}");
        }
        let later = sealed.replace("-1.", "-2.");
        for other in ["", "gAAAAABo", "rolltape-thoughts-1.", "rolltape-thoughts-1.!", &later] {
            assert_eq!(unseal(other), None, "{other}");
        }
    }
}
