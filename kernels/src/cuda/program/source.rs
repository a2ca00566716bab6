//! The texts of the kernels, and the arguments that each kernel takes.
//!
//! A family is one text of several files, one after another: `base.cu`, then `mma.cu` if it
//! multiplies by tiles, then its own. It includes nothing, because a machine that runs this has no
//! headers. There is no second list of families: the emulator's build and `tests/cuda/cubins.py`
//! read the one here.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cuda::error::CudaError;
use crate::op::KvFormat;

/// Kernels that are compiled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Name of the family.
    pub name: &'static str,
    /// Its files in order, each with its name and the text that is built in.
    pub parts: &'static [(&'static str, &'static str)],
}

/// The size of heads for families that do not depend on it.
const ANY_HEAD_DIM: usize = 64;

/// A family and its files, in order. Scripts also read the lines of [`FAMILIES`].
macro_rules! family {
    ($name:literal: $($part:literal)*) => {
        Family {
            name: $name,
            parts: &[$(($part, include_str!(concat!("../../../cuda/", $part, ".cu")))),*],
        }
    };
}

/// All kernels.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    family!("elementwise": "base" "gate" "elementwise"),
    family!("norm": "base" "norm"),
    family!("rope": "base" "pages/bf16" "rope/head" "pages/bf16_store" "rope/rows"
        "rope/kernels_bf16"),
    family!("sample": "base" "sample/params" "sample/numbers" "sample/shape" "sample/tiles"
        "sample/block" "sample/select" "sample/filters" "sample/draw" "sample/top" "sample/rows"),
    family!("lora": "base" "lora"),
    family!("weights": "base" "eights" "weights"),
    family!("arrival": "base" "eights" "arrival/elements" "arrival/blake3" "arrival/checksum"),
    family!("attention": "base" "mma" "pages/bf16" "rope/head" "pages/bf16_store" "attention/tile"
        "pages/bf16_load" "attention/ring" "attention/softmax" "attention/splits"
        "attention/narrow" "attention/wide" "attention/combine" "attention/attention"
        "attention/rotating" "attention/kernels_bf16"),
    family!("attention_tall": "base" "mma" "pages/bf16" "attention/tile" "pages/bf16_load"
        "attention/ring" "attention/softmax" "attention/splits" "attention/tall"
        "attention/tall_bf16"),
    family!("attention_warpgroups": "base" "mma" "warpgroup" "pages/bf16" "attention/tile"
        "attention/softmax" "attention/warpgroups"),
    family!("gemm": "base" "mma" "gate" "product/operands" "product/tile" "gemm"),
    family!("gemm_small": "base" "mma" "gate" "product/operands" "product/slab" "product/spread"
        "product/split" "gemm_small"),
    family!("recurrent": "base" "recurrent/spans" "recurrent/convolve" "recurrent/delta"
        "recurrent/norm"),
    family!("experts": "base" "experts/route" "experts/sort" "experts/combine"),
    family!("expert_gemm": "base" "mma" "gate" "product/operands" "product/tile"
        "experts/operands" "experts/gemm"),
    family!("expert_gemm_small": "base" "mma" "gate" "product/operands" "product/slab"
        "experts/operands" "experts/gemm_small"),
    family!("rope_fp8": "base" "pages/fp8" "rope/head" "pages/fp8_store" "rope/rows"
        "rope/kernels_fp8"),
    family!("attention_fp8": "base" "mma" "pages/fp8" "rope/head" "pages/fp8_store"
        "attention/tile" "pages/fp8_load" "attention/ring" "attention/softmax" "attention/splits"
        "attention/narrow" "attention/wide" "attention/combine" "attention/attention"
        "attention/rotating" "attention/kernels_fp8"),
    family!("attention_tall_fp8": "base" "mma" "pages/fp8" "attention/tile" "pages/fp8_load"
        "attention/ring" "attention/softmax" "attention/splits" "attention/tall"
        "attention/tall_fp8"),
];

/// The end of the names of families and kernels of FP8 pages.
pub(crate) const FP8_END: &str = "_fp8";

/// Returns the families whose kernels steps launch, for keys and values in a format.
pub(crate) fn families_for(format: KvFormat) -> Vec<Family> {
    let is_used = |family: &&Family| format == KvFormat::Fp8 || !family.name.ends_with(FP8_END);
    FAMILIES.iter().filter(is_used).copied().collect()
}

