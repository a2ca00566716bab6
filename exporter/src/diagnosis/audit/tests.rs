//! Tests of the audit against a model whose every logprob is known: faults are named, and clean
//! episodes are not accused.

use std::collections::BTreeMap;

use bytes::Bytes;
use wire::TokenScore;

use super::*;

const VOCABULARY: u32 = 64;
const TOLD: usize = 20;

/// Mixes two numbers into one that looks random.
fn mixed(one: u64, other: u64) -> u64 {
    let mut bits = (one ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(other);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn mix(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(17, mixed)
}

/// The ids in front of a token that decide about it, as one number.
fn near(before: &[u32]) -> u64 {
    mix(before[before.len().saturating_sub(6)..].iter().map(|id| u64::from(*id)))
}

/// A number with mean 0 and deviation 1, of what was mixed.
fn normal(of: u64) -> f64 {
    let uniform = |salt| (mixed(of, salt) >> 11) as f64 / (1u64 << 53) as f64;
    (-2.0 * uniform(1).max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * uniform(2)).cos()
}

/// The model: what comes next depends on the six ids before, the weights and the adapter.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    weights: u32,
    adapter: u32,
}

impl Model {
    /// Logprobs of all ids at a temperature.
    fn logprobs(&self, before: &[u32], temperature: f64) -> Vec<f64> {
        let near = near(before);
        let (weights, adapter) = (u64::from(self.weights), u64::from(self.adapter));
        let logit = |id: u32| {
            let own = mixed(near, u64::from(id));
            let version = 0.3 * normal(mixed(own, 1000 + weights));
            let adapted = if adapter > 0 { normal(mixed(own, 2000 + adapter)) } else { 0.0 };
            (2.5 * normal(own) + version + adapted) / temperature
        };
        let logits: Vec<f64> = (0..VOCABULARY).map(logit).collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.into_iter().map(|logit| logit - sum.ln()).collect()
    }

    fn scores(&self, ids: &[u32]) -> Vec<Option<TokenScore>> {
        let score = |at: usize| {
            let all = self.logprobs(&ids[..at], 1.0);
            let mut top: Vec<_> = (0..VOCABULARY).zip(all.iter().map(|l| *l as f32)).collect();
            top.sort_by(|a, b| b.1.total_cmp(&a.1));
            top.truncate(TOLD);
            TokenScore { logprob: all[ids[at] as usize] as f32, top }
        };
        (0..ids.len()).map(|at| (at > 0).then(|| score(at))).collect()
    }
}

/// A server with that model, in some versions and with some adapters.
struct Double {
    labels: Vec<String>,
    served: u32,
    adapters: Vec<String>,
    /// Prompts of the template, by request.
    prompts: BTreeMap<Bytes, Vec<u32>>,
    asked: usize,
}

impl ScoringServer for Double {
    type Error = String;

    async fn use_weights(&mut self, version: Option<&str>) -> Result<bool, String> {
        let label = version.unwrap_or("0");
        self.served = label.parse().unwrap_or_default();
        Ok(self.labels.iter().any(|known| known == label))
    }

    fn weights_beside(&self, version: Option<&str>) -> Vec<String> {
        self.labels.iter().filter(|label| Some(label.as_str()) != version).cloned().collect()
    }

    fn models(&self) -> Vec<String> {
        self.adapters.clone()
    }

    async fn score(&mut self, model: &str, ids: &[u32]) -> Result<Scored, String> {
        self.asked += 1;
        if let Some(other) = ids.iter().find(|id| **id >= VOCABULARY) {
            return Ok(Scored::Refused(format!("{other} is not in the vocabulary")));
        }
        let adapter = self.adapters.iter().position(|known| known == model).unwrap_or_default();
        let model = Model { weights: self.served, adapter: adapter as u32 };
        Ok(Scored::Scores(model.scores(ids)))
    }

    async fn encode(&mut self, chat: &Bytes) -> Option<Vec<u32>> {
        self.prompts.get(chat).cloned()
    }

    async fn decode(&mut self, ids: &[u32]) -> Option<String> {
        Some(text_of(ids))
    }

    async fn first_id(&mut self) -> Option<u32> {
        Some(1)
    }
}

fn text_of(ids: &[u32]) -> String {
    ids.iter().map(|id| char::from_u32(0x4e00 + id).unwrap()).collect()
}

/// The making of an episode: the truth, and what of it is recorded wrongly.
#[derive(Debug, Clone)]
struct Making {
    seed: u64,
    stated: StatedSampling,
    model: Model,
    label: Option<String>,
    /// The temperature and the truncation that were in fact used, and the kind of the logprobs.
    temperature: f64,
    cut: estimate::Cutoff,
    kind: &'static str,
    /// Deviation of the arithmetic.
    noise: f64,
    /// True if the experts of its tokens are recorded.
    has_experts: bool,
    fault: &'static str,
}

impl Making {
    fn clean(seed: u64) -> Self {
        let temperature = [1.0, 0.7, 0.9, 0.6][seed as usize % 4];
        let kind = ["processed", "raw", "temperature"][seed as usize % 3];
        let top_p = (seed.is_multiple_of(5) && kind == "processed").then_some(0.9);
        let cut = estimate::Cutoff { top_p, ..estimate::Cutoff::default() };
        let stated = StatedSampling {
            kind: kind.to_owned(),
            temperature: Some(temperature),
            top_p,
            ..StatedSampling::default()
        };
        let model = Model { weights: 7, adapter: 0 };
        let noise = [0.0, 0.005, 0.02][seed as usize % 3];
        let label = Some("7".to_owned());
        let (has_experts, fault) = (false, "");
        Self { seed, stated, model, label, temperature, cut, kind, noise, has_experts, fault }
    }

    fn wrong(seed: u64, fault: &'static str) -> Self {
        let mut making = Self { fault, ..Self::clean(seed) };
        making.stated.kind = "processed".to_owned();
        making.kind = "processed";
        match fault {
            "temperature" => making.temperature = making.stated.temperature.unwrap() + 0.25,
            "raw_against_processed" => {
                making.stated.temperature = Some(0.6);
                (making.temperature, making.kind) = (0.6, "raw");
            }
            "truncation" => {
                making.stated.top_p = None;
                making.cut = estimate::Cutoff { top_p: Some(0.8), ..Default::default() };
            }
            "version" => making.model.weights = 6,
            "adapter" => making.model.adapter = 1,
            _ => {}
        }
        making
    }

    /// The logprob that the server reports of an id.
    fn logprob(&self, before: &[u32], id: u32, model: &Model) -> f64 {
        let at = |temperature| model.logprobs(before, temperature);
        let noise = self.noise * normal(mix([self.seed, near(before), u64::from(id)]));
        let temperature = if self.kind == "raw" { 1.0 } else { self.temperature };
        let all = at(temperature);
        let own = all[id as usize];
        match self.kind {
            "processed" => own - self.kept(&all).iter().map(|id| all[*id].exp()).sum::<f64>().ln(),
            _ => own,
        }
        .min(0.0)
            + noise
    }

    /// The ids that the truncation keeps.
    fn kept(&self, all: &[f64]) -> Vec<usize> {
        let mut ids: Vec<usize> = (0..all.len()).collect();
        ids.sort_by(|a, b| all[*b].total_cmp(&all[*a]));
        let mut mass = 0.0;
        let count = ids.iter().position(|id| {
            mass += all[*id].exp();
            self.cut.top_p.is_some_and(|p| mass >= p)
        });
        ids.truncate(count.map_or(ids.len(), |count| count + 1));
        ids
    }

    /// Samples an id, and returns it with its reported logprob.
    fn sample(&self, before: &[u32], model: &Model) -> (u32, f32) {
        let all = model.logprobs(before, self.temperature);
        let kept = self.kept(&all);
        let mass: f64 = kept.iter().map(|id| all[*id].exp()).sum();
        let drawn = mix([self.seed, near(before), before.len() as u64]);
        let mut left = drawn as f64 / u64::MAX as f64 * mass;
        let found = kept.iter().find(|id| {
            left -= all[**id].exp();
            left <= 0.0
        });
        let id = *found.or(kept.last()).unwrap() as u32;
        (id, self.logprob(before, id, model) as f32)
    }

    /// Makes the path: three turns, whose prompts are new ids behind the path so far.
    fn path(&self, prompts: &mut BTreeMap<Bytes, Vec<u32>>) -> ScorePath {
        let drawn = |at: usize, turn: u64| {
            (mix([self.seed, at as u64, turn]) % u64::from(VOCABULARY - 2)) as u32 + 2
        };
        let (mut ids, mut spans): (Vec<u32>, Vec<SampledSpan>) = (vec![1], Vec::new());
        let mut unseen = Vec::new();
        for turn in 0..3 {
            ids.extend((0..8).map(|at| drawn(at, turn)));
            let request = Bytes::from(format!("{}/{turn}", self.seed));
            prompts.insert(request.clone(), ids.clone());

            let start = ids.len();
            let (mut recorded, mut context) = (Vec::new(), ids.clone());
            let model = match (self.fault, turn) {
                // Keys and values of other weights stand for what a cache may hold.
                ("prefix_cache", 1..) => Model { weights: 99, ..self.model.clone() },
                _ => self.model.clone(),
            };
            if self.fault == "dropped_ids" {
                let (missing, _) = self.sample(&context, &model);
                context.push(missing);
            }
            if self.fault == "template" {
                let place = context.len() - 2;
                context.insert(place, drawn(98, turn));
                unseen.push((request.clone(), context.clone()));
            }
            for _ in 0..14 + drawn(99, turn) as usize % 10 {
                let (id, logprob) = self.sample(&context, &model);
                context.push(id);
                ids.push(id);
                recorded.push(logprob);
            }
            if self.fault == "shifted_ids" {
                recorded.rotate_left(1);
            }
            let texts = match self.fault {
                "tokenizer" => vec![text_of(&[5, 4, 3, 2, 5])],
                _ => vec![text_of(&ids[start..])],
            };
            spans.push(SampledSpan {
                call_id: format!("c{}-{turn}", self.seed),
                choice: 0,
                start,
                recorded,
                version: self.label.clone(),
                engine: None,
                model: "base".to_owned(),
                sampling: self.stated.clone(),
                continues: turn > 0,
                has_experts: self.has_experts,
                chat: Some(request),
                texts,
            });
        }
        prompts.extend(unseen);
        self.after_the_fact(&mut ids, &mut spans);
        let attempt = format!("e{}/0", self.seed);
        ScorePath { trajectory_id: format!("{attempt}/0"), attempt, ids, spans }
    }

    /// Faults of what was sampled rightly.
    fn after_the_fact(&self, ids: &mut [u32], spans: &mut [SampledSpan]) {
        for span in spans {
            for at in 0..span.recorded.len() {
                match self.fault {
                    // The ids of another tokenizer have nothing to do with the logprobs.
                    "tokenizer" => ids[span.start + at] = (ids[span.start + at] * 7 + 3) % 64,
                    "spikes" if at % 5 == 3 => span.recorded[at] -= 0.7,
                    _ => {}
                }
            }
        }
    }
}

async fn audited(makings: &[Making], labels: &[&str]) -> AuditReport {
    let mut prompts = BTreeMap::new();
    let paths: Vec<_> = makings.iter().map(|making| making.path(&mut prompts)).collect();
    let mut server = Double {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        served: 7,
        adapters: vec!["base".to_owned(), "tuned".to_owned()],
        prompts,
        asked: 0,
    };
    audit(&paths, &mut server, |_, _| {}).await.unwrap()
}

const FAULTS: [&str; 10] = [
    "temperature",
    "raw_against_processed",
    "truncation",
    "version",
    "adapter",
    "dropped_ids",
    "shifted_ids",
    "template",
    "tokenizer",
    "prefix_cache",
];

#[tokio::test]
async fn faults_are_named() {
    let mut named = 0;
    let mut wrong: Vec<String> = Vec::new();
    for fault in FAULTS {
        for seed in 0..10 {
            let makings: Vec<_> =
                (0..4).map(|one| Making::wrong(1000 * seed + 4 * one, fault)).collect();
            let report = audited(&makings, &["5", "6", "7"]).await;
            let found: Vec<_> = report.causes.iter().map(|found| found.cause.as_str()).collect();
            match found.first() == Some(&fault) && report.verdict == AuditWord::Differs {
                true => named += 1,
                false => wrong.push(format!("{fault} {seed}: {found:?}")),
            }
        }
    }
    assert!(named >= 95, "{named}: {}", wrong.join("\n"));
}

/// The cause that comes first for four episodes with a fault, whose experts may be recorded. There
/// are no other weights to compare with.
async fn first_cause(seed: u64, fault: &'static str, has_experts: bool) -> &'static str {
    let making = |one: u64| Making { has_experts, ..Making::wrong(1000 * seed + 4 * one, fault) };
    let makings: Vec<_> = (0..4).map(making).collect();
    let report = audited(&makings, &["7"]).await;
    report.causes.first().map_or("none", |found| found.cause.as_str())
}

#[tokio::test]
async fn experts_are_named_where_recorded_and_few_tokens_are_off() {
    for seed in 0..10 {
        assert_eq!(first_cause(seed, "spikes", true).await, "experts", "{seed}");
        // The same gaps in a dense model, and gaps of all tokens in a model of experts.
        assert_eq!(first_cause(seed, "spikes", false).await, "version", "{seed}");
        assert_eq!(first_cause(seed, "version", true).await, "version", "{seed}");
    }
}

#[tokio::test]
async fn clean_episodes_are_not_accused() {
    for run in 0..100_u64 {
        let makings: Vec<_> = (0..10).map(|one| Making::clean(run * 10 + one)).collect();
        let report = audited(&makings, &["6", "7"]).await;
        let told: Vec<_> = report.causes.iter().map(|c| (c.cause, &c.sentence)).collect();
        assert_eq!(report.verdict, AuditWord::Clean, "{run}: {told:?} {:?}", report.gaps);
        assert!(report.compared > report.tokens / 2, "{run}: {:?}", report.left_out);
    }
}

#[tokio::test]
async fn a_kv_cache_of_fewer_bits_is_named_and_no_fault() {
    for seed in 0..10 {
        let audited_with = async |kv_cache: Option<&str>| {
            let making = |one: u64| {
                let mut making = Making { noise: 0.1, ..Making::clean(3000 * seed + 12 * one) };
                making.stated.kv_cache = kv_cache.map(str::to_owned);
                making
            };
            audited(&(0..4).map(making).collect::<Vec<_>>(), &["7"]).await
        };
        let report = audited_with(Some("fp8_e4m3")).await;
        let told: Vec<_> = report.causes.iter().map(|c| (c.cause, c.sentence.as_str())).collect();
        assert_eq!(report.verdict, AuditWord::Clean, "{seed}: {told:?}");
        assert!(told.iter().all(|(cause, _)| *cause == AuditCause::Numerics), "{seed}: {told:?}");
        assert!(told[0].1.contains("keys and values in fp8_e4m3"), "{seed}: {told:?}");
        // Of the model's own numbers, gaps of this size are not arithmetic's.
        assert_eq!(audited_with(None).await.verdict, AuditWord::Differs, "{seed}");
    }
}
