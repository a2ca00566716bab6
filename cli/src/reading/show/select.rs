//! The call that an option names.

use viewer::EpisodeTree;

use crate::exit::Failure;

/// Characters of a call's id.
const ID_CHARS: usize = 36;

/// A call of an episode as people name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallName {
    /// The number by which the calls are listed, from 1.
    Number(u32),
    /// Its id, or the beginning of that.
    Prefix(String),
}

/// Parses a number, an id or the beginning of one.
pub(super) fn call_name(text: &str) -> Result<CallName, String> {
    let is_id = |c: char| c.is_ascii_hexdigit() || c == '-';
    // Ids begin with the time, whose first digit is 0 for centuries.
    match text.parse() {
        Ok(number) if number > 0 && !text.starts_with('0') => Ok(CallName::Number(number)),
        _ if text.is_empty() || text.len() > ID_CHARS || !text.chars().all(is_id) => {
            Err("neither a number nor an id or the beginning of one; `rolltape show EPISODE \
                 --json` lists the calls of an episode"
                .to_owned())
        }
        _ => Ok(CallName::Prefix(text.to_ascii_lowercase())),
    }
}

/// The numbers and the ids of the calls of an attempt, in order.
fn calls(tree: &EpisodeTree) -> Vec<(u32, &str)> {
    let turns = tree.turns.iter().map(|turn| (turn.number, turn.call_id.as_str()));
    let others = tree.others.iter().map(|other| (other.number, other.call_id.as_str()));
    let mut calls: Vec<_> = turns.chain(others).collect();
    calls.sort_unstable();
    calls.dedup();
    calls
}

/// The id of the call that a name is about.
pub(super) fn find(tree: &EpisodeTree, name: &CallName) -> Result<String, Failure> {
    // A whole id may be that of a call of another attempt.
    if let CallName::Prefix(id) = name
        && id.len() == ID_CHARS
    {
        return Ok(id.clone());
    }

    let calls = calls(tree);
    let is_named = |(number, id): &&(u32, &str)| match name {
        CallName::Number(wanted) => number == wanted,
        CallName::Prefix(prefix) => id.starts_with(prefix.as_str()),
    };
    let found: Vec<_> = calls.iter().filter(is_named).collect();

    match found.as_slice() {
        [(_, id)] => Ok((*id).to_owned()),
        [] => {
            let name = match name {
                CallName::Number(number) => number.to_string(),
                CallName::Prefix(prefix) => prefix.clone(),
            };
            let id = &tree.episode.episode_id;
            let hint = match calls.len() {
                0 => "it has none".to_owned(),
                count => {
                    format!("its calls are 1 to {count}; `rolltape show {id} --tree` lists them")
                }
            };
            Err(Failure::new(format!("no call `{name}` in the episode `{id}`")).hint(hint))
        }
        several => {
            let ids: Vec<&str> = several.iter().take(5).map(|(_, id)| *id).collect();
            let sentence = format!("{} calls begin like this", several.len());
            Err(Failure::new(sentence).hint(format!("such as {}", ids.join(", "))))
        }
    }
}

/// The id of the only call with a turn.
pub(super) fn only(tree: &EpisodeTree) -> Result<String, Failure> {
    let mut ids: Vec<&str> = tree.turns.iter().map(|turn| turn.call_id.as_str()).collect();
    ids.dedup();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        _ => Err(Failure::new("the episode has more than one turn, or none")
            .hint("name one with --turn N, as in --turn 1 --tokens")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_by_its_number_or_its_id() {
        assert_eq!(call_name("3"), Ok(CallName::Number(3)));
        assert_eq!(call_name("019A"), Ok(CallName::Prefix("019a".to_owned())));
        assert_eq!(call_name("0199"), Ok(CallName::Prefix("0199".to_owned())));
        for wrong in ["", "nope", "-1x", &"0".repeat(37)] {
            let why = call_name(wrong).unwrap_err();
            assert!(why.contains("rolltape show EPISODE --json"), "{wrong}");
        }
    }
}
