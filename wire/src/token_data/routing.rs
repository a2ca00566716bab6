//! The experts that each token was routed to.
//!
//! Servers send nested lists, or bytes in base64. The bytes are 32-bit integers of a shape that the
//! reader must know, a NumPy file, or in an object with shape and type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The first bytes of a NumPy file.
const NUMPY_MAGIC: &[u8] = b"\x93NUMPY";
/// Characters of base64 that hold the header of any NumPy file of three sizes.
const NUMPY_HEADER_TEXT: usize = 512;

/// The experts of some tokens of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// The first of these tokens, counted from the start of the prompt, if the server reports it.
    pub start: Option<usize>,
    /// The shape of one token's experts: `[layers, k]`, or `[layers * k]` if the server reports no
    /// more.
    pub shape: Vec<usize>,
    /// The experts of all tokens, `tokens * width` of them, token by token.
    pub experts: Vec<u16>,
}

impl Routing {
    /// Number of experts of one token, over all layers.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.experts.len() / self.width()
    }

    /// The same if it holds whole tokens with at least one expert each.
    fn checked(self) -> Option<Self> {
        let width = self.width();
        let is_whole =
            width > 0 && !self.experts.is_empty() && self.experts.len().is_multiple_of(width);
        is_whole.then_some(self)
    }
}

/// Reads the experts of a path of `tokens` tokens, prompt included. The last token has none: no
/// token was sampled after it.
pub fn routing(json: &str, tokens: usize) -> Option<Routing> {
    if let Some(text) = plain_text(json) {
        return from_base64(text, tokens)?.checked();
    }
    let pieces: Vec<Value> = serde_json::from_str(json).ok()?;
    let read = match pieces.as_slice() {
        [Value::String(text)] => from_base64(text, tokens)?,
        [Value::Object(_)] => from_object(&pieces[0])?,
        lists => from_lists(lists)?,
    };
    read.checked()
}

/// Number of the rows of a column of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertRows {
    /// Rows, which the server separates.
    Counted(usize),
    /// 32-bit integers of rows of unknown width.
    Bare(usize),
}

/// Counts the rows of a column without reading them where they are in base64.
pub(crate) fn expert_rows(json: &str) -> Option<ExpertRows> {
    let Some(text) = plain_text(json) else {
        return routing(json, 0).map(|read| ExpertRows::Counted(read.tokens()));
    };
    let beginning = STANDARD.decode(text.get(..NUMPY_HEADER_TEXT).unwrap_or(text)).ok()?;
    if beginning.starts_with(NUMPY_MAGIC) {
        return numpy_header(&beginning)?.sizes.first().copied().map(ExpertRows::Counted);
    }
    let bytes = text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count();
    bytes.is_multiple_of(4).then_some(ExpertRows::Bare(bytes / 4))
}

/// The text of a list of one plain text, which is not read as JSON.
fn plain_text(json: &str) -> Option<&str> {
    let text = json.strip_prefix("[\"")?.strip_suffix("\"]")?;
    (!text.bytes().any(|byte| matches!(byte, b'"' | b'\\'))).then_some(text)
}

fn from_base64(text: &str, tokens: usize) -> Option<Routing> {
    let data = STANDARD.decode(text).ok()?;
    if data.starts_with(NUMPY_MAGIC) {
        return from_numpy(&data);
    }
    let experts = integers(&data, "i4")?;
    let fits = |count: &usize| *count > 0 && experts.len().is_multiple_of(*count);
    let count = [tokens.saturating_sub(1), tokens].into_iter().find(fits)?;
    Some(Routing { start: None, shape: vec![experts.len() / count], experts })
}

/// Reads `{"data", "shape", "dtype", "start"?}`.
fn from_object(object: &Value) -> Option<Routing> {
    let data = STANDARD.decode(object.get("data")?.as_str()?).ok()?;
    let sizes: Vec<usize> =
        object.get("shape")?.as_array()?.iter().map(as_size).collect::<Option<_>>()?;
    let kind = match object.get("dtype")?.as_str()? {
        "uint8" => "u1",
        "int8" => "i1",
        "uint16" => "u2",
        "int16" => "i2",
        "int32" => "i4",
        "int64" => "i8",
        _ => return None,
    };
    let start = object.get("start").and_then(as_size);
    of_shape(&sizes, integers(&data, kind)?, start)
}

fn as_size(number: &Value) -> Option<usize> {
    number.as_u64().and_then(|number| usize::try_from(number).ok())
}

/// The header of a NumPy file.
struct NumpyHeader<'a> {
    /// The kind of its numbers, such as `<i4`.
    kind: &'a str,
    sizes: Vec<usize>,
    data_start: usize,
}

