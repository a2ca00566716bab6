//! A hybrid on an emulated GPU: layers with a recurrent state among those with attention.

use kernels::StateMark;

use super::*;

/// The tolerance of logprobs, at worst and on average. With random weights many results of a delta
/// rule are small sums of numbers that nearly cancel, and the norm behind makes them large again:
/// in three layers with a state the mean is 0.05, in three with attention 0.025.
const NEAR: f32 = 0.6;
const NEAR_MEAN: f64 = 0.06;

/// Two layers with a state around one with attention.
pub(super) fn hybrid() -> (TempDir, PathBuf) {
    config(json!({
        "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "vocab_size": 300,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "eos_token_id": 299,
    }))
}

/// The same with a mixture of experts, and a shared one, in each layer.
fn mixed_hybrid() -> (TempDir, PathBuf) {
    let (keep, path) = hybrid();
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mixture = json!({
        "architectures": ["Qwen3_5MoeForCausalLM"], "intermediate_size": null, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
    });
    config.as_object_mut().unwrap().extend(mixture.as_object().unwrap().clone());
    std::fs::write(&path, config.to_string()).unwrap();
    (keep, path)
}

fn model(options: &CudaOptions) -> Model<Cuda> {
    let (_keep, path) = hybrid();
    made(crate::emulated::open(options, HEADS), &path)
}

fn prompts(count: u32) -> Vec<Vec<u32>> {
    let own = super::prompts(count);
    own.into_iter().map(|ids| ids.into_iter().map(|id| id % 299).collect()).collect()
}

#[test]
fn logits_are_near_those_of_the_cpu() {
    let _emulated = exclusive_gpu();
    let (_keep, path) = hybrid();
    check_near(&path);
    let (_keep, path) = mixed_hybrid();
    check_near(&path);
}

/// Compares the logits of a model on the device with those on the CPU.
fn check_near(path: &Path) {
    let ids: Vec<u32> = (0..37).map(|i| i * 53 % 299).collect();
    let expected = logits_of(&mut made(Cpu::default(), path), &ids, ids.len());
    for deterministic in [false, true] {
        let options = CudaOptions { deterministic, ..CudaOptions::default() };
        let mut gpu = made(crate::emulated::open(&options, HEADS), path);
        let found = logits_of(&mut gpu, &ids, ids.len());
        let (mut total, mut worst) = (0.0, 0.0_f32);
        for (found, expected) in found.chunks(300).zip(expected.chunks(300)) {
            for (found, expected) in logprobs(found).iter().zip(logprobs(expected)) {
                worst = worst.max((found - expected).abs());
                total += f64::from((found - expected).abs());
            }
        }
        let mean = total / found.len() as f64;
        println!("differences of logprobs: mean {mean:.4}, worst {worst:.4}, {deterministic}");
        assert!(worst < NEAR && mean < NEAR_MEAN, "{worst}, {mean}");
    }
}

#[test]
fn kernels_that_begin_early_give_the_same_bits() {
    check_early(model, &prompts(5));
}

#[test]
fn recorded_steps_give_the_bits_of_eager_ones() {
    let emulated = exclusive_gpu();
    let prompts = prompts(5);
    let eager = CudaOptions { eager: true, ..CudaOptions::default() };
    let expected = decode(&mut model(&eager), &prompts, 8);
    let mut recorded = model(&CudaOptions::default());
    let before = emulated.get("graph_launches");
    assert_eq!(decode(&mut recorded, &prompts, 8), expected);
    assert!(recorded.ops.recorded() > 0);
    assert!(emulated.get("graph_launches") > before);
}

#[test]
fn bits_are_the_same_in_any_batch_and_chunks() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions { deterministic: true, ..CudaOptions::default() });
    let prompts = prompts(5);
    let together = decode(&mut gpu, &prompts, 4);
    for (index, prompt) in prompts.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let alone = decode(&mut gpu, std::slice::from_ref(prompt), 4);
        let same = together.iter().zip(&alone).all(|(all, one)| all[index] == one[0]);
        assert!(same, "sequence {index}");
    }
    check_chunks(&mut gpu, 70, [1, 7, 33]);
}

