//! Reads JSON as Python's `json.loads` does: integers keep all their digits, and numbers outside the range of a float
//! are infinite. `serde_json` turns integers above 2^64 into floats, which templates print as floats.

use crate::error::JsonError;
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

/// Maximum number of nested lists and objects, as in `serde_json`.
const MAX_NESTING: u32 = 128;

/// Reads messages, tools, documents or other values from JSON. Unlike with `serde_json`, integers of any size are exact.
///
/// # Errors
/// Returns the cause and its place if the text is not JSON, or not that of a `T`.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, JsonError> {
    let mut reader = Reader { text, at: 0, nesting: 0 };
    let read = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    read.map_err(|cause| {
        let before = &text[..reader.at];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[line_start..].chars().count();
        JsonError { what: cause.to_string(), line: before.matches('\n').count() + 1, column }
    })
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    nesting: u32,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), Error> {
        self.skip_space();
        if self.take(token) { Ok(()) } else { Err(Error::custom(format!("expected `{token}`"))) }
    }

    fn end(&mut self) -> Result<(), Error> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(Error::custom("trailing characters")) }
    }

    fn digits(&mut self) -> Result<usize, Error> {
        let rest = &self.text[self.at..];
        let count = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        self.at += count;
        if count > 0 { Ok(count) } else { Err(Error::custom("invalid number")) }
    }

    fn number<'de, V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        let start = self.at;
        self.take("-");
        let leads_with_zero = self.peek() == Some(b'0');
        if self.digits()? > 1 && leads_with_zero {
            return Err(Error::custom("invalid number"));
        }
        let end_of_whole = self.at;
        if self.take(".") {
            self.digits()?;
        }
        if self.take("e") || self.take("E") {
            _ = self.take("+") || self.take("-");
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        if end_of_whole < self.at {
            return visitor.visit_f64(text.parse().map_err(Error::custom)?);
        }
        match text.parse::<i128>() {
            Ok(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => visitor.visit_i64(number),
                (_, Ok(number)) => visitor.visit_u64(number),
                _ => visitor.visit_i128(number),
            },
            // JSON has no bytes, so they can only be the digits of a larger integer.
            Err(_) => visitor.visit_bytes(text.as_bytes()),
        }
    }

    fn string(&mut self) -> Result<String, Error> {
        self.expect("\"")?;
        let mut string = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c| matches!(c, '"' | '\\' | '\0'..='\x1f')).unwrap_or(rest.len());
            string.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(b'\\') => string.push(self.escape()?),
                Some(_) => return Err(Error::custom("control character in a string")),
                None => return Err(Error::custom("a string has no end")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        self.at += 1;
        let letter = self.peek().ok_or_else(|| Error::custom("a string has no end"))?;
        if letter == b'u' {
            self.at += 1;
            let first = self.unit()?;
            // A surrogate without its pair stands for no character.
            let is_pair = (0xD800..0xDC00).contains(&first) && self.text[self.at..].starts_with("\\u");
            if !is_pair {
                return Ok(char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            let after_first = self.at;
            self.at += 2;
            let second = self.unit()?;
            return Ok(match char::decode_utf16([first, second]).next() {
                Some(Ok(pair)) => pair,
                _ => {
                    self.at = after_first;
                    char::REPLACEMENT_CHARACTER
                }
            });
        }
        let character = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            _ => return Err(Error::custom("invalid escape")),
        };
        self.at += 1;
        Ok(character)
    }

    /// Reads the four digits of a UTF-16 code unit.
    fn unit(&mut self) -> Result<u16, Error> {
        let digits = self.text.get(self.at..self.at + 4).filter(|digits| !digits.starts_with('+'));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        self.at += if unit.is_some() { 4 } else { 0 };
        unit.ok_or_else(|| Error::custom("invalid escape"))
    }

    /// Reads a list or an object with `read`, up to its bracket `close`.
    fn nested<T>(
        &mut self,
        close: &'static str,
        read: impl FnOnce(Items<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.at += 1;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Error::custom("recursion limit exceeded"));
        }
        let value = read(Items { reader: &mut *self, close, is_first: true })?;
        self.expect(close)?;
        self.nesting -= 1;
        Ok(value)
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip_space();
        match self.peek() {
            None => Err(Error::custom("expected a value, found the end")),
            Some(b'"') => visitor.visit_string(self.string()?),
            Some(b'[') => self.nested("]", |items| visitor.visit_seq(items)),
            Some(b'{') => self.nested("}", |items| visitor.visit_map(items)),
            _ if self.take("null") => visitor.visit_unit(),
            _ if self.take("true") => visitor.visit_bool(true),
            _ if self.take("false") => visitor.visit_bool(false),
            _ if self.take("NaN") => visitor.visit_f64(f64::NAN),
            _ if self.take("Infinity") => visitor.visit_f64(f64::INFINITY),
            _ if self.take("-Infinity") => visitor.visit_f64(f64::NEG_INFINITY),
            Some(b'-' | b'0'..=b'9') => self.number(visitor),
            Some(_) => Err(Error::custom("expected a value")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip_space();
        if self.take("null") { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

/// The rest of a list or an object.
struct Items<'r, 't> {
    reader: &'r mut Reader<'t>,
    close: &'static str,
    is_first: bool,
}

impl Items<'_, '_> {
    /// Goes to the next item. Returns false if there is none.
    fn next(&mut self) -> Result<bool, Error> {
        self.reader.skip_space();
        if self.reader.text[self.reader.at..].starts_with(self.close) {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.is_first, false) {
            self.reader.expect(",")?;
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if self.next()? { seed.deserialize(&mut *self.reader).map(Some) } else { Ok(None) }
    }
}

impl<'de> MapAccess<'de> for Items<'_, '_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.next()? {
            return Ok(None);
        }
        self.reader.skip_space();
        let name = self.reader.string()?;
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.reader.expect(":")?;
        seed.deserialize(&mut *self.reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conversation, Data, Message, Template, to_json};
    use proptest::prelude::*;

    /// Renders a JSON value as text and as JSON.
    fn printed(json: &str) -> String {
        let mut conversation = Conversation::default();
        conversation.variables.insert("x".into(), from_json::<Data>(json).unwrap());
        Template::compile("{{ x }} {{ x | tojson }}").unwrap().render(&conversation).unwrap()
    }

    /// The values are those of Python 3.11: `x = json.loads(text); print(x, json.dumps(x))`.
    #[test]
    fn numbers_print_as_in_python() {
        for (json, expected) in [
            ("18446744073709551615", "18446744073709551615 18446744073709551615"),
            ("18446744073709551616", "18446744073709551616 18446744073709551616"),
            ("-9223372036854775809", "-9223372036854775809 -9223372036854775809"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890 123456789012345678901234567890",
            ),
            (
                "-340282366920938463463374607431768211456",
                "-340282366920938463463374607431768211456 -340282366920938463463374607431768211456",
            ),
            ("-0", "0 0"),
            ("-0.0", "-0.0 -0.0"),
            ("1.0", "1.0 1.0"),
            ("1e3", "1000.0 1000.0"),
            ("1E+22", "1e+22 1e+22"),
            ("1e400", "inf Infinity"),
            ("-1e400", "-inf -Infinity"),
            ("1e-400", "0.0 0.0"),
            ("NaN", "nan NaN"),
            ("18446744073709551616.0", "1.8446744073709552e+19 1.8446744073709552e+19"),
            ("[1, 100000000000000000000]", "[1, 100000000000000000000] [1, 100000000000000000000]"),
        ] {
            assert_eq!(printed(json), expected, "{json}");
        }
        let big = "340282366920938463463374607431768211456";
        let mut conversation = Conversation::default();
        conversation.variables.insert("x".into(), from_json::<Data>(big).unwrap());
        let source = "{{ x is integer }} {{ x is number }} {{ x is float }} {{ x > 1 }} {{ x == x }} {{ x | int }} {{ x | string }}";
        let rendered = Template::compile(source).unwrap().render(&conversation).unwrap();
        assert_eq!(rendered, format!("True True False True True {big} {big}"));
    }

    #[test]
    fn texts_and_structures_are_read() {
        let text =
            r#" {"a": ["\u00e9\ud83d\ude00\n\/", "\ud83d", "\ud83dx\u0041"], "b": {}, "c": [] , "a": null} "#;
        let message: Message = from_json(text).unwrap();
        assert_eq!(to_json(&[message]), "[\n  {\n    \"a\": null,\n    \"b\": {},\n    \"c\": []\n  }\n]");
        let texts: Vec<String> =
            from_json(r#"["\u00e9\ud83d\ude00\n\/", "\ud83d", "\ud83dx\u0041"]"#).unwrap();
        assert_eq!(texts, ["é😀\n/", "\u{fffd}", "\u{fffd}xA"]);
    }

    #[test]
    fn errors_have_a_place() {
        let error = |text: &str| from_json::<Vec<Message>>(text).unwrap_err().to_string();
        assert_eq!(error("{}"), "invalid type: map, expected a sequence at line 1 column 1");
        assert_eq!(error("[1]"), "invalid type: integer `1`, expected an object at line 1 column 2");
        assert_eq!(error("[{\"a\": 1}\n {}]"), "expected `,` at line 2 column 1");
        for wrong in [
            "",
            "[",
            "[{}",
            "[{},]",
            "[{\"a\"}]",
            "[{\"a\": 1,}]",
            "[{a: 1}]",
            "[{\"a\": 01}]",
            "[{\"a\": 1.}]",
            "[{\"a\": .5}]",
            "[{\"a\": -}]",
            "[{\"a\": \"\\x\"}]",
            "[{\"a\": \"\\u+123\"}]",
            "[{\"a\": \"b}]",
            "[{\"a\": \"\n\"}]",
            "[{\"a\": nul}]",
            "[] 1",
            "[{\"a\": \"\\u12é\"}]",
            "[{\"a\": +1}]",
        ] {
            assert!(error(wrong).contains(" at line "), "{wrong}");
        }
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(from_json::<Data>(&nested(128)).is_ok());
        assert!(from_json::<Data>(&nested(200_000)).unwrap_err().to_string().contains("recursion limit"));
    }

    proptest! {
        /// Agrees with `serde_json` about which texts are JSON, and about their values.
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{},:"\\u0-9a-f.eE+\- \n]{0,24}"#) {
            let own = from_json::<serde_json::Value>(&text).ok();
            let other = serde_json::from_str::<serde_json::Value>(&text).ok();
            // Numbers out of range and lone surrogates are no errors here.
            if other.is_some() || !text.contains(['e', 'E', 'u']) {
                let as_text = |value: &serde_json::Value| value.to_string().replace("-0.0", "0");
                prop_assert_eq!(own.as_ref().map(as_text), other.as_ref().map(as_text));
            }
        }
    }
}
