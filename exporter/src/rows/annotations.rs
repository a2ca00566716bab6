//! Numbers of trainers for the tokens of a row, as streams with one element a token.

use std::collections::BTreeMap;

use episode::Annotation;

use crate::rewards::latest::TurnSpan;

/// The newest stream of a name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenStream {
    pub(crate) name: String,
    /// The label of the trainer's weights.
    pub(crate) version: String,
    /// One number a token of the row; none where nothing was said of it.
    pub(crate) values: Vec<Option<f32>>,
}

/// Makes the streams of a row that has these turns and `tokens` tokens, sorted by name. A name has
/// the version that came last; where a token has several numbers of that version, the last counts.
pub(crate) fn token_streams(
    annotations: &[Annotation],
    spans: &[TurnSpan],
    tokens: usize,
) -> Vec<TokenStream> {
    let mut streams: BTreeMap<&str, TokenStream> = BTreeMap::new();
    for annotation in annotations {
        let Annotation { call, choice, name, version, .. } = annotation;
        let Some(span) = spans.iter().find(|span| (span.call, span.choice) == (*call, *choice))
        else {
            continue;
        };

        let stream = streams.entry(name).or_insert_with(|| TokenStream {
            name: name.clone(),
            version: version.clone(),
            values: vec![None; tokens],
        });
        if stream.version != *version {
            stream.version.clone_from(version);
            stream.values.fill(None);
        }
        let from = (span.start + annotation.start as usize).min(span.end);
        let places = stream.values[from..span.end].iter_mut();
        for (place, value) in places.zip(&annotation.values).filter(|(_, v)| v.is_finite()) {
            *place = Some(*value);
        }
    }
    streams.into_values().collect()
}

#[cfg(test)]
mod tests {
    use episode::CallId;
    use uuid::Uuid;

    use super::*;

    fn said(call: u128, name: &str, version: &str, start: u32, values: &[f32]) -> Annotation {
        Annotation {
            call: CallId(Uuid::from_u128(call)),
            choice: 0,
            name: name.to_owned(),
            version: version.to_owned(),
            start,
            values: values.to_owned(),
            at: 1,
        }
    }

    #[test]
    fn a_name_has_the_version_that_came_last_on_the_row() {
        let span = |call, start, end| TurnSpan {
            call: CallId(Uuid::from_u128(call)),
            choice: 0,
            start,
            end,
        };
        let spans = [span(1, 2, 4), span(2, 5, 7)];
        let all = [
            said(1, "b", "1", 0, &[1.0, 2.0]),
            said(1, "a", "1", 1, &[3.0, 4.0, 5.0]),
            said(2, "b", "2", 0, &[6.0, f32::NAN]),
            said(9, "c", "2", 0, &[7.0]),
            said(2, "b", "2", 1, &[8.0]),
            said(2, "b", "2", 9, &[9.0]),
        ];
        let found = token_streams(&all, &spans, 8);
        let stream = |name: &str, version: &str, at: &[(usize, f32)]| {
            let mut values = vec![None; 8];
            at.iter().for_each(|(at, value)| values[*at] = Some(*value));
            TokenStream { name: name.to_owned(), version: version.to_owned(), values }
        };
        let (a, b) = (stream("a", "1", &[(3, 3.0)]), stream("b", "2", &[(5, 6.0), (6, 8.0)]));
        assert_eq!(found, [a, b]);
    }
}