#[test]
fn mixtures_of_a_hybrid_give_the_same_bits() {
    let _emulated = exclusive_gpu();
    let (_keep, path) = mixed_hybrid();
    let made = |options: &CudaOptions| made(crate::emulated::open(options, HEADS), &path);
    let prompts = prompts(4);
    let eager = CudaOptions { eager: true, ..CudaOptions::default() };
    let expected = decode(&mut made(&eager), &prompts, 6);
    let mut recorded = made(&CudaOptions::default());
    assert_eq!(decode(&mut recorded, &prompts, 6), expected);
    assert!(recorded.ops.recorded() > 0);

    let mut gpu = made(&CudaOptions { deterministic: true, ..CudaOptions::default() });
    let together = decode(&mut gpu, &prompts, 4);
    let alone = decode(&mut gpu, &prompts[2..3], 4);
    assert!(together.iter().zip(&alone).all(|(all, one)| all[2] == one[0]));
    check_chunks(&mut gpu, 70, [1, 7, 33]);
}

#[test]
fn a_state_that_is_kept_on_the_way_begins_others() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions { deterministic: true, ..CudaOptions::default() });
    let ids: Vec<u32> = (0..40).map(|i| i * 7 % 61).collect();
    let whole = bits(&logits_of(&mut gpu, &ids, ids.len()));

    // Slot 5 gets the state after 16 of 40 rows; both others begin with it, at once.
    let mut first = cache();
    let marks = [(16, 5), (40, 0)].map(|(rows, slot)| StateMark { rows, slot });
    first.state.marks.extend(marks);
    let found = gpu.forward(&mut [chunk(&ids, &mut first)]).unwrap();
    assert_eq!(bits(&found), whole);
    let mut others: Vec<SequenceCache> = (1..3)
        .map(|own| {
            let state = SequenceState { own: Some(own), from: Some(5), ..SequenceState::default() };
            let mut pages: Vec<u32> = (0..PAGES as u32).collect();
            // The pages behind the common one are its own.
            pages[1..].rotate_left(own as usize * 4);
            SequenceCache { pages, state, len: 16, ..SequenceCache::default() }
        })
        .collect();
    let rest = &ids[16..];
    let mut chunks: Vec<SequenceChunk<'_>> =
        others.iter_mut().map(|cache| chunk(rest, cache)).collect();
    let found = bits(&gpu.forward(&mut chunks).unwrap());
    let expected = &whole[16 * 300..];
    assert_eq!(found, [expected, expected].concat());
}

#[test]
fn states_take_the_bytes_that_are_counted() {
    let emulated = exclusive_gpu();
    let gpu = model(&CudaOptions::default());
    let heads = gpu.config().hybrid.as_ref().unwrap().heads;
    let before = emulated.get("used");
    let states = gpu.ops.states(heads, 3, 11).unwrap();
    let bytes = (gpu.ops.state_bytes(heads) * 3 * 11) as i64;
    // Memory is given in blocks of 256 bytes.
    assert!((bytes..bytes + 512).contains(&(emulated.get("used") - before)));
    drop(states);
    assert_eq!(emulated.get("used"), before);
    let error = gpu.ops.states(heads, 1 << 10, 1 << 20).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("`states`: no memory for"), "{error}");
}

#[test]
fn a_step_that_reads_a_slot_of_another_sequence_is_refused() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions::default());
    // The first step tells how many slots there are.
    decode(&mut gpu, &prompts(2), 1);
    for (from, slot) in [(None, 16), (Some(16), 0), (Some(7), 0)] {
        let mut caches = caches(2);
        caches[0].state.own = Some(slot);
        caches[0].state.from = from;
        caches[1].state.own = Some(7);
        let mut chunks: Vec<SequenceChunk<'_>> =
            caches.iter_mut().map(|cache| chunk(&[1, 2], cache)).collect();
        let error = gpu.forward(&mut chunks);
        let error = error.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("is outside a table of 16 rows"), "{error}");
    }
}
