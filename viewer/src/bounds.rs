//! Bounds on what one question may cost.

use std::time::Duration;

/// Attempts on a page, unless another number is asked for.
pub(crate) const PAGE: u32 = 100;
/// Most entries on a page.
pub(crate) const PAGE_MAX: u32 = 1000;
/// Groups that are put into an order other than that of the newest: the newest ones.
pub(crate) const GROUPS_SORTED_MAX: usize = 5000;
/// Attempts that a search has in view at a time.
pub(crate) const SEARCH_ROWS: u32 = 1000;
/// Labels of an attempt in a list.
pub(crate) const LIST_LABELS_MAX: usize = 16;
/// Bytes of these labels, names and values together.
pub(crate) const LIST_LABEL_BYTES_MAX: usize = 2048;
/// Attempts that are named beside one that goes on from the same recording.
pub(crate) const SIBLINGS_MAX: usize = 100;
/// Characters of an excerpt of a message.
pub(crate) const EXCERPT_CHARS_MAX: usize = 200;
/// Bytes of the longest body that a list reads for the beginning of what it says.
pub(crate) const BEGINNING_BYTES_MAX: u64 = 8 << 20;
/// Memory that reading such a body takes, in its lengths: the part of the log that holds it, its
/// bytes, its values, and what these grow by.
pub(crate) const BEGINNING_COPIES: u64 = 8;
/// Beginnings that are kept for lists that are shown again.
pub(crate) const BEGINNINGS_KEPT: usize = 10_000;
/// Memory that a message takes in a document, in its lengths: its values, the document, and what
/// these grow by.
pub(crate) const MESSAGE_COPIES: u64 = 4;
/// Hits of a search, unless another number is asked for.
pub(crate) const HITS: u32 = 50;
/// Longest text that is searched for, in bytes.
pub(crate) const SEARCH_BYTES_MAX: usize = 1024;
/// Longest work of one request of a search.
pub(crate) const SEARCH_WAIT: Duration = Duration::from_secs(2);
/// Attempts that are judged together, unless another number is asked for.
pub(crate) const CHECKED: u32 = 1000;
/// Most attempts that are judged together.
pub(crate) const CHECKED_MAX: u32 = 10_000;
/// Longest reading of attempts that are judged together. It keeps one place of those that read.
pub(crate) const CHECKS_WAIT: Duration = Duration::from_secs(20);
/// Bytes of a kept audit.
pub(crate) const AUDIT_BYTES_MAX: u64 = 4 << 20;
/// Characters on each side of a hit.
pub(crate) const HIT_CHARS: usize = 80;
/// Calls that are read at a time for numbers over time.
pub(crate) const STATS_ROWS: u32 = 10_000;
/// Most calls that numbers over time are made of: the newest ones.
pub(crate) const STATS_CALLS_MAX: usize = 500_000;
/// Buckets, unless another number is asked for.
pub(crate) const BUCKETS: u32 = 60;
/// Most buckets.
pub(crate) const BUCKETS_MAX: u32 = 500;
/// Events of one kind that are read at a time.
pub(crate) const EVENT_ROWS: u32 = 500;
/// Newest calls among which those are looked for that run when a stream of events begins, and most
/// calls whose end a stream waits for.
pub(crate) const RUNNING_CALLS_MAX: usize = 10_000;
