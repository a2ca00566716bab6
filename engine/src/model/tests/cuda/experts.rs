//! A mixture of experts on an emulated GPU.

use super::*;

/// A dense layer between two mixtures.
fn mixture() -> (TempDir, PathBuf) {
    config(json!({
        "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 3, "mlp_only_layers": [1],
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "norm_topk_prob": true, "vocab_size": 300, "eos_token_id": 299,
    }))
}

fn model(options: &CudaOptions) -> Model<Cuda> {
    let (_keep, path) = mixture();
    made(crate::emulated::open(options, HEADS), &path)
}

fn prompts(count: u32) -> Vec<Vec<u32>> {
    let own = super::prompts(count);
    own.into_iter().map(|ids| ids.into_iter().map(|id| id % 299).collect()).collect()
}

/// As `decode`, with the experts of each step: `[rows, layers, 2]`.
fn routed(
    model: &mut Model<Cuda>,
    prompts: &[Vec<u32>],
    steps: usize,
) -> Vec<(Vec<DrawnToken>, Vec<u16>)> {
    let (mut caches, mut tokens) = (caches(prompts.len()), prompts.to_vec());
    let mut all = Vec::new();
    for step in 0..steps {
        let before: usize = caches.iter().map(|cache| cache.len).sum();
        let drawn = decode_step(model, &mut tokens, &mut caches, step);
        let after: usize = caches.iter().map(|cache| cache.len).sum();
        model.fetch_routing().unwrap();
        all.push((drawn, model.take_routing(after - before).unwrap()));
    }
    all
}

#[test]
fn logits_and_experts_are_near_those_of_the_cpu() {
    let _emulated = exclusive_gpu();
    let (_keep, path) = mixture();
    let ids: Vec<u32> = (0..37).map(|i| i * 53 % 299).collect();
    let mut cpu = made(Cpu::default(), &path);
    let expected = logits_of(&mut cpu, &ids, ids.len());
    let chosen = cpu.take_routing(ids.len()).unwrap();
    for deterministic in [false, true] {
        let mut gpu = model(&CudaOptions { deterministic, ..CudaOptions::default() });
        let found = logits_of(&mut gpu, &ids, ids.len());
        gpu.fetch_routing().unwrap();
        let routed = gpu.take_routing(ids.len()).unwrap();
        // Rows whose second and third expert are nearly equal may choose differently.
        let (mut same, mut total) = (0, 0.0);
        let rows = found.chunks(300).zip(expected.chunks(300));
        for (index, (found, expected)) in rows.enumerate() {
            let own = index * 6..(index + 1) * 6;
            if routed[own.clone()] != chosen[own] {
                continue;
            }
            same += 1;
            for (found, expected) in logprobs(found).iter().zip(logprobs(expected)) {
                assert!((found - expected).abs() < NEAR, "{found} for {expected}");
                total += f64::from((found - expected).abs());
            }
        }
        let mean = total / f64::from(same * 300);
        println!("{same} rows, mean difference of a logprob {mean:.4}, {deterministic}");
        assert!(same > 30 && mean < NEAR_MEAN, "{same} rows, {mean}");
    }
}

#[test]
fn kernels_that_begin_early_give_the_same_bits() {
    check_early(model, &prompts(5));
}

#[test]
fn recorded_steps_give_the_bits_and_experts_of_eager_ones() {
    let emulated = exclusive_gpu();
    let prompts = prompts(5);
    let eager = CudaOptions { eager: true, ..CudaOptions::default() };
    let expected = routed(&mut model(&eager), &prompts, 8);
    let mut recorded = model(&CudaOptions::default());
    let before = emulated.get("graph_launches");
    assert_eq!(routed(&mut recorded, &prompts, 8), expected);
    assert!(recorded.ops.recorded() > 0);
    assert!(emulated.get("graph_launches") > before);
    for (_, experts) in &expected {
        for row in experts.chunks(6) {
            assert!(row[0] != row[1] && row[4] != row[5], "{row:?}");
            assert_eq!(row[2..4], [0, 0], "a dense layer has none");
        }
    }
}

#[test]
fn bits_and_experts_are_the_same_in_any_batch_and_chunks() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions { deterministic: true, ..CudaOptions::default() });
    let prompts = prompts(5);
    let together = routed(&mut gpu, &prompts, 4);
    for (index, prompt) in prompts.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let alone = routed(&mut gpu, std::slice::from_ref(prompt), 4);
        for (step, (all, one)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(all.0[index], one.0[0], "sequence {index}");
            let first: usize = match step {
                0 => prompts[..index].iter().map(Vec::len).sum(),
                _ => index,
            };
            assert_eq!(all.1[first * 6..][..one.1.len()], one.1, "sequence {index}");
        }
    }
    check_chunks(&mut gpu, 70, [1, 7, 33]);
}

#[test]
fn experts_are_taken_step_by_step() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions::default());
    assert!(gpu.take_routing(1).unwrap_err().to_string().contains("of no step were fetched"));
    let (mut caches, mut tokens) = (caches(1), prompts(1));
    let count = tokens[0].len();
    decode_step(&mut gpu, &mut tokens, &mut caches, 0);
    gpu.fetch_routing().unwrap();
    decode_step(&mut gpu, &mut tokens, &mut caches, 1);
    gpu.fetch_routing().unwrap();
    let error = gpu.fetch_routing().unwrap_err().to_string();
    assert!(error.contains("earlier steps were not taken"), "{error}");
    let expected = routed(&mut model(&CudaOptions::default()), &prompts(1), 2);
    assert_eq!(gpu.take_routing(count).unwrap(), expected[0].1);
    assert_eq!(gpu.take_routing(1).unwrap(), expected[1].1);
}
