//! The tensors of an update, and how they are grouped into broadcasts.

use safetensors::Dtype;
use serde_json::{Map, Value};

/// The default of `packed_buffer_size_bytes`, that of vLLM's client.
const DEFAULT_SIZE: usize = 1 << 30;

/// A tensor that the trainer announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// The packing of tensors into broadcasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// True if several tensors share a broadcast.
    pub(super) packed: bool,
    /// The bytes that end a broadcast once they are exceeded.
    pub(super) size: usize,
}

impl Packing {
    /// Reads the fields of `init_info` or `update_info`; absent ones stay as in `before`.
    pub(super) fn parse(info: &Map<String, Value>, before: Packing) -> Result<Packing, String> {
        const SIZE: &str = "packed_buffer_size_bytes";
        let packed = match info.get("packed") {
            None | Some(Value::Null) => before.packed,
            Some(Value::Bool(packed)) => *packed,
            Some(other) => return Err(format!("`packed` is {other}, not a boolean")),
        };
        let size = match info.get(SIZE) {
            None | Some(Value::Null) => before.size,
            Some(size) => size
                .as_u64()
                .and_then(|size| usize::try_from(size).ok())
                .ok_or_else(|| format!("`{SIZE}` is {size}, not a number of bytes"))?,
        };
        Ok(Packing { packed, size })
    }
}

impl Default for Packing {
    fn default() -> Self {
        Packing { packed: false, size: DEFAULT_SIZE }
    }
}

/// Reads the tensors that `names`, `dtype_names` and `shapes` announce.
pub(super) fn announced(info: &Map<String, Value>) -> Result<Vec<AnnouncedTensor>, String> {
    let names = list(info, "names")?;
    let dtypes = list(info, "dtype_names")?;
    let shapes = list(info, "shapes")?;
    if names.len() != dtypes.len() || names.len() != shapes.len() {
        let counts = [names.len(), dtypes.len(), shapes.len()];
        return Err(format!("`names`, `dtype_names` and `shapes` have {counts:?} entries"));
    }
    let entries = names.iter().zip(dtypes).zip(shapes);
    entries.map(|((name, dtype), shape)| announced_tensor(name, dtype, shape)).collect()
}

fn list<'a>(info: &'a Map<String, Value>, field: &str) -> Result<&'a [Value], String> {
    match info.get(field) {
        Some(Value::Array(list)) => Ok(list),
        _ => Err(format!("`{field}` is not a list")),
    }
}

fn announced_tensor(name: &Value, dtype: &Value, shape: &Value) -> Result<AnnouncedTensor, String> {
    let name = name.as_str().ok_or_else(|| format!("a name is {name}, not a text"))?;
    let dtype = match dtype.as_str().map(|dtype| dtype.trim_start_matches("torch.")) {
        Some("float32") => Dtype::F32,
        Some("bfloat16") => Dtype::BF16,
        Some("float16") => Dtype::F16,
        _ => {
            let supported = "supported: float32, bfloat16, float16";
            return Err(format!("the type of `{name}` is {dtype}; {supported}"));
        }
    };

    let (sides, bytes) = sides_and_bytes(shape, dtype)
        .ok_or_else(|| format!("the shape of `{name}` is {shape}, not a list of sizes"))?;
    Ok(AnnouncedTensor { name: name.to_owned(), dtype, shape: sides, bytes })
}

/// The sides of a shape, and the bytes of a tensor of that shape. None if it is not a list of
/// sizes, or if the bytes overflow.
fn sides_and_bytes(shape: &Value, dtype: Dtype) -> Option<(Vec<usize>, usize)> {
    let mut sides = Vec::new();
    let mut bytes = dtype.bitsize() / 8;
    for value in shape.as_array()? {
        let side = usize::try_from(value.as_u64()?).ok()?;
        bytes = bytes.checked_mul(side)?;
        sides.push(side);
    }
    Some((sides, bytes))
}

/// Groups tensors into broadcasts, as the sender does. A packed broadcast ends with the tensor that
/// makes it exceed the size, so it may be larger than that.
pub(super) fn broadcasts(tensors: &[AnnouncedTensor], packing: Packing) -> Vec<&[AnnouncedTensor]> {
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0_usize);
    for (index, tensor) in tensors.iter().enumerate() {
        bytes = bytes.saturating_add(tensor.bytes);
        if !packing.packed || bytes > packing.size {
            parts.push(&tensors[start..=index]);
            (start, bytes) = (index + 1, 0);
        }
    }
    if start < tensors.len() {
        parts.push(&tensors[start..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn sized(sizes: &[usize]) -> Vec<AnnouncedTensor> {
        let one = |(index, size): (usize, &usize)| {
            let shape = vec![*size];
            AnnouncedTensor { name: index.to_string(), dtype: Dtype::BF16, shape, bytes: *size }
        };
        sizes.iter().enumerate().map(one).collect()
    }

    fn cut(sizes: &[usize], packed: bool) -> Vec<usize> {
        let tensors = sized(sizes);
        broadcasts(&tensors, Packing { packed, size: 10 }).iter().map(|part| part.len()).collect()
    }

    #[test]
    fn a_packed_broadcast_ends_once_it_is_larger_than_its_size() {
        assert_eq!(cut(&[4, 6, 1, 9, 2], true), [3, 2]);
        assert_eq!(cut(&[5, 5], true), [2]);
        assert_eq!(cut(&[11, 1, 30, 2], true), [1, 2, 1]);
        assert_eq!(cut(&[], true), [0_usize; 0]);
        assert_eq!(cut(&[4, 6, 1], false), [1, 1, 1]);
    }

    #[test]
    fn what_is_announced_has_a_type_and_a_size() {
        let good = info(json!({"names": ["a", "b"], "dtype_names": ["bfloat16", "torch.float32"],
            "shapes": [[2, 3], []]}));
        let found = announced(&good).unwrap();
        let facts: Vec<_> = found.iter().map(|one| (one.dtype, one.bytes)).collect();
        assert_eq!(facts, [(Dtype::BF16, 12), (Dtype::F32, 4)]);
        let cases = [
            (json!({"names": ["a"], "dtype_names": [], "shapes": [[1]]}), "have [1, 0, 1] entries"),
            (json!({"names": ["a"], "shapes": [[1]]}), "`dtype_names` is not a list"),
            (
                json!({"names": ["a"], "dtype_names": ["int8"], "shapes": [[1]]}),
                "the type of `a` is \"int8\"",
            ),
            (
                json!({"names": ["a"], "dtype_names": ["float16"], "shapes": [[-1]]}),
                "the shape of `a` is [-1]",
            ),
            (
                json!({"names": ["a"], "dtype_names": ["float16"], "shapes": [[u64::MAX, 2]]}),
                "not a list of sizes",
            ),
        ];
        for (case, expected) in cases {
            let found = announced(&info(case)).unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn how_tensors_are_packed_may_be_said_at_either_time() {
        let first = Packing::parse(&info(json!({"packed": true})), Packing::default()).unwrap();
        assert_eq!(first, Packing { packed: true, size: 1 << 30 });
        let size = json!({"packed_buffer_size_bytes": 4096, "packed": null});
        let second = Packing::parse(&info(size), first).unwrap();
        assert_eq!(second, Packing { packed: true, size: 4096 });
        assert!(Packing::parse(&info(json!({"packed": 1})), first).is_err());
    }
}
