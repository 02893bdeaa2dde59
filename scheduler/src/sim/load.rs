//! Loads: requests with their arrival times. A load is drawn from a seed or read from a file. This module
//! does not depend on devices or plans.

use crate::core::{Nanoseconds, Want};
use crate::sim::SimRequest;
use ragtag_planner::json::{cut, number};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Maximum number of requests in a load.
pub const MAX_REQUESTS: u32 = 1 << 20;
/// Maximum number of tokens in a load. Prompt tokens and generated tokens both count.
pub const MAX_TOKENS: u64 = 1 << 26;
/// Maximum number of prompt tokens, and maximum number of generated tokens, in a request.
pub const LONGEST: u32 = 1 << 24;
/// Latest arrival time, in seconds.
pub const LATEST_S: f64 = 1e9;
/// Maximum number of characters from a file that an error message quotes.
const MAX_SHOWN: usize = 100;

/// Requests and their arrival times.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The requests. There is at least one.
    pub requests: Vec<SimRequest>,
    /// Number of concurrent requests. If it is set, each request arrives when an earlier one ends, and its
    /// `at_ns` is ignored.
    pub at_once: Option<u32>,
}

/// Arrival pattern of the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All requests arrive at the start.
    Together,
    /// Requests arrive in a Poisson process: the gaps between them are random and independent.
    Poisson {
        /// Average number of requests per second.
        per_s: f64,
    },
    /// A closed loop: `at_once` requests arrive at the start, and a new one arrives whenever one ends.
    Closed {
        /// Number of concurrent requests.
        at_once: u32,
    },
}

/// Distribution of the lengths of prompts or outputs, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// All lengths are equal.
    Fixed(u32),
    /// Lengths have a uniform distribution.
    Uniform {
        /// Minimum length.
        least: u32,
        /// Maximum length.
        most: u32,
    },
    /// Lengths have a geometric distribution. Each is at least 1.
    Geometric {
        /// Mean length, at least 1.
        mean: f64,
    },
}

/// Parameters of a random load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawnLoad {
    /// Number of requests.
    pub requests: u32,
    /// Arrival pattern of the requests.
    pub arrivals: Arrivals,
    /// Lengths of the prompts, at least 1 token.
    pub prompt_tokens: Lengths,
    /// Lengths of the outputs.
    pub new_tokens: Lengths,
    /// Seed from which the load is drawn.
    pub seed: u64,
}

/// Reason why a load is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// A parameter is invalid.
    #[error("{what}")]
    Figure {
        /// Description of the parameter and its valid range.
        what: String,
    },
    /// Token counts that are out of range.
    #[error("the lengths of {of} are {lengths}; must be {least} to {LONGEST} tokens, in ascending order")]
    Lengths {
        /// Text that has these lengths.
        of: DrawnText,
        /// The lengths, as written.
        lengths: String,
        /// Shortest valid length in tokens.
        least: u32,
    },
    /// A line in a file is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// Description of the problem, for the message.
        what: String,
    },
    /// A file contains no requests.
    #[error("no requests in the file")]
    Empty,
    /// The load exceeds a limit.
    #[error("more than {most} {what}")]
    TooMuch {
        /// Name of the quantity that exceeds its limit.
        what: &'static str,
        /// The limit.
        most: u64,
    },
}

/// Part of a request whose length a load draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawnText {
    /// The prompt.
    Prompt,
    /// The answer.
    Answer,
}

impl fmt::Display for DrawnText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DrawnText::Prompt => "a prompt",
            DrawnText::Answer => "an answer",
        })
    }
}

impl DrawnLoad {
    /// Draws a load with these parameters.
    ///
    /// # Errors
    /// [`LoadError::Figure`] if a parameter is out of range. [`LoadError::TooMuch`] if the load exceeds
    /// [`MAX_REQUESTS`] or [`MAX_TOKENS`].
    pub fn draw(&self) -> Result<Load, LoadError> {
        self.check()?;
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let (mut requests, mut at_s, mut tokens) = (Vec::new(), 0.0, Tokens::default());
        for _ in 0..self.requests {
            if let Arrivals::Poisson { per_s } = self.arrivals {
                at_s += exponential(&mut rng) / per_s;
            }
            let (prompt, new) = (self.prompt_tokens.draw(&mut rng), self.new_tokens.draw(&mut rng));
            tokens.add(prompt, new)?;
            requests.push(request(at_s.min(LATEST_S), prompt, new));
        }
        let at_once = match self.arrivals {
            Arrivals::Closed { at_once } => Some(at_once),
            Arrivals::Together | Arrivals::Poisson { .. } => None,
        };
        Ok(Load { requests, at_once })
    }

