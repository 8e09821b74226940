//! The figures of one measurement.

use serde::{Deserialize, Serialize};

/// Times in milliseconds. A figure that a contestant does not report is left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// Full collections with everything held, by the caller's clock; of the ideal mark, the marks.
    pub(crate) held_ms: Vec<f64>,
    /// How long the world was stopped in each of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) held_stopped_ms: Vec<f64>,
    /// From the drop of the root to the end of the collection after it: nothing is left then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_ms: Option<f64>,
    /// The part of that time for the collection. Counting has freed some objects before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_collecting_ms: Option<f64>,
    /// How long the world was stopped in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_stopped_ms: Option<f64>,
    /// Checks that did not hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<String>,
}

/// One line of `heaps.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) heap: String,
    pub(crate) objects: usize,
    pub(crate) edges: usize,
    pub(crate) contestant: String,
    /// The collector's threads, where that can be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<usize>,
    pub(crate) round: usize,
    /// `ok`, or why the figures are not valid.
    pub(crate) outcome: String,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}
