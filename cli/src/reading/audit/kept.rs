//! The result of the last audit, in a file beside the store, where its page finds it.

use std::io::Write;
use std::path::Path;

use exporter::AuditReport;
use serde::Serialize;
use store::Location;

use crate::exit::Failure;
use crate::options::secret_file::create_folder_of;
use crate::options::store::kept_audit;
use crate::time::now;

/// The kept audit: the object that `--json` prints, and the time at which it was made.
#[derive(Serialize)]
struct KeptAudit<'a> {
    /// Seconds since 1970.
    audited_at: f64,
    of_trainer: bool,
    #[serde(flatten)]
    report: &'a AuditReport,
}

/// Writes the result in place of the one that is kept. The file appears whole, for its owner alone.
pub(super) fn keep(
    report: &AuditReport,
    store: &Location,
    of_trainer: bool,
) -> Result<(), Failure> {
    let path = kept_audit(store).ok_or_else(|| {
        Failure::new("there is no folder to keep the audit of a database in")
            .hint("set HOME or XDG_STATE_HOME")
    })?;
    create_folder_of(&path, store)?;
    let kept = KeptAudit { audited_at: now() as f64 / 1e6, of_trainer, report };
    let text = serde_json::to_vec(&kept).map_err(|e| Failure::of(&e))?;
    write(&path, &text).map_err(|error| {
        Failure::of(&error).context(&format!("cannot keep the audit as `{}`", path.display()))
    })
}

fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".rolltape-").tempfile_in(folder)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