    fn check(&self) -> Result<(), LoadError> {
        let figure = |what: &str| Err(LoadError::Figure { what: what.into() });
        if self.requests == 0 {
            return figure("a load needs a request at least");
        }
        if self.requests > MAX_REQUESTS {
            return Err(LoadError::TooMuch { what: "requests", most: MAX_REQUESTS.into() });
        }
        match self.arrivals {
            Arrivals::Poisson { per_s } if !(per_s.is_finite() && per_s >= 1e-6) => {
                figure("a rate is a number of requests a second, at least 0.000001")
            }
            Arrivals::Closed { at_once: 0 } => figure("a closed loop needs a request at once at least"),
            _ => Ok(()),
        }?;
        self.prompt_tokens.check(DrawnText::Prompt, 1)?;
        self.new_tokens.check(DrawnText::Answer, 0)
    }
}

impl Lengths {
    fn check(self, of: DrawnText, least: u32) -> Result<(), LoadError> {
        let (from, to) = match self {
            Lengths::Fixed(tokens) => (tokens, tokens),
            Lengths::Uniform { least, most } => (least, most),
            Lengths::Geometric { mean } if mean >= 1.0 && mean <= f64::from(LONGEST) => (1, 1),
            Lengths::Geometric { .. } => (1, 0),
        };
        if from < least || from > to || to > LONGEST {
            return Err(LoadError::Lengths { of, lengths: self.to_string(), least });
        }
        Ok(())
    }

    fn draw(&self, rng: &mut SmallRng) -> u32 {
        match *self {
            Lengths::Fixed(tokens) => tokens,
            Lengths::Uniform { least, most } => rng.random_range(least..=most),
            Lengths::Geometric { mean } if mean <= 1.0 => 1,
            Lengths::Geometric { mean } => {
                // The integer part of an exponential random variable is geometric.
                let more = exponential(rng) / -(-1.0 / mean).ln_1p();
                (1.0 + more.floor()).min(f64::from(LONGEST)) as u32
            }
        }
    }
}

/// Formats lengths in the notation that the command line accepts.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Lengths::Fixed(tokens) => write!(f, "{tokens}"),
            Lengths::Uniform { least, most } => write!(f, "{least}-{most}"),
            Lengths::Geometric { mean } => write!(f, "~{}", number(mean)),
        }
    }
}

impl FromStr for Lengths {
    type Err = LoadError;

    /// Parses `512` (fixed), `100-300` (uniform) or `~200` (geometric with mean 200).
    fn from_str(text: &str) -> Result<Self, LoadError> {
        let wrong = || {
            let what = format!(
                "{} is not a length; write 512, 100-300 (uniform) or ~200 (geometric, mean)",
                quoted(text)
            );
            LoadError::Figure { what }
        };
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        if let Some(mean) = text.strip_prefix('~') {
            let mean = mean.trim().parse::<f64>().ok().filter(|mean| *mean >= 1.0 && mean.is_finite());
            return Ok(Lengths::Geometric { mean: mean.ok_or_else(wrong)? });
        }
        match text.split_once('-') {
            Some((least, most)) => Ok(Lengths::Uniform { least: number(least)?, most: number(most)? }),
            None => Ok(Lengths::Fixed(number(text)?)),
        }
    }
}

/// Returns a random number with an exponential distribution of mean 1.
fn exponential(rng: &mut SmallRng) -> f64 {
    -(-rng.random::<f64>()).ln_1p()
}

fn request(at_s: f64, prompt_tokens: u32, new_tokens: u32) -> SimRequest {
    let want = Want::Generate { max_new_tokens: new_tokens, end_tokens: [].into() };
    SimRequest::new((at_s * 1e9).round() as Nanoseconds, prompt_tokens, want)
}

/// Total number of prompt and generated tokens in a load.
#[derive(Default)]
struct Tokens(u64);

impl Tokens {
    fn add(&mut self, prompt: u32, new: u32) -> Result<(), LoadError> {
        self.0 += u64::from(prompt) + u64::from(new);
        if self.0 > MAX_TOKENS {
            return Err(LoadError::TooMuch { what: "tokens", most: MAX_TOKENS });
        }
        Ok(())
    }
}

