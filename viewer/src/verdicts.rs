//! Verdicts on a run: [`checks`] are made when they are asked for, an [`audit`] is kept by its
//! command.

mod audit;
mod checks;

pub use self::audit::AuditView;
pub(crate) use self::audit::audit;
pub use self::checks::ChecksView;
pub(crate) use self::checks::checks;
