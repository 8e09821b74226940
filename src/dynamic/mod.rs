//! Dynamic objects: types made at run time, with handlers, as in CPython's object
//! protocol.
//!
//! This module is for runtimes whose programs make types: classes, extension types, modules. The C
//! ABI (the package `standstill-capi`) is this module with C's names. Dynamic and typed objects lie
//! in one heap and can refer to each other. The collector treats them alike, and
//! [`AnyGc`](crate::AnyGc) is a handle to either kind.
//!
//! # An object
//!
//! ```text
//!  0          16         24         32
//! +----------+----------+----------+----------------------+-----------+------+
//! | header   | record   | (size)   | fields …             | items …   | tail |
//! +----------+----------+----------+----------------------+-----------+------+
//!                        only of types with an item size               last word of the cell
//! ```
//!
//! The *record* is the type as the collector uses it: sizes, handlers, bases. It is constant once
//! the type is ready. Sizes count from the object's first byte, as in CPython. The *size* is the
//! number of items. Objects with a managed dictionary have a *tail*, which points to the
//! dictionary. The object of a heap type has one, too, which points to the type's record.
//!
//! # A type
//!
//! A *static* type is no object. Its record lives for ever, and is not counted. A *heap type* is an
//! object itself, to which each instance owns a reference.
//!
//! The *face* of a type is the address by which a runtime identifies it. For a heap type the face
//! is the type's object. For a static type the runtime chooses the address (in C: the
//! `PyTypeObject`).
//!
//! # When handlers run
//!
//! | handler | when | where | allowed |
//! |---|---|---|---|
//! | traverse | stop | any thread, several in parallel | the visitor, and see below |
//! | finalize | phase `Finalize`, count 0 | one thread, world running | all but safepoints |
//! | weak callback | phase `Callbacks`, count 0 | as above | as above |
//! | clear | phase `Clear`, count 0 | as above | as above |
//! | dealloc | count 0 | the thread that drops the count to 0 | as above |
//!
//! A traverse handler may also call the functions that are documented for traverse handlers.
//!
//! Every call of a traverse handler is made in a stop, in checked mode too. Checked mode examines
//! the fields of an object that is tracked, and the first instance of a type. The thread is at no
//! safepoint then, and must not wait. So it examines them only if no other thread is attached: then
//! the world can be stopped without a wait. Otherwise the next collection does it. Cleared objects
//! are examined in a stop of their own, before one of them is released.
//!
//! A collection clears types and modules after it has cleared and released its other garbage. So
//! the handlers of an instance find the type's module, while all of them are garbage together.
//!
//! A handler written in Rust must catch its own panics: a panic that leaves an `extern "C"`
//! function aborts the process. The finalizer of a [`Class`] may panic. Its panic is reported to
//! [`Heap::on_unraisable`](crate::Heap::on_unraisable).
//!
//! A handler that breaks its rules can leak objects, or clear a live object. It cannot make the
//! collector free memory that is still referenced, because an object is freed only when its count
//! is 0. Detected mistakes are reported to [`Heap::on_misuse`](crate::Heap::on_misuse).
//!
//! # Rules
//!
//! Unsafe code cites these rules:
//!
//! * **dynamic**: a header with type index 0 belongs to a dynamic object. The address of the
//!   type's record follows it. The record lives as long as the object: a static record lives for
//!   ever, and a heap type's record as long as the type's object, to which each instance owns a
//!   reference.
//! * **locking**: an attached thread that holds a reference to an object may read and write
//!   its fields. The runtime's own locking prevents data races. In a stop no such access is in
//!   progress.
//! * **handlers**: each handler fulfils its contract for all objects of its type. The function
//!   that makes a type with handlers is unsafe, because its caller promises this.

mod attributes;
mod builtin;
#[allow(unsafe_code)]
mod calls;
mod class;
#[allow(unsafe_code)]
mod dealloc;
mod dictionary;
mod draft;
#[allow(unsafe_code)]
mod entries;
#[allow(unsafe_code)]
mod handlers;
#[allow(unsafe_code)]
mod instance;
#[allow(unsafe_code)]
mod lookup;
mod metatype;
#[allow(unsafe_code)]
mod module;
#[allow(unsafe_code)]
mod object;
#[allow(unsafe_code)]
mod parts;
#[allow(unsafe_code)]
mod ready;
#[allow(unsafe_code)]
mod record;
mod supplied;
#[allow(unsafe_code)]
mod table;
#[allow(unsafe_code)]
mod tracking;
#[allow(unsafe_code)]
mod weakref;

pub use builtin::BASE;
pub use class::Class;
pub use dealloc::{Dying, Family, decref_last, free, free_common};
pub use draft::{FACE, TypeSpec};
pub use handlers::{look_up_here, record_fault};
pub use instance::{allocate, allocate_common, allocate_tracked, resize};
pub use lookup::{Address, look_up};
pub use metatype::METATYPE;
pub use module::{MODULE, ModuleSpec, new_module, type_module, type_module_by_token};
#[cfg(test)]
pub(crate) use object::TYPE_INDEX;
pub use object::{
    AllocProc, Destructor, FreeProc, Head, Inquiry, Obj, RawObject, RawVarObject, TraverseProc,
    VisitProc, Visitor, as_raw, decref, decref_common, decref_slow, from_raw, into_raw, is_checked,
    is_dynamic, set_static_type,
};
pub use ready::{ready_heap, ready_static};
pub use record::{ClassFinalizer, Defaults, Flags, Slots, Type, TypeRecord, base_by_token};
pub(crate) use table::EXTENSION;
pub use weakref::{WEAKREF, WeakCall, new_weakref};
