//! Grammars in GBNF's notation (`root ::= "a" rule*`), said again in Lark's.
//!
//! What differs: the sign of definition, the name of the first rule, names of rules, character
//! classes, and comments. Strings, repetition, alternatives and groups are the same in both.

/// Whether a text defines rules with `::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| line.split('#').next().is_some_and(|code| code.contains("::=")))
}

/// The grammar in Lark's notation.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    // Alternatives may go on over lines in GBNF; in Lark only if the next line starts with `|`, so
    // a rule is put on one line.
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => quoted(rest, '"')?,
            '[' => quoted(rest, ']')?,
            '#' => rest.find('\n').unwrap_or(rest.len()),
            _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(len);
        rest = after;
        match first {
            '#' => {}
            '[' => out.push_str(&class(token)),
            '"' => out.push_str(token),
            _ if is_name(first) => {
                let defines = rest.trim_start().starts_with("::=");
                if defines && depth == 0 && !out.is_empty() {
                    out.push('\n');
                }
                out.push_str(&name(token));
                if defines {
                    out.push(':');
                    rest = rest.trim_start().trim_start_matches("::=");
                }
            }
            '.' => out.push_str("/./"),
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

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

/// Names of rules are lower-case words in Lark, and the first rule is `start`. A number, as in
/// `{2,3}`, stays.
fn name(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    match text {
        "root" => "start".to_owned(),
        // A name of another meaning must not become that of the first rule.
        "start" => "gbnf_start".to_owned(),
        // Lark wants upper-case names for what has no structure, and GBNF does not tell.
        other => format!("r_{}", other.replace('-', "_").to_ascii_lowercase()),
    }
}

/// A character class is a regular expression; its slashes end it in Lark.
fn class(text: &str) -> String {
    format!("/{}/", text.replace('/', "\\/"))
}

/// The length of a text that starts with one mark and goes on to `close`, both with it.
fn quoted(text: &str, close: char) -> Result<usize, String> {
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
