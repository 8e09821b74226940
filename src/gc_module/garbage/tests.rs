//! Tests of the garbage list.

use std::any::TypeId;
use std::ptr::NonNull;
use std::sync::Arc;

use super::*;
use crate::gc_module::watching::DEBUG_SAVEALL;
use crate::object::address::Object;
use crate::object::header::Header;
use crate::object::state;
use crate::object::tracer::{Ends, Tracer};
use crate::object::type_info::TypeInfo;
use crate::typed::gc;
use crate::typed::mutator::mutator;
use crate::{GcCell, Heap, Pacing, Trace, managed};

/// An object with a legacy finalizer.
struct Legacy {
    to: GcCell<Option<AnyGc>>,
}

impl Trace for Legacy {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.to, tracer);
    }
}

static INFO: TypeInfo = TypeInfo {
    id: TypeId::of::<Legacy>,
    name: |_| "Legacy",
    offset: gc::offset(align_of::<Legacy>()),
    tracked: true,
    traverse_each,
    describe: None,
    label: None,
    prefetch_each: None,
    clear,
    clears_last: None,
    finalize: None,
    has_finalizer: None,
    legacy: Some(|_| true),
    external: None,
    drop: Some(destroy),
    destroy: None,
    dealloc: None,
};

unsafe fn traverse(value: NonNull<u8>, tracer: &mut Tracer) {
    tracer.enter(value, size_of::<Legacy>());
    // SAFETY: rule *typed*: the table belongs to objects of this type, and the caller has a
    // live one.
    Trace::traverse(unsafe { value.cast::<Legacy>().as_ref() }, tracer);
}

unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
    // SAFETY: as above.
    tracer.each(objects, ends, |object, tracer| unsafe {
        traverse(object.as_ptr().add(INFO.offset), tracer);
    });
}

unsafe fn clear(value: NonNull<u8>, m: *const ()) {
    // SAFETY: as above; `m` is a mutator.
    unsafe { value.cast::<Legacy>().as_ref().to.set(mutator(m), None) };
}

unsafe fn destroy(value: NonNull<u8>) {
    // SAFETY: as above; the value is given up.
    unsafe { value.cast::<Legacy>().drop_in_place() };
}

/// Makes an object that refers to itself through another object.
fn cycle(m: &Mutator) {
    let cell = m.raw().allocate(INFO.offset + size_of::<Legacy>(), 32).expect("memory");
    let header = cell.cast::<Header>();
    // SAFETY: rule *new*: fresh memory, large enough for both.
    let legacy = unsafe {
        header.write(Header::new(m.id(), managed::type_index(m.raw(), &INFO).expect("memory")));
        cell.add(INFO.offset).cast().write(Legacy { to: GcCell::new(None) });
        m.raw().publish_as(Object::new(cell), state::TRACKED);
        AnyGc::from_header(header)
    };
    let other = m.alloc(GcCell::new(Some(legacy.clone())));
    legacy.downcast_ref::<Legacy>(m).expect("just made").to.set(m, Some(other.into()));
}

#[test]
fn u_14_objects_that_must_not_be_cleared_are_saved_too() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let services = heap.services();
    let mut m = heap.attach();
    services.expect_legacy_finalizers(true);
    services.set_debug(DEBUG_SAVEALL).expect("flags");
    cycle(&m);
    assert_eq!(m.collect().uncollectable, 2);
    let garbage = services.garbage(&m);
    assert_eq!(garbage.len(), 2, "the object with the finalizer, and the one that it reaches");
    assert!(services.garbage_remove(&m, 2).is_none() && services.garbage_get(&m, 2).is_none());
    services.set_debug(0).expect("flags");
    for object in &garbage {
        if let Some(legacy) = object.downcast_ref::<Legacy>(&m) {
            legacy.to.set(&m, None);
        }
    }
    drop((garbage, services.garbage_take(&m)));
    assert_eq!(heap.stats().live_objects, 0);
}

/// Collects the reports to the hooks of a heap.
fn heard(services: &Services) -> Arc<std::sync::Mutex<Vec<String>>> {
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |heard: &Arc<std::sync::Mutex<Vec<String>>>| {
        let heard = Arc::clone(heard);
        move |text: String| heard.lock().expect("no panic").push(text)
    };
    let (to, lines, ends) = (note(&heard), note(&heard), note(&heard));
    services
        .heap()
        .on_unraisable(move |fault| to(format!("{:?}: {}", fault.during, fault.message)));
    services.set_debug_sink(move |line| lines(line.to_owned()));
    services.heap().on_collection(move |event| {
        if let crate::CollectionEvent::Stop(report) = event {
            ends(format!("collected {}", report.collected));
        }
    });
    heard
}

