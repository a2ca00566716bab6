//! The text of the kernels, and what arguments each of them takes.
//!
//! A family is one text of several files, one behind another: `base.cu`, `mma.cu` too if it
//! multiplies by tiles, then its own. Nothing is included, because a machine that runs this has no
//! headers. The table here is the only one: NVRTC gets it, the emulator's build and
//! `tests/cuda/cubins.py` read it.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::CudaError;

/// Kernels that are compiled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// What it is called.
    pub name: &'static str,
    /// The files that it is made of, in order: the name, and the text as this program has it.
    pub parts: &'static [(&'static str, &'static str)],
}

/// The size of heads that a family is compiled for where the size makes no difference to it.
const ANY_HEAD_DIM: usize = 64;

/// A family and its files, in order. Scripts read the lines of [`FAMILIES`], too.
macro_rules! family {
    ($name:literal: $($part:literal)*) => {
        Family {
            name: $name,
            parts: &[$(($part, include_str!(concat!("../../cuda/", $part, ".cu")))),*],
        }
    };
}

/// All kernels.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    family!("elementwise": "base" "elementwise"),
    family!("norm": "base" "norm"),
    family!("rope": "base" "rope"),
    family!("sample": "base" "sample/params" "sample/numbers" "sample/tiles" "sample/block"
        "sample/select" "sample/filters" "sample/draw" "sample/top" "sample/rows"),
    family!("lora": "base" "lora"),
    family!("weights": "base" "weights"),
    family!("attention": "base" "mma" "attention/tile" "attention/ring" "attention/softmax"
        "attention/splits" "attention/narrow" "attention/wide" "attention/attention"
        "attention/combine"),
    family!("gemm": "base" "mma" "gemm"),
    family!("gemm_small": "base" "mma" "gemm_small"),
];

impl Family {
    /// The whole text.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().map(|(_, text)| *text).collect();
        texts.join("\n")
    }

    /// The same with the files that lie in `folder` in place of this program's own.
    fn text_of(&self, folder: &Path) -> Result<String, CudaError> {
        let texts: Result<Vec<String>, CudaError> = (self.parts.iter())
            .map(|(name, text)| {
                let path = folder.join(format!("{name}.cu"));
                match std::fs::read_to_string(&path) {
                    Ok(other) => Ok(other),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                        Ok((*text).to_owned())
                    }
                    Err(error) => Err(CudaError::Text { path, reason: error.to_string() }),
                }
            })
            .collect();
        Ok(texts?.join("\n"))
    }

    /// The size of heads to compile this family's `text` for: the same for all where it does not
    /// differ by them. Of a text that is not this program's nothing is known.
    fn head_dim(&self, text: &str, head_dim: usize) -> usize {
        let mut own = self.parts.iter().filter(|(name, _)| *name != "base");
        let differs = own.any(|(_, text)| text.contains("HEAD_DIM"));
        if differs || text != self.text() { head_dim } else { ANY_HEAD_DIM }
    }
}

/// What is compiled: a family, its text, and the size of heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) family: &'static str,
    pub(super) text: String,
    pub(super) head_dim: usize,
}

/// The texts of families, with the files of `folder` in place of this program's own. A folder that
/// has none of them is not what somebody wanted.
pub(super) fn texts(
    families: &[Family],
    folder: Option<&Path>,
    head_dim: usize,
) -> Result<Vec<Text>, CudaError> {
    let is_text = |name: &str| folder.is_none_or(|at| at.join(format!("{name}.cu")).is_file());
    let mut names = FAMILIES.iter().flat_map(|family| family.parts);
    let of_use = names.any(|(name, _)| is_text(name));
    if let Some(folder) = folder.filter(|_| !of_use) {
        let reason = "has no text of a kernel, such as `gemm_small.cu`".to_owned();
        return Err(CudaError::Text { path: folder.to_owned(), reason });
    }
    let text = |family: &Family| {
        let text = folder.map_or_else(|| Ok(family.text()), |folder| family.text_of(folder))?;
        let head_dim = family.head_dim(&text, head_dim);
        Ok(Text { family: family.name, text, head_dim })
    };
    families.iter().map(text).collect()
}

/// What an argument of a kernel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pointer,
    Int,
    Long,
    Float,
}