fn from_numpy(file: &[u8]) -> Option<Routing> {
    let header = numpy_header(file)?;
    let kind = header.kind.trim_start_matches(['<', '|', '=']);
    let experts = integers(file.get(header.data_start..)?, kind)?;
    of_shape(&header.sizes, experts, None)
}

/// Reads the beginning of a NumPy file: magic bytes, version, length of the header, header.
fn numpy_header(file: &[u8]) -> Option<NumpyHeader<'_>> {
    let (header_start, header_bytes): (usize, usize) = match file.get(6)? {
        1 => (10, usize::from(u16::from_le_bytes(file.get(8..10)?.try_into().ok()?))),
        _ => (12, u32::from_le_bytes(file.get(8..12)?.try_into().ok()?) as usize),
    };
    let data_start = header_start.checked_add(header_bytes)?;
    let header = std::str::from_utf8(file.get(header_start..data_start)?).ok()?;

    // The header is a Python dictionary such as {'descr': '<i4', 'fortran_order': False, ...}.
    let after = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim());
    let kind = after("descr")?.trim_start_matches('\'').split('\'').next()?;
    if after("fortran_order")?.starts_with("True") || kind.starts_with('>') {
        return None;
    }
    let sizes: Vec<usize> = after("shape")?
        .strip_prefix('(')?
        .split(')')
        .next()?
        .split(',')
        .map(str::trim)
        .filter(|size| !size.is_empty())
        .map(|size| size.parse().ok())
        .collect::<Option<_>>()?;
    Some(NumpyHeader { kind, sizes, data_start })
}

/// The experts of an array of shape `sizes`, `[tokens, ..]`.
fn of_shape(sizes: &[usize], experts: Vec<u16>, start: Option<usize>) -> Option<Routing> {
    let (_, shape) = sizes.split_first().filter(|(_, shape)| !shape.is_empty())?;
    let all = sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    (all == Some(experts.len())).then(|| Routing { start, shape: shape.to_vec(), experts })
}

/// Little-endian integers of a NumPy `kind` such as `i4`; `None` if one of them is below 0 or has
/// more than 16 bits.
fn integers(data: &[u8], kind: &str) -> Option<Vec<u16>> {
    let width: usize = kind.get(1..)?.parse().ok()?;
    if !matches!((kind.as_bytes()[0], width), (b'u' | b'i', 1 | 2 | 4 | 8)) {
        return None;
    }

    let is_signed = kind.starts_with('i');
    let chunks = data.chunks_exact(width);
    if !chunks.remainder().is_empty() {
        return None;
    }
    chunks.map(|bytes| small_integer(bytes, is_signed)).collect()
}

fn small_integer(bytes: &[u8], is_signed: bool) -> Option<u16> {
    let (low, high) = bytes.split_at(bytes.len().min(2));
    let is_negative = is_signed && bytes.last().is_some_and(|last| *last >= 0x80);
    if is_negative || high.iter().any(|byte| *byte > 0) {
        return None;
    }
    Some(u16::from_le_bytes([low[0], low.get(1).copied().unwrap_or(0)]))
}

/// Reads lists of tokens of layers of experts, or of tokens of experts.
fn from_lists(tokens: &[Value]) -> Option<Routing> {
    let first = tokens.first()?.as_array()?;
    let layers = first.len();
    let shape = match first.first()? {
        Value::Array(experts) => vec![layers, experts.len()],
        _ => vec![layers],
    };

    let mut experts = Vec::new();
    for token in tokens {
        // Every token must have the shape of the first one.
        for entry in token.as_array().filter(|token| token.len() == layers)? {
            match entry {
                Value::Array(of_layer) if Some(&of_layer.len()) == shape.get(1) => {
                    experts.extend(of_layer.iter().map(as_expert).collect::<Option<Vec<_>>>()?);
                }
                Value::Number(_) if shape.len() == 1 => experts.push(as_expert(entry)?),
                _ => return None,
            }
        }
    }
    Some(Routing { start: None, shape, experts })
}

