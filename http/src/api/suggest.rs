//! Suggestions for misspelled names.

/// Largest edit distance between a name and a suggestion.
const EDITS_MAX: usize = 2;
/// Letters of a name that are compared.
const NAME_CHARS_MAX: usize = 40;

/// The known name that is most similar to `name`, if any is similar. A name that continues another
/// one counts as one edit.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let compared: String = name.chars().take(NAME_CHARS_MAX).collect();
    known
        .iter()
        .map(|other| match other.starts_with(name) || name.starts_with(other) {
            true => (1, *other),
            false => (strsim::levenshtein(&compared, other), *other),
        })
        .filter(|(edits, _)| *edits <= EDITS_MAX)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, other)| other)
}

/// Says that a name is unknown, with a suggestion or the known names.
pub(super) fn unknown_name(kind: &str, name: &str, known: &[&str]) -> String {
    let message = format!("`{name}` is not {kind} of this route");
    if name == "attempt" {
        return message + "; the attempt stands in the query: ?attempt=N";
    }
    if let Some(suggestion) = nearest(name, known) {
        return message + &format!("; did you mean `{suggestion}`?");
    }
    if known.is_empty() {
        return message;
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    message + &format!("; there are {}", known.join(", "))
}
