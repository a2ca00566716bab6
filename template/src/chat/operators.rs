//! Python's operators, as functions that `rewrite.rs` puts in their place.

use minijinja::value::{Rest, Value as Jinja, ValueKind};
use minijinja::{Error, ErrorKind};

use super::text::string;

/// `a + b + …`.
pub(super) const ADD: &str = "__add";
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
        return Ok(add_strings((a, left.is_safe()), (b, right.is_safe())));
    }
    match (left.kind(), right.kind()) {
        (ValueKind::Seq, ValueKind::Seq) => {
            Ok(left.try_iter()?.chain(right.try_iter()?).collect::<Vec<_>>().into())
        }
        (ValueKind::Number | ValueKind::Bool, ValueKind::Number | ValueKind::Bool) => {
            add_numbers(left, right).ok_or_else(|| wrong_operands(left, right))
        }
        _ => Err(wrong_operands(left, right)),
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
    let integer = |value: &Jinja| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        return a.checked_add(b).map(Jinja::from);
    }
    let float = |value: &Jinja| match integer(value) {
        Some(whole) => Some(whole as f64),
        None => f64::try_from(value.clone()).ok(),
    };
    Some(Jinja::from(float(left)? + float(right)?))
}

fn wrong_operands(left: &Jinja, right: &Jinja) -> Error {
    if left.is_undefined() || right.is_undefined() {
        return Error::new(ErrorKind::UndefinedError, "an operand of `+` is not defined");
    }
    let kinds = (left.kind(), right.kind());
    let message = format!("`+` does not take operands of types {} and {}", kinds.0, kinds.1);
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Joins the operands as Python prints them.
pub(super) fn join(operands: Rest<Jinja>) -> Result<String, Error> {
    operands.iter().map(string).collect()
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
