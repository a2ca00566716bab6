//! The engine that has a call, as the record of the call names it.

use std::fmt::Debug;

/// An engine at one moment of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineStamp {
    pub(crate) engine: String,
    /// How the call came there.
    pub(crate) routed: String,
    /// The label of its weights, if it is known.
    pub(crate) label: Option<String>,
    /// True while weights are pushed to it, so that the old ones or the new ones sample.
    pub(crate) is_changing: bool,
}

/// A call's place on an engine. It is given back by dropping it.
pub(crate) trait EnginePlace: Debug + Send + Sync {
    /// The engine at this moment; `None` if there is one upstream only.
    fn stamp(&self) -> Option<EngineStamp>;

    /// Notes that the reply of the call broke off.
    fn note_broken_reply(&self);

    /// Notes that the reply of the call was whole.
    fn note_whole_reply(&self);
}
