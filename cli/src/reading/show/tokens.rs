//! `rolltape show --tokens`: prints what a turn sampled, token by token.

use viewer::{EpisodeTree, TokensView};

use super::super::source::Source;
use super::turn::label;
use crate::exit::Failure;
use crate::print;
use crate::terminal::layout::width_of;
use crate::terminal::table::{plain, table};
use crate::terminal::{self, Line, Style};

/// Columns of text for a reader that has no width.
const COLUMNS: usize = 100;
/// Lowest logprobs of the levels, with the style and the name of each: probabilities of 0.9, 0.5,
/// 0.1 and 0.01.
const LEVELS: [(f32, Style, &str); 5] = [
    (-0.105, Style::Green, "0.9 or more"),
    (-0.693, Style::Cyan, "0.5"),
    (-2.303, Style::Yellow, "0.1"),
    (-4.605, Style::Magenta, "0.01"),
    (f32::NEG_INFINITY, Style::Red, "less"),
];

/// Prints the sampled tokens of each choice of a call: as a text with colors if there are colors
/// and texts, else as a table.
pub(super) async fn print(
    source: &Source,
    tree: &EpisodeTree,
    id: &str,
    as_json: bool,
) -> Result<(), Failure> {
    let choices = tree.turns.iter().filter(|turn| turn.call_id == id);
    let mut choices: Vec<u32> = choices.map(|turn| turn.choice).collect();
    if choices.is_empty() {
        choices.push(0);
    }

    for choice in choices {
        let tokens = source.tokens(id, choice).await?;
        if as_json {
            print::line(&serde_json::to_string(&tokens).map_err(|e| Failure::of(&e))?)?;
            continue;
        }

        print::styled(&heading(tree, &tokens))?;
        if tokens.sampled_tokens == 0 {
            print::line("no ids of sampled tokens are recorded")?;
            continue;
        }

        let sampled = sampled(&tokens);
        let has_texts = sampled.iter().all(|token| token.text.is_some());
        let lines = match terminal::has_colors() && has_texts {
            true => text(&sampled),
            false => rows(&sampled),
        };
        print::styled_lines(&lines)?;

        if !has_texts {
            let known = if tokens.text_source.is_some() { "some" } else { "the" };
            terminal::remark(&format!(
                "{known} texts of tokens are not known: {}",
                source.way_to_texts()
            ));
        }
    }
    Ok(())
}

/// A sampled token.
struct ShownToken {
    index: usize,
    id: u32,
    text: Option<String>,
    logprob: Option<f32>,
    is_trained: bool,
    version: Option<String>,
}

fn heading(tree: &EpisodeTree, tokens: &TokensView) -> Line {
    let mut turns = tree.turns.iter();
    let turn = turns.find(|turn| turn.call_id == tokens.call_id && turn.choice == tokens.choice);
    let mut parts = vec![
        format!("{} prompt tokens", tokens.prompt_tokens),
        format!("{} sampled", tokens.sampled_tokens),
    ];
    parts.extend(tokens.fidelity.as_ref().map(|fidelity| format!("ids {fidelity}")));
    parts.extend(tokens.logprob_kind.as_ref().map(|kind| format!("logprobs {kind}")));
    parts.extend(tokens.text_source.as_ref().map(|source| format!("texts of the {source}")));
    parts.extend((!tokens.reasons.is_empty()).then(|| tokens.reasons.join(", ")));
    Line::styled(Style::Bold, turn.map_or_else(|| tokens.call_id.clone(), label))
        .then(Style::Dim, format!(" | {}", parts.join(" | ")))
}

fn sampled(tokens: &TokensView) -> Vec<ShownToken> {
    let prompt = tokens.prompt_tokens as usize;
    let version = |at: u32| {
        let mut spans = tokens.versions.iter();
        let span = spans.find(|span| (span.start..span.end).contains(&at));
        span.map(|span| span.version.clone())
    };
    let all = prompt..tokens.ids.len();
    all.map(|at| ShownToken {
        index: at - prompt,
        id: tokens.ids[at],
        text: tokens.texts.get(at).cloned().flatten(),
        logprob: tokens.logprobs.get(at).copied().flatten(),
        is_trained: tokens.mask.get(at) == Some(&1),
        version: version(at as u32),
    })
    .collect()
}

