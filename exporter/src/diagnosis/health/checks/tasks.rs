//! Tasks that no attempt solves, and tasks that all attempts solve: neither teaches anything.

use std::collections::BTreeMap;

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::checks::rules::ShareRule;
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::sums::Rate;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, HealthExample, Tally};

const FAILED: ShareRule = ShareRule {
    check: "failed_tasks",
    units: "tasks with `task_attempts_min` scored attempts",
    fault: "were solved by none",
    share_max: 0.25,
    at_least: |thresholds| thresholds.tasks_min,
    look: |_, _, _| {},
    all_is_none: false,
};

const SOLVED: ShareRule =
    ShareRule { check: "solved_tasks", fault: "were solved by all", share_max: 0.5, ..FAILED };

/// The check of both. A task is named by its own name, else by that of the group.
#[derive(Debug, Default)]
pub(crate) struct TaskCheck(BTreeMap<String, TaskAttempts>);

#[derive(Debug)]
struct TaskAttempts {
    solved: Rate,
    first: HealthExample,
}

impl HealthCheck for TaskCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, thresholds: &Thresholds) {
        let record = seen.record();
        let task = record.task.as_ref().map(|task| format!("task {task}"));
        let group = record.group.as_ref().map(|group| format!("group {group}"));
        let Some(name) = task.or(group) else { return };
        let Some(reward) = seen.reward.filter(|_| !seen.is_infrastructure_failed) else { return };

        let task = self.0.entry(name).or_insert_with_key(|name| TaskAttempts {
            solved: Rate::default(),
            first: HealthExample::of_record(record, name.clone()),
        });
        task.solved.add(reward >= thresholds.solved_at);
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        let (mut failed, mut solved) = (Tally::default(), Tally::default());
        for TaskAttempts { solved: rate, first } in std::mem::take(&mut self.0).into_values() {
            if rate.cases < thresholds.task_attempts_min {
                continue;
            }
            let example = || {
                let note = format!("{}: {} of {} solved it", first.note, rate.times, rate.cases);
                HealthExample { note, ..first.clone() }
            };
            failed.add(rate.times == 0, example);
            solved.add(rate.times == rate.cases, example);
        }
        vec![FAILED.verdict(failed, thresholds), SOLVED.verdict(solved, thresholds)]
    }
}