fn as_expert(number: &Value) -> Option<u16> {
    number.as_u64().and_then(|number| u16::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(data: &[u8]) -> String {
        json!([STANDARD.encode(data)]).to_string()
    }

    /// A file of NumPy's, as `numpy.save` writes it.
    fn file(kind: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        let header = format!("{header:<117}\n");
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    fn read(start: Option<usize>, shape: &[usize], experts: &[u16]) -> Option<Routing> {
        Some(Routing { start, shape: shape.to_vec(), experts: experts.to_vec() })
    }

    #[test]
    fn bare_bytes_are_as_wide_as_the_path_lets_them() {
        // Three tokens, of which the last one has none; two layers of two.
        let experts: [i32; 8] = [0, 1, 2, 300, 4, 5, 6, 7];
        let data: Vec<u8> = experts.iter().flat_map(|e| e.to_le_bytes()).collect();
        let expected = read(None, &[4], &[0, 1, 2, 300, 4, 5, 6, 7]);
        assert_eq!(routing(&text(&data), 3), expected);
        let found = expected.unwrap();
        assert_eq!((found.width(), found.tokens()), (4, 2));
        assert_eq!(routing(&text(&data), 6), None, "8 are not those of 5 tokens, nor of 6");
        assert_eq!(routing(&text(&data[1..]), 3), None);
        assert_eq!(routing(&text(&(-1_i32).to_le_bytes()), 2), None);
        assert_eq!(routing(&text(&[]), 2), None);
    }

    #[test]
    fn a_file_of_numpys_says_its_shape() {
        let expected = || read(None, &[2, 1], &[1, 2, 3, 4]);
        assert_eq!(routing(&text(&file("|u1", "(2, 2, 1)", &[1, 2, 3, 4])), 9), expected());
        let wide: Vec<u8> = [1_i16, 2, 3, 4].iter().flat_map(|e| e.to_le_bytes()).collect();
        assert_eq!(routing(&text(&file("<i2", "(2, 2, 1)", &wide)), 9), expected());
        for (kind, shape, data) in [
            ("|u1", "(2, 2, 1)", &[1, 2, 3][..]),
            (">i2", "(2, 2, 1)", &wide),
            ("<f4", "(1, 2, 1)", &wide),
            ("|u1", "(4,)", &[1, 2, 3, 4]),
            ("|u1", "(0, 2, 1)", &[]),
        ] {
            assert_eq!(routing(&text(&file(kind, shape, data)), 9), None, "{kind} {shape}");
        }
        let whole = file("|u1", "(2, 2, 1)", &[1, 2, 3, 4]);
        for cut in 0..whole.len() {
            assert_eq!(routing(&text(&whole[..cut]), 0), None, "{cut}");
        }
    }

    #[test]
    fn rows_are_counted_by_the_head_alone() {
        let wide: Vec<u8> = (0..4000_u16).flat_map(u16::to_le_bytes).collect();
        let counted = |json: &str| expert_rows(json);
        let whole = text(&file("<i2", "(1000, 2, 2)", &wide));
        assert_eq!(counted(&whole), Some(ExpertRows::Counted(1000)));
        assert_eq!(
            counted(&text(&file("|u1", "(2, 2, 1)", &[1; 4]))),
            Some(ExpertRows::Counted(2))
        );
        for count in [0, 1, 2, 3, 500] {
            assert_eq!(counted(&text(&wide[..count * 4])), Some(ExpertRows::Bare(count)));
        }
        assert_eq!(counted(&text(&wide[..5])), None);
        assert_eq!(counted("[[[1,2]],[[3,4]]]"), Some(ExpertRows::Counted(2)));
        assert_eq!(counted("[\"no base64\"]"), None);
    }

    #[test]
    fn an_object_says_shape_type_and_start() {
        let object = json!([{ "data": STANDARD.encode([1, 2, 3, 4]), "shape": [2, 1, 2],
            "dtype": "uint8", "start": 3 }]);
        assert_eq!(routing(&object.to_string(), 9), read(Some(3), &[1, 2], &[1, 2, 3, 4]));
        let mut other = object.clone();
        other[0]["dtype"] = json!("bfloat16");
        assert_eq!(routing(&other.to_string(), 9), None);
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_whole_tokens(
            cut in 0..200usize,
            changed in (0..200usize, any::<u8>()),
            tokens in 0..9usize,
        ) {
            let mut data = file("|u1", "(2, 2, 1)", &[1, 2, 3, 4]);
            data.truncate(cut.max(4));
            if let Some(byte) = data.get_mut(changed.0) {
                *byte = changed.1;
            }
            if let Some(read) = routing(&text(&data), tokens) {
                prop_assert!(read.tokens() > 0);
                prop_assert_eq!(read.tokens() * read.width(), read.experts.len());
            }
        }

        #[test]
        fn no_text_is_too_odd(json in r#"[\[\]{}:,"0-9a-c=\-]{0,40}"#, tokens in 0..9usize) {
            routing(&json, tokens);
            crate::alternatives(&json);
            crate::sampling_mask(&json);
        }
    }

    #[test]
    fn lists_are_read_as_they_are_nested() {
        assert_eq!(routing("[[[1,2],[3,4]]]", 9), read(None, &[2, 2], &[1, 2, 3, 4]));
        assert_eq!(routing("[[1,2],[3,4]]", 9), read(None, &[2], &[1, 2, 3, 4]));
        for ragged in ["[[[1,2],[3]]]", "[[1,2],[3]]", "[[1],[[2]]]", "[[[]]]", "[[-1]]", "[]"] {
            assert_eq!(routing(ragged, 9), None, "{ragged}");
        }
    }
}
