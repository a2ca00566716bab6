//! Causes that more questions prove: the same tokens under another adapter, behind another prompt,
//! with one id more or less in front, or under other weights.

use super::causes::AuditCause;
use super::offline::FLOOR;
use super::readings::{Contest, ScoredSpan};
use super::{AuditRun, Blame};
use crate::scoring::paths::SampledSpan;
use crate::scoring::server::{Scored, ScoringServer, says};

/// Spans of a group about which more is asked.
const PROBED_MAX: usize = 6;
/// Models and adapters, and labels of weights, that are tried in turn.
const OTHERS_MAX: usize = 8;
/// Ids that are tried as the one that is missing.
const MISSING_MAX: usize = 8;
/// The gap from which a token is where a history parts, in nats.
const BREAK: f64 = 0.3;
/// Tokens that an answer must explain.
const TOKENS_MIN: u64 = 8;
/// The least gaps that other weights may explain, in nats: the next version may be very near, and
/// the right one fits to the last bits.
const WEIGHTS_FLOOR: f64 = 5e-5;

impl AuditRun<'_> {
    /// Asks the server more about the spans of a group that nothing explains yet.
    pub(super) async fn ask_about<S: ScoringServer>(
        &mut self,
        group: usize,
        server: &mut S,
    ) -> Result<(), S::Error> {
        let open = self.unexplained(group);
        if open.is_empty() {
            return Ok(());
        }
        let probed = self.worst(group, &open);

        if self.ask_for_texts(&probed, &open, server).await
            || self.ask_adapters(group, &probed, &open, server).await?
        {
            return Ok(());
        }
        for at in &probed {
            if !self.ask_for_prompt(group, *at, server).await? {
                self.ask_for_missing(group, *at, server).await?;
            }
        }
        self.spread(group, &probed);
        Ok(())
    }

    /// Returns those of the spans that are furthest off, each of another path as far as there are.
    fn worst(&self, group: usize, open: &[usize]) -> Vec<usize> {
        let off = |at: &usize| self.stated(group, &[*at]).stated();
        let mut parts = self.parts(open, |scored| scored.path);
        for part in &mut parts {
            part.sort_by(|a, b| off(b).total_cmp(&off(a)));
        }
        let firsts = parts.iter().filter_map(|part| part.first());
        let others = parts.iter().flat_map(|part| part.iter().skip(1));
        firsts.chain(others).take(PROBED_MAX).copied().collect()
    }

    /// Compares what the ids say by the server's tokenizer with what the agent received.
    async fn ask_for_texts<S: ScoringServer>(
        &mut self,
        probed: &[usize],
        open: &[usize],
        server: &mut S,
    ) -> bool {
        let (mut told, mut other) = (0, 0);
        for at in probed {
            let (span, path) = (self.spans[*at].span, self.spans[*at].path);
            let ids = &self.paths[path].ids[span.start..span.end()];
            if span.texts.is_empty() {
                continue;
            }
            if let Some(text) = server.decode(ids).await {
                told += 1;
                other += usize::from(!span.texts.iter().any(|known| says(&text, known)));
            }
        }
        if told == 0 || other * 2 <= told {
            return false;
        }

        let sentence = "the ids say another text by the server's tokenizer than the agent received";
        self.assign(Blame {
            cause: AuditCause::Tokenizer,
            proven: true,
            sentence: sentence.to_owned(),
            spans: open,
            contest: None,
        });
        true
    }

    /// Scores the probed spans under the other models that are served.
    async fn ask_adapters<S: ScoringServer>(
        &mut self,
        group: usize,
        probed: &[usize],
        open: &[usize],
        server: &mut S,
    ) -> Result<bool, S::Error> {
        let recorded = self.groups[group].kind.model.clone();
        let served = server.models();
        let others = served.iter().filter(|model| **model != recorded).take(OTHERS_MAX);

        for model in others {
            let contest = self.contest_under(group, probed, model, server).await?;
            if contest.explains(TOKENS_MIN, FLOOR) {
                let sentence =
                    format!("`{model}` sampled, where `{recorded}` is recorded as the model");
                self.assign(Blame {
                    cause: AuditCause::Adapter,
                    proven: true,
                    sentence,
                    spans: open,
                    contest: Some(contest),
                });
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Scores spans under a model, and compares the gaps with those that there are.
    async fn contest_under<S: ScoringServer>(
        &self,
        group: usize,
        spans: &[usize],
        model: &str,
        server: &mut S,
    ) -> Result<Contest, S::Error> {
        let mut there = Vec::new();
        for at in spans {
            let (span, path) = (self.spans[*at].span, self.spans[*at].path);
            if let Scored::Scores(scores) = server.score(model, &self.paths[path].ids).await? {
                there.push((*at, ScoredSpan::new(span, path, &scores)));
            }
        }
        let reading = self.groups[group].reading;
        let pairs: Vec<_> =
            there.iter().map(|(at, there)| (&self.spans[*at], there, reading)).collect();
        Ok(Contest::of_scores(&pairs))
    }

    /// Scores a span behind the prompt that the server's template makes of the request.
    async fn ask_for_prompt<S: ScoringServer>(
        &mut self,
        group: usize,
        at: usize,
        server: &mut S,
    ) -> Result<bool, S::Error> {
        let (span, path) = (self.spans[at].span, &self.paths[self.spans[at].path]);
        let Some(chat) = &span.chat else { return Ok(false) };
        let Some(prompt) = server.encode(chat).await else { return Ok(false) };
        if prompt.is_empty() || prompt == path.ids[..span.start] {
            return Ok(false);
        }
        let same = prompt.iter().zip(&path.ids).take_while(|(a, b)| a == b).count();
        let moved = OtherBeginning { prompt, from: 0 };
        let contest = self.contest_behind(group, at, &moved, server).await?;
        if !contest.explains(TOKENS_MIN, FLOOR) {
            return Ok(false);
        }

        let sentence = "the server read the prompt that its template makes of the messages, which \
                        is not the recorded one";
        self.assign(Blame {
            cause: AuditCause::Template,
            proven: true,
            sentence: sentence.to_owned(),
            spans: &[at],
            contest: Some(contest),
        });
        tracing::debug!(same, recorded = span.start, "the prompts part");
        Ok(true)
    }

    /// Scores a span with one id more in front of the place where it goes off, or one less.
    async fn ask_for_missing<S: ScoringServer>(
        &mut self,
        group: usize,
        at: usize,
        server: &mut S,
    ) -> Result<bool, S::Error> {
        let scored = &self.spans[at];
        let (span, path) = (scored.span, &self.paths[scored.path]);
        let reading = self.groups[group].reading;
        let off = |token: &usize| scored.gap(*token, reading).is_some_and(|g| g.abs() > BREAK);
        let Some(from) = (0..scored.len()).find(off) else { return Ok(false) };

        let place = span.start + from;
        let likely: Vec<u32> =
            scored.score(from, 0).iter().flat_map(|score| &score.top).map(|(id, _)| *id).collect();
        let mut tried: Vec<(&str, Vec<u32>)> = Vec::new();
        if let Some(first) = server.first_id().await
            && path.ids.first() != Some(&first)
        {
            let prompt = [&[first], &path.ids[..place]].concat();
            tried.push(("the first id of the prompt is missing", prompt));
        }
        for id in likely.iter().take(MISSING_MAX) {
            let prompt = [&path.ids[..place], &[*id]].concat();
            tried.push(("an id is missing in the reply, or in front of it", prompt));
        }
        let shorter = path.ids[..place.saturating_sub(1)].to_vec();
        tried.push(("an id too many is in the reply, or in front of it", shorter));

        for (sentence, prompt) in tried.into_iter().filter(|(_, prompt)| !prompt.is_empty()) {
            let contest =
                self.contest_behind(group, at, &OtherBeginning { prompt, from }, server).await?;
            if contest.explains(TOKENS_MIN, FLOOR) {
                self.assign(Blame {
                    cause: AuditCause::DroppedIds,
                    proven: true,
                    sentence: sentence.to_owned(),
                    spans: &[at],
                    contest: Some(contest),
                });
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Scores the tokens of a span behind another beginning, and compares the gaps with those that
    /// there are.
    async fn contest_behind<S: ScoringServer>(
        &self,
        group: usize,
        at: usize,
        moved: &OtherBeginning,
        server: &mut S,
    ) -> Result<Contest, S::Error> {
        let scored = &self.spans[at];
        let (span, path) = (scored.span, &self.paths[scored.path]);
        let rest = &path.ids[span.start + moved.from..span.end()];
        let ids = [&moved.prompt[..], rest].concat();
        let Scored::Scores(scores) = server.score(&span.model, &ids).await? else {
            return Ok(Contest::default());
        };

        let there = SampledSpan {
            start: moved.prompt.len(),
            recorded: span.recorded[moved.from..].to_vec(),
            ..span.clone()
        };
        let there = ScoredSpan::new(&there, scored.path, &scores);
        let reading = self.groups[group].reading;
        let mut contest = Contest::default();
        for token in 0..there.len() {
            let gaps = scored.gap(moved.from + token, reading).zip(there.gap(token, reading));
            gaps.into_iter().for_each(|(stated, other)| contest.add(stated, other));
        }
        Ok(contest)
    }

    /// Gives the cause of at least half of the probed spans to the rest of the group.
    fn spread(&mut self, group: usize, probed: &[usize]) {
        let causes: Vec<usize> =
            probed.iter().filter_map(|at| self.found.get(at)).copied().collect();
        let Some(most) =
            causes.iter().max_by_key(|cause| causes.iter().filter(|other| other == cause).count())
        else {
            return;
        };
        let of_most = causes.iter().filter(|cause| *cause == most).count();
        if of_most * 2 >= probed.len() {
            for at in self.unexplained(group) {
                self.found.insert(at, *most);
            }
        }
    }

    /// Scores what nothing explains, and what is off by little, under other weights that are at
    /// hand.
    pub(super) async fn try_other_weights<S: ScoringServer>(
        &mut self,
        server: &mut S,
    ) -> Result<(), S::Error> {
        for group in 0..self.groups.len() {
            let all = self.groups[group].spans.clone();
            let open: Vec<_> = all.into_iter().filter(|at| !self.found.contains_key(at)).collect();
            let off = self.unexplained(group);
            // Weights that are one step old are off by little, but everywhere.
            let suspects = if off.is_empty() { open } else { off };
            if suspects.is_empty() || self.stated(group, &suspects).stated() < WEIGHTS_FLOOR {
                continue;
            }
            self.try_weights_on(group, &suspects, server).await?;
        }
        Ok(())
    }

    async fn try_weights_on<S: ScoringServer>(
        &mut self,
        group: usize,
        suspects: &[usize],
        server: &mut S,
    ) -> Result<(), S::Error> {
        let kind = self.groups[group].kind.clone();
        let probed = self.worst(group, suspects);

        for label in server.weights_beside(kind.version.as_deref()).iter().take(OTHERS_MAX) {
            if !server.use_weights(Some(label)).await? {
                continue;
            }
            let contest = self.contest_under(group, &probed, &kind.model, server).await?;
            if contest.explains(TOKENS_MIN, WEIGHTS_FLOOR) {
                let said = kind.version.as_deref().unwrap_or("no version");
                let sentence = format!("the weights of {label} sampled, and {said} is recorded");
                self.assign(Blame {
                    cause: AuditCause::Version,
                    proven: true,
                    sentence,
                    spans: suspects,
                    contest: Some(contest),
                });
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Another beginning for a span.
struct OtherBeginning {
    prompt: Vec<u32>,
    /// The first token of the span that stands behind it.
    from: usize,
}
