//! `rolltape doctor --gpu`: checks this machine's GPU as the engine would use it.

use std::path::PathBuf;
use std::process::ExitCode;

use engine::gpu::{GpuOptions, GpuReport, GroupReport};
use serde_json::json;

use super::profile::ProfileArgs;
use crate::exit::{CommandResult, Failure};
use crate::options::device::default_kernel_cache;
use crate::print;
use crate::time::now;

/// Options of a GPU's examination.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "GPU")]
pub(crate) struct GpuArgs {
    /// Examine this machine's GPU
    #[arg(long, group = "target")]
    gpu: bool,
    /// Index of the GPU, in its driver's order
    #[arg(long, value_name = "N", default_value_t = 0, requires = "gpu")]
    gpu_index: usize,
    /// Folder of CUDA's libnvrtc.so and libcublasLt.so
    ///
    /// Of version 13 or 12. [default: the system's, then those in the packages of the Python on the
    /// PATH]
    #[arg(long, value_name = "DIR", requires = "gpu", env = "ROLLTAPE_CUDA_LIBS")]
    cuda_libs: Option<PathBuf>,
    /// Folder of kernel sources (`gemm_small.cu`) to compile in place of the built-in ones
    #[arg(long, value_name = "DIR", requires = "gpu", env = "ROLLTAPE_KERNEL_TEXTS", hide = true)]
    kernel_texts: Option<PathBuf>,
    /// Seed of the random inputs [default: the time]
    #[arg(long, value_name = "N", requires = "gpu")]
    seed: Option<u64>,
    /// Compare kernels without measuring them
    #[arg(long, requires = "gpu")]
    no_times: bool,
    #[command(flatten)]
    profile: ProfileArgs,
}

impl GpuArgs {
    /// True if --gpu was given.
    pub(crate) fn is_given(&self) -> bool {
        self.gpu
    }
}

