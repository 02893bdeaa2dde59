//! The types of all messages, as their deserialisation asks for them. A test compares their digest with a recorded one,
//! so that no change of a message keeps the version of the protocol.

use super::protocol::{Answer, PROTOCOL, Request, Version};
use ragtag_scheduler::remote::{EdgeMessage, FromHost, ToHost};
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the protocol and digest of its messages. Raise `PROTOCOL` when the digest changes.
const RECORDED: (u32, &str) = (3, "85111d0bc1b4b8ce");

/// Text that all types with a text form accept.
const TEXT: &str = "00000000000000000000000000000000";

/// Types of fields, and variants of enums.
#[derive(Default)]
struct Schema {
    lines: BTreeSet<String>,
    /// Number of variants of each enum that were visited.
    visited: BTreeMap<String, usize>,
    /// Whether an enum had a variant that was not visited before.
    has_new: bool,
}

impl Schema {
    /// Adds a type. Each pass visits one more variant of each enum.
    fn add<T: DeserializeOwned>(&mut self) {
        loop {
            self.has_new = false;
            let read = T::deserialize(Reader { schema: self, path: String::new() });
            if !self.has_new {
                let type_name = std::any::type_name::<T>();
                return drop(read.unwrap_or_else(|cause| panic!("{type_name}: {cause}")));
            }
        }
    }
}

/// Records the type that a place asks for, and returns some value of it.
struct Reader<'a> {
    schema: &'a mut Schema,
    path: String,
}

impl Reader<'_> {
    fn record(&mut self, what: &str) {
        self.schema.lines.insert(format!("{}: {what}", self.path));
    }

    fn at(&mut self, path: String) -> Reader<'_> {
        Reader { schema: self.schema, path }
    }
}

macro_rules! values {
    ($($method:ident $visit:ident $value:expr,)*) => {$(
        fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
            self.record(stringify!($method));
            visitor.$visit($value)
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Error;

    values! {
        deserialize_bool visit_bool true,
        deserialize_i8 visit_i8 1,
        deserialize_i16 visit_i16 1,
        deserialize_i32 visit_i32 1,
        deserialize_i64 visit_i64 1,
        deserialize_u8 visit_u8 1,
        deserialize_u16 visit_u16 1,
        deserialize_u32 visit_u32 1,
        deserialize_u64 visit_u64 1,
        deserialize_f32 visit_f32 1.0,
        deserialize_f64 visit_f64 1.0,
        deserialize_char visit_char 'a',
        deserialize_str visit_str TEXT,
        deserialize_string visit_str TEXT,
        deserialize_bytes visit_bytes &[],
        deserialize_byte_buf visit_bytes &[],
        deserialize_identifier visit_str TEXT,
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom(format!("{} has no fixed type", self.path)))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.record("option");
        let path = format!("{}?", self.path);
        visitor.visit_some(self.at(path))
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.record("unit");
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(mut self, name: &str, visitor: V) -> Result<V::Value, Error> {
        self.record(name);
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        name: &str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(name);
        visitor.visit_newtype_struct(self.at(name.into()))
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.record("list");
        let names = [String::from("[]")];
        visitor.visit_seq(Parts { path: self.path.clone(), names: names.into_iter(), reader: self })
    }

    fn deserialize_tuple<V: Visitor<'de>>(mut self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.record(&format!("{length} values"));
        let names = (0..length).map(|at| format!(".{at}"));
        visitor.visit_seq(Parts { path: self.path.clone(), names, reader: self })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        mut self,
        name: &str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(name);
        self.at(name.into()).deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.record("map");
        let names = [String::from("{}")];
        visitor.visit_map(Parts { path: self.path.clone(), names: names.into_iter(), reader: self })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(&format!("{name} {fields:?}"));
        visitor.visit_map(Fields { name: name.into(), fields: fields.iter(), next: "", reader: self })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        name: &str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(&format!("{name} {variants:?}"));
        let visited = self.schema.visited.entry(format!("{name} {variants:?}")).or_default();
        let variant = if *visited < variants.len() { variants[*visited] } else { variants[0] };
        let is_new = *visited < variants.len();
        *visited += usize::from(is_new);
        self.schema.has_new |= is_new;
        visitor.visit_enum(Variant { path: format!("{name}::{variant}"), variant, reader: self })
    }
}

/// Elements of a list or a tuple, or the pair of a map.
struct Parts<'a, N> {
    path: String,
    names: N,
    reader: Reader<'a>,
}

impl<'de, N: Iterator<Item = String>> SeqAccess<'de> for Parts<'_, N> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        seed.deserialize(self.reader.at(format!("{}{name}", self.path))).map(Some)
    }
}

impl<'de, N: Iterator<Item = String>> MapAccess<'de> for Parts<'_, N> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        seed.deserialize(self.reader.at(format!("{}{name} key", self.path))).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.reader.at(format!("{}{{}} value", self.path)))
    }
}

/// Fields of a struct or of a variant.
struct Fields<'a> {
    name: String,
    fields: std::slice::Iter<'static, &'static str>,
    next: &'static str,
    reader: Reader<'a>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(field) = self.fields.next() else { return Ok(None) };
        self.next = field;
        let key: StrDeserializer<'_, Error> = field.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.reader.at(format!("{}.{}", self.name, self.next)))
    }
}

/// A variant of an enum.
struct Variant<'a> {
    path: String,
    variant: &'static str,
    reader: Reader<'a>,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Error> {
        let name: StrDeserializer<'_, Error> = self.variant.into_deserializer();
        seed.deserialize(name).map(|value| (value, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.reader.at(self.path))
    }

    fn tuple_variant<V: Visitor<'de>>(mut self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.reader.at(self.path).deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let path = self.path.clone();
        let reader = self.reader.at(path.clone());
        visitor.visit_map(Fields { name: path, fields: fields.iter(), next: "", reader })
    }
}

#[test]
fn messages_change_with_the_version_of_the_protocol_alone() {
    let mut schema = Schema::default();
    schema.add::<Version>();
    schema.add::<Request>();
    schema.add::<Answer>();
    schema.add::<ToHost>();
    schema.add::<FromHost>();
    schema.add::<EdgeMessage>();
    let text = schema.lines.into_iter().collect::<Vec<_>>().join("\n");
    let digest = blake3::hash(text.as_bytes()).to_hex();
    assert_eq!(
        (PROTOCOL, &digest[..16]),
        RECORDED,
        "the messages have changed: raise PROTOCOL, and record both here\n{text}"
    );
}
