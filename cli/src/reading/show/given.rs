//! The givers of the rewards of an episode: by whom, from where, and under which key.

use viewer::{EpisodeTree, RewardView};

/// Lines of givers, and names in one line.
const GIVERS_MAX: usize = 8;
const NAMES_MAX: usize = 8;

/// Rewards that were given in one way, by their names.
struct GivenTogether<'a> {
    first: &'a RewardView,
    names: Vec<&'a str>,
}

/// One line for each way in which rewards of the episode were given, in the order of the first.
pub(super) fn givers(tree: &EpisodeTree) -> Vec<String> {
    let mut given: Vec<GivenTogether<'_>> = Vec::new();
    for reward in &tree.rewards {
        match given.iter_mut().find(|together| way(together.first) == way(reward)) {
            Some(together) if together.names.contains(&reward.name.as_str()) => {}
            Some(together) => together.names.push(&reward.name),
            None => given.push(GivenTogether { first: reward, names: vec![&reward.name] }),
        }
    }

    let mut lines: Vec<String> = given.iter().take(GIVERS_MAX).map(line).collect();
    if given.len() > GIVERS_MAX {
        lines.push(format!("given in {} more ways: --json has them", given.len() - GIVERS_MAX));
    }
    lines
}

/// The fields that two rewards share if they were given in one way.
fn way(reward: &RewardView) -> [Option<&str>; 4] {
    let RewardView { source, given_by, given_from, key_name, .. } = reward;
    [Some(source.as_str()), given_by.as_deref(), given_from.as_deref(), key_name.as_deref()]
}

fn line(GivenTogether { first, names }: &GivenTogether<'_>) -> String {
    let mut named = names.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX {
        named += &format!(" and {} more", names.len() - NAMES_MAX);
    }
    format!("{named}: said by {}, {}", first.source, hand(first))
}

/// The way in which a reward came into the store, in words.
fn hand(reward: &RewardView) -> String {
    let from = reward.given_from.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
    match (reward.given_by.as_deref(), reward.key_name.as_deref()) {
        (Some("control_token"), Some(key)) => format!("given under the token {key}{from}"),
        (Some("control_open"), _) => format!("given without a token{from}"),
        (Some("command"), _) => "given with `rolltape reward` on the store".to_owned(),
        (Some(other), _) => format!("given by {other}{from}"),
        (None, _) => "the giver is not recorded".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(by: Option<&str>, from: Option<&str>, key: Option<&str>) -> RewardView {
        let [given_by, given_from, key_name] = [by, from, key].map(|text| text.map(str::to_owned));
        RewardView {
            name: "reward".to_owned(),
            value: Some(1.0),
            source: "judge".to_owned(),
            scope: "episode".to_owned(),
            call_id: None,
            choice: None,
            start: None,
            end: None,
            given_at: 0.0,
            given_by,
            given_from,
            key_name,
            over_calls: Some(1),
            over_chain: None,
        }
    }

    #[test]
    fn a_way_of_giving_names_the_key_and_the_address() {
        let token = reward(Some("control_token"), Some("10.0.0.7"), Some("control-0a1b2c3d"));
        assert_eq!(hand(&token), "given under the token control-0a1b2c3d from 10.0.0.7");
        let open = reward(Some("control_open"), Some("uid 1000"), None);
        assert_eq!(hand(&open), "given without a token from uid 1000");
        let command = reward(Some("command"), Some("file"), None);
        assert_eq!(hand(&command), "given with `rolltape reward` on the store");
        assert_eq!(hand(&reward(None, None, None)), "the giver is not recorded");
    }

    #[test]
    fn rewards_are_told_together_only_if_they_were_given_in_one_way() {
        let token = |key| reward(Some("control_token"), Some("127.0.0.1"), Some(key));
        let [first, second] = [token("control-1"), token("control-2")];
        assert_eq!(way(&first), way(&token("control-1")));
        assert_ne!(way(&first), way(&second));
    }
}
