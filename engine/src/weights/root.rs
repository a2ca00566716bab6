//! The folder that weights and adapters may be loaded from.

use std::io;
use std::path::{Path, PathBuf};

/// A folder that a caller named and may not load.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{}` cannot be loaded: it is not below the folder that `--weights-root` names, or holds a \
     link that leads out of it",
    given.display()
)]
pub(crate) struct OutsideRoot {
    given: PathBuf,
}

/// The folder that weights and adapters may be loaded from; any folder if it is not set.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightsRoot(Option<PathBuf>);

impl WeightsRoot {
    /// Sets the folder. Links in its own path are resolved once.
    ///
    /// # Errors
    /// It does not exist.
    pub(crate) fn new(root: Option<&Path>) -> io::Result<WeightsRoot> {
        Ok(WeightsRoot(root.map(Path::canonicalize).transpose()?))
    }

    /// Returns the folder to read for the one that a caller named, without links. Blocks.
    ///
    /// # Errors
    /// It is not below the root, or one of its files is not. The error is the same for a folder
    /// that does not exist, so that nobody can look for folders elsewhere.
    pub(crate) fn folder(&self, given: &Path) -> Result<PathBuf, OutsideRoot> {
        let Some(root) = &self.0 else { return Ok(given.to_owned()) };
        inside(root, given).map_err(|()| OutsideRoot { given: given.to_owned() })
    }
}

fn inside(root: &Path, given: &Path) -> Result<PathBuf, ()> {
    let below = |path: &Path| {
        let real = path.canonicalize().map_err(|_| ())?;
        if real.starts_with(root) { Ok(real) } else { Err(()) }
    };
    let folder = below(given)?;
    for entry in folder.read_dir().map_err(|_| ())? {
        below(&entry.map_err(|_| ())?.path())?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_read_below_the_root_only_whatever_its_links_say() {
        let place = tempfile::tempdir().unwrap();
        let (root, other) = (place.path().join("root"), place.path().join("other"));
        for folder in [root.join("a"), root.join("links"), root.join("own"), other.clone()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(other.join("secret"), "s").unwrap();
        std::fs::write(root.join("a/file"), "f").unwrap();
        symlink(other.join("secret"), root.join("links/file")).unwrap();
        symlink(root.join("a/file"), root.join("own/file")).unwrap();
        symlink(&other, root.join("out")).unwrap();

        let limited = WeightsRoot::new(Some(&root)).unwrap();
        let reads = |path: PathBuf| limited.folder(&path).is_ok();
        assert!(reads(root.join("a")) && reads(root.join("own")) && reads(root.join("a/../a")));
        for path in ["../other", "out", "links", "absent", "a/../../other", "/etc", "../root2"] {
            assert!(!reads(root.join(path)), "{path}");
        }
        assert!(WeightsRoot::default().folder(&other).is_ok());
        assert!(WeightsRoot::new(Some(&root.join("absent"))).is_err());
    }
}
