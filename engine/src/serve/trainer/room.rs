//! The memory of a GPU that an update of the weights will take, told before the first one comes.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::task::{lock_book, run_blocking};
use crate::bounds::FREE_PART;
use crate::memory::in_words;
use crate::options::UpdateMode;
use crate::serve::calls::ApiError;
use crate::serve::state::ServerState;
use crate::update::nccl::packed_bytes;

/// The memory that matters for an update of all tensors.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Bytes that are free, and all of the GPU.
    free: u64,
    total: u64,
    /// Bytes of the weights, and of one broadcast.
    weights: u64,
    bucket: u64,
    /// The part of the memory that the engine may use.
    utilization: f64,
}

impl Room {
    /// The bytes that must be free for an update beside the weights that serve. A part stays free
    /// for steps.
    fn needed(&self) -> u64 {
        self.weights + self.bucket + self.total / FREE_PART as u64
    }

    /// The utilization with which keys and values leave that room, rounded down to a hundredth, if
    /// there is one.
    fn remedy(&self) -> Option<f64> {
        let missing = self.needed().saturating_sub(self.free) as f64 / self.total as f64;
        let share = ((self.utilization - missing) * 100.0).floor() / 100.0;
        let weights = self.weights as f64 / self.total as f64;
        // Something must be left for keys and values.
        (share > weights + 1.0 / FREE_PART as f64).then_some(share)
    }

    /// The way of an update, and a sentence for people.
    fn told(&self, mode: UpdateMode) -> (&'static str, String) {
        let [weights, free, bucket] = [self.weights, self.free, self.bucket].map(in_words);
        if mode == UpdateMode::InPlace {
            let note = format!(
                "updates are written over the weights that serve and take {bucket} of the GPU's \
                 memory; replies stand still meanwhile"
            );
            return ("in_place", note);
        }
        if self.free >= self.needed() {
            return ("device", format!("a second copy of the weights, {weights}, fits on the GPU"));
        }

        let remedy = match self.remedy() {
            Some(share) => format!(
                "`--gpu-memory-utilization {share:.2}` would leave room for it, and the mode \
                 `in_place` needs none"
            ),
            None => "the mode `in_place` needs none".to_owned(),
        };
        let note = format!(
            "a second copy of the weights, {weights}, does not fit on the GPU, which has {free} \
             free: updates go through the machine's memory, which is slower; {remedy}"
        );
        ("host", note)
    }
}

/// The reply to `/init_weight_transfer_engine`: how updates will go, where that is known.
pub(super) async fn describe_updates(
    state: &Arc<ServerState>,
    info: &Map<String, Value>,
) -> Result<Value, ApiError> {
    let mut reply = json!({"message": "Weight transfer initialized"});
    // The memory of weights that sleep is free, and will not be.
    if state.engine.status().asleep.any() {
        return Ok(reply);
    }
    let sizes: Vec<u64> = lock_book(state).await.manifest.sizes().collect();
    let area = Arc::clone(&state.updates.staging);
    let Some([free, total]) = run_blocking(move || area.memory()).await?? else {
        return Ok(reply);
    };

    let largest = sizes.iter().copied().max().unwrap_or_default();
    let bucket = packed_bytes(info).unwrap_or(largest);
    let (weights, utilization) = (sizes.iter().sum(), state.model.gpu_memory_utilization);
    let room = Room { free, total, weights, bucket: bucket.min(weights), utilization };
    let (way, note) = room.told(state.model.update_mode);
    match way {
        "host" => tracing::warn!("{note}"),
        _ => tracing::info!("{note}"),
    }
    reply["updates"] = json!({"way": way, "note": note});
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A GPU of 80 GiB of which nine tenths are used, and weights of so many GiB.
    fn of(weights: u64) -> Room {
        let (total, bucket) = (80 * GIB, GIB);
        Room { free: 8 * GIB, total, weights: weights * GIB, bucket, utilization: 0.9 }
    }

    #[test]
    fn a_utilization_that_leaves_room_is_named_where_there_is_one() {
        assert_eq!(of(4).told(UpdateMode::Staged).0, "device");
        // Of 8 GiB free, 2.5 are for steps and 1 for a broadcast.
        assert_eq!(of(5).told(UpdateMode::Staged).0, "host");
        let (way, note) = of(16).told(UpdateMode::Staged);
        assert_eq!(way, "host");
        // 16 + 1 + 2.5 GiB are needed and 8 are free: 11.5 of 80 are missing.
        assert!(note.contains("`--gpu-memory-utilization 0.75`"), "{note}");
        assert!(note.contains("16.0 GiB") && note.contains("8.0 GiB free"), "{note}");
        let (_, note) = of(57).told(UpdateMode::Staged);
        assert!(note.ends_with("slower; the mode `in_place` needs none"), "{note}");
        let (way, note) = of(57).told(UpdateMode::InPlace);
        assert!(way == "in_place" && note.contains("take 1.0 GiB"), "{note}");
    }
}
