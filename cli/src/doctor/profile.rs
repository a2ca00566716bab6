//! `rolltape doctor --gpu --profile`: the time of each operation of a step on this machine's
//! GPU.

use std::path::PathBuf;

use engine::gpu::{GpuOptions, Profile, ProfileOptions, ProfileRow};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::print;

/// Options of a profile.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Profile of a GPU")]
pub(crate) struct ProfileArgs {
    /// Time the operations of a step, for this config.json
    ///
    /// The weights are random. Kernels are not checked.
    #[arg(long, value_name = "FILE", requires = "gpu")]
    profile: Option<PathBuf>,
    /// Sequences per step
    #[arg(long, value_name = "N,...", value_delimiter = ',', requires = "profile")]
    #[arg(default_value = "1,32,256", value_parser = at_least_one)]
    batch: Vec<usize>,
    /// Positions per sequence
    ///
    /// Uneven lengths are measured as well.
    #[arg(long, value_name = "N", requires = "profile")]
    #[arg(default_value = "1028", value_parser = at_least_one)]
    context: usize,
    /// Time steps that decode alone, and no prompts
    #[arg(long, requires = "profile")]
    no_prompts: bool,
    /// Steps to time
    #[arg(long, value_name = "N", requires = "profile")]
    #[arg(default_value = "5", value_parser = at_least_one)]
    steps: usize,
}

/// Parses a count of at least 1 and at most 2^20.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1 << 20).contains(count))
        .ok_or_else(|| "give a number from 1 to 1048576, such as 32".into())
}

impl ProfileArgs {
    /// The engine's options, if --profile was given.
    pub(crate) fn options(&self, gpu: &GpuOptions) -> Option<ProfileOptions> {
        Some(ProfileOptions {
            gpu: gpu.clone(),
            config: self.profile.clone()?,
            batches: self.batch.clone(),
            context: self.context,
            prompts: !self.no_prompts,
            steps: self.steps,
        })
    }
}

/// Profiles and prints the result.
pub(crate) fn run(options: &ProfileOptions, as_json: bool) -> Result<(), Failure> {
    let profile = Profile::new(options).map_err(|e| Failure::of(&e))?;
    if as_json {
        return print::line(&as_value(&profile).to_string());
    }
    page(&profile).iter().try_for_each(|text| print::line(text))
}

/// The time of a step, in microseconds: the sum over its operations.
fn step(rows: &[ProfileRow]) -> f64 {
    rows.iter().map(|row| row.calls as f64 * row.microseconds).sum()
}

/// True for two operations of one step.
fn is_same_step(a: &ProfileRow, b: &ProfileRow) -> bool {
    (&a.case, a.products) == (&b.case, b.products)
}

fn page(profile: &Profile) -> Vec<String> {
    let mut page = vec![
        format!("device    {}", profile.name),
        format!("memory    {:.0} GB/s read", profile.bandwidth / 1e9),
    ];

    for rows in profile.rows.chunk_by(is_same_step) {
        let (first, all) = (&rows[0], step(rows));
        page.push(String::new());
        page.push(format!("{}, products {}: {all:.1} us in all", first.case, first.products));
        page.push(format!(
            "{:>6} {:>9} {:>6} {:>12} {:>7}",
            "calls", "us each", "part", "bytes each", "of read"
        ));

        page.extend(rows.iter().map(|row| {
            // The share of the bandwidth tells how far an operation is from its limit.
            let part = 100.0 * row.calls as f64 * row.microseconds / all;
            let share = 100.0 * row.rate() / profile.bandwidth;
            format!(
                "{:6} {:9.2} {part:5.1}% {:12} {share:6.0}%  {}",
                row.calls, row.microseconds, row.bytes, row.what
            )
        }));
    }
    for steps in profile.steps.chunk_by(|a, b| a.case == b.case) {
        let first = steps[0].microseconds;
        page.push(String::new());
        page.push(format!("{}, whole steps", steps[0].case));
        page.extend(steps.iter().map(|step| {
            let part = 100.0 * step.microseconds / first;
            format!("{:9.1} us {part:5.1}%  {}", step.microseconds, step.variant)
        }));
    }
    // A batch whose KV cache does not fit is not an error: the other batches were measured.
    page.extend(profile.left_out.iter().map(|case| format!("no room for {case}")));
    page
}

fn as_value(profile: &Profile) -> Value {
    let rows = profile.rows.iter().map(|row| {
        json!({
            "case": row.case, "products": row.products, "operation": row.what,
            "calls": row.calls, "microseconds": row.microseconds, "bytes": row.bytes,
            "share": row.rate() / profile.bandwidth,
        })
    });
    let steps = profile.steps.iter().map(|step| {
        json!({"case": step.case, "variant": step.variant, "microseconds": step.microseconds})
    });
    json!({
        "device": profile.name,
        "bandwidth": profile.bandwidth,
        "operations": rows.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
        "left_out": profile.left_out,
    })
}

#[cfg(test)]
mod tests {
    use engine::gpu::ProfileStep;

    use super::*;

    #[test]
    fn parts_are_of_the_step_and_shares_of_the_bandwidth() {
        let row = |what: &str, products, calls, microseconds| ProfileRow {
            case: "batch 1".into(),
            products,
            what: what.into(),
            calls,
            microseconds,
            bytes: 2_000_000,
        };
        let rows = vec![
            row("gemm_small 1x2x3", "usual", 3, 2.0),
            row("embed", "usual", 1, 4.0),
            row("cublaslt 1x2x3", "cublaslt", 3, 1.0),
        ];
        let step =
            |variant, microseconds| ProfileStep { case: "batch 1".into(), variant, microseconds };
        let steps = vec![step("usual", 8.0), step("apart", 10.0)];
        let left_out = vec!["batch 256".into()];
        let profile = Profile { name: "Some GPU".into(), bandwidth: 4e12, rows, steps, left_out };
        let text = page(&profile).join("\n");
        for part in [
            "memory    4000 GB/s read",
            "batch 1, products usual: 10.0 us in all",
            "     3      2.00  60.0%      2000000     25%  gemm_small 1x2x3",
            "batch 1, products cublaslt: 3.0 us in all",
            "batch 1, whole steps",
            "     10.0 us 125.0%  apart",
            "no room for batch 256",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let value = as_value(&profile);
        assert_eq!(value["operations"][0]["share"], json!(0.25));
        assert_eq!(
            value["steps"][1],
            json!({"case": "batch 1", "variant": "apart",
            "microseconds": 10.0})
        );
    }
}
