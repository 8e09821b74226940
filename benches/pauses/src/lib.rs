//! The shared code of this package's tools: charts, tables, seeded numbers, medians, the machine's
//! description, and the walk over a plain graph that no collector can beat.

pub mod chart;
pub mod ideal;
pub mod machine;
pub mod random;
pub mod stats;
pub mod table;
