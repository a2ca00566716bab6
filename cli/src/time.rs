//! Time: now, and moments and lengths of time as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use episode::Micros;

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
    let number = text.parse().ok();
    let moment = || DateTime::parse_from_rfc3339(text).ok().map(|at| at.timestamp_micros());
    number.or_else(moment).ok_or_else(|| {
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
    formatted(seconds, "%H:%M:%SZ")
}

/// The day and the time of day of seconds since 1970, in UTC: `2026-11-21 20:17:47Z`.
pub(crate) fn date(seconds: f64) -> String {
    formatted(seconds, "%Y-%m-%d %H:%M:%SZ")
}

/// A moment in this format; `-` if it is beyond the calendar.
fn formatted(seconds: f64, format: &str) -> String {
    let moment = DateTime::from_timestamp(seconds.floor() as i64, 0);
    moment.map_or_else(|| "-".to_owned(), |at| at.format(format).to_string())
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
