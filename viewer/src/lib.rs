//! A recording as documents for people: lists of episodes, an episode as turns, a call as messages
//! and as tokens, groups and numbers over time.
//!
//! A [`Viewer`] answers questions about a store: a [`View`], an id, and parameters as in a query.
//! `docs/reading.md` describes the documents. Each question reads one moment of the store.
//!
//! - `episodes`, `groups`, `tasks`, `stats`, `search`: views of many attempts; `verdicts`: what is
//!   wrong with them.
//! - `tree`, `turn`: one attempt, as an export would thread it.
//! - `call`, `tokens`: one call; `messages`: what an attempt said, for questions in SQL.
//! - `events`: what changes.
//! - `page`: the files of the page that shows all this; `file`: the page with its answers in one.
//! - `parameters`: the query; `weights`, `texts`, `excerpt`, `beginnings`, `time`: parts of
//!   documents.
#![forbid(unsafe_code)]

mod answer;
mod beginnings;
mod bounds;
mod call;
mod episodes;
mod error;
mod events;
mod excerpt;
mod file;
mod groups;
mod messages;
mod page;
mod parameters;
mod search;
mod stats;
mod tasks;
mod texts;
mod time;
mod tokens;
mod tree;
mod turn;
mod verdicts;
mod weights;

pub use answer::{Answer, View, Viewer};
pub use call::{CallView, ChoiceArrays, ChoiceView, LineageView, UsageView};
pub use episodes::{EpisodeList, EpisodeView, ReplayView};
pub use error::ViewError;
pub use events::{CallEvent, EventReader, RewardEvent};
pub use file::{FileContent, FileError, attempts_of, write_page};
pub use groups::{GroupList, GroupView};
pub use messages::{messages, messages_of};
pub use page::{PageFile, page_file};
pub use search::{Hit, SearchResult, index_texts};
pub use stats::{AttemptUsage, ModelUsage, Stats, TimeBucket, Totals, VersionStats};
pub use tasks::{TaskList, TaskVersion, TaskView};
pub use texts::TokenTexts;
pub use tokens::TokensView;
pub use tree::{CommentView, EpisodeTree, FindingView, OtherCall, RewardView, SiblingView};
pub use turn::{ContinuedView, TurnId, TurnView};
pub use verdicts::{AuditView, ChecksView};
pub use weights::SpanView;
