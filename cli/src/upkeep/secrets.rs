//! Secrets in texts: their forms, the rules of a user, and values that are known to be secret.

mod encoded;
mod forms;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use regex::bytes::{Regex, RegexBuilder};

use self::encoded::{JSON_ESCAPES, each_decoded};
use self::forms::FORMS;
use crate::exit::Failure;

/// Ids in front of others that are read with them: a secret may begin in them.
pub(super) const IDS_AGAIN: usize = 128;
/// Texts of which one takes the place of a secret's tokens: the first that is one token.
pub(super) const FILLERS: [&str; 4] = ["*", "x", "X", "."];
/// Characters of a secret that are told, so that its owner knows it again.
const TOLD_CHARS: usize = 8;
/// Fewest bytes of a secret that is looked for by its value alone, where no form says that it is
/// one. A password in a URL may be a usual word.
const VALUE_BYTES_MIN: usize = 12;
/// Fewest bytes at the end of a text that are taken for the beginning of a secret, and the same at
/// its beginning.
const CUT_BYTES_MIN: usize = 8;
/// Bytes that the programs of all forms may take.
const PROGRAM_BYTES_MAX: usize = 256 << 20;
/// Encodings in each other that are read, such as base64 of base64.
const ENCODINGS_MAX: usize = 3;
/// The kind of what `--match` finds.
const MATCHED: &str = "match";
/// The kind of what a user names by its place.
pub(super) const NAMED: &str = "span";

/// Rules beside the forms of usual services.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Secrets")]
pub(crate) struct RuleArgs {
    /// Regular expression of a further secret; repeatable
    ///
    /// If it has a group, the first group is the secret.
    #[arg(long = "match", value_name = "REGEX")]
    matches: Vec<String>,
    /// File of further rules, one a line: NAME: REGEX
    ///
    /// Empty lines and those that begin with # are left out.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

/// Finds secrets.
#[derive(Debug)]
pub(super) struct SecretFinder {
    /// All forms, each a group of its own.
    forms: Regex,
    groups: Vec<FormGroup>,
    /// Secrets that were found elsewhere, with their kinds.
    values: BTreeMap<Vec<u8>, String>,
    /// Any of `values`.
    any_value: Option<Regex>,
}

/// The groups of one form in the expression of all.
#[derive(Debug)]
struct FormGroup {
    kind: String,
    whole: usize,
    /// The group inside that is the secret; without one it is the whole.
    secret: Option<usize>,
}

/// A secret at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretSpan {
    pub(super) kind: String,
    /// Its bytes in the text.
    pub(super) range: Range<usize>,
}

/// A secret with what says that it is one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundSecret {
    pub(super) kind: String,
    pub(super) secret: Vec<u8>,
}

impl RuleArgs {
    /// A finder of the usual forms and of these rules.
    ///
    /// # Errors
    /// [`Failure`] when a rule cannot be read.
    pub(super) fn finder(&self) -> Result<SecretFinder, Failure> {
        let mut rules: Vec<(String, String)> =
            self.matches.iter().map(|form| (MATCHED.to_owned(), form.clone())).collect();
        if let Some(path) = &self.rules {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Failure::of(&e).context(&format!("--rules {}", path.display())))?;
            rules.extend(rules_of(&text)?);
        }
        for (_, form) in &rules {
            let rule = Regex::new(form).map_err(|error| {
                Failure::new(format!("`{form}` is no regular expression: {error}"))
            })?;
            if rule.is_match(b"") {
                return Err(Failure::new(format!("`{form}` matches an empty text")));
            }
        }
        SecretFinder::with(&rules)
    }
}

/// The rules of a file, with their names.
fn rules_of(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(at, line)| match line.split_once(": ") {
            Some((name, form)) if !name.contains(['\\', '[', '(']) => {
                Ok((name.trim().to_owned(), form.trim().to_owned()))
            }
            _ => Err(Failure::new(format!("line {at} of --rules has no name"))
                .hint("write each as NAME: REGEX, such as `ticket: TICKET-[0-9]{4,}`")),
        })
        .collect()
}

