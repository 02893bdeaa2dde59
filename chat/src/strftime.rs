//! The function `strftime_now`, which formats the time as C's `strftime` does in the locale "C".

use crate::meter::{Evaluated, Sink};
use std::fmt::Write;

/// A point in local time. `strftime_now` formats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    year: i32,
    /// From 1 to 12.
    month: u32,
    /// From 1 to 31.
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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
/// Number of days before each month, except in leap years.
const DAYS_BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

fn is_leap(year: i32) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_in(year: i32, month: u32) -> u32 {
    match month {
        2 => 28 + u32::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Moment {
    /// Creates a point in time. Returns `None` if it does not exist. Years are from 1 to 9999.
    pub fn new(date: (i32, u32, u32), time: (u32, u32, u32)) -> Option<Moment> {
        let ((year, month, day), (hour, minute, second)) = (date, time);
        let valid = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        valid.then_some(Moment { year, month, day, hour, minute, second })
    }

    /// Parses a time such as `2025-03-09T08:05:07`. Without the time of day, it is midnight.
    pub fn parse(text: &str) -> Option<Moment> {
        let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
        let numbers = |text: &str, separator: char, widths: [usize; 3]| {
            let mut parts = text.split(separator);
            let parts = [parts.next()?, parts.next()?, parts.next().filter(|_| parts.next().is_none())?];
            let fits = |(part, width): (&&str, usize)| {
                part.len() == width && part.bytes().all(|b| b.is_ascii_digit())
            };
            let valid = parts.iter().zip(widths).all(fits);
            let parsed = parts.map(|part| part.parse::<u32>().unwrap_or_default());
            valid.then_some((parsed[0], parsed[1], parsed[2]))
        };
        let (year, month, day) = numbers(date, '-', [4, 2, 2])?;
        let time = numbers(time, ':', [2, 2, 2])?;
        Moment::new((i32::try_from(year).ok()?, month, day), time)
    }

    /// Creates the point `seconds` seconds after 1970-01-01T00:00:00. Returns `None` outside the years 1970
    /// to 9999.
    pub fn from_epoch(seconds: u64) -> Option<Moment> {
        let (mut days, of_day) = (u32::try_from(seconds / 86_400).ok()?, (seconds % 86_400) as u32);
        let mut year = 1970;
        while days >= 365 + u32::from(is_leap(year)) {
            days -= 365 + u32::from(is_leap(year));
            year += 1;
            if year > 9999 {
                return None;
            }
        }
        let mut month = 1;
        while days >= days_in(year, month) {
            days -= days_in(year, month);
            month += 1;
        }
        Moment::new((year, month, days + 1), (of_day / 3600, of_day / 60 % 60, of_day % 60))
    }

    /// Returns the day of the year, from 1.
    fn year_day(&self) -> u32 {
        let before = DAYS_BEFORE[(self.month - 1) as usize];
        before + self.day + u32::from(self.month > 2 && is_leap(self.year))
    }

    /// Returns the day of the week, from 0 for Sunday.
    fn weekday(&self) -> u32 {
        let years = (self.year - 1).unsigned_abs();
        // 1 January of the year 1 was a Monday.
        (years + years / 4 - years / 100 + years / 400 + self.year_day()) % 7
    }

    /// Returns the year and the number of the week by ISO 8601.
    fn iso_week(&self) -> (i32, u32) {
        let weekday = (self.weekday() + 6) % 7;
        let weeks = |year: i32| {
            let first = Moment { year, month: 1, day: 1, ..*self }.weekday();
            52 + u32::from(first == 4 || (first == 3 && is_leap(year)))
        };
        let week = (self.year_day() + 9 - weekday) / 7;
        match week {
            0 => (self.year - 1, weeks(self.year - 1)),
            53 if weeks(self.year) == 52 => (self.year + 1, 1),
            week => (self.year, week),
        }
    }
}

/// Writes `now` by `format`.
pub(crate) fn strftime(now: &Moment, format: &str, out: &mut Sink<'_>) -> Evaluated<()> {
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        let directive = &rest[at + 1..];
        let flag = directive.chars().next().filter(|c| "-_0^#".contains(*c));
        let unflagged = &directive[flag.map_or(0, char::len_utf8)..];
        let Some(letter) = unflagged.chars().next() else {
            return out.push(&rest[at..]);
        };
        rest = &unflagged[letter.len_utf8()..];
        match expand(now, letter, flag) {
            Some(text) => out.push(&text)?,
            None => {
                let length = 1 + directive.len() - rest.len();
                out.push(&format[format.len() - rest.len() - length..format.len() - rest.len()])?;
            }
        }
    }
    out.push(rest)
}

/// Returns the text of a directive such as `%d`, or `None` if it is unknown.
fn expand(now: &Moment, letter: char, flag: Option<char>) -> Option<String> {
    let padded = |value: u32, width: usize, fill: char| {
        let fill = match flag {
            Some('-') => None,
            Some('_') => Some(' '),
            Some('0') => Some('0'),
            _ => Some(fill),
        };
        let digits = value.to_string();
        let missing = fill.map_or(0, |_| width.saturating_sub(digits.len()));
        fill.map_or(String::new(), |fill| fill.to_string().repeat(missing)) + &digits
    };
    let two = |value: u32| padded(value, 2, '0');
    let named = |name: &str| if flag == Some('^') { name.to_uppercase() } else { name.to_owned() };
    let weekday = WEEKDAYS[now.weekday() as usize];
    let month = MONTHS[(now.month - 1) as usize];
    let hour = (now.hour + 11) % 12 + 1;
    let half = if now.hour < 12 { "AM" } else { "PM" };
    let year = now.year.unsigned_abs();
    let all = |letters: &str| {
        let mut text = String::new();
        for letter in letters.chars() {
            match letter.is_ascii_alphabetic() {
                true => _ = write!(text, "{}", expand(now, letter, None).unwrap_or_default()),
                false => text.push(letter),
            }
        }
        text
    };
    Some(match letter {
        'a' => named(&weekday[..3]),
        'A' => named(weekday),
        'b' | 'h' => named(&month[..3]),
        'B' => named(month),
        'C' => two(year / 100),
        'd' => two(now.day),
        'e' => padded(now.day, 2, ' '),
        'G' => padded(now.iso_week().0.unsigned_abs(), 4, '0'),
        'g' => two(now.iso_week().0.unsigned_abs() % 100),
        'H' => two(now.hour),
        'I' => two(hour),
        'j' => padded(now.year_day(), 3, '0'),
        'k' => padded(now.hour, 2, ' '),
        'l' => padded(hour, 2, ' '),
        'm' => two(now.month),
        'M' => two(now.minute),
        'p' if flag == Some('#') => half.to_lowercase(),
        'p' => half.to_owned(),
        'P' => half.to_lowercase(),
        'S' => two(now.second),
        'u' => ((now.weekday() + 6) % 7 + 1).to_string(),
        'U' => two((now.year_day() + 6 - now.weekday()) / 7),
        'V' => two(now.iso_week().1),
        'w' => now.weekday().to_string(),
        'W' => two((now.year_day() + 6 - (now.weekday() + 6) % 7) / 7),
        'y' => two(year % 100),
        // Only this directive does not pad the year.
        'Y' => year.to_string(),
        // Local time without a time zone, and without fractions of a second.
        'z' | 'Z' => String::new(),
        'f' => "000000".to_owned(),
        'D' | 'x' => all("m/d/y"),
        'F' => all("Y-m-d"),
        'R' => all("H:M"),
        'T' | 'X' => all("H:M:S"),
        'r' => all("I:M:S p"),
        'c' => all("a b e H:M:S Y"),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Limits, Meter};

    fn format(now: &str, format: &str) -> String {
        let meter = Meter::new(&Limits::default());
        let mut out = Sink::new(&meter);
        strftime(&Moment::parse(now).unwrap(), format, &mut out).unwrap();
        out.finish()
    }

    #[test]
    fn times_are_parsed_and_checked() {
        assert_eq!(Moment::parse("2024-02-29"), Moment::new((2024, 2, 29), (0, 0, 0)));
        assert_eq!(Moment::parse("2024-12-31 23:59:59"), Moment::new((2024, 12, 31), (23, 59, 59)));
        for wrong in
            ["", "2024", "2023-02-29", "2024-13-01", "2024-1-1", "2024-01-01T24:00:00", "2024-01-01T1:2:3"]
        {
            assert_eq!(Moment::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Moment::from_epoch(0), Moment::parse("1970-01-01"));
        assert_eq!(Moment::from_epoch(1_741_507_507), Moment::parse("2025-03-09T08:05:07"));
        assert_eq!(Moment::from_epoch(u64::MAX), None);
    }

    /// Expected values are those of Python's `strftime`.
    #[test]
    fn directives_equal_those_of_c() {
        let now = "2024-12-30T13:05:09";
        assert_eq!(format(now, "%a %A %b %B %d %-d %e %j"), "Mon Monday Dec December 30 30 30 365");
        assert_eq!(format(now, "%H %I %-I %p %P %M %S %f"), "13 01 1 PM pm 05 09 000000");
        assert_eq!(format(now, "%y %Y %C %G %g %V %U %W %u %w"), "24 2024 20 2025 25 01 52 53 1 1");
        assert_eq!(format(now, "%D %F %T %R %x %X"), "12/30/24 2024-12-30 13:05:09 13:05 12/30/24 13:05:09");
        assert_eq!(format(now, "%c|%r"), "Mon Dec 30 13:05:09 2024|01:05:09 PM");
        assert_eq!(format("2021-01-03", "%G %V %U %W %_d|%^a|%#p"), "2020 53 01 00  3|SUN|am");
        assert_eq!(format(now, "%% %q %-q %Z%z é %"), "% %q %-q  é %");
    }
}
