//! Python's operators, as functions that `rewrite.rs` puts in their place.

use minijinja::value::{Rest, Value as Jinja, ValueKind};
use minijinja::{Error, ErrorKind};

use super::bounds::{spend, spend_items};
use super::text::string;

/// `a + b + …`.
pub(super) const ADD: &str = "__add";
/// `a * b * …`.
pub(super) const MULTIPLY: &str = "__mul";
/// `a ~ b ~ …`.
pub(super) const JOIN: &str = "__join";
/// The function that gives the values of a loop.
pub(super) const EACH: &str = "__each";

/// Adds the operands from the left: strings, lists and numbers.
pub(super) fn add(operands: Rest<Jinja>) -> Result<Jinja, Error> {
    let mut operands = operands.0.into_iter();
    let first = operands.next().unwrap_or_default();
    operands.try_fold(first, |left, right| add_two(&left, &right))
}

fn add_two(left: &Jinja, right: &Jinja) -> Result<Jinja, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        spend(a.len() + b.len())?;
        return Ok(add_strings((a, left.is_safe()), (b, right.is_safe())));
    }
    match (left.kind(), right.kind()) {
        (ValueKind::Seq, ValueKind::Seq) => {
            spend_items(left.len().unwrap_or_default() + right.len().unwrap_or_default())?;
            Ok(left.try_iter()?.chain(right.try_iter()?).collect::<Vec<_>>().into())
        }
        (ValueKind::Number | ValueKind::Bool, ValueKind::Number | ValueKind::Bool) => {
            add_numbers(left, right).ok_or_else(|| wrong_operands('+', left, right))
        }
        _ => Err(wrong_operands('+', left, right)),
    }
}

/// Adds two strings, each with true if it is marked as safe. As in `markupsafe`, the sum with a
/// safe string is safe, and of the other one the signs of HTML are escaped.
fn add_strings((left, left_is_safe): (&str, bool), (right, right_is_safe): (&str, bool)) -> Jinja {
    match (left_is_safe, right_is_safe) {
        (false, false) => Jinja::from(format!("{left}{right}")),
        (true, true) => Jinja::from_safe_string(format!("{left}{right}")),
        (true, false) => Jinja::from_safe_string(format!("{left}{}", escaped(right))),
        (false, true) => Jinja::from_safe_string(format!("{}{right}", escaped(left))),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            other => out.push(other),
        }
    }
    out
}

/// Adds two numbers; true counts one. `None` if the sum is too large for an integer of 128 bits.
fn add_numbers(left: &Jinja, right: &Jinja) -> Option<Jinja> {
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        return a.checked_add(b).map(Jinja::from);
    }
    Some(Jinja::from(float(left)? + float(right)?))
}

fn wrong_operands(sign: char, left: &Jinja, right: &Jinja) -> Error {
    if left.is_undefined() || right.is_undefined() {
        let message = format!("an operand of `{sign}` is not defined");
        return Error::new(ErrorKind::UndefinedError, message);
    }
    let kinds = (left.kind(), right.kind());
    let message = format!("`{sign}` does not take operands of types {} and {}", kinds.0, kinds.1);
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Multiplies the operands from the left: numbers, or a string or a list with a number.
pub(super) fn multiply(operands: Rest<Jinja>) -> Result<Jinja, Error> {
    let mut operands = operands.0.into_iter();
    let first = operands.next().unwrap_or_default();
    operands.try_fold(first, |left, right| multiply_two(&left, &right))
}

fn multiply_two(left: &Jinja, right: &Jinja) -> Result<Jinja, Error> {
    let wrong = || wrong_operands('*', left, right);
    let is_number = |value: &Jinja| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    match (is_number(left), is_number(right)) {
        (true, true) => {
            let whole = integer(left).zip(integer(right)).map(|(a, b)| a.checked_mul(b));
            let product = match whole {
                Some(whole) => whole.map(Jinja::from),
                None => float(left).zip(float(right)).map(|(a, b)| Jinja::from(a * b)),
            };
            product.ok_or_else(wrong)
        }
        (false, true) => {
            repeated(left, integer(right).ok_or_else(wrong)?).unwrap_or_else(|| Err(wrong()))
        }
        (true, false) => {
            repeated(right, integer(left).ok_or_else(wrong)?).unwrap_or_else(|| Err(wrong()))
        }
        (false, false) => Err(wrong()),
    }
}

/// A string or a list so many times; `None` for another value. As in Python, less than once is none
/// of it.
fn repeated(value: &Jinja, times: i128) -> Option<Result<Jinja, Error>> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        let of_text = |()| match value.is_safe() {
            true => Jinja::from_safe_string(text.repeat(times)),
            false => Jinja::from(text.repeat(times)),
        };
        return Some(spend(text.len().saturating_mul(times)).map(of_text));
    }
    if value.kind() != ValueKind::Seq {
        return None;
    }
    let list: Vec<Jinja> = value.try_iter().ok()?.collect();
    let of_list = |()| (0..times).flat_map(|_| list.clone()).collect::<Vec<_>>().into();
    Some(spend_items(list.len().saturating_mul(times)).map(of_list))
}

/// An integer; true counts one.
fn integer(value: &Jinja) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn float(value: &Jinja) -> Option<f64> {
    match integer(value) {
        Some(whole) => Some(whole as f64),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// Joins the operands as Python prints them.
pub(super) fn join(operands: Rest<Jinja>) -> Result<String, Error> {
    let mut joined = String::new();
    for operand in operands.iter() {
        let text = string(operand)?;
        spend(text.len())?;
        joined.push_str(&text);
    }
    Ok(joined)
}

/// Checks what a loop goes over. A generator becomes a list, whose length the loop knows.
pub(super) fn each(value: Jinja) -> Result<Jinja, Error> {
    match value.kind() {
        ValueKind::None => {
            Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable"))
        }
        ValueKind::Iterable => Ok(value.try_iter()?.collect::<Vec<_>>().into()),
        _ => Ok(value),
    }
}
