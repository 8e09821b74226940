//! Dynamic objects under random schedules: attributes, weak references with callbacks, and
//! destruction by the type's own handler.
//!
//! Each dynamic object has one attribute, a typed *body*. The body contains the object's number and
//! its references to other dynamic objects. No object has a finalizer. So as long as a thread owns
//! a reference to an object, the object's body must be there; a missing body shows that the
//! collector cleared or freed a reachable object. At the end of a schedule no object may remain.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use shuttle::thread;

use super::{assert_repeatable, below, explore, one_in};
use crate::base::sync::Mutex;
use crate::dynamic::{self, Family, RawObject, Type, TypeSpec, VisitProc};
use crate::{AnyGc, Collect, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

const PLACES: usize = 4;
const THREADS: usize = 3;
const STEPS: usize = 14;

/// The state that the threads of one schedule share.
struct Shared {
    ty: Type,
    places: [Mutex<Option<AnyGc>>; PLACES],
    weaks: [Mutex<Option<AnyGc>>; PLACES],
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    born: AtomicUsize,
    died: AtomicUsize,
}

/// The value of a dynamic object's attribute.
struct Body {
    id: usize,
    edges: GcCell<Vec<AnyGc>>,
    counts: Arc<Counts>,
}

impl Trace for Body {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edges, m);
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.counts.died.fetch_add(1, Relaxed);
    }
}

thread_local! {
    /// The number of dealloc handlers that have run. Shuttle runs all threads of a schedule on one
    /// real thread.
    static ENDED: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    let Some(object) = NonNull::new(object) else { return 0 };
    // SAFETY: rule *handlers*: called for a living object, with a visitor and its argument.
    unsafe {
        let result = visit(dynamic::Obj::new(object).record().object(), arg);
        if result != 0 {
            result
        } else {
            dynamic::Obj::new(object).visit_managed_dict(dynamic::Visitor::new(visit, arg))
        }
    }
}

/// The dealloc handler. As C code does, it takes and drops a reference to the dying object.
unsafe extern "C" fn dealloc(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rules *handlers* and *zero*: called once, for a dying object.
    unsafe {
        Mutator::with_current(|m| {
            let type_object = NonNull::new(dynamic::Obj::new(object).record().object());
            dynamic::Obj::new(object).untrack(m).expect("a container");
            drop(dynamic::Obj::new(object).share());
            dynamic::Dying::new(m, dynamic::Obj::new(object)).clear_weak_references();
            dynamic::Obj::new(object).clear_managed_dict();
            drop(dynamic::Obj::new(object).share());
            ENDED.set(ENDED.get() + 1);
            dynamic::free(m, object, Family::Container).expect("no object refers to it");
            drop(type_object.map(|ty| dynamic::from_raw(ty)));
        })
        .expect("handlers run attached");
    }
}

unsafe extern "C" fn called(_: *mut RawObject, weak_ref: *mut RawObject) {
    let Some(weak_ref) = NonNull::new(weak_ref) else { return };
    Mutator::with_current(|m| {
        // SAFETY: a living weak reference.
        let target = unsafe { dynamic::Obj::new(weak_ref).weakref_target(m) };
        assert!(target.expect("a weak reference").is_none(), "called while it leads to something");
    });
}

impl Shared {
    fn make(&self, m: &Mutator) -> AnyGc {
        let object = self.ty.instantiate(m).expect("memory");
        let id = self.counts.born.fetch_add(1, Relaxed);
        let body = Body { id, edges: GcCell::default(), counts: self.counts.clone() };
        object.set_attribute(m, "body", Some(m.alloc(body).into())).expect("attributes");
        object
    }

    /// The body of an object. This thread owns a reference to the object.
    fn body(&self, object: &AnyGc, m: &Mutator) -> Gc<Body> {
        let body = object.attribute(m, "body").expect("an object was cleared that a thread holds");
        let body = body.downcast::<Body>(m).unwrap_or_else(|_| panic!("another object lies there"));
        assert!(body.id < self.counts.born.load(Relaxed));
        body
    }

