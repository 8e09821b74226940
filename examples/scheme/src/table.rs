//! Hash tables: an index of numbers into a list of entries, in the order of their insertion.
//!
//! `equal?` reads pairs and strings, which are locked meanwhile. The table stays locked, too, but
//! no thread that has locked a pair waits for a table, so there is no deadlock.

use std::hash::{Hash, Hasher};
use std::mem::replace;

use standstill::{AnyGc, Gc, GcCell, GcWeakMap, Mutator, Trace};

use crate::value::Value;

#[derive(Clone, Copy, PartialEq, Eq, Trace)]
pub enum Keys {
    Eqv,
    Equal,
}

/// The key and the value, by the object of the key.
type Weak = GcWeakMap<AnyGc, (Value, Value)>;

#[derive(Trace)]
pub struct Table {
    pub keys: Keys,
    entries: GcCell<Entries>,
    /// The entries whose keys are objects, of a table with weak keys: an entry dies with its key,
    /// also if the value leads to it. So it may have the key as a value, too.
    weak: Option<Gc<Weak>>,
}

#[derive(Default, Trace)]
struct Entries {
    /// The place of an entry, at its hash or behind it. A power of two.
    index: Vec<u32>,
    list: Vec<Option<Entry>>,
    live: usize,
}

#[derive(Trace)]
struct Entry {
    hash: u64,
    key: Value,
    value: Value,
}

const EMPTY: u32 = u32::MAX;

/// A hash of a few words.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

fn mix(value: &Value, keys: Keys, m: &Mutator, into: &mut Mix, depth: usize) {
    let is_deep = keys == Keys::Equal && depth > 0;
    macro_rules! identities {
        ($($handle:ident)*) => {
            match value {
                Value::Int(n) => into.write_u64(*n as u64),
                Value::Float(x) => into.write_u64(x.to_bits()),
                Value::Char(c) => into.write_u64(u64::from(*c)),
                Value::Bool(it) => into.write_u64(u64::from(*it)),
                Value::Big(n) => n.0.hash(into),
                Value::Ratio(n) => n.0.hash(into),
                Value::Str(it) if keys == Keys::Equal => {
                    it.chars.lock(m).iter().for_each(|c| into.write_u64(u64::from(*c)));
                }
                Value::Bytes(it) if keys == Keys::Equal => into.write(&it.bytes.lock(m)),
                Value::Pair(pair) if is_deep => {
                    let (head, tail) = pair.ends.get(m);
                    mix(&head, keys, m, into, depth - 1);
                    mix(&tail, keys, m, into, depth - 1);
                }
                Value::Vector(vector) if is_deep => {
                    let items = vector.items.get(m);
                    items.iter().take(8).for_each(|item| mix(item, keys, m, into, depth - 1));
                }
                // What lies deeper does not count.
                Value::Pair(_) | Value::Vector(_) if keys == Keys::Equal => {}
                $(Value::$handle(it) => it.hash(into),)*
                _ => {}
            }
        };
    }
    identities!(Symbol Pair Str Vector Bytes Closure Cases Continuation Record RecordType Condition
                Promise Parameter Table Port Thread Mutex CondVar Channel Guardian)
}

pub fn hash(value: &Value, keys: Keys, m: &Mutator) -> u64 {
    let mut into = Mix::default();
    mix(value, keys, m, &mut into, 8);
    into.finish()
}

impl Entries {
    /// The slot of the index with the entry, or the free one where it belongs.
    fn slot(&self, hash: u64, key: &Value, keys: Keys, m: &Mutator) -> (usize, Option<usize>) {
        let mask = self.index.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let at = self.index[slot];
            if at == EMPTY {
                return (slot, None);
            }
            if let Some(entry) = &self.list[at as usize]
                && entry.hash == hash
                && match keys {
                    Keys::Eqv => entry.key.is_eqv(key),
                    Keys::Equal => entry.key.is_equal(key, m),
                }
            {
                return (slot, Some(at as usize));
            }
            slot = (slot + 1) & mask;
        }
    }

    fn grow(&mut self) {
        self.list.retain(Option::is_some);
        let size = (self.live * 2 + 8).next_power_of_two();
        self.index.clear();
        self.index.resize(size, EMPTY);
        for (at, entry) in self.list.iter().flatten().enumerate() {
            let mut slot = entry.hash as usize & (size - 1);
            while self.index[slot] != EMPTY {
                slot = (slot + 1) & (size - 1);
            }
            self.index[slot] = at as u32;
        }
    }
}

