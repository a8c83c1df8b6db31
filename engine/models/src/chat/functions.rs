//! What templates of chat models may call beside Jinja's own.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{Environment, Error, ErrorKind, State, Value, value::Kwargs};
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::weigh::weigh;

/// What `raise_exception` says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub(super) String);

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception was called").with_source(Refused(message)))
    });
    environment.add_filter("tojson", to_json);
    set_clock(environment, None);
}

/// Makes `strftime_now` tell this time, or that of the call.
pub(super) fn set_clock(environment: &mut Environment<'static>, time: Option<SystemTime>) {
    environment.add_function("strftime_now", move |format: String| {
        let time = time.unwrap_or_else(SystemTime::now);
        // Clocks that are set before 1970 are wrong anyway.
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        strftime(&format, seconds)
    });
}

/// Takes the marks of `{% generation %}` out, which say what is trained on and are no Jinja.
pub(super) fn without_training_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, block) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = block.find("%}") else {
            rest = block;
            break;
        };
        let (block, behind) = block.split_at(end + 2);
        let inner = block[2..block.len() - 2].trim_matches(['-', '+']).trim();
        match inner {
            // Blocks that always run keep the line numbers and what they do to the spaces around them.
            "generation" => out.push_str(&block.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&block.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(block),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Values as Python's `json.dumps` writes them, without escapes for what is not ASCII.
fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let escape: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let fail = |reason: &'static str| Error::new(ErrorKind::InvalidOperation, reason);
    if escape == Some(true) {
        return Err(fail("tojson does not escape: ensure_ascii must be false"));
    }
    weigh(state, value)?;
    let mut out = Vec::new();
    let written = match indent {
        Some(indent) if indent > 16 => return Err(fail("tojson indents by at most 16")),
        Some(indent) => {
            let spaces = [b' '; 16];
            let formatter = PrettyFormatter::with_indent(&spaces[..indent]);
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, PythonFormatter)),
    };
    written.map_err(|error| fail("the value is no JSON").with_source(error))?;
    String::from_utf8(out).map(Value::from).map_err(|error| fail("the value is no JSON").with_source(error))
}

/// A space behind every comma and colon.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

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

/// A date of the Gregorian calendar, from seconds since 1970 in UTC.
struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
    /// 0 is Sunday.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Date {
    fn new(seconds: u64) -> Self {
        // Far beyond any clock; loops over years end.
        let seconds = seconds.min(253_402_300_799);
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
        let (mut year, mut left) = (1970, days);
        while left >= 365 + u64::from(leap(year)) {
            left -= 365 + u64::from(leap(year));
            year += 1;
        }
        let day_of_year = left + 1;
        let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while month < 11 && left >= lengths[month] {
            left -= lengths[month];
            month += 1;
        }
        Self {
            year,
            month,
            day: left + 1,
            day_of_year,
            // The first day of 1970 was a Thursday.
            weekday: ((days + 4) % 7) as usize,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }
}

/// The usual conversions of `strftime`, in English and UTC.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let date = Date::new(seconds);
    let hour12 = (date.hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut code = chars.next();
        // Numbers without zeros before them.
        let padded = code != Some('-');
        if !padded {
            code = chars.next();
        }
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        let text = match code {
            Some('Y') => number(date.year, 4),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as u64 + 1, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.day_of_year, 3),
            Some('H') => number(date.hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(date.minute, 2),
            Some('S') => number(date.second, 2),
            Some('p') => if date.hour < 12 { "AM" } else { "PM" }.into(),
            Some('A') => DAYS[date.weekday].into(),
            Some('a') => DAYS[date.weekday][..3].into(),
            Some('B') => MONTHS[date.month].into(),
            Some('b' | 'h') => MONTHS[date.month][..3].into(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month + 1, date.day),
            Some('T') => format!("{:02}:{:02}:{:02}", date.hour, date.minute, date.second),
            Some('Z') => "UTC".into(),
            Some('z') => "+0000".into(),
            Some('%') => "%".into(),
            _ => {
                let reason = "strftime_now knows %Y %y %m %d %e %j %H %I %M %S %p %A %a %B %b %F %T %Z %z %% only";
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        };
        out.push_str(&text);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // What `date -u -d @SECONDS` says.
        for (seconds, expected) in [
            (0, "Thursday 01 January 1970 00:00:00 001 12 AM"),
            (951_827_696, "Tuesday 29 February 2000 12:34:56 060 12 PM"),
            (978_307_199, "Sunday 31 December 2000 23:59:59 366 11 PM"),
            (1_709_251_199, "Thursday 29 February 2024 23:59:59 060 11 PM"),
            (4_107_542_400, "Monday 01 March 2100 00:00:00 060 12 AM"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %T %j %I %p", seconds).expect("known"), expected);
        }
        assert_eq!(strftime("%-d %b %y, %a %e.%-m. 100%%", 4_107_542_400).expect("known"), "1 Mar 00, Mon  1.3. 100%");
        assert_eq!(strftime("%F %H:%M:%S %Z", u64::MAX).expect("known"), "9999-12-31 23:59:59 UTC");
        assert!(strftime("%Q", 0).is_err() && strftime("%", 0).is_err() && strftime("%-", 0).is_err());
    }

    #[test]
    fn training_marks_are_taken_out_and_nothing_else() {
        let source = "a{%- generation -%}b{% endgeneration %}{{ generation }}{% if generation %}{% generation";
        let expected = "a{%- if true -%}b{% endif %}{{ generation }}{% if generation %}{% generation";
        assert_eq!(without_training_marks(source), expected);
    }
}