/// A request in the format of a load file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    arrival_s: f64,
    prompt_tokens: u32,
    output_tokens: u32,
}

/// Column names of a table file.
const COLUMNS: [&str; 3] = ["arrival_s", "prompt_tokens", "output_tokens"];

impl Load {
    /// Parses requests in one of two formats. The first has one JSON object per line with `arrival_s`,
    /// `prompt_tokens` and `output_tokens`. The second is a comma-separated table whose first line names
    /// these columns in any order. Empty lines are skipped.
    ///
    /// # Errors
    /// [`LoadError::Line`] for the first invalid line. [`LoadError::Empty`] if `text` contains no requests.
    /// [`LoadError::TooMuch`] if the load exceeds a limit.
    pub fn from_text(text: &str) -> Result<Self, LoadError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
        let mut lines = lines.peekable();
        let at = |line| move |what| LoadError::Line { line, what };
        let columns = match lines.peek() {
            None => return Err(LoadError::Empty),
            Some((_, line)) if line.starts_with('{') => None,
            Some(&(number, line)) => {
                lines.next();
                Some(columns(line).map_err(at(number))?)
            }
        };
        let (mut requests, mut tokens) = (Vec::new(), Tokens::default());
        for (number, line) in lines {
            let record = match &columns {
                // The JSON parser would also accept an array of the values.
                None if !line.starts_with('{') => Err("expected an object, as on the first line".into()),
                None => serde_json::from_str(line).map_err(|e| said(&e)),
                Some(columns) => row(line, columns),
            };
            let record = record.and_then(checked).map_err(at(number))?;
            if requests.len() == MAX_REQUESTS as usize {
                return Err(LoadError::TooMuch { what: "requests", most: MAX_REQUESTS.into() });
            }
            tokens.add(record.prompt_tokens, record.output_tokens)?;
            requests.push(request(record.arrival_s, record.prompt_tokens, record.output_tokens));
        }
        if requests.is_empty() { Err(LoadError::Empty) } else { Ok(Load { requests, at_once: None }) }
    }
}

/// Returns the position of each of [`COLUMNS`] in the table whose header is `line`.
fn columns(line: &str) -> Result<[usize; 3], String> {
    let names: Vec<_> = line.split(',').map(str::trim).collect();
    if let Some(other) = names.iter().find(|name| !COLUMNS.contains(name)) {
        return Err(format!("{} is not a column; columns are {}", quoted(other), COLUMNS.join(", ")));
    }
    let mut places = [0; 3];
    for (place, name) in places.iter_mut().zip(COLUMNS) {
        let mut found = names.iter().enumerate().filter(|(_, n)| **n == name);
        *place = found.next().ok_or_else(|| format!("the column {name} is missing"))?.0;
        if found.next().is_some() {
            return Err(format!("the column {name} occurs twice"));
        }
    }
    Ok(places)
}

fn row(line: &str, columns: &[usize; 3]) -> Result<Record, String> {
    let values: Vec<_> = line.split(',').map(str::trim).collect();
    if values.len() != columns.len() {
        return Err(format!("{} values for {} columns", values.len(), columns.len()));
    }
    let value = |column: usize| values[columns[column]];
    let wrong =
        |column: usize| format!("{} is {}, which is not a number", COLUMNS[column], quoted(value(column)));
    Ok(Record {
        arrival_s: value(0).parse().map_err(|_| wrong(0))?,
        prompt_tokens: value(1).parse().map_err(|_| wrong(1))?,
        output_tokens: value(2).parse().map_err(|_| wrong(2))?,
    })
}

fn checked(record: Record) -> Result<Record, String> {
    if !(0.0..=LATEST_S).contains(&record.arrival_s) {
        let arrival_s = number(record.arrival_s);
        return Err(format!("arrival_s is {arrival_s}; must be 0 to {LATEST_S}"));
    }
    if !(1..=LONGEST).contains(&record.prompt_tokens) {
        return Err(format!("prompt_tokens is {}; must be 1 to {LONGEST}", record.prompt_tokens));
    }
    if record.output_tokens > LONGEST {
        return Err(format!("output_tokens is {}; must be at most {LONGEST}", record.output_tokens));
    }
    Ok(record)
}

