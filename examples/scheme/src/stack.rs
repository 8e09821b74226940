//! The stack of values.
//!
//! It is a `Vec` whose length does not change with each push. So a push writes the parts of a value
//! in their place, where `Vec::push` would copy the whole value out of a place in which it has just
//! been written in parts, and a processor waits for such a copy.

use std::ops::{Index, IndexMut};

use crate::value::Value;

/// What lies above `len` owns nothing.
pub struct Stack {
    slots: Vec<Value>,
    len: usize,
}

impl Stack {
    pub fn new() -> Self {
        let mut slots = Vec::new();
        slots.resize_with(1 << 10, Value::default);
        Stack { slots, len: 0 }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn push(&mut self, value: Value) {
        if self.len == self.slots.len() {
            self.grow();
        }
        // The old value owns nothing, so it needs no drop.
        std::mem::forget(std::mem::replace(&mut self.slots[self.len], value));
        self.len += 1;
    }

    #[inline(always)]
    pub fn push_int(&mut self, n: i64) {
        if self.len == self.slots.len() {
            self.grow();
        }
        // The old value owns nothing, so it needs no drop.
        std::mem::forget(std::mem::replace(&mut self.slots[self.len], Value::Int(n)));
        self.len += 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.slots.resize_with(self.slots.len() * 2, Value::default);
    }

    /// Removes the top.
    ///
    /// # Panics
    ///
    /// If the stack is empty.
    #[inline(always)]
    pub fn pop(&mut self) -> Value {
        self.len -= 1;
        std::mem::take(&mut self.slots[self.len])
    }

    /// The top, if it is a small number.
    #[inline(always)]
    pub fn top_int(&self) -> Option<i64> {
        match self.slots[self.len - 1] {
            Value::Int(n) => Some(n),
            _ => None,
        }
    }

    /// Drops the values above `len`.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.len -= 1;
            let slot = &mut self.slots[self.len];
            if !slot.is_plain() {
                std::mem::take(slot).discard();
            }
        }
    }

    /// Moves a value to another place.
    #[inline(always)]
    pub fn relocate(&mut self, from: usize, to: usize) {
        if let Value::Int(n) = self.slots[from] {
            let slot = &mut self.slots[to];
            if slot.is_plain() {
                std::mem::forget(std::mem::replace(slot, Value::Int(n)));
            } else {
                *slot = Value::Int(n);
            }
        } else {
            self.slots.swap(from, to);
        }
    }

    /// Removes the values from `first` on.
    pub fn split_off(&mut self, first: usize) -> Vec<Value> {
        let values = self.slots[first..self.len].iter_mut().map(std::mem::take).collect();
        self.len = first;
        values
    }

    pub fn extend(&mut self, values: impl IntoIterator<Item = Value>) {
        values.into_iter().for_each(|value| self.push(value));
    }

    /// The values from `first` on.
    pub fn from(&mut self, first: usize) -> &mut [Value] {
        &mut self.slots[first..self.len]
    }
}

impl Index<usize> for Stack {
    type Output = Value;

    #[inline(always)]
    fn index(&self, at: usize) -> &Value {
        &self.slots[at]
    }
}

impl IndexMut<usize> for Stack {
    #[inline(always)]
    fn index_mut(&mut self, at: usize) -> &mut Value {
        &mut self.slots[at]
    }
}
