//! Models lay out their objects in different ways, so the collector relies on no layout.
//!
//! It knows an object by its address, its state byte and the references that a tracer reports. The
//! header, the types and the weak records belong to the built-in model, because another model may
//! count and destroy its objects without them.

// What every object has.

/// The address, by which references and functions name an object.
#[allow(unsafe_code)]
pub(crate) mod address;
/// The names of fields, which a survey wants of a traversal.
pub(crate) mod fields;
/// Where in a program the handles of an object were made.
pub(crate) mod handle_places;
/// Proofs: an address, and why the object there is alive, stopped, claimed or dead.
#[allow(unsafe_code)]
pub(crate) mod live;
/// The state byte: whether the object is tracked, old, unreachable, dying.
pub(crate) mod state;
/// The list that an object's traversal writes its references to.
#[allow(unsafe_code)]
pub(crate) mod tracer;

// What an object of the built-in model has besides.

/// Proofs about references that are counted in a header.
#[allow(unsafe_code)]
pub(crate) mod counted;
/// The header: the owner, the type, and a count in two halves.
pub(crate) mod header;
/// A type's functions, the rule *typed*, and the types of a heap by the index in a header.
#[allow(unsafe_code)]
pub(crate) mod type_info;
/// The records that weak references share, by the address of their target.
#[allow(unsafe_code)]
pub(crate) mod weak;
