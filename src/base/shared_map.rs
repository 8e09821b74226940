//! A map for several threads, with fallible insertions.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

use crate::base::fallible::NoMemory;
use crate::base::sync::RwLock;

/// Hashes addresses and hashes, which no attacker chooses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        // An odd number with well-mixed bits: each bit of the word affects the upper half.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

type Part<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// A map for several threads. It is divided into parts, each with a lock of its own. The lock is
/// held for a look-up or a change, and never over a call of foreign code.
pub(crate) struct SharedMap<K, V> {
    parts: [RwLock<Part<K, V>>; PART_COUNT],
}

const PART_COUNT: usize = 16;

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| RwLock::new(HashMap::default())) }
    }
}

impl<K, V> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").finish_non_exhaustive()
    }
}

impl<K: Hash + Eq, V: Clone> SharedMap<K, V> {
    /// The upper bits of the hash choose the part. The map within the part uses the others.
    fn part(&self, key: &K) -> &RwLock<Part<K, V>> {
        let hash = BuildHasherDefault::<Spread>::default().hash_one(key);
        &self.parts[(hash >> 32) as usize % PART_COUNT]
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.part(key).read().get(key).cloned()
    }

    /// The value at a key. If there is none, `make` makes it.
    pub(crate) fn get_or_make(
        &self,
        key: K,
        make: impl FnOnce() -> Result<V, NoMemory>,
    ) -> Result<V, NoMemory> {
        let mut part = self.part(&key).write();
        if let Some(known) = part.get(&key) {
            return Ok(known.clone());
        }
        part.try_reserve(1)?;
        let value = make()?;
        part.insert(key, value.clone());
        Ok(value)
    }

    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        self.part(key).write().remove(key)
    }
}
