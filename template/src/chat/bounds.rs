//! Bounds of what a template may make: a folder of a model is somebody else's work.
//!
//! `minijinja` counts steps. The text is counted here, where it is made: printed values, raw text,
//! sums, products, and the filters and methods that can make much of little. One rendering runs on
//! one thread, which holds its count.

use std::cell::Cell;

use minijinja::value::{Rest, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Steps of one rendering. A message takes some hundreds.
pub(super) const STEPS_MAX: u64 = 50_000_000;
/// Bytes of text that one rendering may make, beside [`TEXT_FACTOR`] times its input.
const TEXT_BYTES_MAX: usize = 64 << 20;
/// Times that each byte of the input may be made into text.
const TEXT_FACTOR: usize = 32;
/// Bytes that an item of a list counts as.
const ITEM_BYTES: usize = 16;

/// The function that counts raw text.
pub(super) const SPEND: &str = "__spend";

thread_local! {
    /// Bytes of text that the rendering on this thread may still make.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering of so many bytes of input.
pub(super) fn begin(input_bytes: usize) {
    LEFT.set(input_bytes.saturating_mul(TEXT_FACTOR).saturating_add(TEXT_BYTES_MAX));
}

/// Counts text before it is made.
///
/// # Errors
/// If it would be more than the rendering may make.
pub(super) fn spend(bytes: usize) -> Result<(), Error> {
    let left = LEFT.get().checked_sub(bytes).ok_or_else(|| {
        let message = format!(
            "the template makes more text than {} MiB and {TEXT_FACTOR} times its input",
            TEXT_BYTES_MAX >> 20
        );
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    LEFT.set(left);
    Ok(())
}

/// Counts the items of a list before it is made.
///
/// # Errors
/// As [`spend`].
pub(super) fn spend_items(items: usize) -> Result<(), Error> {
    spend(items.saturating_mul(ITEM_BYTES))
}

/// A filter and its count, with the name by which the filter itself is called.
type Guarded = (&'static str, &'static str, fn(&mut [Jinja]) -> Result<(), Error>);

/// Filters that can make much of little.
const GUARDED: [Guarded; 6] = [
    ("replace", "__replace", |args| match texts(args) {
        Some([text, from, to]) => spend(replaced(text, from, to)),
        None => Ok(()),
    }),
    ("indent", "__indent", |args| {
        let lines = 1 + args[0].as_str().map_or(0, |text| text.matches('\n').count());
        spend(length(&args[0]))?;
        spend(lines.saturating_mul(number(args, "width")))
    }),
    ("join", "__join_all", |args| join(args, 0, 1)),
    ("list", "__list", |args| spend_items(args[0].len().unwrap_or_default())),
    ("batch", "__batch", in_parts),
    ("slice", "__slice", in_parts),
];

/// Puts counts before the filters and methods that can make much of little.
pub(super) fn guard(environment: &mut Environment<'static>) {
    environment.add_filter("__replace", filters::replace);
    environment.add_filter("__indent", filters::indent);
    environment.add_filter("__join_all", filters::join);
    environment.add_filter("__list", filters::list);
    environment.add_filter("__batch", filters::batch);
    environment.add_filter("__slice", filters::slice);
    for (name, original, count) in GUARDED {
        let guarded = move |state: &State, args: Rest<Jinja>| {
            let mut args = args.0;
            if !args.is_empty() {
                count(&mut args)?;
            }
            state.apply_filter(original, &args)
        };
        environment.add_filter(name, guarded);
    }
    environment.add_function(SPEND, |bytes: usize| spend(bytes).map(|()| Jinja::UNDEFINED));
    environment.set_unknown_method_callback(method);
}

/// A method of Python, after its text was counted.
fn method(state: &State, value: &Jinja, name: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    match (name, args) {
        ("join", [_]) => {
            let mut args = [args[0].clone(), value.clone()];
            join(&mut args, 0, 1)?;
            return unknown_method_callback(state, value, name, &args[..1]);
        }
        ("replace", [from, to, ..]) => {
            let (from, to) = (from.as_str().unwrap_or("-"), to.as_str().unwrap_or_default());
            spend(replaced(text, from, to))?;
        }
        ("startswith" | "endswith" | "find" | "rfind" | "count", _) => {}
        _ => spend(text.len())?,
    }
    unknown_method_callback(state, value, name, args)
}

/// Counts the joint of a list at one place of the arguments with the text at another. The list is
/// made, since what ends with one reading could not be counted.
fn join(args: &mut [Jinja], list: usize, by: usize) -> Result<(), Error> {
    let between = args.get(by).map_or(0, length);
    let Ok(items) = args[list].try_iter() else { return Ok(()) };
    let mut made = Vec::new();
    for item in items {
        spend(length(&item).saturating_add(between).saturating_add(ITEM_BYTES))?;
        made.push(item);
    }
    if args[list].as_str().is_none() {
        args[list] = Jinja::from(made);
    }
    Ok(())
}

fn in_parts(args: &mut [Jinja]) -> Result<(), Error> {
    let items = args[0].len().unwrap_or_default();
    spend_items(items.saturating_add(args.get(1).and_then(Jinja::as_usize).unwrap_or_default()))
}

/// Length of a text in which all of `from` are `to`.
fn replaced(text: &str, from: &str, to: &str) -> usize {
    let places = match from.is_empty() {
        true => text.len() + 1,
        false => text.matches(from).count(),
    };
    text.len().saturating_add(places.saturating_mul(to.len()))
}

fn texts(args: &[Jinja]) -> Option<[&str; 3]> {
    match args {
        [text, from, to, ..] => Some([text.as_str()?, from.as_str()?, to.as_str()?]),
        _ => None,
    }
}

/// The second argument, or the one of this name, if it is a number.
fn number(args: &[Jinja], name: &str) -> usize {
    let named = args.last().filter(|last| last.kind() == ValueKind::Map);
    let named = named.and_then(|named| named.get_attr(name).ok());
    let number = args.get(1).and_then(Jinja::as_usize);
    number.or_else(|| named.and_then(|value| value.as_usize())).unwrap_or_default()
}

/// Bytes of a text; of another value a guess, as it is short unless it holds texts.
fn length(value: &Jinja) -> usize {
    value.as_str().map_or(ITEM_BYTES, str::len)
}
