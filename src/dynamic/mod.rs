//! Floor 5: dynamic objects: types made at run time, with handlers, as in CPython's object protocol.
//!
//! For runtimes whose objects have types that a program makes: classes, extension types, modules. The C ABI (the
//! package `standstill-capi`) is this module with C's names. Dynamic and typed objects live in one heap, refer to
//! each other ([`AnyGc`](crate::AnyGc) is a handle to either), and are collected together.
//!
//! # An object
//!
//! ```text
//!  0          16         24         32
//! +----------+----------+----------+----------------------+-----------+------+
//! | header   | record   | (items)  | fields …             | items …   | tail |
//! +----------+----------+----------+----------------------+-----------+------+
//!                        only of types with an item size               last word of the cell
//! ```
//!
//! The *record* is the type as the collector sees it: sizes, handlers, bases. It does not change after the type was made
//! ready. Sizes count from the object's first byte, as CPython's do. The *tail* is there for objects with a managed
//! dictionary, and for heap types.
//!
//! # A type
//!
//! is *static* (its record lives for ever, and nobody counts it) or a *heap type*: an object itself, whose tail leads
//! to the record, and to which each instance owns a reference. A type has a *face*: the address by which a runtime knows it.
//! For a heap type that is its object; for a static one whatever the runtime says (in C: its `PyTypeObject`).
//!
//! # Who runs what, when
//!
//! | handler | world | may |
//! |---|---|---|
//! | traverse | stopped, on any thread, several at once | call the visitor, and what is listed as safe |
//! | finalize, weak callbacks | running, in steps 8 and 10, or at count 0 | anything but a safepoint |
//! | clear | running, in step 10 | the same |
//! | dealloc | running, at count 0, on the thread that brought it there | the same |
//!
//! A handler written in Rust catches its own panics: one that leaves an `extern "C"` function aborts the process, as everywhere in
//! Rust. (The finalizer of a [`Class`] may panic: that goes to the hook.)
//!
//! A handler that breaks its rules can leak, or empty a live object; it cannot make the collector free memory that
//! is referred to, since nothing is freed but at count 0. What is noticed goes to
//! [`Heap::on_misuse`](crate::Heap::on_misuse).
//!
//! # Rules
//!
//! cited by their letters where unsafe code relies on them:
//!
//! * **D** (dynamic): a header with type index 0 belongs to a dynamic object, and is followed by the address of
//!   a record. The record of a living object lives: static ones for ever, others as long as their type's object, to
//!   which the instance owns a reference.
//! * **E** (exclusive): fields of an object may be read and written by whoever is attached and holds a reference, as the
//!   runtime's own locking arranges it. A stop finds nobody in the middle of it.
//! * **H** (handlers): a handler is what its type's maker said it is. Making a type with handlers is unsafe, for this reason.

mod attributes;
mod builtin;
mod class;
mod dealloc;
mod handlers;
mod instance;
mod lookup;
mod module;
mod object;
mod ready;
mod record;
mod table;
mod tracking;
mod weakref;

pub use builtin::{BASE, METATYPE, MODULE, WEAKREF};
pub use class::{Class, Finalizer};
pub use dealloc::{Dying, Family, dealloc, decref_last, free, free_common};
pub use handlers::record_fault;
pub use instance::{allocate, allocate_common, allocate_tracked, resize};
pub use lookup::{Address, look_up, look_up_here};
pub use module::{ModuleSpec, new_module, type_module, type_module_by_token};
#[cfg(test)]
pub(crate) use object::TYPE_INDEX;
pub use object::{
    AllocProc, Destructor, FreeProc, Inquiry, Obj, RawObject, RawVarObject, TraverseProc,
    VisitProc, Visitor, as_raw, decref, decref_common, decref_slow, from_raw, into_raw, is_checked,
    is_dynamic, set_static_type, try_type_of,
};
pub use ready::{FACE, TypeSpec, ready_heap, ready_static};
pub use record::{Defaults, Flags, Slots, Type, TypeRecord, base_by_token};
pub(crate) use table::EXTENSION;
pub use weakref::{WeakCall, new_weakref};
