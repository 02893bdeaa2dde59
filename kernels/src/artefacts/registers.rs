//! Register numbers of PTX in a form that compresses well. NVRTC numbers registers in the order of their
//! definitions, so that repeated code differs in all numbers. Differences between consecutive numbers repeat.

use std::fmt::Write;

/// Replaces the number of each register by the difference from the previous register with the same prefix. In
/// the result, `%r4` after `%r6` is `%r-2`.
pub fn shorten(ptx: &str) -> String {
    rewrite(ptx, false, |out, last, number| {
        let _ = write!(out, "{:+}", number - *last);
        *last = number;
    })
}

/// Returns the PTX from which [`shorten`] made `short`.
pub fn restore(short: &str) -> String {
    rewrite(short, true, |out, last, difference| {
        *last = last.wrapping_add(difference);
        let _ = write!(out, "{last}");
    })
}

/// Calls `write` with the output, the last number of the same prefix, and the number, for each register whose
/// number has a sign (if `signed`) or none. Copies all other text.
fn rewrite(text: &str, signed: bool, write: impl Fn(&mut String, &mut i64, i64)) -> String {
    let mut numbers: Vec<(&str, i64)> = Vec::new();
    let mut parts = text.split('%');
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let prefix = part.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(part.len());
        let (prefix, rest) = part.split_at(prefix);
        let sign = usize::from(rest.starts_with(['+', '-']));
        let digits = rest[sign..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - sign);
        let (number, rest) = rest.split_at(sign + digits);
        out.extend(["%", prefix]);
        match number.parse() {
            Ok(parsed) if !prefix.is_empty() && (sign == 1) == signed => {
                let at = numbers.iter().position(|(other, _)| *other == prefix).unwrap_or(numbers.len());
                if at == numbers.len() {
                    numbers.push((prefix, 0));
                }
                write(&mut out, &mut numbers[at].1, parsed);
            }
            _ => out.push_str(number),
        }
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_differences_and_return() {
        let ptx = "add %r6, %r4;\nld [%rd12+16], %f1;\n@%p1 mov %r7, %tid.x;\n%r<8> 50% %";
        let short = "add %r+6, %r-2;\nld [%rd+12+16], %f+1;\n@%p+1 mov %r+3, %tid.x;\n%r<8> 50% %";
        assert_eq!(shorten(ptx), short);
        assert_eq!(restore(short), ptx);
    }

    #[test]
    fn damaged_numbers_do_not_panic() {
        assert_eq!(restore("%r+9223372036854775807 %r+1"), format!("%r{} %r{}", i64::MAX, i64::MIN));
        assert_eq!(restore("%r+99999999999999999999"), "%r+99999999999999999999");
    }
}