impl Kind {
    /// As a letter, to show.
    pub(super) fn letter(self) -> char {
        match self {
            Kind::Pointer => 'p',
            Kind::Int => 'i',
            Kind::Long => 'l',
            Kind::Float => 'f',
        }
    }

    /// Reads a parameter such as `const float* weight`.
    fn of(parameter: &str) -> Option<Kind> {
        let has = |word: &str| parameter.split_whitespace().any(|one| one == word);
        match parameter {
            _ if parameter.contains('*') => Some(Kind::Pointer),
            _ if has("float") => Some(Kind::Float),
            _ if has("long") || has("size_t") => Some(Kind::Long),
            _ if has("int") || has("unsigned") => Some(Kind::Int),
            _ => None,
        }
    }
}

/// The kernels of a text, each with the kinds of its arguments. A kernel with an argument of
/// another kind is left out.
pub(super) fn signatures(text: &str) -> BTreeMap<String, Vec<Kind>> {
    let text = without_comments(text);
    let kernels = text.split("__global__").skip(1).filter_map(|rest| {
        let rest = rest.split_once("__launch_bounds__").map_or(rest, |(before, after)| {
            // Bounds may stand before the name, or belong to the next kernel.
            if before.contains('(') { rest } else { after.split_once(')').map_or("", |two| two.1) }
        });
        let (head, rest) = rest.split_once('(')?;
        let name = head.split_whitespace().last()?.to_owned();
        let (parameters, _) = rest.split_once(')')?;
        let parameters = parameters.split(',').map(str::trim).filter(|one| !one.is_empty());
        Some((name, parameters.map(Kind::of).collect::<Option<_>>()?))
    });
    kernels.collect()
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        out.push_str(&rest[..at]);
        let (end, kept) = if rest[at..].starts_with("/*") { ("*/", 2) } else { ("\n", 0) };
        let found = rest[at..].find(end);
        rest = found.map_or("", |length| &rest[at + length + kept..]);
        out.push(' ');
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_from_the_text() {
        let text = r#"
            // extern "C" __global__ void commented(int x) {}
            extern "C" __global__ void __launch_bounds__(256) first(
                float* out /* [T, H] */, const int n, // a count
                unsigned long long seed, float eps) { helper(n); }
            static __device__ void helper(int n);
            extern "C" __global__ void
            second(const bf16 *__restrict__ x, unsigned mask) { }
            extern "C" __global__ void odd(struct Some value) { }
        "#;
        let found = signatures(text);
        use Kind::*;
        assert_eq!(found.keys().collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(found["first"], [Pointer, Int, Long, Float]);
        assert_eq!(found["second"], [Pointer, Int]);
    }

    #[test]
    fn files_of_a_folder_stand_in_for_those_of_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let gemm: Vec<Family> = FAMILIES.iter().copied().filter(|one| one.name == "gemm").collect();
        let own = texts(&gemm, None, 128).unwrap();
        assert_eq!((own[0].text.as_str(), own[0].head_dim), (&*gemm[0].text(), ANY_HEAD_DIM));
        let error = texts(&gemm, Some(folder.path()), 128).unwrap_err().to_string();
        assert!(error.contains("has no text of a kernel"), "{error}");
        std::fs::write(folder.path().join("gemm.cu"), "// another").unwrap();
        let others = texts(&gemm, Some(folder.path()), 128).unwrap();
        let text = &others[0].text;
        assert!(text.ends_with("\n// another") && text.starts_with(gemm[0].parts[0].1));
        // Whether another text differs by the size of heads is not known.
        assert_eq!(others[0].head_dim, 128);
    }

    #[test]
    fn families_without_heads_are_compiled_for_one_size() {
        let found = texts(FAMILIES, None, 128).unwrap();
        let sizes: BTreeMap<_, _> = found.iter().map(|one| (one.family, one.head_dim)).collect();
        assert_eq!((sizes["attention"], sizes["rope"], sizes["gemm"]), (128, 128, ANY_HEAD_DIM));
    }

    #[test]
    fn every_family_has_kernels_of_its_own() {
        let mut names: Vec<String> = Vec::new();
        for family in FAMILIES {
            let found = signatures(&family.text());
            assert!(!found.is_empty(), "{}", family.name);
            names.extend(found.into_keys());
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two kernels have one name: {names:?}");
    }
}
