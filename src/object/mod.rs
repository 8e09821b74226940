//! One object: its header with the reference counts, its state byte, its type's table of functions, its weak record.

pub(crate) mod header;
pub(crate) mod state;
pub(crate) mod type_info;
pub(crate) mod weak;
