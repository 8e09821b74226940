//! Objects with types made at run time: the safe functions.
//!
//! Its `unsafe` functions have contracts that forbid the wrong states; the C functions on top of
//! them are tested with wrong pointers in `capi/tests/pointers`.

use standstill::dynamic::{
    self, BASE, Class, Flags, METATYPE, MODULE, ModuleSpec, RawObject, Type, TypeSpec, WEAKREF,
};
use standstill::{AnyGc, Code, Fault, GcWeak};

use super::{Rows, done, ok, outcome};
use crate::stage::Call::{Free, Shared};
use crate::things::Leaf;

pub(super) const ROWS: Rows = &[
    ("Class::new", Free(|_| done(Class::new("states.New")))),
    ("Class::base", Free(|t| done(Class::new("states.New").base(&t.class)))),
    ("Class::finalizer", Free(|_| done(Class::new("states.New").finalizer(|_, _| ())))),
    ("Class::module", Free(|t| done(Class::new("states.New").module(&t.instance)))),
    ("Class::make", Shared(|_, m| outcome(Class::new("states.New").make(m)))),
    (
        "Class::make, with a base",
        Shared(|t, m| outcome(Class::new("states.New").base(&t.class).make(m))),
    ),
    (
        "Class::make, in what is no module",
        Shared(|t, m| outcome(Class::new("states.New").module(&t.any).make(m))),
    ),
    (
        "Type::instantiate",
        Shared(|t, m| outcome(t.class.instantiate(m).map(|object| Type::of(&object, m)))),
    ),
    (
        "Type::instantiate, a builtin",
        Shared(|_, m| outcome(BASE.handle().instantiate(m).map(|object| Type::of(&object, m)))),
    ),
    (
        "Type::instantiate, a type's type",
        Shared(|_, m| outcome(METATYPE.handle().instantiate(m).map(drop))),
    ),
    (
        "Type::instantiate, a module",
        Shared(|_, m| outcome(MODULE.handle().instantiate(m).map(|object| Type::of(&object, m)))),
    ),
    (
        "Type::instantiate, a weak reference",
        Shared(|_, m| outcome(WEAKREF.handle().instantiate(m).map(|object| Type::of(&object, m)))),
    ),
    (
        "Class::make, with the type of types as a base",
        Shared(|_, m| outcome(Class::new("states.New").base(&METATYPE.handle()).make(m))),
    ),
    ("Type::of", Shared(|t, m| ok(Type::of(&t.instance, m)))),
    ("Type::of, a typed object", Shared(|t, m| ok(Type::of(&t.any, m)))),
    ("Type::from_record", Free(|t| ok(Type::from_record(t.class.record())))),
    ("Type::from_static", Free(|_| ok(Type::from_static(BASE.get())))),
    ("Type::record", Free(|t| ok(t.class.record().name()))),
    ("Type::object", Free(|t| ok(t.class.object().is_some()))),
    ("Type: Clone", Free(|t| ok(t.class.clone()))),
    ("Type: Debug", Free(|t| ok(&t.class))),
    (
        "AnyGc::attribute",
        Shared(|t, m| outcome(t.instance.attribute(m, "number").map(|number| number.is::<u32>(m)))),
    ),
    (
        "AnyGc::attribute, of a typed object",
        Shared(|t, m| outcome(t.any.attribute(m, "leaf").map(drop))),
    ),
    (
        "AnyGc::attribute, no such one",
        Shared(|t, m| outcome(t.instance.attribute(m, "none").map(drop))),
    ),
    (
        "AnyGc::set_attribute",
        Shared(|t, m| outcome(t.instance.set_attribute(m, "leaf", Some(t.leaf_of(m, 30).into())))),
    ),
    (
        "AnyGc::set_attribute, to what is elsewhere",
        Shared(|t, m| {
            let gc = m.alloc(GcWeak::<Leaf>::new());
            outcome(t.instance.set_attribute(m, "leaf", Some(gc.into())))
        }),
    ),
    (
        "AnyGc::set_attribute, removed twice",
        Shared(|t, m| {
            let _ = t.instance.set_attribute(m, "number", None);
            outcome(t.instance.set_attribute(m, "number", None))
        }),
    ),
    (
        "AnyGc::downcast_ref, of a dynamic object",
        Shared(|t, m| ok(t.instance.downcast_ref::<Leaf>(m).is_some())),
    ),
    ("AnyGc::untrack, of a dynamic object", Shared(|t, m| ok(t.instance.untrack(m)))),
    ("AnyGc: Drop, of a dynamic object", Free(|t| done(t.instance.clone()))),
    ("TypeRecord::face", Free(|t| ok(t.class.record().face().is_null()))),
    ("TypeRecord::name", Free(|t| ok(t.class.record().name()))),
    ("TypeRecord::kept_name", Free(|t| ok(t.class.record().kept_name()))),
    ("TypeRecord::flags", Free(|t| ok(t.class.record().flags().has(Flags::HAVE_GC)))),
    ("TypeRecord::has_gc", Free(|t| ok(t.class.record().has_gc()))),
    ("TypeRecord::is_heap_type", Free(|t| ok(t.class.record().is_heap_type()))),
    ("TypeRecord::object", Free(|t| ok(t.class.record().object().is_null()))),
    ("TypeRecord::basic_size", Free(|t| ok(t.class.record().basic_size()))),
    ("TypeRecord::item_size", Free(|t| ok(t.class.record().item_size()))),
    ("TypeRecord::data_size", Free(|t| ok(t.class.record().data_size()))),
    ("TypeRecord::slots", Free(|t| ok(t.class.record().slots().traverse.is_some()))),
    ("TypeRecord::base", Free(|t| ok(t.class.record().base().map(|base| base.name())))),
    ("TypeRecord::bases", Free(|t| ok(t.class.record().bases().count()))),
    ("TypeRecord::mro", Free(|t| ok(t.class.record().mro().count()))),
    ("TypeRecord::is_subtype_of", Free(|t| ok(t.class.record().is_subtype_of(BASE.get())))),
    ("TypeRecord::module", Free(|t| ok(t.class.record().module().is_null()))),
    ("TypeRecord::token", Free(|t| ok(t.class.record().token()))),
    ("Builtin::get", Free(|_| ok(BASE.get().name()))),
    ("Builtin::handle", Free(|_| ok(BASE.handle()))),
    ("Flags::and", Free(|_| ok(Flags::HAVE_GC.and(Flags::BASE_TYPE).has(Flags::HAVE_GC)))),
    ("Flags::has", Free(|_| ok(Flags::HAVE_GC.has(Flags::BASE_TYPE)))),
    ("TypeSpec::new", Free(|_| done(TypeSpec::new("states.New")))),
    ("TypeSpec::with_attributes", Free(|_| done(TypeSpec::with_attributes("states.New")))),
    ("ModuleSpec::new", Free(|_| done(ModuleSpec::new("states")))),
    ("RawObject::immortal", Free(|_| done(RawObject::immortal()))),
    (
        "dynamic::record_fault",
        Free(|_| outcome(dynamic::record_fault(Fault::new(Code::Custom, "states")))),
    ),
    (
        "dynamic::allocate",
        Shared(|t, m| {
            // SAFETY: the reference to the new object.
            let own = |object| drop(unsafe { dynamic::from_raw(object) });
            outcome(dynamic::allocate(m, t.class.record(), 0, 0).map(own))
        }),
    ),
    (
        "dynamic::allocate_common",
        Shared(|t, m| {
            // SAFETY: the reference to the new object.
            let own = |object| drop(unsafe { dynamic::from_raw(object) });
            ok(dynamic::allocate_common(m, t.class.record()).map(own).is_some())
        }),
    ),
    (
        "dynamic::allocate_tracked",
        Shared(|t, m| {
            // SAFETY: the reference to the new object.
            let own = |object| drop(unsafe { dynamic::from_raw(object) });
            outcome(dynamic::allocate_tracked(m, t.class.record(), 0).map(own))
        }),
    ),
    ("dynamic::as_raw", Free(|t| ok(dynamic::as_raw(&t.instance) == dynamic::as_raw(&t.any)))),
    (
        "dynamic::into_raw",
        Free(|t| {
            let object = dynamic::into_raw(t.instance.clone());
            // SAFETY: the reference just given up.
            let again: AnyGc = unsafe { dynamic::from_raw(object) };
            ok(again == t.instance)
        }),
    ),
    (
        "dynamic::is_dynamic",
        Free(|t| ok((dynamic::is_dynamic(&t.instance), dynamic::is_dynamic(&t.any)))),
    ),
    ("dynamic::is_checked", Shared(|_, m| ok(dynamic::is_checked(m)))),
    ("dynamic::type_module", Free(|t| ok(dynamic::type_module(t.class.record()).is_some()))),
    ("dynamic::base_by_token", Free(|t| ok(dynamic::base_by_token(t.class.record(), 1).is_some()))),
];
