//! Tests of attributes that several visits reach.

use std::ffi::c_void;

use super::*;
use crate::Heap;
use crate::dynamic::object::RawObject;

/// Starts a second visit during a visit, as two markers do that traverse one object.
unsafe extern "C" fn again(_: *mut RawObject, arg: *mut c_void) -> c_int {
    unsafe extern "C" fn count(_: *mut RawObject, arg: *mut c_void) -> c_int {
        // SAFETY: rule *pinned*: the counter below.
        unsafe { *arg.cast::<usize>() += 1 };
        0
    }
    // SAFETY: rule *pinned*: the argument of the visitor below. Only this function uses it now.
    unsafe {
        let (attributes, visited) = &mut *arg.cast::<(&Attributes, usize)>();
        let visitor = Visitor::new(count, (&raw mut *visited).cast());
        attributes.visit(|value| visitor.visit_gc(value))
    }
}

#[test]
fn two_visits_at_the_same_time_see_everything() {
    let heap = Heap::new();
    heap.attach_scoped(|m| {
        let attributes = Attributes::default();
        for name in ["one", "other", "third"] {
            attributes.set(name, Some(m.alloc(0u8).into())).unwrap();
        }
        let mut seen = (&attributes, 0usize);
        // SAFETY: rule *pinned*: the argument has the visitor's type, and lies in this frame.
        let visitor = unsafe { Visitor::new(again, (&raw mut seen).cast()) };
        assert_eq!(attributes.visit(|value| visitor.visit_gc(value)), 0);
        assert_eq!(seen.1, 9);
    });
}
