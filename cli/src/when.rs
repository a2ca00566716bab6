//! Moments as people write them.

use episode::Micros;

/// Days of the months before each month, in a year that is not a leap year.
const DAYS_BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// Reads a moment: RFC 3339 (`2026-11-21T20:17:47.5+01:00`), or microseconds since 1970.
pub(crate) fn when(text: &str) -> Result<Micros, String> {
    let wrong = || "not a time such as 2026-11-21T20:17:47Z, or microseconds since 1970".to_owned();
    text.parse().ok().or_else(|| rfc3339(text)).ok_or_else(wrong)
}

fn rfc3339(text: &str) -> Option<Micros> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(zone);
    let (clock, fraction) = time.split_once('.').map_or((time, None), |(c, f)| (c, Some(f)));
    let [hours, minutes, seconds] = numbers(clock, ':', [2, 2, 2])?;
    let (month, last) = (usize::try_from(month).ok()?, days_of(year, month)?);
    // A leap second is the second after it.
    if !(1..=last).contains(&day) || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let days = days_since_1970(year, month) + day - 1;
    let all = ((days * 24 + hours) * 60 + minutes) * 60 + seconds - offset(zone)?;
    Some(all * 1_000_000 + fraction.map_or(Some(0), micros)?)
}

/// Numbers of so many digits, and nothing else.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let parts: Vec<&str> = text.split(between).collect();
    let is_number = |part: &str, count| part.len() == count && is_digits(part);
    if parts.len() != N || !parts.iter().zip(digits).all(|(part, count)| is_number(part, count)) {
        return None;
    }
    let numbers: Vec<i64> = parts.iter().map(|part| part.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Seconds that a zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, clock) = zone.split_at_checked(1)?;
    let [hours, minutes] = numbers(clock, ':', [2, 2])?;
    let seconds = (hours * 60 + minutes) * 60;
    let is_one = hours <= 23 && minutes <= 59;
    is_one.then_some(if sign == "-" { -seconds } else { seconds })
}

/// The digits behind the point, cut to millionths.
fn micros(fraction: &str) -> Option<i64> {
    let digits = format!("{fraction:0<6}");
    (!fraction.is_empty() && is_digits(fraction)).then(|| digits[..6].parse().ok())?
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_of(year: i64, month: i64) -> Option<i64> {
    let index = usize::try_from(month).ok()?.checked_sub(1)?;
    let start = DAYS_BEFORE.get(index)?;
    let days = DAYS_BEFORE.get(index + 1).unwrap_or(&365) - start;
    Some(days + i64::from(month == 2 && is_leap(year)))
}

/// Days from 1970 to the first of a month.
fn days_since_1970(year: i64, month: usize) -> i64 {
    // Leap days before the year, less those before 1970.
    let before = year - 1;
    let leaps = before / 4 - before / 100 + before / 400 - 477;
    let this = i64::from(month > 2 && is_leap(year));
    (year - 1970) * 365 + leaps + DAYS_BEFORE[month - 1] + this
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_date_would() {
        // `date -u -d TEXT +%s`
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-21T20:17:47Z", 1_795_292_267),
            ("2024-02-29T23:59:59Z", 1_709_251_199),
            ("2000-03-01T00:00:00Z", 951_868_800),
            ("1999-12-31T23:59:60Z", 946_684_800),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("1969-12-31T23:00:00Z", -3_600),
            ("2026-11-21t21:17:47+01:00", 1_795_292_267),
            ("2026-11-21 14:47:47-05:30", 1_795_292_267),
        ] {
            assert_eq!(when(text), Ok(seconds * 1_000_000), "{text}");
        }
        assert_eq!(when("1970-01-01T00:00:01.25Z"), Ok(1_250_000));
        assert_eq!(when("1970-01-01T00:00:00.1234567Z"), Ok(123_456));
        assert_eq!(when("1795292267000000"), Ok(1_795_292_267_000_000));
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "now",
            "2026-11-21",
            "2026-11-21T20:17:47",
            "2026-11-21T20:17Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+0100",
            "2026-01-01T00:00:00+24:00",
            "26-01-01T00:00:00Z",
            "2026-01-01T00:00:0\u{661}Z",
        ] {
            assert!(when(text).is_err(), "{text}");
        }
    }
}
