//! The forms of secrets, in which well-known services hand out keys.

/// A kind of secret, and the form that it has. An earlier one precedes a later one at the same
/// place. Where a form has a group, that is the secret, and the rest says that it is one.
pub(super) const FORMS: [(&str, &str); 25] = [
    // To its end, or as far as it is there.
    (
        "private key",
        concat!(
            r"(?s)-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
            r"(?:.*?-----END (?:[A-Z]+ )*PRIVATE KEY-----|[A-Za-z0-9+/=\s\\]*)"
        ),
    ),
    ("Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    ("OpenRouter key", r"\bsk-or-v1-[0-9a-f]{40,}"),
    ("OpenAI key", r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}"),
    ("AWS key id", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("AWS secret key", r"(?i:aws_?secret_?(?:access_?)?key)\W{1,6}([A-Za-z0-9/+]{40})\b"),
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
    ("Azure storage key", r"AccountKey=([A-Za-z0-9+/]{60,}={0,2})"),
    ("JSON web token", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    (
        "password in a URL",
        r#"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@"'\\]{1,64}:([^\s/:@"'\\]{3,128})@"#,
    ),
    ("bearer token", r"(?i:\bbearer)\s+([A-Za-z0-9._~+/-]{24,})"),
];
