//! Records of a trainer that counts its groups by position: a block of records a group, one for
//! each of its attempts.
//!
//! A block that lacks a record would shift all groups behind it. An attempt without a row has the
//! place of a row that trains nothing; a group that lacks attempts is left out.

use std::collections::BTreeSet;

use super::{PendingRecords, RecordBuilder};
use crate::formats::refusals::RowRefusal;
use crate::formats::sample::{MessageSpan, Sample};
use crate::formats::table::{RecordColumn, Table};
use crate::input::plan::{AttemptNumbers, PlannedAttempt, attempt_name};
use crate::notes::{Omission, Omissions};
use crate::rows::row::Row;

/// Makes blocks. It holds the rows of one group.
pub(crate) struct BlockRecords {
    table: Table<Sample>,
    refusal: RowRefusal,
    /// Attempts of the group so far.
    places: Vec<Place>,
    omissions: Omissions,
    /// Attempts without a row of their own that have a record.
    filled: BTreeSet<String>,
    /// Attempts with rows that have no record.
    left_out: BTreeSet<String>,
}

/// The place of one attempt.
#[derive(Debug, Default)]
struct Place {
    /// The row that trains the most, the first of equals.
    row: Option<Row>,
    numbers: AttemptNumbers,
    /// True once the attempt has ended.
    is_over: bool,
    is_grouped: bool,
    name: String,
    reward: Option<f64>,
    /// Attempts of the group, where that was announced.
    size: Option<u32>,
    /// True where another attempt has this one's place.
    is_replaced: bool,
}

impl BlockRecords {
    pub(crate) fn new(columns: &'static [RecordColumn<Sample>], refusal: RowRefusal) -> Self {
        Self {
            table: Table::new(columns),
            refusal,
            places: Vec::new(),
            omissions: Omissions::new(),
            filled: BTreeSet::new(),
            left_out: BTreeSet::new(),
        }
    }

    /// Begins the place of an attempt, and ends the block before where it is of another group.
    fn begin(&mut self, place: Place) {
        if self.places.last().is_some_and(|last| last.numbers.group != place.numbers.group) {
            self.end_block();
        }
        self.places.push(place);
    }

    fn omit(&mut self, reason: &'static str, trained_tokens: usize) {
        let omission = Omission { count: 1, trained_tokens: trained_tokens as u64 };
        self.omissions.entry(reason).or_default().add(omission);
    }

    /// Writes the records of a group, or leaves it out.
    fn end_block(&mut self) {
        let (members, replaced): (Vec<Place>, Vec<Place>) =
            std::mem::take(&mut self.places).into_iter().partition(|place| !place.is_replaced);
        for place in replaced.iter().filter(|place| place.row.is_some()) {
            self.omit("attempts_run_again", place.trained());
            self.left_out.insert(place.name.clone());
        }

        let size = members.iter().find_map(|place| place.size).unwrap_or_default();
        let shortest = members.iter().filter_map(|place| place.row.as_ref());
        let Some(filler) = shortest.min_by_key(|row| row.tokens.input_ids.len()).map(untrained)
        else {
            if members.iter().any(|place| place.is_grouped) {
                self.omit("groups_without_a_row", 0);
            }
            return;
        };
        if members.len() < size as usize {
            self.omit("groups_short_of_members", members.iter().map(Place::trained).sum());
            self.left_out.extend(members.into_iter().map(|place| place.name));
            return;
        }
        for place in members {
            let row = match place.row {
                Some(row) => row,
                None => {
                    self.omit("members_missing_a_row", 0);
                    self.filled.insert(place.name.clone());
                    let trajectory_id = format!("{}/0", place.name);
                    Row { trajectory_id, reward: place.reward, ..filler.clone() }
                }
            };
            let (bytes, span) = (row.bytes(), MessageSpan::whole(&row));
            self.table.push(Sample::new(row, place.numbers, span, Vec::new()), bytes);
        }
    }
}

impl Place {
    fn trained(&self) -> usize {
        self.row.as_ref().map_or(0, |row| row.tokens.trained())
    }
}

/// Makes a row that trains none of its tokens.
fn untrained(row: &Row) -> Row {
    let mut row = row.clone();
    row.tokens.loss_mask.fill(0);
    row.advantage = None;
    row
}

impl RecordBuilder for BlockRecords {
    fn start_attempt(&mut self, attempt: &PlannedAttempt) {
        self.begin(Place {
            numbers: attempt.numbers,
            is_grouped: attempt.record.group.is_some(),
            name: attempt_name(&attempt.record),
            reward: attempt.reward,
            size: attempt.place.map(|place| place.size),
            is_replaced: attempt.place.is_some_and(|place| !place.is_member),
            ..Place::default()
        });
    }

