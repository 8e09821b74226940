//! Reads what the library writes for viewers. Apart from `mod.rs`, because the tests of the package
//! `heap` use it, too.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::HashMap;

/// A decoded message: the values of each field.
#[derive(Debug, Default)]
pub(crate) struct Message(HashMap<u64, Vec<Value>>);

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
    }
    panic!("a number of more than 64 bits");
}

impl Message {
    pub(crate) fn of(mut bytes: &[u8]) -> Self {
        let mut this = Self::default();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut bytes)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            this.0.entry(key >> 3).or_default().push(value);
        }
        this
    }

    fn all(&self, field: u64) -> impl Iterator<Item = &Value> {
        self.0.get(&field).into_iter().flatten()
    }

    #[track_caller]
    pub(crate) fn number(&self, field: u64) -> u64 {
        match self.all(field).last() {
            Some(Value::Number(number)) => *number,
            other => panic!("field {field}: {other:?}"),
        }
    }

    pub(crate) fn bytes(&self, field: u64) -> impl Iterator<Item = &[u8]> {
        self.all(field).map(|value| match value {
            Value::Bytes(bytes) => bytes.as_slice(),
            Value::Number(number) => panic!("the number {number}"),
        })
    }

    pub(crate) fn messages(&self, field: u64) -> impl Iterator<Item = Self> {
        self.bytes(field).map(Self::of)
    }

    pub(crate) fn text(&self, field: u64) -> String {
        String::from_utf8(self.bytes(field).last().unwrap().to_vec()).unwrap()
    }

    pub(crate) fn packed(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for mut bytes in self.bytes(field) {
            while !bytes.is_empty() {
                numbers.push(varint(&mut bytes));
            }
        }
        numbers
    }
}