/// Examines the GPU and prints the report. Exits with 0 if all kernels are right.
pub(crate) async fn run(args: &GpuArgs, as_json: bool) -> CommandResult {
    let options = GpuOptions {
        gpu: args.gpu_index,
        cuda_libraries: args.cuda_libs.clone(),
        kernel_cache: default_kernel_cache(),
        kernel_texts: args.kernel_texts.clone(),
        seed: args.seed.unwrap_or_else(|| now().unsigned_abs() / 1_000_000),
        times: !args.no_times,
    };
    if let Some(options) = args.profile.options(&options) {
        // CUDA calls block, so they stay off the runtime's own threads.
        tokio::task::spawn_blocking(move || super::profile::run(&options, as_json))
            .await
            .map_err(|e| Failure::of(&e))??;
        return Ok(ExitCode::SUCCESS);
    }

    // The report names the seed, so that a failure can be repeated.
    let seed = options.seed;
    let report = tokio::task::spawn_blocking(move || GpuReport::new(&options))
        .await
        .map_err(|e| Failure::of(&e))?
        .map_err(|e| Failure::of(&e))?;
    if as_json {
        print::line(&as_value(&report, seed).to_string())?;
    } else {
        page(&report, seed).iter().try_for_each(|text| print::line(text))?;
    }

    let is_right = report.wrong().next().is_none() && !report.group.is_wrong();
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn page(report: &GpuReport, seed: u64) -> Vec<String> {
    let (free, all) = (gib(report.memory.0), gib(report.memory.1));
    let mut page = vec![
        format!("device    {}, {}", report.name, report.arch),
        format!("          {} multiprocessors, {free:.1} of {all:.1} GiB free", report.processors),
        format!("driver    CUDA {}.{}", report.driver.0, report.driver.1),
        format!(
            "nvrtc     {}",
            report.nvrtc.as_deref().unwrap_or("not found: nothing is compiled")
        ),
        format!(
            "cublaslt  {}",
            report.cublaslt.as_deref().unwrap_or("not found: our own kernels multiply")
        ),
    ];
    // The built-in and cached kernels, for each width of attention heads.
    page.extend(report.made.iter().map(|(dim, made)| format!("heads     of {dim}: {made}")));

    page.push(String::new());
    page.push(format!(
        "kernels compared with plain loops, differences as fractions of the tolerance (seed {seed})"
    ));
    page.extend(report.kernels.iter().map(|kernel| {
        let mark = if kernel.worst <= 1.0 { " " } else { "!" };
        format!("{mark} {:8.3}  {}", kernel.worst, kernel.what)
    }));

    page.push(String::new());
    if !report.speeds.is_empty() {
        page.push(format!("{:>12} {:>8}", "microseconds", "GB/s"));
    }
    page.extend(report.speeds.iter().map(|speed| {
        format!("{:12.1} {:8.0}  {}", speed.microseconds, speed.gigabytes, speed.what)
    }));

    page.push(format!("nccl      {}", group(&report.group)));
    let wrong = report.wrong().count();
    page.push(format!(
        "{}, {wrong} wrong",
        print::count(report.kernels.len() as u64, "comparison")
    ));
    page
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// The outcome of the NCCL check, in one line.
fn group(group: &GroupReport) -> String {
    match group {
        GroupReport::Absent(reason) => reason.clone(),
        GroupReport::Failed(reason) => format!("WRONG: {reason}"),
        GroupReport::Well { version, steps } => {
            let steps = steps.iter().map(|(what, seconds)| format!("{what} {seconds:.2} s"));
            format!("version {version}: {}", steps.collect::<Vec<_>>().join(", "))
        }
    }
}

fn as_value(report: &GpuReport, seed: u64) -> serde_json::Value {
    // JSON has no infinity: an infinite difference is null.
    let kernels =
        report.kernels.iter().map(|kernel| json!({"kernel": kernel.what, "worst": kernel.worst}));
    let speeds = report.speeds.iter().map(|speed| {
        json!({
            "kernel": speed.what, "microseconds": speed.microseconds, "gigabytes": speed.gigabytes,
        })
    });
    // How long a first start on this device takes.
    let compiled = report.made.iter().map(|(dim, made)| {
        json!({
            "head_dim": dim, "files": made.compiled, "built_in": made.built_in,
            "kept": made.kept, "seconds": made.took.as_secs_f64(),
        })
    });

    json!({
        "device": report.name,
        "arch": report.arch,
        "processors": report.processors,
        "memory_free": report.memory.0,
        "memory": report.memory.1,
        "driver": format!("{}.{}", report.driver.0, report.driver.1),
        "nvrtc": report.nvrtc,
        "cublaslt": report.cublaslt,
        "compiled": compiled.collect::<Vec<_>>(),
        "seed": seed,
        "kernels": kernels.collect::<Vec<_>>(),
        "speeds": speeds.collect::<Vec<_>>(),
        "nccl": {
            "said": group(&report.group),
            "absent": matches!(report.group, GroupReport::Absent(_)),
            "wrong": report.group.is_wrong(),
        },
        "wrong": report.wrong().count(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::gpu::{GpuKernel, GpuSpeed, KernelLoad};

    use super::*;

    #[test]
    fn what_is_wrong_is_marked_and_counted() {
        let kernel = |what: &str, worst| GpuKernel { what: what.into(), worst };
        let report = GpuReport {
            name: "Some GPU".into(),
            driver: (13, 0),
            arch: "sm_90a".into(),
            processors: 132,
            memory: (1 << 30, 4 << 30),
            nvrtc: Some("the system's".into()),
            cublaslt: None,
            made: vec![(
                64,
                KernelLoad { built_in: 7, kept: 0, compiled: 2, took: Duration::from_millis(1500) },
            )],
            kernels: vec![kernel("fine", 0.5), kernel("far", 1.5), kernel("none", f64::INFINITY)],
            speeds: vec![GpuSpeed { what: "fine".into(), microseconds: 2.0, gigabytes: 4000.0 }],
            group: GroupReport::Well { version: 22_809, steps: vec![("join", 0.5)] },
        };
        let text = page(&report, 7).join("\n");
        for part in [
            "132 multiprocessors, 1.0 of 4.0 GiB free",
            "heads     of 64: 2 files of kernels compiled in 1.5 s (7 built in, 0 kept)",
            "\n     0.500  fine",
            "\n!    1.500  far",
            "\n!      inf  none",
            "         2.0     4000  fine",
            "\nnccl      version 22809: join 0.50 s\n3 comparisons, 2 wrong",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let value = as_value(&report, 7);
        assert_eq!((&value["wrong"], &value["kernels"][2]["worst"]), (&json!(2), &json!(null)));
        let failed = GpuReport { group: GroupReport::Failed("it hangs".into()), ..report };
        let value = as_value(&failed, 7);
        assert_eq!(value["nccl"]["wrong"], json!(true));
        assert!(page(&failed, 7).join("\n").contains("nccl      WRONG: it hangs"));
    }
}
