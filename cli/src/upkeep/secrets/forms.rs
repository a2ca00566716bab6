//! The forms of secrets, in which well-known services hand out keys.

use regex::bytes::Regex;

/// A kind of secret, and the form that it has. An earlier one precedes a later one at the same
/// place.
const FORMS: [(&str, &str); 25] = [
    ("private key", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    ("Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    ("OpenRouter key", r"\bsk-or-v1-[0-9a-f]{40,}"),
    ("OpenAI key", r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}"),
    ("AWS key id", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("AWS secret key", r"(?i:aws_?secret_?(?:access_?)?key)\W{1,6}[A-Za-z0-9/+]{40}\b"),
    ("GitHub token", r"\bgh[pousr]_[A-Za-z0-9]{36,}"),
    ("GitHub token", r"\bgithub_pat_[A-Za-z0-9_]{50,}"),
    ("GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    (
        "Slack hook",
        r"hooks\.slack\.com\\?/services\\?/T[A-Z0-9]+\\?/B[A-Z0-9]+\\?/[A-Za-z0-9]{20,}",
    ),
    ("Google key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("Google token", r"\bya29\.[0-9A-Za-z_-]{20,}"),
    ("Stripe key", r"\b[sr]k_(?:live|test)_[0-9A-Za-z]{20,}"),
    ("Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}"),
    ("npm token", r"\bnpm_[A-Za-z0-9]{36}"),
    ("PyPI token", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("SendGrid key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("Telegram token", r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    ("DigitalOcean token", r"\bdo[opr]_v1_[0-9a-f]{64}"),
    ("Databricks token", r"\bdapi[0-9a-f]{32}"),
    ("Azure storage key", r"AccountKey=[A-Za-z0-9+/]{60,}={0,2}"),
    ("JSON web token", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("password in a URL", r#"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@"'\\]{1,64}:[^\s/:@"'\\]{3,128}@"#),
    ("bearer token", r"(?i:\bbearer)\s+[A-Za-z0-9._~+/-]{24,}"),
];
/// Characters of a secret that are told, so that its owner knows it again.
const TOLD_CHARS: usize = 8;

/// Finds secrets.
#[derive(Debug)]
pub(super) struct SecretFinder {
    /// All forms, each a group.
    forms: Regex,
}

/// A secret at its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundSecret {
    pub(super) kind: &'static str,
    pub(super) secret: Vec<u8>,
}

impl SecretFinder {
    pub(super) fn new() -> Self {
        let forms = FORMS.map(|(_, form)| format!("({form})")).join("|");
        // Without Unicode a boundary is one of ASCII, as in keys.
        let forms = Regex::new(&format!("(?-u){forms}")).expect("the forms are written above");
        Self { forms }
    }

    /// The secrets in a text, or in the bytes of a body.
    pub(super) fn find(&self, text: &[u8]) -> Vec<FoundSecret> {
        let found = self.forms.captures_iter(text);
        found
            .filter_map(|captures| {
                let form = (0..FORMS.len()).find(|form| captures.get(form + 1).is_some())?;
                let secret = captures.get(form + 1)?.as_bytes().to_vec();
                Some(FoundSecret { kind: FORMS[form].0, secret })
            })
            .collect()
    }
}

impl FoundSecret {
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
        let finder = SecretFinder::new();
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

    #[test]
    fn usual_words_are_no_secrets() {
        let finder = SecretFinder::new();
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
            let found = FoundSecret { kind, secret: secret.clone().into() };
            assert!(!found.told().contains(&secret) && found.told().len() < 40, "{}", found.told());
        }
    }
}
