//! The text of the kernels, and what arguments each of them takes.
//!
//! A family is one text of several files, one behind another: `base.cu`, `mma.cu` too if it
//! multiplies by tiles, then its own. Nothing is included, because a machine that runs this has no
//! headers. The table here is the only one: NVRTC gets it, the emulator's build and
//! `tests/cuda/cubins.py` read it.

use std::collections::BTreeMap;

/// Kernels that are compiled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// What it is called.
    pub name: &'static str,
    /// The texts that it is made of, in order.
    pub parts: &'static [&'static str],
}

/// A family and its files, in order. Scripts read the lines of [`FAMILIES`], too.
macro_rules! family {
    ($name:literal: $($part:literal)*) => {
        Family { name: $name, parts: &[$(include_str!(concat!("../../cuda/", $part, ".cu"))),*] }
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
        self.parts.join("\n")
    }
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