impl Family {
    /// Returns the whole text that is built in.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().map(|(_, text)| *text).collect();
        texts.join("\n")
    }

    /// Returns the whole text, with the files of `folder` in place of those that are built in.
    fn text_with(&self, folder: &Path) -> Result<String, CudaError> {
        let mut texts = Vec::new();
        for (name, built_in) in self.parts {
            let path = folder.join(format!("{name}.cu"));
            texts.push(match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    (*built_in).to_owned()
                }
                Err(error) => return Err(CudaError::Text { path, reason: error.to_string() }),
            });
        }
        Ok(texts.join("\n"))
    }

    /// Returns the size of heads to compile `text` for: [`ANY_HEAD_DIM`] if it is the family's own
    /// and does not depend on the size.
    fn head_dim(&self, text: &str, head_dim: usize) -> usize {
        let depends = self
            .parts
            .iter()
            .filter(|(name, _)| *name != "base")
            .any(|(_, text)| text.contains("HEAD_DIM"));
        if depends || text != self.text() { head_dim } else { ANY_HEAD_DIM }
    }

    /// Returns true if `folder` has any of the family's files.
    fn has_file_in(&self, folder: &Path) -> bool {
        self.parts.iter().any(|(name, _)| folder.join(format!("{name}.cu")).is_file())
    }
}

/// The input of the compiler: a family, its text, and the size of heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelText {
    pub(crate) family: &'static str,
    pub(crate) text: String,
    pub(crate) head_dim: usize,
}

/// Returns the texts of families, with the files of `folder` in place of those that are built in.
/// A folder without any file of a kernel is an error.
pub(crate) fn texts(
    families: &[Family],
    folder: Option<&Path>,
    head_dim: usize,
) -> Result<Vec<KernelText>, CudaError> {
    if let Some(folder) = folder
        && !FAMILIES.iter().any(|family| family.has_file_in(folder))
    {
        let reason = "has no text of a kernel, such as `gemm_small.cu`".to_owned();
        return Err(CudaError::Text { path: folder.to_owned(), reason });
    }

    let mut texts = Vec::new();
    for family in families {
        let text = match folder {
            Some(folder) => family.text_with(folder)?,
            None => family.text(),
        };
        let head_dim = family.head_dim(&text, head_dim);
        texts.push(KernelText { family: family.name, text, head_dim });
    }
    Ok(texts)
}

/// The type of a kernel's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgKind {
    Pointer,
    Int,
    Long,
    Float,
}

impl ArgKind {
    /// Returns its letter in errors.
    pub(crate) fn letter(self) -> char {
        match self {
            ArgKind::Pointer => 'p',
            ArgKind::Int => 'i',
            ArgKind::Long => 'l',
            ArgKind::Float => 'f',
        }
    }

    /// Reads a parameter such as `const float* weight`.
    fn of(parameter: &str) -> Option<ArgKind> {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        match parameter {
            _ if parameter.contains('*') => Some(ArgKind::Pointer),
            _ if words.contains(&"float") => Some(ArgKind::Float),
            _ if words.contains(&"long") || words.contains(&"size_t") => Some(ArgKind::Long),
            _ if words.contains(&"int") || words.contains(&"unsigned") => Some(ArgKind::Int),
            _ => None,
        }
    }
}

/// Finds the kernels of a text, each with the kinds of its arguments. A kernel with an argument of
/// another kind is left out.
pub(crate) fn signatures(text: &str) -> BTreeMap<String, Vec<ArgKind>> {
    without_comments(text).split("__global__").skip(1).filter_map(signature).collect()
}

/// Reads the name and the kinds of the arguments that follow `__global__`.
fn signature(declaration: &str) -> Option<(String, Vec<ArgKind>)> {
    let unbounded = match declaration.split_once("__launch_bounds__") {
        // The bounds are before the name. After a bracket they belong to the next kernel.
        Some((before, after)) if !before.contains('(') => after.split_once(')')?.1,
        _ => declaration,
    };
    let (head, rest) = unbounded.split_once('(')?;
    let name = head.split_whitespace().last()?.to_owned();
    let kinds = rest
        .split_once(')')?
        .0
        .split(',')
        .map(str::trim)
        .filter(|parameter| !parameter.is_empty())
        .map(ArgKind::of)
        .collect::<Option<_>>()?;
    Some((name, kinds))
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
        use ArgKind::*;
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
        // Another text may depend on the size of heads.
        assert_eq!(others[0].head_dim, 128);
    }

    #[test]
    fn families_without_heads_are_compiled_for_one_size() {
        let found = texts(FAMILIES, None, 128).unwrap();
        let sizes: BTreeMap<_, _> = found.iter().map(|one| (one.family, one.head_dim)).collect();
        assert_eq!((sizes["attention"], sizes["rope"], sizes["gemm"]), (128, 128, ANY_HEAD_DIM));
    }

    #[test]
    fn kernels_of_fp8_pages_are_loaded_where_they_are_wanted() {
        let names = |format| families_for(format).iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(names(KvFormat::Fp8).len(), FAMILIES.len());
        let usual = names(KvFormat::Native);
        assert_eq!(usual.len(), FAMILIES.len() - 3);
        assert!(usual.contains(&"attention") && !usual.contains(&"attention_fp8"));
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
