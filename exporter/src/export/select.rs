//! Selects the attempts that an export reads, with their rewards: all of its scope, or what a part
//! of it needs.

use episode::Micros;
use store::{Portion, Scope, Snapshot, SnapshotError};

use crate::export::ExportError;
use crate::input::exported::{ExportedBefore, LookedAt, ShardList};
use crate::input::plan::{SelectionRules, attempt_name};
use crate::notes::Omissions;
use crate::options::{Options, SETTLE_US};
use crate::output::sink::ExportSink;
use crate::rewards::scored_attempt::{ScoredAttempt, with_places, with_rewards};

/// The attempts that were selected, and the rules for them.
#[derive(Debug)]
pub(super) struct Selected {
    /// Attempts with whole groups, sorted as their rows will be.
    pub(super) attempts: Vec<ScoredAttempt>,
    pub(super) rules: SelectionRules,
    pub(super) looked_at: LookedAt,
    /// The list of which these are a part.
    pub(super) list: Option<ShardList>,
    pub(super) unread: UnreadAttempts,
}

/// Numbers of attempts that were not read, by why they are left out.
#[derive(Debug, Default)]
pub(super) struct UnreadAttempts {
    other_shards: u64,
    before_since: u64,
    /// All that are held, read or not.
    exported_before: u64,
    /// All that are open, read or not.
    still_open: u64,
}

/// Keys of the attempts that are read.
#[derive(Debug, Default)]
struct SelectedKeys {
    /// None where all of the scope are.
    keys: Option<Vec<i64>>,
    list: Option<ShardList>,
    unread: UnreadAttempts,
}

/// Selects the attempts of an export.
///
/// # Errors
/// [`ExportError`] when the store cannot be read, or is not the one that the export there is of.
pub(super) async fn select(
    snapshot: &mut Snapshot,
    options: &Options,
    sink: &ExportSink,
) -> Result<Selected, ExportError> {
    let scope = options.scope();
    let before = exported_before(snapshot, sink).await?;
    let looks_at_all = options.since.is_none() || options.new;
    let looked_at = LookedAt::new(snapshot, &scope, looks_at_all).await?;
    let SelectedKeys { keys, list, unread } = keys(snapshot, options, before.as_ref()).await?;

    let are_all = keys.is_none() && scope == Scope::default();
    let records = match &keys {
        Some(keys) => snapshot.episodes_by_key(keys).await?,
        None => snapshot.episodes_in(&scope).await?,
    };
    let as_of = options.rewards.as_of;
    let scored = with_rewards(snapshot, records, as_of, are_all).await?;
    let takes_no_place = options.no_infrastructure_failed;
    let attempts = with_places(snapshot, scored, takes_no_place, are_all).await?;

    let rules = options.rules(before);
    let mut selected = Selected { attempts, rules, looked_at, list, unread };
    selected.leave_other_shards();
    selected.look_up(snapshot, options.now).await?;
    Ok(selected)
}

/// Returns what the export there holds, where only new attempts are asked for.
async fn exported_before(
    snapshot: &mut Snapshot,
    sink: &ExportSink,
) -> Result<Option<ExportedBefore>, ExportError> {
    let Some(before) = sink.exported_before() else { return Ok(None) };
    let Some(store) = snapshot.store_id().await? else {
        // Its attempts go by their names, which positions are not.
        return match before.positions.is_empty() {
            true => Ok(Some(ExportedBefore { names: before.names, ..<_>::default() })),
            false => Err(sink.other_store().into()),
        };
    };

    let of_store = before.positions.get(&store).cloned().unwrap_or_default();
    if !of_store.is_of(snapshot).await? {
        return Err(sink.other_store().into());
    }
    Ok(Some(ExportedBefore { names: before.names, of_store }))
}

/// Selects the keys of the attempts that are read.
async fn keys(
    snapshot: &mut Snapshot,
    options: &Options,
    before: Option<&ExportedBefore>,
) -> Result<SelectedKeys, SnapshotError> {
    let scope = options.scope();
    let mut selected = SelectedKeys::default();
    if let Some(shard) = options.weighed_shard() {
        let part = snapshot.weighed_part(&scope, shard.index, shard.count).await?;
        let (groups, weight, until) = (part.groups, part.weight, scope.until);
        selected.list = Some(ShardList { groups, weight, until });
        selected.unread.other_shards = part.attempts.saturating_sub(part.keys.len() as u64);
        selected.keys = Some(part.keys);
        return Ok(selected);
    }

    let portion = match (before, options.since) {
        (Some(before), _) => {
            selected.unread.exported_before = before.count();
            selected.unread.still_open = snapshot.count_attempts(&scope, true).await?;
            let of_store = &before.of_store;
            let is_ordered = snapshot.has_positions_in_order().await?;
            let after = Portion::After(of_store.through, of_store.again.ranges().to_vec());
            Some(after).filter(|_| is_ordered && of_store.through > 0)
        }
        (None, since) => since.map(Portion::Since),
    };
    let Some(portion) = portion else { return Ok(selected) };
    let keys = snapshot.keys_of(&scope, &portion).await?;
    if matches!(portion, Portion::Since(_)) {
        let all = snapshot.count_attempts(&scope, false).await?;
        selected.unread.before_since = all.saturating_sub(keys.len() as u64);
    }
    selected.keys = Some(keys);
    Ok(selected)
}

impl Selected {
    /// Leaves the attempts of other shards, which are read where the rule is not the store's.
    fn leave_other_shards(&mut self) {
        let read = self.attempts.len();
        self.attempts.retain(|attempt| self.rules.is_of_shard(&attempt.record));
        self.unread.other_shards += (read - self.attempts.len()) as u64;
        // Only the attempts of this shard are known to be open.
        if self.rules.shard.is_some() {
            self.unread.still_open = 0;
        }
    }

    /// Looks up what the rules and the manifest need to know: positions, and calls under way.
    async fn look_up(&mut self, snapshot: &mut Snapshot, now: Micros) -> Result<(), SnapshotError> {
        let Self { attempts, rules, looked_at, .. } = self;
        let keys: Vec<i64> = attempts.iter().map(|attempt| attempt.record.key).collect();
        if looked_at.store.is_some() {
            rules.positions = snapshot.positions(&keys).await?;
        }
        let with_position = attempts.iter().filter_map(|attempt| {
            let position = *rules.positions.get(&attempt.record.key)?;
            Some((attempt_name(&attempt.record), position))
        });
        looked_at.positions = with_position.collect();

        if rules.not_in.is_some() {
            let just_closed = attempts
                .iter()
                .filter(|attempt| attempt.record.closed_at.is_some_and(|at| at > now - SETTLE_US));
            let keys: Vec<i64> = just_closed.map(|attempt| attempt.record.key).collect();
            rules.unsettled = snapshot.with_calls_under_way(&keys).await?;
        }
        Ok(())
    }
}

impl UnreadAttempts {
    /// Adds these to what was read and left out.
    pub(super) fn add_to(&self, left_out: &mut Omissions) {
        let counts = [
            ("episodes_of_other_shards", self.other_shards, true),
            ("episodes_before_since", self.before_since, true),
            ("episodes_exported_before", self.exported_before, false),
            ("episodes_still_open", self.still_open, false),
        ];
        for (reason, count, is_beside) in counts.into_iter().filter(|(_, count, _)| *count > 0) {
            let left = left_out.entry(reason).or_default();
            left.count = if is_beside { left.count + count } else { left.count.max(count) };
        }
    }
}
