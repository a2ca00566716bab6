//! Grammars in GBNF's notation (`root ::= "a" rule*`), translated to Lark's.
//!
//! The notations differ in the sign of definition, the name of the first rule, names of rules,
//! character classes, and comments. Strings, repetition, alternatives and groups are the same.

/// Returns true if a text defines rules with `::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| line.split('#').next().is_some_and(|code| code.contains("::=")))
}

/// Translates a grammar to Lark's notation.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        let (token, after) = rest.split_at(token_len(rest, first)?);
        rest = after;
        match first {
            '#' => {}
            '[' => out.push_str(&character_class(token)),
            '"' => out.push_str(token),
            _ if is_name(first) => {
                let is_definition = rest.trim_start().starts_with("::=");
                if is_definition && depth == 0 && !out.is_empty() {
                    out.push('\n');
                }
                out.push_str(&rule_name(token));
                if is_definition {
                    out.push(':');
                    rest = rest.trim_start().trim_start_matches("::=");
                }
            }
            '.' => out.push_str("/./"),
            // An alternative may start a line in GBNF. Lark wants a `|` there, so each rule goes on
            // one line.
            '\n' | '\r' => out.push(' '),
            _ => {
                depth = match first {
                    '(' => depth + 1,
                    ')' => depth.saturating_sub(1),
                    _ => depth,
                };
                out.push(first);
            }
        }
    }

    if depth > 0 { Err("a parenthesis is not closed".to_owned()) } else { Ok(out) }
}

/// Returns the bytes of the token that `text` begins with.
fn token_len(text: &str, first: char) -> Result<usize, String> {
    match first {
        '"' => quoted_len(text, '"'),
        '[' => quoted_len(text, ']'),
        '#' => Ok(text.find('\n').unwrap_or(text.len())),
        _ if is_name(first) => Ok(text.find(|c| !is_name(c)).unwrap_or(text.len())),
        _ => Ok(first.len_utf8()),
    }
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

/// Translates the name of a rule: a lower-case word in Lark, `start` for the first rule. A number,
/// as in `{2,3}`, stays.
fn rule_name(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    match text {
        "root" => "start".to_owned(),
        // Another rule of that name must not become the first one.
        "start" => "gbnf_start".to_owned(),
        // Upper-case names are terminals in Lark, which GBNF does not have.
        other => format!("r_{}", other.replace('-', "_").to_ascii_lowercase()),
    }
}

/// Translates a character class to a regular expression, which a slash ends in Lark.
fn character_class(text: &str) -> String {
    format!("/{}/", text.replace('/', "\\/"))
}

/// Returns the bytes of a text from its opening mark to `close`, both included.
fn quoted_len(text: &str, close: char) -> Result<usize, String> {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == close => return Ok(at + letter.len_utf8()),
            _ => {}
        }
    }
    Err(format!("`{}` is not closed", text.lines().next().unwrap_or_default()))
}
