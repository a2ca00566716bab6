//! The functions of Python that templates call, and its way to print values.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, filters};

use super::bounds::{self, spend};
use super::operators;
use super::text::{repr, string};
use crate::json::{self, JsonLayout};

/// Most spaces of a level of JSON.
const INDENT_MAX: usize = 100;

/// Creates an environment with the settings of `transformers`.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(bounds::STEPS_MAX));
    bounds::guard(&mut environment);
    environment.set_formatter(format);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_filter("safe", safe);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("format", format_with);
    add_generators(&mut environment);
    environment.add_test("iterable", is_iterable);

    environment.add_function(operators::ADD, operators::add);
    environment.add_function(operators::MULTIPLY, operators::multiply);
    environment.add_function(operators::JOIN, operators::join);
    environment.add_function(operators::EACH, operators::each);
    environment
}

/// Adds the filters that give generators in Jinja2, which have no length and end with one reading.
fn add_generators(environment: &mut Environment<'static>) {
    type Name<'a> = Cow<'a, str>;

    environment.add_filter("map", |state: &State, value: Jinja, more: Rest<Jinja>| {
        filters::map(state, value, more).map(generator)
    });
    environment.add_filter(
        "select",
        |state: &State, value: Jinja, test: Option<Name>, more: Rest<Jinja>| {
            filters::select(state, value, test, more).map(generator)
        },
    );
    environment.add_filter(
        "reject",
        |state: &State, value: Jinja, test: Option<Name>, more: Rest<Jinja>| {
            filters::reject(state, value, test, more).map(generator)
        },
    );

    environment.add_filter(
        "selectattr",
        |state: &State, value: Jinja, name: Name, test: Option<Name>, more: Rest<Jinja>| {
            filters::selectattr(state, value, name, test, more).map(generator)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &State, value: Jinja, name: Name, test: Option<Name>, more: Rest<Jinja>| {
            filters::rejectattr(state, value, name, test, more).map(generator)
        },
    );
}

fn generator(items: Vec<Jinja>) -> Jinja {
    Jinja::make_one_shot_iterator(items.into_iter())
}

fn raise_exception(message: String) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The filter `tojson`: `json.dumps` with `ensure_ascii=False`. Unlike the built-in filter it
/// escapes nothing for HTML.
fn tojson(value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let mut layout = JsonLayout {
        indent: options.get("indent")?,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..JsonLayout::default()
    };
    options.assert_all_used()?;
    if layout.indent.is_some_and(|indent| indent > INDENT_MAX) {
        let message = format!("`indent` of `tojson` is more than {INDENT_MAX}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }

    // Python takes a pair: the separator of items, then the one after keys.
    match separators.as_deref() {
        None => {}
        Some([item, key]) => {
            layout.item_separator = Some(item.into());
            layout.key_separator = key.into();
        }
        Some(_) => {
            let message = "`separators` of `tojson` must be two strings";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }

    if value.kind() == ValueKind::Iterable {
        let message = "Object of type generator is not JSON serializable";
        return Err(Error::new(ErrorKind::BadSerialization, message));
    }
    let text = json::dumps_as(value, &layout).map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "cannot write as JSON").with_source(error)
    })?;
    spend(text.len())?;
    Ok(Jinja::from(text))
}

/// Prints values as Python's `str` does.
fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Jinja) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => {
            spend(value.as_str().map_or(0, str::len))?;
            minijinja::escape_formatter(out, state, value)
        }
        _ => {
            let text = repr(value)?;
            spend(text.len())?;
            out.write_str(&text).map_err(Error::from)
        }
    }
}

/// The filter `safe`: Python's `str`, marked for the operator `+`.
fn safe(value: &Jinja) -> Result<Jinja, Error> {
    Ok(Jinja::from_safe_string(string(value)?))
}

/// The filter `format`: the operator `%` of a string, which prints lists and maps as Python does.
fn format_with(state: &State, format: &Jinja, values: Rest<Jinja>) -> Result<Jinja, Error> {
    let values: Result<Vec<Jinja>, Error> = values
        .0
        .into_iter()
        .map(|value| match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Seq | ValueKind::Map => {
                repr(&value).map(Jinja::from)
            }
            _ => Ok(value),
        })
        .collect();
    filters::format(state, format, Rest(values?))
}

/// The filter `length`: Python's `len`. A variable that is not defined has no items.
fn length(value: &Jinja) -> Result<usize, Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None => {
            let message = format!("a value of type {} has no length", value.kind());
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}

/// The test `iterable`. Unlike in `minijinja`, `none` is not.
fn is_iterable(value: &Jinja) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a time, in seconds since 1970, as `strftime` does in UTC and the C locale. Directives
/// that no date or time of day needs are left as they are.
pub(super) fn strftime(now: i64, format: &str) -> String {
    let (day, second) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    let (year, month, date) = civil(day);
    // The first day of 1970 was a Thursday.
    let weekday = DAYS[(day + 4).rem_euclid(7) as usize];
    let name = MONTHS[month as usize - 1];
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let noon = if hour < 12 { "AM" } else { "PM" };

    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        // A percent sign at the end is written as it is.
        let text = match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year.rem_euclid(100)),
            Some('m') => format!("{month:02}"),
            Some('B') => name.to_owned(),
            Some('b' | 'h') => name[..3].to_owned(),
            Some('d') => format!("{date:02}"),
            Some('e') => format!("{date:2}"),
            Some('j') => format!("{:03}", day - days(year, 1, 1) + 1),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => noon.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{date:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&text);
    }
    out
}

/// Converts days since 1970 to year, month and day of the Gregorian calendar.
fn civil(day: i64) -> (i64, i64, i64) {
    let mut year = 1970 + day.div_euclid(366);
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let mut month = 12;
    while days(year, month, 1) > day {
        month -= 1;
    }
    (year, month, day - days(year, month, 1) + 1)
}

/// Returns the days from 1970 to a date.
fn days(year: i64, month: i64, date: i64) -> i64 {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_day = leap_years(year) - leap_years(year - 1);
    let passed_leap_day = if month > 2 { leap_day } else { 0 };
    let years = 365 * (year - 1970) + leap_years(year - 1) - leap_years(1969);
    years + BEFORE[month as usize - 1] + passed_leap_day + date - 1
}

/// Number of leap years up to a year.
fn leap_years(year: i64) -> i64 {
    year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each expectation is what Python's `datetime.fromtimestamp(n, UTC).strftime` printed.
    #[test]
    fn dates_are_those_of_python() {
        let all = "%d %b %Y|%A %B %e|%a %y-%m-%d %j|%T %I %p %F %%";
        let cases = [
            (0, "01 Jan 1970|Thursday January  1|Thu 70-01-01 001|00:00:00 12 AM 1970-01-01 %"),
            (
                951_827_696,
                "29 Feb 2000|Tuesday February 29|Tue 00-02-29 060|12:34:56 12 PM 2000-02-29 %",
            ),
            (
                1_735_689_599,
                "31 Dec 2024|Tuesday December 31|Tue 24-12-31 366|23:59:59 11 PM 2024-12-31 %",
            ),
            (
                4_107_542_399,
                "28 Feb 2100|Sunday February 28|Sun 00-02-28 059|23:59:59 11 PM 2100-02-28 %",
            ),
            (-1, "31 Dec 1969|Wednesday December 31|Wed 69-12-31 365|23:59:59 11 PM 1969-12-31 %"),
        ];
        for (now, expected) in cases {
            assert_eq!(strftime(now, all), expected);
        }
    }
}
