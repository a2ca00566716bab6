//! A byte string of a known length in a Python pickle.
//!
//! Nothing is unpickled. The opcodes are skipped one by one, so that bytes which only look like a
//! byte string are not mistaken for one. An opcode that such a value cannot have ends the search.
//!
//! The crate `serde-pickle` cannot replace this. The name of a group is an argument of a call of
//! `_ctypes._unpickle`, and the crate drops the arguments of calls that it does not know. It also
//! recurses as deep as the bytes of another process say.

/// Finds the only byte string of `N` bytes in a pickle of protocol 4 or 5.
pub(super) fn bytes_of<const N: usize>(pickle: &[u8]) -> Option<[u8; N]> {
    let (mut rest, mut found) = (pickle, None);

    // Each arm skips the operands of an opcode.
    loop {
        let (&opcode, operands) = rest.split_first()?;
        rest = match opcode {
            // STOP
            b'.' => return found,
            // FRAME
            0x95 => operands.get(8..)?,
            // PROTO, BINGET, BINPUT, BININT1
            0x80 | b'h' | b'q' | b'K' => operands.get(1..)?,
            // BININT2
            b'M' => operands.get(2..)?,
            // LONG_BINGET, LONG_BINPUT, BININT
            b'j' | b'r' | b'J' => operands.get(4..)?,
            // SHORT_BINUNICODE, and names that are not bytes
            0x8C => split_sized(operands, 1)?.1,
            // BINUNICODE
            b'X' => split_sized(operands, 4)?.1,
            // SHORT_BINBYTES, BINBYTES, BINBYTES8
            b'C' | b'B' | 0x8E => {
                let width = match opcode {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                };
                let (bytes, rest) = split_sized(operands, width)?;
                if let Ok(bytes) = <[u8; N]>::try_from(bytes)
                    && found.replace(bytes).is_some()
                {
                    return None;
                }
                rest
            }
            // MEMOIZE, STACK_GLOBAL, REDUCE, NEWOBJ, BUILD, TUPLE1 to TUPLE3, TUPLE, EMPTY_TUPLE,
            // EMPTY_DICT, EMPTY_LIST, MARK, NONE, NEWTRUE, NEWFALSE, SETITEM, SETITEMS
            0x94
            | 0x93
            | b'R'
            | 0x81
            | b'b'
            | 0x85..=0x87
            | b't'
            | b')'
            | b'}'
            | b']'
            | b'('
            | b'N'
            | 0x88
            | 0x89
            | b's'
            | b'u' => operands,
            _ => return None,
        };
    }
}

/// Splits off a byte string that follows its length in `width` bytes.
fn split_sized(operands: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let mut length = [0; 8];
    length[..width].copy_from_slice(operands.get(..width)?);
    let length = usize::try_from(u64::from_le_bytes(length)).ok()?;
    operands[width..].split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python 3.12 makes of a `ctypes` structure of 128 bytes in a module `m`:
    /// `pickle.dumps(m.Id())`.
    fn pickled(id: [u8; 128]) -> Vec<u8> {
        let mut pickle =
            b"\x80\x04\x95\xbd\x00\x00\x00\x00\x00\x00\x00\x8c\x07_ctypes\x94".to_vec();
        pickle
            .extend(b"\x8c\x09_unpickle\x94\x93\x94\x8c\x01m\x94\x8c\x02Id\x94\x93\x94}\x94C\x80");
        pickle.extend(id);
        pickle.extend(b"\x94\x86\x94\x86\x94R\x94.");
        pickle
    }

    #[test]
    fn the_name_of_a_group_is_found_whatever_its_bytes_are() {
        let plain: [u8; 128] = std::array::from_fn(|i| i as u8);
        // What looks like more of the same, or like the end, is not.
        let odd: [u8; 128] = std::array::from_fn(|i| b"C\x80."[i % 3]);
        for id in [plain, odd, [0; 128]] {
            assert_eq!(bytes_of(&pickled(id)), Some(id));
        }
    }

    #[test]
    fn anything_else_is_not_a_name() {
        let pickle = pickled([7; 128]);
        for end in 0..pickle.len() {
            assert_eq!(bytes_of::<128>(&pickle[..end]), None, "{end}");
        }
        assert_eq!(bytes_of::<127>(&pickle), None);
        assert_eq!(bytes_of::<128>(b"\x80\x04i."), None);
        let mut twice = pickled([7; 128]);
        twice.pop();
        twice.extend(pickled([8; 128]));
        assert_eq!(bytes_of::<128>(&twice), None);
    }
}
