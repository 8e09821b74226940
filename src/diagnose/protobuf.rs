//! The few parts of Protocol Buffers that the formats of others need.

#![forbid(unsafe_code)]

/// A message in the making.
#[derive(Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// A number.
    pub fn number(&mut self, field: u32, number: u64) -> &mut Self {
        self.varint(u64::from(field) << 3);
        self.varint(number);
        self
    }

    /// A string, or another message.
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A list of numbers.
    pub fn packed(&mut self, field: u32, numbers: impl Iterator<Item = u64>) -> &mut Self {
        let mut list = Self::default();
        numbers.for_each(|number| list.varint(number));
        self.bytes(field, &list.0)
    }
}