    fn add_row(&mut self, row: Row, numbers: AttemptNumbers) -> bool {
        if let Some(reason) = (self.refusal)(&row) {
            self.omit(reason, row.tokens.trained());
            return false;
        }
        if self.places.last().is_none_or(|place| place.is_over) {
            self.begin(Place { numbers, ..Place::default() });
        }

        let Some(place) = self.places.last_mut() else { return false };
        let (held, new) = (place.trained(), row.tokens.trained());
        let is_first = place.row.is_none();
        if is_first || new > held {
            place.row = Some(row);
        }
        if !is_first {
            self.omit("rows_that_train_less", held.min(new));
        }
        true
    }

    fn end_attempt(&mut self) {
        if let Some(place) = self.places.last_mut() {
            place.is_over = true;
        }
    }

    fn end_file(&mut self) {
        self.end_block();
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        &mut self.table
    }

    fn omissions(&self) -> Omissions {
        self.omissions.clone()
    }

    fn correct(&self, attempts: &mut BTreeSet<String>) {
        attempts.retain(|name| !self.left_out.contains(name));
        attempts.extend(self.filled.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{Float64Type, Int8Type};
    use store::GroupPlace;

    use super::*;
    use crate::formats::refusals;
    use crate::formats::trainers::trl;
    use crate::tests::fixture::{call, episode, rows_of};

    /// An attempt of a group of three.
    fn planned(group: i64, name: &str, is_member: bool) -> PlannedAttempt {
        let mut record = episode(Vec::new()).record;
        (record.id, record.group) = (name.parse().unwrap(), Some("g".parse().unwrap()));
        let numbers = AttemptNumbers { group, ..AttemptNumbers::default() };
        let place = Some(GroupPlace { set: 0, size: 3, is_member });
        PlannedAttempt { numbers, reward: Some(0.5), place, ..PlannedAttempt::new(record) }
    }

    /// Makes records of attempts: group, name, whether it is a member, whether it has a row.
    fn made(attempts: &[(i64, &str, bool, bool)]) -> BlockRecords {
        let mut builder = BlockRecords::new(trl::COLUMNS, refusals::untrained);
        for (group, name, is_member, has_row) in attempts {
            let planned = planned(*group, name, *is_member);
            builder.start_attempt(&planned);
            if *has_row {
                let mut row = rows_of(&episode(vec![call(1, &[1, 2], &[&[3]])])).remove(0);
                (row.trajectory_id, row.reward) = (format!("{name}/0/0"), Some(1.0));
                assert!(builder.add_row(row, planned.numbers));
            }
            builder.end_attempt();
        }
        builder.end_file();
        builder
    }

    #[test]
    fn a_member_without_a_row_keeps_its_place_and_trains_nothing() {
        let (yes, no) = (true, false);
        let whole = [(0, "a", yes, yes), (0, "b", yes, no), (0, "c", yes, yes)];
        let mut builder = made(&[whole.as_slice(), &[(1, "d", yes, no)]].concat());
        let batch = builder.pending().take_batch().unwrap();
        let names = batch["trajectory_id"].as_string::<i32>().iter().flatten();
        assert_eq!(names.collect::<Vec<_>>(), ["a/0/0", "b/0/0", "c/0/0"]);
        let masks = batch["env_mask"].as_list::<i32>();
        let masks = (0..3).map(|at| masks.value(at).as_primitive::<Int8Type>().values()[0]);
        assert_eq!(masks.collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(batch["reward"].as_primitive::<Float64Type>().values(), &[1.0, 0.5, 1.0]);
        let left = |count, trained_tokens| Omission { count, trained_tokens };
        let expected =
            [("members_missing_a_row", left(1, 0)), ("groups_without_a_row", left(1, 0))];
        assert_eq!(builder.omissions(), expected.into());
    }

    #[test]
    fn a_group_that_lacks_an_attempt_is_left_out_and_comes_later() {
        let (yes, no) = (true, false);
        let short = [(0, "a", yes, yes), (0, "b", yes, yes), (0, "c", no, yes)];
        let mut builder = made(&[short.as_slice(), &[(1, "d", yes, yes)]].concat());
        assert_eq!(builder.pending().take_batch().unwrap().num_rows(), 0);
        let left = |count, trained_tokens| Omission { count, trained_tokens };
        let expected =
            [("attempts_run_again", left(1, 1)), ("groups_short_of_members", left(2, 3))];
        assert_eq!(builder.omissions(), expected.into());
        let mut attempts = BTreeSet::from(["a/0".to_owned(), "x/0".to_owned()]);
        builder.correct(&mut attempts);
        assert_eq!(attempts, ["x/0".to_owned()].into());
    }
}
