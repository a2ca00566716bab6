//! The mode of exported files: who may read what was recorded.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// The mode of the files of an export: their owner may always read and write them, others only
/// where that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(u32);

/// Nobody but the owner.
impl Default for FileMode {
    fn default() -> Self {
        Self(0o600)
    }
}

impl FileMode {
    /// Returns the mode of these bits; none where the owner could not read and write, or a file
    /// could be executed.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits & 0o600 == 0o600 && bits & !0o666 == 0).then_some(Self(bits))
    }

    /// Returns the permissions of a file.
    pub(crate) fn permissions(self) -> Permissions {
        Permissions::from_mode(self.0)
    }

    /// Makes a folder and those above it. Whoever may read the files may enter it; a folder that
    /// is there keeps its mode.
    pub(crate) fn make_folder(self, folder: &Path) -> io::Result<()> {
        let readers = self.0 & 0o444;
        DirBuilder::new().recursive(true).mode(self.0 | readers >> 2).create(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_their_owner_s_alone_unless_more_is_asked_for() {
        assert_eq!(FileMode::from_bits(0o600), Some(FileMode::default()));
        assert_eq!(FileMode::from_bits(0o644), Some(FileMode(0o644)));
        for wrong in [0o044, 0o400, 0o700, 0o4600, 0o1_000_600] {
            assert_eq!(FileMode::from_bits(wrong), None, "{wrong:o}");
        }

        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("a/b");
        FileMode::default().make_folder(&made).unwrap();
        for folder in [&made, made.parent().unwrap()] {
            assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