/// Returns the JSON parser's message with the column number. The caller adds the line number. Quotations from
/// the file are shortened.
fn said(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    format!("{} at column {}", cut(text.strip_suffix(&position).unwrap_or(&text), MAX_SHOWN), error.column())
}

fn quoted(text: &str) -> String {
    format!("'{}'", cut(text, MAX_SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(arrivals: Arrivals, prompt_tokens: Lengths, new_tokens: Lengths) -> DrawnLoad {
        DrawnLoad { requests: 20_000, arrivals, prompt_tokens, new_tokens, seed: 7 }
    }

    fn new_tokens(request: &SimRequest) -> u32 {
        let Want::Generate { max_new_tokens, .. } = request.want else { panic!("{request:?}") };
        max_new_tokens
    }

    #[test]
    fn draws_have_the_means_of_their_distributions_and_follow_from_the_seed() {
        let uniform = Lengths::Uniform { least: 10, most: 30 };
        let load = drawn(Arrivals::Poisson { per_s: 50.0 }, uniform, Lengths::Geometric { mean: 40.0 });
        let Load { requests, at_once } = load.draw().unwrap();
        assert_eq!((requests.len(), at_once), (20_000, None));
        assert_eq!(load.draw().unwrap().requests, requests);
        assert_ne!(DrawnLoad { seed: 8, ..load }.draw().unwrap().requests, requests);
        let mean = |of: &dyn Fn(&SimRequest) -> u32| {
            requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / requests.len() as f64
        };
        assert!((mean(&|r| r.prompt_tokens) - 20.0).abs() < 0.2);
        assert!(requests.iter().all(|r| (10..=30).contains(&r.prompt_tokens) && new_tokens(r) >= 1));
        assert!((mean(&new_tokens) - 40.0).abs() < 1.0, "{}", mean(&new_tokens));
        // A geometric variable with mean 40 has the value 1 in one of 40 draws on average.
        let ones = requests.iter().filter(|r| new_tokens(r) == 1).count();
        assert!((400..600).contains(&ones), "{ones}");
        // The gaps of a Poisson process have mean and standard deviation 1 / rate.
        let gaps: Vec<_> = requests.windows(2).map(|r| (r[1].at_ns - r[0].at_ns) as f64 / 1e9).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean * 50.0 - 1.0).abs() < 0.03 && (deviation * 50.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn closed_loops_and_bursts_begin_at_once() {
        for (arrivals, expected) in [(Arrivals::Together, None), (Arrivals::Closed { at_once: 3 }, Some(3))] {
            let load = drawn(arrivals, Lengths::Fixed(5), Lengths::Fixed(0)).draw().unwrap();
            assert_eq!(load.at_once, expected);
            assert!(load.requests.iter().all(|r| (r.at_ns, r.prompt_tokens, new_tokens(r)) == (0, 5, 0)));
        }
    }

    #[test]
    fn impossible_loads_are_refused() {
        let good = drawn(Arrivals::Together, Lengths::Fixed(5), Lengths::Fixed(5));
        let uniform = |least, most| Lengths::Uniform { least, most };
        for bad in [
            DrawnLoad { requests: 0, ..good },
            DrawnLoad { requests: MAX_REQUESTS + 1, ..good },
            DrawnLoad { arrivals: Arrivals::Poisson { per_s: f64::NAN }, ..good },
            DrawnLoad { arrivals: Arrivals::Poisson { per_s: -1.0 }, ..good },
            DrawnLoad { arrivals: Arrivals::Closed { at_once: 0 }, ..good },
            DrawnLoad { prompt_tokens: Lengths::Fixed(0), ..good },
            DrawnLoad { prompt_tokens: uniform(9, 8), ..good },
            DrawnLoad { prompt_tokens: Lengths::Fixed(LONGEST), ..good },
            DrawnLoad { new_tokens: uniform(0, LONGEST + 1), ..good },
            DrawnLoad { new_tokens: Lengths::Geometric { mean: f64::NAN }, ..good },
            DrawnLoad { new_tokens: Lengths::Geometric { mean: 0.5 }, ..good },
        ] {
            assert!(bad.draw().is_err(), "{bad:?}");
        }
        let said = |load: DrawnLoad| load.draw().unwrap_err().to_string();
        assert_eq!(
            said(DrawnLoad { prompt_tokens: uniform(10, 5), ..good }),
            "the lengths of a prompt are 10-5; must be 1 to 16777216 tokens, in ascending order"
        );
        let huge = said(DrawnLoad { new_tokens: Lengths::Geometric { mean: 1e300 }, ..good });
        assert!(huge.starts_with("the lengths of an answer are ~1e300; must be 0"), "{huge}");
    }

    #[test]
    fn lengths_are_written_in_three_ways() {
        assert_eq!("512".parse(), Ok(Lengths::Fixed(512)));
        assert_eq!("100-300".parse(), Ok(Lengths::Uniform { least: 100, most: 300 }));
        assert_eq!("~2.5".parse(), Ok(Lengths::Geometric { mean: 2.5 }));
        for text in ["512", "100-300", "~2.5"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for wrong in ["", "-", "5-", "-5", "~", "~0", "~nan", "~inf", "x", "1e3", "4294967296"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_objects_on_lines_or_tables() {
        let lines = "{\"arrival_s\": 0.5, \"prompt_tokens\": 7, \"output_tokens\": 3}\n\n\
                     {\"output_tokens\": 0, \"arrival_s\": 0, \"prompt_tokens\": 1}\n";
        let table = "\u{feff}output_tokens, prompt_tokens,arrival_s\r\n3,7,0.5\r\n\r\n0, 1, 0\r\n";
        let expected = vec![request(0.5, 7, 3), request(0.0, 1, 0)];
        for text in [lines, table] {
            assert_eq!(Load::from_text(text).unwrap(), Load { requests: expected.clone(), at_once: None });
        }
        assert_eq!(expected[0].at_ns, 500_000_000);
    }

    #[test]
    fn mistakes_in_files_are_named_with_their_lines() {
        let header = "arrival_s,prompt_tokens,output_tokens\n";
        let good = "{\"arrival_s\": 1, \"prompt_tokens\": 2, \"output_tokens\": 3}\n";
        let with = |from: &str, to: &str| format!("{good}\n{}", good.replacen(from, to, 1));
        for (text, line, words) in [
            ("arrival_s,prompt_tokens\n".into(), 1, "output_tokens is missing"),
            ("\narrival_s,prompt_tokens,tokens\n".into(), 2, "'tokens' is not a column"),
            ("arrival_s,arrival_s,prompt_tokens,output_tokens\n".into(), 1, "twice"),
            (format!("{header}1,2,3\n1,2\n"), 3, "2 values for 3 columns"),
            (
                format!("{header}1,2,3\n1,x\u{1b}[2J,3\n"),
                3,
                "prompt_tokens is 'x\\u{1b}[2J', which is not a number",
            ),
            (format!("{header}1,-2,3\n"), 2, "prompt_tokens is '-2', which is not a number"),
            (format!("{header}nan,2,3\n"), 2, "arrival_s is NaN; must be 0"),
            (format!("{header}-1,2,3\n"), 2, "arrival_s is -1; must be 0"),
            (format!("{header}1e10,2,3\n"), 2, "arrival_s is 10000000000; must be 0"),
            (format!("{header}1e300,2,3\n"), 2, "arrival_s is 1e300; must be 0"),
            ("\"arrival_s\",prompt_tokens\n".into(), 1, "'\"arrival_s\"' is not a column"),
            (format!("{header}1,0,3\n"), 2, "prompt_tokens is 0; must be 1"),
            (format!("{header}1,2,99999999\n"), 2, "output_tokens is 99999999; must be at most"),
            (with("prompt", "promt"), 3, "unknown field `promt_tokens`"),
            (with(", \"output_tokens\": 3", ""), 3, "missing field `output_tokens`"),
            (with("2", "2.5"), 3, "invalid type: floating point"),
            (with("}", ""), 3, "EOF"),
            (format!("{good}1,2,3\n"), 2, "expected an object"),
            (format!("{good}[1,2,3]\n"), 2, "expected an object"),
        ] {
            let error = Load::from_text(&text).unwrap_err();
            let LoadError::Line { line: found, what } = &error else { panic!("{text}: {error:?}") };
            assert!(*found == line && what.contains(words), "{text}: {error}");
        }
        assert_eq!(Load::from_text(" \n\n"), Err(LoadError::Empty));
        assert_eq!(Load::from_text(header), Err(LoadError::Empty));
        let many = format!("{header}{}", format!("0,{LONGEST},{LONGEST}\n").repeat(3));
        assert_eq!(Load::from_text(&many), Err(LoadError::TooMuch { what: "tokens", most: MAX_TOKENS }));
    }
}
