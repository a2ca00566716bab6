//! Reasoning in the place where OpenAI's server has it encrypted.
//!
//! Agents that store nothing on a server ask for `reasoning.encrypted_content` and send it back
//! unchanged. Some send nothing else of the reasoning. So the text travels in this field: a name
//! with a version, then base64 of a checksum and the text. No state is needed: any process reads
//! what another one wrote.
//!
//! The field hides nothing and proves nothing. An agent that makes one up puts words into its own
//! prompt, which it could do with `content` as well. The checksum finds fields that were cut or
//! changed on the way, so that no half of the reasoning is used.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The start of our fields. The number is the version of the format behind it.
const MARK: &str = "rolltape-thoughts-1.";

/// Length of the checksum.
const SUM_BYTES: usize = 8;

/// The reasoning as an opaque text.
pub(super) fn seal(text: &str) -> String {
    let bytes = [&checksum(text.as_bytes()).to_be_bytes()[..], text.as_bytes()].concat();
    format!("{MARK}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// The reasoning in a text of [`seal`]; `None` if another server wrote the text, or if it was
/// changed.
pub(super) fn unseal(sealed: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(MARK)?).ok()?;
    let (sum, text) = bytes.split_first_chunk::<SUM_BYTES>()?;
    let is_unchanged = u64::from_be_bytes(*sum) == checksum(text);
    is_unchanged.then(|| String::from_utf8(text.to_vec()).ok()).flatten()
}

/// FNV-1a over 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(checksum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(checksum(b"foobar"), 0x8594_4171_f739_67e8);
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