impl Table {
    pub fn new(keys: Keys) -> Self {
        Table { keys, entries: GcCell::default(), weak: None }
    }

    /// With weak keys, which are compared by identity.
    pub fn weak(m: &Mutator) -> Self {
        Table { weak: Some(GcWeakMap::new(m)), ..Self::new(Keys::Eqv) }
    }

    /// The table with weak keys that has the entry of this key, and the key there.
    fn weak_for(&self, key: &Value) -> Option<(&Weak, AnyGc)> {
        Some((self.weak.as_ref()?, key.object()?))
    }

    pub fn get(&self, m: &Mutator, key: &Value) -> Option<Value> {
        if let Some((weak, key)) = self.weak_for(key) {
            return weak.with(m, &key, |(_, value)| value.clone());
        }
        let hash = hash(key, self.keys, m);
        let entries = self.entries.lock(m);
        if entries.live == 0 {
            return None;
        }
        let (_, found) = entries.slot(hash, key, self.keys, m);
        found.and_then(|at| entries.list[at].as_ref()).map(|entry| entry.value.clone())
    }

    /// The old value is the result, so that it is dropped after the table is unlocked.
    pub fn set(&self, m: &Mutator, key: Value, value: Value) -> Option<Value> {
        if let Some((weak, object)) = self.weak_for(&key) {
            return weak.insert(m, &object, (key, value)).map(|(_, old)| old);
        }
        let hash = hash(&key, self.keys, m);
        let mut entries = self.entries.lock(m);
        if entries.list.len() * 4 >= entries.index.len() * 3 {
            entries.grow();
        }
        match entries.slot(hash, &key, self.keys, m) {
            (_, Some(at)) => {
                let entry = entries.list[at].as_mut().expect("found");
                Some(replace(&mut entry.value, value))
            }
            (slot, None) => {
                entries.index[slot] = entries.list.len() as u32;
                entries.list.push(Some(Entry { hash, key, value }));
                entries.live += 1;
                None
            }
        }
    }

    pub fn remove(&self, m: &Mutator, key: &Value) -> Option<(Value, Value)> {
        if let Some((weak, key)) = self.weak_for(key) {
            return weak.remove(m, &key);
        }
        let hash = hash(key, self.keys, m);
        let mut entries = self.entries.lock(m);
        if entries.live == 0 {
            return None;
        }
        // Its number stays in the index, so that a search goes on behind it.
        let (_, found) = entries.slot(hash, key, self.keys, m);
        let entry = entries.list[found?].take()?;
        entries.live -= 1;
        Some((entry.key, entry.value))
    }

    pub fn len(&self, m: &Mutator) -> usize {
        let weak = self.weak.as_ref().map_or(0, |weak| weak.len(m));
        self.entries.lock(m).live + weak
    }

    pub fn pairs(&self, m: &Mutator) -> Vec<(Value, Value)> {
        let weak = self.weak.iter().flat_map(|weak| weak.entries(m)).map(|(_, pair)| pair);
        let mut all: Vec<_> = weak.collect();
        let entries = self.entries.lock(m);
        all.extend(entries.list.iter().flatten().map(|it| (it.key.clone(), it.value.clone())));
        all
    }

    pub fn clear(&self, m: &Mutator) {
        drop(self.entries.take(m)); // unlocked by now
        self.weak.iter().for_each(|weak| weak.remove_all(m));
    }
}
