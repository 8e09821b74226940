//! One object: its header with the reference counts, its state byte, its type, its weak record.

pub(crate) mod address;
pub(crate) mod header;
pub(crate) mod live;
pub(crate) mod state;
pub(crate) mod tracer;
pub(crate) mod type_info;
pub(crate) mod type_registry;
pub(crate) mod weak;