/// The style of a token by its logprob.
fn style(token: &ShownToken) -> Style {
    let level = |logprob: f32| LEVELS.iter().find(|(lowest, ..)| logprob >= *lowest);
    match token.logprob.and_then(level) {
        Some((_, style, _)) if token.is_trained => *style,
        _ => Style::Dim,
    }
}

/// The text of the tokens with colors, below a legend.
fn text(tokens: &[ShownToken]) -> Vec<Line> {
    let mut legend = Line::styled(Style::Dim, "probability ");
    for (_, style, name) in LEVELS {
        legend = legend.then(style, name).then(Style::Plain, "  ");
    }

    let width = terminal::width().unwrap_or(COLUMNS);
    let mut lines = vec![legend.then(Style::Dim, "not trained")];
    let (mut line, mut filled) = (Line::default(), 0);

    for token in tokens {
        let text = token.text.as_deref().unwrap_or_default();
        for (at, piece) in text.split('\n').enumerate() {
            if at > 0 {
                lines.push(std::mem::take(&mut line).then(Style::Dim, "\\n"));
                filled = 0;
            }

            let columns = width_of(piece);
            if filled > 0 && filled + columns > width {
                lines.push(std::mem::take(&mut line));
                filled = 0;
            }
            line = line.then(style(token), piece);
            filled += columns;
        }
    }
    lines.push(line);
    lines
}

/// The tokens as a table.
fn rows(tokens: &[ShownToken]) -> Vec<Line> {
    let columns =
        [("index", 0), ("id", 0), ("text", 1), ("logprob", 0), ("mask", 2), ("version", 3)];
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |token: &ShownToken| {
        let text =
            token.text.as_ref().map(|text| serde_json::Value::from(text.as_str()).to_string());
        vec![
            plain(token.index),
            plain(token.id),
            plain(known(text)),
            (style(token), known(token.logprob.map(|logprob| format!("{logprob:.4}")))),
            plain(u8::from(token.is_trained)),
            plain(known(token.version.clone())),
        ]
    };
    table(columns, tokens.iter().map(row).collect(), terminal::width())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, logprob: Option<f32>) -> ShownToken {
        ShownToken {
            index: 0,
            id: 7,
            text: Some(text.to_owned()),
            logprob,
            is_trained: true,
            version: None,
        }
    }

    #[test]
    fn a_token_has_the_color_of_its_probability() {
        for (logprob, expected) in [
            (Some(0.0), Style::Green),
            (Some(-0.5), Style::Cyan),
            (Some(-2.0), Style::Yellow),
            (Some(-4.0), Style::Magenta),
            (Some(-9.0), Style::Red),
            (None, Style::Dim),
        ] {
            assert_eq!(style(&token("a", logprob)), expected, "{logprob:?}");
        }
        let masked = ShownToken { is_trained: false, ..token("a", Some(0.0)) };
        assert_eq!(style(&masked), Style::Dim);
    }

    #[test]
    fn line_breaks_of_the_text_are_shown_and_obeyed() {
        let lines = text(&[token("a\nb", Some(0.0)), token(" c", None)]);
        let lines: Vec<String> = lines[1..].iter().map(Line::text).collect();
        assert_eq!(lines, ["a\\n", "b c"]);
    }

    #[test]
    fn without_colors_there_is_a_table() {
        let lines: Vec<String> = rows(&[token("a\n", Some(-0.5))]).iter().map(Line::text).collect();
        assert_eq!(lines[0].trim_end(), "index  id  text   logprob  mask  version");
        assert_eq!(lines[1].trim_end(), "    0   7  \"a\\n\"  -0.5000     1        -");
    }
}
