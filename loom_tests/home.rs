//! Values return to the list of their home, which the thread of the home empties and closes.
//!
//! # Transitions
//!
//! * open to open, by a return or a drain: `values_return_while_their_thread_drains`
//! * open to closed, by the end of the home: `a_value_returns_while_its_home_ends`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::thread;

use super::model;
use crate::typed::home::Home;

/// Counts its drops, which must be on the model's first thread.
struct Counted(Arc<AtomicUsize>, thread::ThreadId);

impl Drop for Counted {
    fn drop(&mut self) {
        assert_eq!(thread::current().id(), self.1, "dropped on a wrong thread");
        self.0.fetch_add(1, Relaxed);
    }
}

fn counted() -> (Arc<AtomicUsize>, impl Fn() -> Counted) {
    let (drops, here) = (Arc::new(AtomicUsize::new(0)), thread::current().id());
    let counted = Arc::clone(&drops);
    (drops, move || Counted(Arc::clone(&counted), here))
}

/// Two threads drop a value each, while its home drains the list.
///
/// Mutations: the return is not a release, or the drain no acquire.
#[test]
fn loom_values_return_while_their_thread_drains() {
    model(|| {
        let (drops, value) = counted();
        let home = Home::new();
        let others = [0, 1].map(|_| {
            let value = home.bind(value());
            thread::spawn(move || {
                assert!(value.get().is_none());
                drop(value);
            })
        });
        let first = home.drain();
        assert_eq!(drops.load(Relaxed), first);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((home.drain() + first, drops.load(Relaxed)), (2, 2));
    });
}

/// A thread drops a value while its home ends: the value is dropped at home, or leaked.
///
/// Mutation: a return does not look whether the list is closed.
#[test]
fn loom_a_value_returns_while_its_home_ends() {
    model(|| {
        let (drops, value) = counted();
        let (home, leaked) = (Home::new(), Home::leaked());
        let value = home.bind(value());
        let other = thread::spawn(move || drop(value));
        drop(home);
        other.join().unwrap();
        let leaked = (Home::leaked() - leaked) as usize;
        assert_eq!(drops.load(Relaxed) + leaked, 1);
    });
}