impl SecretFinder {
    /// A finder of the usual forms alone.
    ///
    /// # Errors
    /// [`Failure`] never, as the tests of the forms show.
    pub(super) fn usual() -> Result<Self, Failure> {
        Self::with(&[])
    }

    fn with(rules: &[(String, String)]) -> Result<Self, Failure> {
        // Without Unicode a boundary is one of ASCII, as in keys.
        let usual = FORMS.iter().map(|(kind, form)| (*kind, format!("(?-u:{form})")));
        let rules = rules.iter().map(|(kind, form)| (kind.as_str(), form.clone()));

        let (mut groups, mut parts, mut next) = (Vec::new(), Vec::new(), 1);
        for (kind, form) in rules.chain(usual) {
            let alone = Regex::new(&form).map_err(|error| Failure::of(&error))?;
            let inner = alone.captures_len() - 1;
            let secret = (inner > 0).then_some(next + 1);
            groups.push(FormGroup { kind: kind.to_owned(), whole: next, secret });
            parts.push(format!("({form})"));
            next += 1 + inner;
        }
        Ok(Self { forms: program(&parts)?, groups, values: BTreeMap::new(), any_value: None })
    }

    /// The same, which also finds these secrets by their values, wherever they stand, unless they
    /// are short.
    ///
    /// # Errors
    /// [`Failure`] when they are too many for one program.
    pub(super) fn knowing(mut self, found: BTreeMap<Vec<u8>, String>) -> Result<Self, Failure> {
        let mut values = found;
        values.retain(|value, kind| value.len() >= VALUE_BYTES_MIN || kind == NAMED);
        // Of those that begin at one place the longest is found.
        let mut longest_first: Vec<&[u8]> = values.keys().map(Vec::as_slice).collect();
        longest_first.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let literals: Vec<String> = longest_first.into_iter().map(literal).collect();

        self.any_value = if literals.is_empty() { None } else { Some(program(&literals)?) };
        self.values = values;
        Ok(self)
    }

    /// The secrets of a text by their forms, with what says that they are.
    pub(super) fn find(&self, text: &[u8]) -> Vec<FoundSecret> {
        let found = self.formed(text).into_iter();
        found.map(|(span, secret)| FoundSecret { kind: span.kind, secret }).collect()
    }

    /// The secrets of a text, with their kinds.
    pub(super) fn values_of(&self, text: &[u8]) -> Vec<(Vec<u8>, String)> {
        let found = self.formed(text).into_iter();
        found.map(|(span, _)| (text[span.range].to_vec(), span.kind)).collect()
    }

    /// All secrets of a text, whole or cut off at one of its ends; in order, none in another.
    pub(super) fn spans(&self, text: &[u8]) -> Vec<SecretSpan> {
        let mut spans: Vec<SecretSpan> =
            self.formed(text).into_iter().map(|(span, _)| span).collect();
        if let Some(any) = &self.any_value {
            let kind_of = |value: &[u8]| self.values.get(value).cloned().unwrap_or_default();
            spans.extend(
                any.find_iter(text).map(|found| SecretSpan {
                    kind: kind_of(found.as_bytes()),
                    range: found.range(),
                }),
            );
        }
        spans.extend(self.values.iter().flat_map(|(value, kind)| cut_off(text, value, kind)));
        joined(spans)
    }

    /// True if the bytes hold a secret by its value.
    pub(super) fn holds_value(&self, bytes: &[u8]) -> bool {
        self.any_value.as_ref().is_some_and(|any| any.is_match(bytes))
    }

