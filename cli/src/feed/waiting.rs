//! Sentences about what the feed waits for.

use serde::Deserialize;

use crate::print::count;

/// The header's account of the attempts that are not handed out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct FeedWaiting {
    /// Groups that are not complete.
    groups: u64,
    /// Those of them that lack the fewest members.
    fullest: Vec<IncompleteGroup>,
    /// Attempts without a reward, if one is asked for.
    unrewarded: u64,
    /// Attempts that were given back for later.
    delayed: u64,
    /// Attempts without a group, if groups are asked for.
    ungrouped: u64,
}

/// A group that is not complete.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct IncompleteGroup {
    group_id: String,
    have: u64,
    size: Option<u64>,
}

impl FeedWaiting {
    /// Reads what a server says; nothing of what cannot be read.
    pub(super) fn read(header: &str) -> Self {
        serde_json::from_str(header).unwrap_or_default()
    }

    /// One sentence on everything that waits; `None` if nothing does.
    pub(super) fn sentence(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.groups > 0 {
            let verb = if self.groups == 1 { "waits" } else { "wait" };
            let named: Vec<String> = self.fullest.iter().map(IncompleteGroup::state).collect();
            let more = if self.groups > named.len() as u64 { ", ..." } else { "" };
            let groups = count(self.groups, "group");
            parts.push(format!("{groups} {verb}: {}{more}", named.join(", ")));
        }

        if self.fullest.iter().any(|group| group.size.is_none()) {
            parts.push("give --group-size, or announce groups with their size".to_owned());
        }

        for (number, state) in [
            (self.unrewarded, "without a reward"),
            (self.delayed, "given back for later"),
            (self.ungrouped, "without a group, which only --unit episode hands out"),
        ] {
            if number > 0 {
                parts.push(format!("{} {state}", count(number, "finished attempt")));
            }
        }

        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl IncompleteGroup {
    fn state(&self) -> String {
        match self.size {
            Some(size) => format!("{} has {} of {size}", self.group_id, self.have),
            None => format!("{} has {} of a number that nobody said", self.group_id, self.have),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_said_in_one_sentence() {
        let of = |header: &str| FeedWaiting::read(header).sentence();
        let groups = r#"{"attempts":8,"groups":4,"fullest":[
            {"group_id":"g1","have":5,"size":8},{"group_id":"g2","have":1,"size":8}]}"#;
        assert_eq!(of(groups).unwrap(), "4 groups wait: g1 has 5 of 8, g2 has 1 of 8, ...");
        let no_size = r#"{"groups":1,"fullest":[{"group_id":"g","have":2,"size":null}],
            "ungrouped":1,"unrewarded":2}"#;
        assert_eq!(
            of(no_size).unwrap(),
            "1 group waits: g has 2 of a number that nobody said; give --group-size, or announce \
             groups with their size; 2 finished attempts without a reward; 1 finished attempt \
             without a group, which only --unit episode hands out"
        );
        assert_eq!(of("{}"), None);
        assert_eq!(of("no document"), None);
    }
}
