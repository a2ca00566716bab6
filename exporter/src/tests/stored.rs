//! A store for tests.

use std::path::{Path, PathBuf};

use episode::{AttemptId, Call, Reward, RewardScope};
use store::{Durability, Snapshot, Store};

use crate::{ExportError, Options, Report, export};

/// Its path.
pub(crate) struct Stored(pub(crate) PathBuf);

impl Stored {
    pub(crate) async fn snapshot(&self) -> Snapshot {
        Snapshot::open(&self.0).await.unwrap()
    }

    pub(crate) async fn export(&self, options: &Options) -> Result<Report, ExportError> {
        export(self.snapshot().await, options).await
    }
}

/// Name, group, reward, calls.
pub(crate) type StoredEpisode<'a> = (&'a str, Option<&'a str>, Option<f64>, Vec<Call>);

pub(crate) async fn stored(folder: &Path, episodes: &[StoredEpisode<'_>]) -> Stored {
    let path = folder.join("rolltape.db");
    let (store, writer) = Store::open(&path, Durability::Process).await.unwrap();
    let mut number = 0;
    for (name, group, reward, calls) in episodes {
        let episode: episode::EpisodeId = name.parse().unwrap();
        // Ids of their own, so that more can be added to a store that is there.
        let of_name = name.bytes().fold(0, |all, byte| all << 8 | u128::from(byte)) << 32;
        for call in calls {
            number += 1;
            let mut call = call.clone();
            let id = episode::CallId(uuid::Uuid::from_u128(of_name + number));
            call.begun.call_id = id;
            call.begun.tag.episode = episode.clone();
            call.begun.tag.group = group.map(|g| g.parse().unwrap());
            store.begin(call.begun).await.done().await.unwrap();
            if let Some(ended) = call.ended {
                let ended = episode::CallEnd { call_id: id, ..ended };
                store.end(ended).await.done().await.unwrap();
            }
        }
        let reward = Reward {
            scope: RewardScope::Episode,
            name: "reward".to_owned(),
            value: *reward,
            source: "judge".to_owned(),
            at: 1,
            provenance: episode::Provenance::default(),
        };
        store.reward(AttemptId { episode, attempt: 0 }, reward).await.unwrap();
    }
    drop(store);
    writer.finish().await;
    Stored(path)
}
