//! One episode under check.

use std::collections::HashMap;

use crate::database::connection::StoreConnection;
use crate::log::reader::LogReader;
use crate::verify::logs::CheckedLog;
use crate::verify::report::{RecordRef, VerifyReport};

/// An episode that is being checked.
pub(crate) struct EpisodeCheck<'a> {
    pub(crate) connection: &'a mut StoreConnection,
    pub(crate) key: i64,
    /// Episode and attempt, once its row was read.
    pub(crate) name: Option<(String, i64)>,
    pub(crate) report: &'a mut VerifyReport,
    pub(crate) reader: LogReader,
    pub(crate) logs: HashMap<i64, CheckedLog>,
}

impl<'a> EpisodeCheck<'a> {
    pub(crate) fn new(
        connection: &'a mut StoreConnection,
        report: &'a mut VerifyReport,
        key: i64,
    ) -> Self {
        let (reader, logs) = (LogReader::default(), HashMap::new());
        Self { connection, key, name: None, report, reader, logs }
    }

    /// Reports damage of a call, or of the whole episode.
    pub(crate) fn damaged(&mut self, call: Option<&str>, what: impl Into<String>) {
        let place = self.place(call);
        self.report.add_damage(place, what.into());
    }

    /// The reference to a call, or to the whole episode.
    pub(crate) fn place(&self, call: Option<&str>) -> RecordRef {
        RecordRef { episode: self.name.clone(), call: call.map(str::to_owned) }
    }
}
