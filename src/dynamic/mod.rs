//! Dynamic objects: types made at run time, with handlers, as in CPython's object protocol.
//!
//! This module is for runtimes whose programs make types: classes, extension types, modules. The C
//! ABI (the package `standstill-capi`) is this module with C's names.
//!
//! The Rust compiler knows nothing of such a type, so each object must lead the collector to its
//! size and its handlers. For example, a program makes the class `Point`, and an instance of it.
//! The class is an object with a *record*, in which the library has computed sizes and handlers,
//! and the head of the instance points to the record. A collection that traverses the instance
//! calls the traverse handler of the record, and the dealloc handler of the record destroys the
//! instance. Because the instance owns a reference to the class, the record lives as long as it is
//! needed.
//!
//! Dynamic and typed objects lie in one heap and can refer to each other, because the collector
//! treats them alike. [`AnyGc`](crate::AnyGc) is a handle to either kind.
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
//! The record is constant once the type is ready. Sizes count from the object's first byte, as in
//! CPython, and the *size* is the number of items. Objects with a managed dictionary have a *tail*,
//! which points to the dictionary, and the object of a heap type has one that points to the type's
//! record.
//!
//! # A type
//!
//! A *static* type is no object, so its record is not counted, and lives for ever. A *heap type* is
//! an object itself, to which each instance owns a reference, so that the type can die.
//!
//! The *face* of a type is the address by which a runtime identifies it. For a heap type the face
//! is the type's object, while for a static type the runtime chooses the address (in C: the
//! `PyTypeObject`).
//!
//! # When handlers run
//!
//! | handler | when | where | allowed |
//! |---|---|---|---|
//! | traverse | stop | any thread, several in parallel | the visitor, and see below |
//! | finalize | phase `Finalize`, count 0 | one thread, world running | all but safepoints |
//! | weak callback | phase `Callbacks`, count 0 | one thread, world running | all but safepoints |
//! | clear | phase `Clear`, count 0 | one thread, world running | all but safepoints |
//! | dealloc | count 0 | the thread that drops the count to 0 | all but safepoints |
//!
//! A traverse handler may also call the functions that are documented for traverse handlers.
//!
//! Every call of a traverse handler is made in a stop, in checked mode too. Checked mode examines
//! the fields of an object when it is tracked, and the first instance of a type. The thread is at
//! no safepoint then, so it must not wait for a stop. It examines them only if no other thread is
//! attached and the world can be stopped at once. Otherwise the next collection does it. Cleared
//! objects are examined in a stop of their own, before one of them is released.
//!
//! The handlers of an instance may use the module of the type, even if all are garbage together. So
//! a collection clears types and modules after it has cleared and released its other garbage.
//!
//! A handler written in Rust must catch its own panics, because a panic that leaves an `extern "C"`
//! function aborts the process. The finalizer of a [`Class`] may panic, however, and its panic is
//! reported to [`Heap::on_unraisable`](crate::Heap::on_unraisable).
//!
//! A handler that breaks its rules can leak objects, or clear a live object. However, it cannot
//! make the collector free memory that is still referenced, because an object is freed only when
//! its count is 0. Detected mistakes are reported to [`Heap::on_misuse`](crate::Heap::on_misuse).
//!
//! # Rules
//!
//! Unsafe code cites these rules:
//!
//! * **dynamic**: a header with type index 0 belongs to a dynamic object. The address of the type's
//!   record follows it. The record lives as long as the object. A static record lives for ever, and
//!   a heap type's record as long as the type's object, to which each instance owns a reference.
//! * **locking**: an attached thread that holds a reference to an object may read and write its
//!   fields. The runtime's own locking prevents data races. In a stop no such access is in
//!   progress.
//! * **handlers**: each handler fulfils its contract for all objects of its type. The function that
//!   makes a type with handlers is unsafe, because its caller promises this.

/// An object as pointers see it: its layout, its references, and its parts outside the cell.
#[allow(unsafe_code)]
mod object;

/// What lies at an address, in words, for a debugger.
#[allow(unsafe_code)]
mod dump;

/// A type as the collector uses it: sizes, flags, handlers, bases.
#[allow(unsafe_code)]
mod record;

/// From the description of a type to its record: inheritance and checks.
mod draft;

/// From the record to a type that is ready; classes, which need no unsafe code.
#[allow(unsafe_code)]
mod class;

/// Built-in types: what they share, the root of all types, and the type of heap types.
mod builtin;

/// How instances are allocated, and change their number of items.
#[allow(unsafe_code)]
mod instance;

/// The tracked set: the objects that the collector examines.
#[allow(unsafe_code)]
mod tracking;

/// Attributes: the dictionaries of instances and of heap types.
mod attributes;

/// Modules, with a state to which types can belong.
#[allow(unsafe_code)]
mod module;

/// Weak references that are objects.
#[allow(unsafe_code)]
mod weakref;

/// From the collector to the handlers: the table of functions, and each call of a handler.
#[allow(unsafe_code)]
mod calls;

/// Traversals by the traverse handlers, and the checks of these handlers.
#[allow(unsafe_code)]
mod handlers;

/// The end of an object: the dealloc handler, and the memory.
#[allow(unsafe_code)]
mod dealloc;

pub use builtin::{BASE, METATYPE};
pub(crate) use calls::EXTENSION;
pub use class::{Class, ready_heap, ready_static};
pub use dealloc::{Dying, Family, decref_last, free, free_common};
pub use draft::{FACE, TypeSpec};
pub use dump::{Dump, dump};
pub use handlers::record_fault;
pub use instance::{allocate, allocate_common, allocate_tracked, resize};
pub use module::{MODULE, ModuleSpec, new_module, type_module, type_module_by_token};
#[cfg(test)]
pub(crate) use object::TYPE_INDEX;
pub use object::{
    Address, AllocProc, Destructor, FreeProc, Head, Inquiry, Obj, RawObject, RawVarObject,
    TraverseProc, VisitProc, Visitor, as_raw, decref, decref_common, decref_slow, from_raw,
    into_raw, is_checked, is_dynamic, look_up, look_up_here, set_static_type,
};
pub use record::{ClassFinalizer, Defaults, Flags, Slots, Type, TypeRecord, base_by_token};
pub use weakref::{WEAKREF, WeakCall, new_weakref};