    /// The secrets of a text by their forms alone, each with the bytes that say that it is one.
    /// The span of an encoded one is that of the code; these bytes are decoded.
    fn formed(&self, text: &[u8]) -> Vec<(SecretSpan, Vec<u8>)> {
        let mut found = self.plain(text);
        self.add_encoded(text, ENCODINGS_MAX, &mut found);
        found
    }

    fn add_encoded(&self, text: &[u8], depth: usize, found: &mut Vec<(SecretSpan, Vec<u8>)>) {
        each_decoded(text, |decoded| {
            let mut inside = self.plain(&decoded.bytes);
            if depth > 1 {
                self.add_encoded(&decoded.bytes, depth - 1, &mut inside);
            }
            for (SecretSpan { kind, range }, secret) in inside {
                let range = decoded.source(&range);
                let is_known = |(known, _): &(SecretSpan, Vec<u8>)| {
                    known.range.start < range.end && range.start < known.range.end
                };
                if !found.iter().any(is_known) {
                    let kind = format!("{kind} in {}", decoded.form);
                    found.push((SecretSpan { kind, range }, secret));
                }
            }
        });
    }

    /// The secrets of a text that stand there as they are.
    fn plain(&self, text: &[u8]) -> Vec<(SecretSpan, Vec<u8>)> {
        let found = self.forms.captures_iter(text);
        found
            .filter_map(|captures| {
                let form = self.groups.iter().find(|form| captures.get(form.whole).is_some())?;
                let whole = captures.get(form.whole)?.range();
                let secret = form.secret.and_then(|group| captures.get(group));
                let range = secret.map_or(whole.clone(), |secret| secret.range());
                Some((SecretSpan { kind: form.kind.clone(), range }, text[whole].to_vec()))
            })
            .filter(|(span, _)| !is_taken_out(&text[span.range.clone()]))
            .collect()
    }
}

/// True for what takes the place of a secret in ids and bytes: one filler again and again.
fn is_taken_out(secret: &[u8]) -> bool {
    FILLERS.iter().any(|filler| secret.iter().all(|byte| [*byte] == filler.as_bytes()))
}

/// One program of alternatives, of which an earlier one precedes a later one.
fn program(parts: &[String]) -> Result<Regex, Failure> {
    let built = RegexBuilder::new(&parts.join("|")).size_limit(PROGRAM_BYTES_MAX).build();
    built.map_err(|error| Failure::of(&error).context("the rules for secrets"))
}

/// The expression of just these bytes.
fn literal(bytes: &[u8]) -> String {
    let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("(?-u:{bytes})")
}

/// The places at the ends of a text where a secret is that goes on beyond it.
fn cut_off(text: &[u8], secret: &[u8], kind: &str) -> Vec<SecretSpan> {
    let most = text.len().min(secret.len().saturating_sub(1));
    let lengths = || (CUT_BYTES_MIN..=most).rev();
    let at_end = lengths().find(|length| text.ends_with(&secret[..*length]));
    let at_start = lengths().find(|length| text.starts_with(&secret[secret.len() - length..]));

    let ranges =
        [at_start.map(|length| 0..length), at_end.map(|length| text.len() - length..text.len())];
    let span = |range| SecretSpan { kind: kind.to_owned(), range };
    ranges.into_iter().flatten().map(span).collect()
}

/// The spans in order; those that overlap are one, of the kind of the first.
pub(super) fn joined(mut spans: Vec<SecretSpan>) -> Vec<SecretSpan> {
    spans.sort_by_key(|span| (span.range.start, std::cmp::Reverse(span.range.end)));
    let mut joined: Vec<SecretSpan> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.range.start < last.range.end => {
                last.range.end = last.range.end.max(span.range.end);
            }
            _ => joined.push(span),
        }
    }
    joined
}

impl FoundSecret {
    /// True where it is spelled with escapes of JSON.
    pub(super) fn is_escaped(&self) -> bool {
        self.kind.ends_with(JSON_ESCAPES)
    }

