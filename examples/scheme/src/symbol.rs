//! Symbols, which are the global variables too.
//!
//! The table of names is weak: a program that makes symbols out of its input, for example by
//! `string->symbol`, would grow for ever by a strong one. A symbol that dies removes its entry. One
//! that has a global value must not die, because only its name may lead to the value; so the heap's
//! root keeps these.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use standstill::{AtomicGc, Gc, GcCell, GcWeak, Mutator, Trace};

use crate::value::{Global, Slot, Value};

/// A name, and the global variable of this name.
#[derive(Trace)]
pub struct Symbol {
    pub name: String,
    /// For a symbol that the template of a macro has introduced: the symbol in the template.
    pub base: Option<Gc<Symbol>>,
    pub global: Slot,
    /// Tells this symbol from a later one of the same name. 0: it is in no table.
    id: u64,
    table: Arc<Symbols>,
}

/// The symbols that are in use, by name.
#[derive(Default)]
pub struct Symbols {
    names: DashMap<String, (u64, GcWeak<Symbol>)>,
    last: AtomicU64,
}

/// The symbols with a global value: an object, so that collections know it as a root.
#[derive(Default, Trace)]
pub struct Globals {
    defined: GcCell<Vec<Gc<Symbol>>>,
}

impl Symbols {
    pub fn intern(self: &Arc<Self>, m: &Mutator, name: &str) -> Gc<Symbol> {
        if let Some(entry) = self.names.get(name)
            && let Some(symbol) = entry.1.upgrade(m)
        {
            return symbol;
        }
        // Relaxed: only the uniqueness of the number matters.
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let new = self.make(m, name, None, id);
        let weak = (id, Gc::downgrade(&new, m));
        let winner = match self.names.entry(name.to_string()) {
            Entry::Vacant(entry) => {
                entry.insert(weak);
                None
            }
            Entry::Occupied(mut entry) => {
                let winner = entry.get().1.upgrade(m);
                if winner.is_none() {
                    entry.insert(weak);
                }
                winner
            }
        };
        // The table is unlocked by now, which the drop of the loser needs.
        winner.unwrap_or(new)
    }

    /// A symbol that is equal to no other one.
    pub fn fresh(
        self: &Arc<Self>,
        m: &Mutator,
        name: &str,
        base: Option<Gc<Symbol>>,
    ) -> Gc<Symbol> {
        self.make(m, name, base, 0)
    }

    fn make(
        self: &Arc<Self>,
        m: &Mutator,
        name: &str,
        base: Option<Gc<Symbol>>,
        id: u64,
    ) -> Gc<Symbol> {
        let global = AtomicGc::new(None);
        m.alloc(Symbol { name: name.to_string(), base, global, id, table: self.clone() })
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }
}

impl Drop for Symbol {
    fn drop(&mut self) {
        if self.id != 0 {
            self.table.names.remove_if(&self.name, |_, entry| entry.0 == self.id);
        }
    }
}

impl Globals {
    pub fn define(&self, m: &Mutator, symbol: &Gc<Symbol>, value: Value) {
        if symbol.global.swap(m, Some(m.alloc(Global(value)))).is_none() {
            self.defined.lock(m).push(symbol.clone());
        }
    }
}
