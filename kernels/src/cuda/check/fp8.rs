//! Pages of FP8 on the host, by a search of all e4m3: what `pages/fp8.cu` defines.

use std::cmp::Ordering;
use std::sync::LazyLock;

use crate::bf16::{narrow, widen};
use crate::op::{KvFormat, PAGE};

/// The largest e4m3, and its code.
const LARGEST: f64 = 448.0;
const LARGEST_CODE: u8 = 0x7E;
/// The exponents of the least and the largest scale.
const EXPONENTS: (i32, i32) = (-110, 7);
/// The byte of the scale whose exponent is zero.
const BYTE_OF_ONE: i32 = 247;
/// The byte of a row with a number that is none.
const NONE: u8 = 255;
/// The places of four neighbors in their word.
const PLACES: [usize; 4] = [1, 3, 0, 2];

/// The name of a kernel for pages of a format.
pub(super) fn kernel(name: &str, format: KvFormat) -> String {
    match format {
        KvFormat::Native => name.to_owned(),
        KvFormat::Fp8 => format!("{name}_fp8"),
    }
}

/// The number that a code without its sign stands for.
fn decoded(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3), f64::from(code & 7));
    match exponent {
        0 => mantissa * 2_f64.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
    }
}

/// The numbers of all codes without a sign, which rise.
static DECODED: LazyLock<Vec<f64>> = LazyLock::new(|| (0..=LARGEST_CODE).map(decoded).collect());

/// The nearest code of a number of at most [`LARGEST`], the even one of two.
fn encoded(number: f64) -> u8 {
    let size = number.abs();
    let above = DECODED.partition_point(|one| *one < size).min(DECODED.len() - 1);
    let below = above.saturating_sub(1);
    let nearest = match (size - DECODED[below]).total_cmp(&(DECODED[above] - size)) {
        Ordering::Less => below,
        Ordering::Greater => above,
        Ordering::Equal => below + below % 2,
    };
    let sign = if number.is_sign_negative() { 0x80 } else { 0 };
    sign | nearest as u8
}

/// The codes of a row of bf16 numbers, and the byte of its scale.
fn encoded_row(row: &[u16]) -> (Vec<u8>, u8) {
    let numbers: Vec<f64> = row.iter().map(|bits| f64::from(widen(*bits))).collect();
    if numbers.iter().any(|number| !number.is_finite()) {
        return (vec![0; row.len()], NONE);
    }
    let largest = numbers.iter().fold(0.0_f64, |most, number| most.max(number.abs()));
    let (least, most) = EXPONENTS;
    let fits = |exponent: &i32| largest <= LARGEST * 2_f64.powi(*exponent);
    let exponent = (least..most).find(fits).unwrap_or(most);
    let scale = 2_f64.powi(exponent);
    let codes = numbers.iter().map(|number| encoded((number / scale).clamp(-LARGEST, LARGEST)));
    (codes.collect(), (BYTE_OF_ONE + exponent) as u8)
}

/// The numbers of a row, which are bf16 without rounding.
fn decoded_row(codes: &[u8], scale: u8) -> Vec<u16> {
    let factor = match scale {
        NONE => f64::NAN,
        byte => 2_f64.powi(i32::from(byte) - BYTE_OF_ONE),
    };
    let number = |code: &u8| {
        let sign = if code & 0x80 > 0 { -1.0 } else { 1.0 };
        narrow((sign * decoded(code & 0x7F) * factor) as f32)
    };
    codes.iter().map(number).collect()
}

/// What pages of FP8 hold of bf16 numbers, of which `dim` are a row.
pub(super) fn rounded(numbers: &[u16], dim: usize) -> Vec<u16> {
    let rows = numbers.chunks(dim).map(encoded_row);
    rows.flat_map(|(codes, scale)| decoded_row(&codes, scale)).collect()
}

/// The bytes of pages with these numbers, of which `dim` are a row.
pub(super) fn pages(numbers: &[u16], dim: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() + numbers.len() / dim);
    for head in numbers.chunks(PAGE * dim) {
        let mut scales = Vec::with_capacity(PAGE);
        for row in head.chunks(dim) {
            let (codes, scale) = encoded_row(row);
            scales.push(scale);
            for four in codes.chunks(4) {
                let mut word = [0; 4];
                four.iter().zip(PLACES).for_each(|(code, place)| word[place] = *code);
                bytes.extend(word);
            }
        }
        bytes.extend(scales);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_rounded_to_four_bits_below_its_own_scale() {
        let row = [448.0, -1.0, 0.3, 0.0].map(narrow);
        let (codes, scale) = encoded_row(&row);
        assert_eq!((codes, scale), (vec![0x7E, 0xB8, 0x2A, 0], 247));
        // Between two codes the even one, also between the largest below 2^-6 and that.
        assert_eq!([1.0625, 1.1875, 7.5 / 512.0].map(encoded), [0x38, 0x3A, 0x08]);
        // The next bf16 behind 448 has the next scale.
        assert_eq!(encoded_row(&[narrow(450.0)]), (vec![0x76], 248));
        assert_eq!(encoded_row(&[narrow(1e30)]), (vec![0x7E], 254));
        assert_eq!(encoded_row(&[0; 2]), (vec![0; 2], 137));
        assert_eq!(encoded_row(&[narrow(f32::INFINITY), 0]), (vec![0; 2], NONE));
        let held = rounded(&row, 4);
        assert_eq!(held, [448.0, -1.0, 0.3125, 0.0].map(narrow));
        assert_eq!(rounded(&held, 4), held);
    }
}
