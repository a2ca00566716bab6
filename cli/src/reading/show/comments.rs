//! Comments on an episode, each beside its subject.

use viewer::{CommentView, EpisodeTree};

use super::super::message::{TextRoom, hanging};
use crate::terminal::{Line, Style};

/// The comments on a call, or on the whole attempt.
pub(super) fn comments(tree: &EpisodeTree, call: Option<&str>, room: &TextRoom) -> Vec<Line> {
    let of_call = tree.comments.iter().filter(|comment| comment.call_id.as_deref() == call);
    let rows = of_call.flat_map(|comment| hanging(&told(comment), 2, room));
    rows.map(|row| Line::styled(Style::Yellow, row)).collect()
}

fn told(comment: &CommentView) -> String {
    let does = comment.score.map_or_else(|| "says".to_owned(), |score| format!("scores {score}"));
    let text = comment.text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
    format!("{} {does}{text}", comment.author)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_told_with_its_writer_and_score() {
        let comment = |text: Option<&str>, score| CommentView {
            call_id: None,
            text: text.map(str::to_owned),
            score,
            author: "ada".to_owned(),
            given_at: 0.0,
            given_by: None,
            given_from: None,
            key_name: None,
        };
        assert_eq!(told(&comment(Some("good"), Some(0.5))), "ada scores 0.5: good");
        assert_eq!(told(&comment(None, Some(1.0))), "ada scores 1");
        assert_eq!(told(&comment(Some("why?"), None)), "ada says: why?");
    }
}
