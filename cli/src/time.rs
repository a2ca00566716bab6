//! Time: now, and moments and lengths of time as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

use episode::Micros;

/// Days of the months before each month, in a year that is not a leap year.
const DAYS_BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// The time now, in microseconds since 1970.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

/// Parses a length of time with a unit (`12h`), in microseconds.
pub(crate) fn duration(text: &str) -> Result<Micros, String> {
    const ERROR: &str = "not a time such as 45m, 12h, 30d or 8w";
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(ERROR)?;
    let seconds: Micros = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(ERROR.to_owned()),
    };

    let number: u32 = digits.parse().map_err(|_| ERROR)?;
    Ok(Micros::from(number) * seconds * 1_000_000)
}

/// Parses a moment: RFC 3339 (`2026-11-21T20:17:47.5+01:00`), or microseconds since 1970.
pub(crate) fn moment(text: &str) -> Result<Micros, String> {
    text.parse().ok().or_else(|| rfc3339(text)).ok_or_else(|| {
        "not a time such as 2026-11-21T20:17:47Z, or microseconds since 1970".to_owned()
    })
}

/// Parses a moment, or a length of time before now (`1h`). Returns seconds since 1970.
pub(crate) fn past(text: &str) -> Result<f64, String> {
    let at = duration(text).map(|length| now() - length).or_else(|_| moment(text));
    at.map(|at| at as f64 / 1e6).map_err(|_| {
        "not a time such as 45m, 12h or 7d before now, or 2026-11-21T20:17:47Z".to_owned()
    })
}

/// The time of day of seconds since 1970, in UTC: `20:17:47Z`.
pub(crate) fn clock(seconds: f64) -> String {
    let of_day = (seconds.floor() as i64).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// The day and the time of day of seconds since 1970, in UTC: `2026-11-21 20:17:47Z`.
pub(crate) fn date(seconds: f64) -> String {
    let days = (seconds.floor() as i64).div_euclid(86_400);
    // A year has fewer days than this, so that the guess is never too late.
    let guess = 1970 + days.div_euclid(366);
    let year = (guess..).take_while(|year| days_since_1970(*year, 1) <= days).last();
    let year = year.unwrap_or(guess);
    let months = (1..=12).take_while(|month| days_since_1970(year, *month) <= days);
    let month = months.last().unwrap_or(1);
    let day = days - days_since_1970(year, month) + 1;
    format!("{year:04}-{month:02}-{day:02} {}", clock(seconds))
}

/// A length of time in its largest unit: `45 s`, `12 min`, `3 h`, `8 d`.
pub(crate) fn rough(seconds: f64) -> String {
    match seconds.max(0.0) {
        seconds if seconds < 99.5 => format!("{seconds:.0} s"),
        seconds if seconds < 5970.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 169_200.0 => format!("{:.0} h", seconds / 3600.0),
        seconds => format!("{:.0} d", seconds / 86_400.0),
    }
}

fn rfc3339(text: &str) -> Option<Micros> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (local, zone) = time.split_at(time.find(['Z', 'z', '+', '-'])?);
    let (clock, fraction) = local.split_once('.').map_or((local, None), |(c, f)| (c, Some(f)));
    let [hours, minutes, seconds] = numbers(clock, ':', [2, 2, 2])?;

    let last = days_of(year, month)?;
    // A leap second is read as the second after it.
    if !(1..=last).contains(&day) || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }

    let days = days_since_1970(year, usize::try_from(month).ok()?) + day - 1;
    let all = ((days * 24 + hours) * 60 + minutes) * 60 + seconds - offset(zone)?;
    Some(all * 1_000_000 + fraction.map_or(Some(0), micros)?)
}

/// Splits `text` at `separator` into `N` numbers, each of the given count of digits.
fn numbers<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[i64; N]> {
    let parts: Vec<&str> = text.split(separator).collect();
    if parts.len() != N {
        return None;
    }

    let numbers: Option<Vec<i64>> = parts
        .iter()
        .zip(digits)
        .map(|(part, count)| part.parse().ok().filter(|_| part.len() == count && is_digits(part)))
        .collect();
    numbers?.try_into().ok()
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A zone's offset from UTC, in seconds.
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

/// The digits after the decimal point, cut to millionths.
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

/// Days from 1970-01-01 to the first day of a month.
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
            assert_eq!(moment(text), Ok(seconds * 1_000_000), "{text}");
        }
        assert_eq!(moment("1970-01-01T00:00:01.25Z"), Ok(1_250_000));
        assert_eq!(moment("1970-01-01T00:00:00.1234567Z"), Ok(123_456));
        assert_eq!(moment("1795292267000000"), Ok(1_795_292_267_000_000));
    }

    #[test]
    fn moments_are_written_as_they_are_read() {
        for (text, seconds) in [
            ("1970-01-01 00:00:00Z", 0),
            ("2026-11-21 20:17:47Z", 1_795_292_267),
            ("2024-02-29 23:59:59Z", 1_709_251_199),
            ("2023-12-31 23:59:59Z", 1_704_067_199),
            ("2100-03-01 00:00:00Z", 4_107_542_400),
            ("1969-12-31 23:00:00Z", -3_600_i64),
        ] {
            assert_eq!(date(seconds as f64), text);
        }
        assert_eq!(clock(1_795_292_267.9), "20:17:47Z");
        assert_eq!(
            (rough(12.4), rough(600.0), rough(7200.0)),
            ("12 s".into(), "10 min".into(), "2 h".into())
        );
        assert_eq!(rough(864_000.0), "10 d");
    }

    #[test]
    fn a_past_is_a_length_or_a_moment() {
        let hour = now() as f64 / 1e6 - past("1h").unwrap();
        assert!((3599.0..3601.0).contains(&hour), "{hour}");
        assert_eq!(past("1970-01-01T00:00:10Z"), Ok(10.0));
        assert!(past("yesterday").unwrap_err().contains("45m"));
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
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_of_time_have_a_unit() {
        assert_eq!(duration("90s"), Ok(90_000_000));
        assert_eq!(duration("2d"), Ok(2 * 86_400_000_000));
        for wrong in ["", "d", "30", "-1d", "1.5h", "3y", "9999999999d", "1é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
