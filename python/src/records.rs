//! The figures of the last collections, for `stats()`.
//!
//! They are no objects of the interpreter: a program that counts its objects before and after a
//! collection finds none that the collection has made.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::automatic;
use crate::collection::Outcome;

/// So many collections are kept.
const MOST: usize = 1_000;

/// The newest is the last.
static RECORDS: Mutex<VecDeque<Arc<Record>>> = Mutex::new(VecDeque::new());

/// The figures of one collection.
pub struct Record {
    pub outcome: Outcome,
    pub automatic: bool,
    /// The time of its end, since the epoch.
    pub ended: Duration,
}

/// Keeps the figures of a collection that has ended on this thread, unless it was abandoned or did
/// not run. Returns them.
pub fn keep(outcome: Outcome) -> Arc<Record> {
    let ended = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ran = outcome.report.is_some() && outcome.abandoned.is_none();
    let record = Arc::new(Record { outcome, automatic: automatic::is_current(), ended });
    if ran {
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == MOST {
            records.pop_front();
        }
        records.push_back(record.clone());
    }
    record
}

/// The records, oldest first. The caller may detach, so it gets a copy.
pub fn all() -> Vec<Arc<Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Removes all records.
pub fn forget() {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