    /// The beginning of the secret, and its length.
    pub(super) fn told(&self) -> String {
        let text = String::from_utf8_lossy(&self.secret);
        let count = text.chars().count();
        let told: String = text.chars().take(TOLD_CHARS.min(count / 2)).collect();
        format!("{told}... ({count} characters)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each form, as their services write them; none is real.
    fn planted() -> Vec<(&'static str, String)> {
        let word = |count: usize| "a1B2c3D4e5".chars().cycle().take(count).collect::<String>();
        let upper = |count: usize| word(count).to_ascii_uppercase();
        let hex = |count: usize| "0123456789abcdef".chars().cycle().take(count).collect::<String>();
        vec![
            ("private key", "-----BEGIN OPENSSH PRIVATE KEY-----".to_owned()),
            ("Anthropic key", format!("sk-ant-api03-{}", word(40))),
            ("OpenRouter key", format!("sk-or-v1-{}", hex(64))),
            ("OpenAI key", format!("sk-proj-{}", word(48))),
            ("OpenAI key", format!("sk-{}", word(48))),
            ("AWS key id", format!("AKIA{}", upper(16))),
            ("AWS secret key", format!("AWS_SECRET_ACCESS_KEY={}", word(40))),
            ("GitHub token", format!("ghp_{}", word(36))),
            ("GitHub token", format!("github_pat_{}", word(60))),
            ("GitLab token", format!("glpat-{}", word(20))),
            ("Slack token", format!("xoxb-123456789012-{}", word(20))),
            (
                "Slack hook",
                format!("hooks.slack.com/services/T{}/B{}/{}", upper(8), upper(8), word(24)),
            ),
            ("Google key", format!("AIza{}", word(35))),
            ("Google token", format!("ya29.{}", word(40))),
            ("Stripe key", format!("sk_live_{}", word(24))),
            ("Hugging Face token", format!("hf_{}", word(34))),
            ("npm token", format!("npm_{}", word(36))),
            ("PyPI token", format!("pypi-{}", word(60))),
            ("SendGrid key", format!("SG.{}.{}", word(22), word(43))),
            ("Telegram token", format!("123456789:AA{}", word(33))),
            ("DigitalOcean token", format!("dop_v1_{}", hex(64))),
            ("Databricks token", format!("dapi{}", hex(32))),
            ("Azure storage key", format!("AccountKey={}==", word(86))),
            ("JSON web token", format!("eyJ{}.eyJ{}.{}", word(20), word(20), word(20))),
            ("password in a URL", "postgres://me:hunter22@".to_owned()),
            ("bearer token", format!("Bearer {}", word(32))),
        ]
    }

    #[test]
    fn secrets_of_every_kind_are_found_wherever_they_stand() {
        let finder = SecretFinder::usual().unwrap();
        for (kind, secret) in planted() {
            for text in [
                secret.clone(),
                format!("export KEY={secret} && go"),
                format!("{{\"content\":\"the key is \\\"{secret}\\\"\"}}"),
                format!("é{secret}é"),
            ] {
                let found = finder.find(text.as_bytes());
                assert_eq!(found.len(), 1, "{kind}: {text}");
                assert_eq!(found[0].kind, kind, "{text}");
                assert!(secret.as_bytes().starts_with(&found[0].secret[..10]), "{text}");
            }
        }
        let kinds: std::collections::BTreeSet<_> =
            planted().iter().map(|(kind, _)| *kind).collect();
        assert!(FORMS.iter().all(|(kind, _)| kinds.contains(kind)));
    }

    /// A text in each encoding.
    fn encodings(text: &str) -> Vec<(&'static str, String)> {
        use base64::Engine as _;
        use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

        let each = |form: fn(u8) -> String| text.bytes().map(form).collect::<String>();
        let base64 = STANDARD.encode(text);
        let folded: Vec<&str> =
            base64.as_bytes().chunks(24).map(|row| std::str::from_utf8(row).unwrap()).collect();
        vec![
            ("base64", STANDARD.encode(format!("KEY={text}\n"))),
            ("base64", URL_SAFE_NO_PAD.encode(format!("a {text}"))),
            ("base64", folded.join("\n")),
            ("base64", format!("\"{}\"", folded.join("\\n"))),
            ("hex", each(|byte| format!("{byte:02x}"))),
            ("hex", each(|byte| format!("\\x{byte:02X}"))),
            ("URL escapes", each(|byte| format!("%{byte:02x}"))),
            ("JSON escapes", each(|byte| format!("\\u{byte:04x}"))),
            ("JSON escapes", each(|byte| format!("\\\\u{byte:04X}"))),
            ("base64 in base64", STANDARD.encode(STANDARD.encode(text))),
            ("URL escapes in base64", STANDARD.encode(each(|byte| format!("%{byte:02X}")))),
        ]
    }

    #[test]
    fn secrets_of_every_kind_are_found_in_every_encoding() {
        let finder = SecretFinder::usual().unwrap();
        for (kind, secret) in planted() {
            for (form, encoded) in encodings(&secret) {
                let text = format!("say {encoded} and go");
                let found = finder.find(text.as_bytes());
                assert_eq!(found.len(), 1, "{kind}: {text} {found:?}");
                assert_eq!(found[0].kind, format!("{kind} in {form}"), "{text}");
                assert!(secret.as_bytes().starts_with(&found[0].secret[..10]), "{text}");

                // What takes the place of the code leaves nothing to find.
                let span = finder.spans(text.as_bytes()).remove(0).range;
                let taken_out =
                    format!("{}[redacted of it]{}", &text[..span.start], &text[span.end..]);
                assert_eq!(finder.find(taken_out.as_bytes()), [], "{text} {taken_out}");
            }
        }
    }

    /// Every byte that servers sent in the repository's recordings, images and hashes included.
    #[test]
    fn nothing_that_servers_sent_is_taken_for_an_encoded_secret() {
        let finder = SecretFinder::usual().unwrap();
        let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/tapes")];
        let (mut files, mut bytes) = (0, 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let text = std::fs::read(entry.path()).unwrap();
                (files, bytes) = (files + 1, bytes + text.len());
                let found = finder.find(&text);
                assert_eq!(found, [], "{}", entry.path().display());
            }
        }
        assert!(files > 100 && bytes > 1_000_000, "{files} files, {bytes} bytes");
    }

    #[test]
    fn what_is_no_text_is_no_secret_in_any_encoding() {
        use base64::Engine as _;
        use base64::engine::general_purpose::STANDARD;

        let finder = SecretFinder::usual().unwrap();
        let mut state = 7_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let noise: Vec<u8> = noise.take(200_000).collect();
        assert_eq!(finder.find(STANDARD.encode(&noise).as_bytes()), []);
        let hex: String = noise.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(finder.find(hex.as_bytes()), []);
        assert_eq!(finder.find(&noise), []);
    }

    #[test]
    fn usual_words_are_no_secrets() {
        let finder = SecretFinder::usual().unwrap();
        for text in [
            "sk-learn and a task-force, risk-averse-people-are-many-here",
            "https://example.com:8080/path@v1",
            "git@github.com:owner/repository.git",
            "commit 0123456789abcdef0123456789abcdef01234567",
            "Bearer of bad news",
            "AKIA is a prefix",
            "call_0123456789abcdef0123456789abcdef",
            "the_hf_hub_download_function_of_huggingface_hub_library",
        ] {
            assert_eq!(finder.find(text.as_bytes()), [], "{text}");
        }
    }

    #[test]
    fn no_secret_is_told_whole() {
        for (kind, secret) in planted() {
            let found = FoundSecret { kind: kind.to_owned(), secret: secret.clone().into() };
            assert!(!found.told().contains(&secret) && found.told().len() < 40, "{}", found.told());
        }
    }
}