#[test]
fn the_end_of_a_heap_reports_its_garbage_list_and_then_clears_it() {
    for flags in [DEBUG_SAVEALL, DEBUG_SAVEALL | DEBUG_UNCOLLECTABLE] {
        let heap =
            Heap::builder().name("library").pacing(Pacing::manual()).build().expect("a heap");
        let services = heap.services();
        let mut m = heap.attach();
        let heard = heard(&services);
        services.set_debug(flags).expect("flags");
        cycle(&m);
        m.collect();
        assert_eq!(services.garbage_len(&m), 2);
        drop(std::mem::take(&mut *heard.lock().expect("no panic")));
        drop((m, services, heap));
        let mut heard = std::mem::take(&mut *heard.lock().expect("no panic"));
        let lines: Vec<String> = heard
            .extract_if(.., |line| line.starts_with("gc: uncollectable at the end <"))
            .collect();
        assert_eq!(lines.len(), if flags == DEBUG_SAVEALL { 0 } else { 2 }, "{lines:?}");
        let text = "Shutdown: 2 objects are in the garbage list of heap 'library' at its end: \
                    they were unreachable, and could not be destroyed";
        assert_eq!(heard, ["collected 0", text, "collected 2"]);
    }
}

#[test]
fn the_end_of_a_heap_with_an_empty_garbage_list_is_one_collection() {
    let heap = Heap::builder().name("library").pacing(Pacing::manual()).build().expect("a heap");
    let services = heap.services();
    let m = heap.attach();
    let heard = heard(&services);
    services.set_debug(DEBUG_UNCOLLECTABLE).expect("flags");
    cycle(&m);
    let kept = m.alloc(7);
    drop((m, services, heap));
    let heard = std::mem::take(&mut *heard.lock().expect("no panic"));
    assert_eq!(heard, ["collected 2", "Shutdown: 1 objects are left in heap 'library' at its end"]);
    drop(kept);
}

/// A thread that is attached to another heap cannot run the last collection.
#[test]
fn the_end_of_a_heap_without_a_last_collection_drops_its_garbage_list() {
    struct Ring {
        to: GcCell<Option<AnyGc>>,
        _lives: Arc<()>,
    }

    impl Trace for Ring {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.to, tracer);
        }
    }
    let builder = || Heap::builder().pacing(Pacing::manual());
    let (heap, other) = (builder().build().expect("a heap"), builder().build().expect("another"));
    let services = heap.services();
    let mut m = heap.attach();
    services.set_debug(DEBUG_SAVEALL).expect("flags");
    let lives = Arc::new(());
    let ring = m.alloc(Ring { to: GcCell::new(None), _lives: Arc::clone(&lives) });
    ring.to.set(&m, Some(ring.clone().into()));
    drop(ring);
    m.collect();
    let ring = services.garbage_get(&m, 0).expect("saved");
    ring.downcast_ref::<Ring>(&m).expect("a ring").to.set(&m, None);
    drop((ring, m));
    assert_eq!(Arc::strong_count(&lives), 2, "the list holds it");
    let _m = other.attach();
    drop((services, heap));
    assert_eq!(Arc::strong_count(&lives), 1);
}

#[test]
fn u_17_legacy_finalizers_end_up_in_the_garbage_list() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let services = heap.services();
    let mut m = heap.attach();
    cycle(&m);
    assert_eq!(m.collect().collected, 2, "off by default");
    services.expect_legacy_finalizers(true);
    let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&lines);
    services.set_debug_sink(move |line| to.lock().expect("lines").push(line.to_owned()));
    services.set_debug(DEBUG_UNCOLLECTABLE).expect("flags");
    cycle(&m);
    let report = m.collect();
    assert_eq!((report.found(), report.collected, report.uncollectable), (2, 0, 2));
    let told = std::mem::take(&mut *lines.lock().expect("lines"));
    assert!(
        told.len() == 2 && told.iter().all(|line| line.starts_with("gc: uncollectable <")),
        "{told:?}"
    );
    assert_eq!(m.collect().found(), 0, "the list holds it");
    let garbage = services.garbage(&m);
    assert_eq!(garbage.len(), 1);
    assert_eq!(heap.stats().live_objects, 2);
    garbage[0].downcast_ref::<Legacy>(&m).expect("one of them").to.set(&m, None);
    drop((garbage, services.garbage_take(&m)));
    assert_eq!(heap.stats().live_objects, 0);
}
