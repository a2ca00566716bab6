//! Numbers that a trainer computed for recorded tokens, in the place of what was recorded.

use std::collections::HashMap;

use episode::Annotation;

use crate::scoring::paths::{SampledSpan, ScorePath, StatedSampling};

/// The stream of annotations with a trainer's logprobs.
const TRAINER_LOGPROBS: &str = "trainer_logprobs";

/// Puts the trainer's logprobs into the paths of an attempt, under the labels of its weights. Of
/// several labels for a call the one that came last counts. Spans without any are left out.
pub(super) fn of_trainer(paths: Vec<ScorePath>, annotations: &[Annotation]) -> Vec<ScorePath> {
    let mut said: HashMap<(String, u32), Vec<&Annotation>> = HashMap::new();
    for annotation in annotations.iter().filter(|a| a.name == TRAINER_LOGPROBS) {
        let of_choice = said.entry((annotation.call.to_string(), annotation.choice)).or_default();
        of_choice.retain(|known| known.version == annotation.version);
        of_choice.push(annotation);
    }

    let spans_of = |path: &ScorePath| {
        let spans = path.spans.iter().filter_map(|span| {
            let annotations = said.get(&(span.call_id.clone(), span.choice))?;
            Some(with_annotations(span, annotations))
        });
        spans.collect::<Vec<_>>()
    };
    let with_spans = paths.into_iter().map(|path| ScorePath { spans: spans_of(&path), ..path });
    with_spans.filter(|path| !path.spans.is_empty()).collect()
}

fn with_annotations(span: &SampledSpan, annotations: &[&Annotation]) -> SampledSpan {
    let mut recorded = vec![f32::NAN; span.recorded.len()];
    for annotation in annotations {
        let from = (annotation.start as usize).min(recorded.len());
        recorded[from..].iter_mut().zip(&annotation.values).for_each(|(to, value)| *to = *value);
    }
    SampledSpan {
        recorded,
        version: annotations.last().map(|annotation| annotation.version.clone()),
        // Trainers differ in whether they apply the temperature.
        sampling: StatedSampling { kind: "unknown".to_owned(), ..span.sampling.clone() },
        ..span.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::path;
    use super::*;
    use crate::tests::fixture::call;

    #[test]
    fn the_last_label_of_a_call_counts() {
        let turn = call(1, &[1, 2], &[&[3, 4, 5]]);
        let said = |version: &str, start, values: &[f32]| Annotation {
            call: turn.begun.call_id,
            choice: 0,
            name: TRAINER_LOGPROBS.to_owned(),
            version: version.to_owned(),
            start,
            values: values.to_owned(),
            at: 1,
        };
        let annotations =
            [said("6", 0, &[-9.0; 3]), said("7", 0, &[-1.0]), said("7", 2, &[-3.0, -8.0])];
        let found = of_trainer(vec![path(vec![turn.clone()])], &annotations);
        let span = &found[0].spans[0];
        assert_eq!(
            (span.version.as_deref(), span.recorded[0], span.recorded[2]),
            (Some("7"), -1.0, -3.0)
        );
        assert!(span.recorded[1].is_nan() && span.sampling.kind == "unknown");
        assert_eq!(of_trainer(vec![path(vec![turn])], &[]), []);
    }
}
