//! Names of episodes that a person can say: the command, two words and four letters.

use uuid::Uuid;

/// 64 words, six bits each.
const HOW: [&str; 64] = [
    "amber", "ample", "azure", "bold", "brave", "brief", "bright", "brisk", "broad", "calm",
    "clear", "clever", "cool", "coral", "crisp", "deep", "early", "easy", "fair", "firm", "fond",
    "frank", "fresh", "gentle", "glad", "golden", "grand", "green", "happy", "honest", "humble",
    "indigo", "ivory", "jolly", "keen", "kind", "light", "lively", "loyal", "lucid", "mellow",
    "merry", "mild", "neat", "noble", "olive", "open", "patient", "plain", "proud", "quick",
    "quiet", "rapid", "ready", "rosy", "silver", "smooth", "steady", "sunny", "swift", "tidy",
    "vivid", "warm", "wise",
];
const WHO: [&str; 64] = [
    "badger", "beaver", "bison", "bobcat", "camel", "cobra", "condor", "crane", "cricket", "dingo",
    "dolphin", "eagle", "falcon", "ferret", "finch", "fox", "gecko", "gibbon", "goose", "hare",
    "hawk", "heron", "hornet", "ibex", "iguana", "jackal", "jaguar", "kestrel", "kiwi", "koala",
    "lark", "lemur", "lion", "llama", "lynx", "magpie", "marten", "mole", "moose", "newt",
    "ocelot", "orca", "osprey", "otter", "owl", "panda", "parrot", "pelican", "puffin", "python",
    "quail", "rabbit", "raven", "robin", "salmon", "seal", "stork", "swan", "tapir", "tiger",
    "turtle", "walrus", "weasel", "wombat",
];
/// Five bits each; none is taken for another.
const LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz234567890";
/// Most letters of the command in a name.
const COMMAND_CHARS_MAX: usize = 16;

/// A name such as `claude-amber-otter-k3mx`. Two of 32 random bits are rarely the same, so whoever
/// takes one asks whether it is free.
pub(super) fn name(command: &[String]) -> String {
    let bytes = Uuid::new_v4().into_bytes();
    // The first six bytes are random as a whole.
    let bits = bytes[..6].iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
    let letters = (0..4).map(|at| char::from(LETTERS[bits >> (12 + 5 * at) & 31]));
    let letters: String = letters.collect();
    format!("{}-{}-{}-{letters}", spoken(command), HOW[bits & 63], WHO[bits >> 6 & 63])
}

/// The command's own name, of letters that an id may have.
fn spoken(command: &[String]) -> String {
    let first = command.first().map(String::as_str).unwrap_or_default();
    let file = first.rsplit('/').next().unwrap_or_default();
    let letters = file.chars().map(|letter| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_lowercase(),
        false => '-',
    });
    let name: String = letters.take(COMMAND_CHARS_MAX).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "run".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use episode::EpisodeId;

    use super::*;

    #[test]
    fn a_name_begins_with_the_command() {
        let spoken = |command: &str| spoken(&[command.to_owned()]);
        assert_eq!(spoken("claude"), "claude");
        assert_eq!(spoken("/usr/bin/python3.12"), "python3-12");
        assert_eq!(spoken("./Ünicode tool"), "nicode-tool");
        assert_eq!(spoken("???"), "run");
        assert_eq!(spoken("a-very-long-name-of-a-tool"), "a-very-long-name");
    }

    #[test]
    fn names_are_ids_and_differ() {
        let command = ["aider".to_owned()];
        let names: BTreeSet<String> = (0..1000).map(|_| name(&command)).collect();
        for name in &names {
            assert!(name.parse::<EpisodeId>().is_ok(), "{name}");
            assert!(name.len() < 40, "{name}");
        }
        assert!(names.len() > 990, "{}", names.len());
    }
}