    fn weak(&self, target: &AnyGc, m: &Mutator) -> AnyGc {
        let callback = one_in(2).then(|| (self.make(m), called as dynamic::WeakCall));
        // SAFETY: a living object; the function is for any callback.
        unsafe { dynamic::new_weakref(m, dynamic::Obj::new(dynamic::as_raw(target)), callback) }
            .expect("memory")
    }

    fn act(&self, held: &mut Vec<AnyGc>, m: &mut Mutator) {
        let any = (!held.is_empty()).then(|| held[below(held.len())].clone());
        let place = below(PLACES);
        match (below(12), any) {
            (0 | 1, _) | (_, None) => held.push(self.make(m)),
            (2 | 3, Some(from)) => {
                let to = held[below(held.len())].clone();
                self.body(&from, m).edges.lock(m).push(to);
            }
            (4, Some(_)) => drop(held.swap_remove(below(held.len()))),
            (5, Some(it)) => {
                let old = self.places[place].lock().replace(it);
                drop(old);
            }
            (6, _) => held.extend(self.places[place].lock().clone()),
            (7, Some(it)) => {
                let old = self.weaks[place].lock().replace(self.weak(&it, m));
                drop(old);
            }
            (8 | 9, _) => {
                let weak = self.weaks[place].lock().clone();
                // SAFETY: a living weak reference.
                let target = weak.map(|weak| unsafe {
                    dynamic::Obj::new(dynamic::as_raw(&weak)).weakref_target(m)
                });
                if let Some(Ok(Some(target))) = target {
                    self.body(&target, m);
                    held.push(target);
                }
            }
            (10, Some(it)) => {
                let dropped = self.places[place].lock().take();
                m.detach(|| drop((it, dropped)));
            }
            _ if one_in(2) => drop(m.try_collect(Collect::full().wait(false))),
            _ => drop(m.collect_young()),
        }
        for it in &*held {
            self.body(it, m);
        }
    }
}

fn program() {
    ENDED.set(0);
    let heap = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
    let mut m = heap.attach();
    let mut spec = TypeSpec::with_attributes("shuttle.Object");
    spec.slots.traverse = Some(traverse);
    spec.slots.dealloc = Some(dealloc);
    // SAFETY: rule *handlers*: the handlers are for attributes, which the type has.
    let ty = unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap();
    let shared = Arc::new(Shared {
        ty,
        places: Default::default(),
        weaks: Default::default(),
        counts: Arc::default(),
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (heap, shared) = (heap.clone(), shared.clone());
            thread::spawn(move || {
                let mut m = heap.attach();
                let mut held = Vec::new();
                for _ in 0..STEPS {
                    shared.act(&mut held, &mut m);
                    if one_in(2) {
                        m.safepoint();
                    }
                }
                // The thread's references are dropped before its mutator, or after it. In the
                // second case they are deferred, and other threads drop them.
                if one_in(2) {
                    drop(m);
                    drop(held);
                }
            })
        })
        .collect();
    m.detach(|| threads.into_iter().for_each(|thread| thread.join().unwrap()));
    for place in shared.places.iter().chain(&shared.weaks) {
        let old = place.lock().take();
        drop(old);
    }
    let counts = shared.counts.clone();
    drop(shared);
    m.safepoint();
    m.collect();
    m.collect();
    m.verify().expect("a sound heap");
    let born = counts.born.load(Relaxed);
    assert_eq!(
        (counts.died.load(Relaxed), ENDED.get()),
        (born, born),
        "bodies and objects that have ended"
    );
    assert_eq!(heap.stats().live_objects, 0);
}

/// Mutations: an upgrade ignores `DYING`; `from_record` takes no reference.
#[test]
fn shuttle_dynamic_objects() {
    explore("dynamic objects", program);
}

#[test]
fn shuttle_dynamic_objects_are_repeatable() {
    assert_repeatable(program);
}
