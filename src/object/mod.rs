//! One object: its header with the reference counts, its state byte, its type, its weak record.

#[allow(unsafe_code)]
pub(crate) mod address;
#[allow(unsafe_code)]
pub(crate) mod counted;
pub(crate) mod header;
#[allow(unsafe_code)]
pub(crate) mod live;
#[allow(unsafe_code)]
pub(crate) mod long_slice;
pub(crate) mod state;
#[allow(unsafe_code)]
pub(crate) mod tracer;
#[allow(unsafe_code)]
pub(crate) mod type_info;
#[allow(unsafe_code)]
pub(crate) mod type_registry;
#[allow(unsafe_code)]
pub(crate) mod weak;
pub(crate) mod weak_table;
