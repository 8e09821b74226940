//! Tests of the model as a whole, with the helpers of this folder's tests.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use std::sync::Arc;

use crate::heap::parts::{Checks, ThreadData, WeakRefs};
use crate::managed::deferred::drain_list;
use crate::managed::release::DESTRUCTION;
use crate::object::live::Stopped;
use crate::{Finalizer, Gc, Heap, Mutator, Trace};

pub(super) fn plain_heap() -> Heap {
    Heap::builder()
        .reserve(1 << 30)
        .workers(1)
        .pacing(crate::Pacing::manual())
        .build()
        .expect("a heap")
}

/// Calls `f` on another thread, which is attached to the heap. The thread parks for stops, and
/// passes no other safepoint before `f` returns.
pub(super) fn on_attached_thread<R: Send>(
    heap: &Heap,
    f: impl FnOnce(&mut Mutator) -> R + Send,
) -> R {
    std::thread::scope(|scope| scope.spawn(|| f(&mut heap.attach())).join().expect("no panic"))
}

pub(super) fn header_of<T: Trace>(gc: &Gc<T>) -> NonNull<Header> {
    crate::AnyGc::from(gc.clone()).header()
}

/// Calls of finalizers of [`Noting`] and [`Plain`], of destructors of [`Noting`], and of weak
/// callbacks.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) finalized: AtomicUsize,
    pub(super) died: AtomicUsize,
    pub(super) called_back: AtomicUsize,
}

impl Calls {
    pub(super) fn get(&self) -> [usize; 3] {
        [&self.finalized, &self.died, &self.called_back].map(|count| count.load(SeqCst))
    }
}

/// A value with a destructor and a finalizer.
pub(super) struct Noting(pub(super) Arc<Calls>);

impl Trace for Noting {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        this.0.finalized.fetch_add(1, SeqCst);
    }));

    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.0.died.fetch_add(1, SeqCst);
    }
}

/// A value with a finalizer and without a destructor.
pub(super) struct Plain(pub(super) &'static Calls);

impl Trace for Plain {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        this.0.finalized.fetch_add(1, SeqCst);
    }));

    fn traverse(_: &Self, _: &mut Tracer) {}
}

pub(super) struct Panics;

impl Trace for Panics {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("a destructor that panics");
    }
}

pub(super) struct Holds(pub(super) Vec<Gc<Panics>>);

impl Trace for Holds {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

/// Safe code can visit a handle twice. That keeps objects alive, and is not reported: the collector
/// verifies the traversals of dynamic objects only.
#[test]
fn a_value_that_shows_too_much_is_not_reported() {
    struct Twice(Gc<u64>);

    impl Trace for Twice {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
            Trace::traverse(&this.0, tracer);
        }
    }
    let heap = Heap::builder()
        .reserve(1 << 30)
        .workers(1)
        .checked(true)
        .pacing(crate::Pacing::manual())
        .build();
    let heap = heap.expect("a heap");
    heap.on_misuse(|fault| panic!("reported: {fault}"));
    let told = Arc::new(AtomicUsize::new(0));
    let to = Arc::clone(&told);
    heap.on_unraisable(move |_| {
        to.fetch_add(1, SeqCst);
    });
    let mut m = heap.attach();
    let twice = m.alloc(Twice(m.alloc(7)));
    m.collect();
    assert_eq!((told.load(SeqCst), *twice.0), (0, 7));
}

#[test]
fn nothing_is_destroyed_in_a_traversal() {
    use crate::AtomicGc;
    let heap = plain_heap();
    let m = heap.attach();
    let (raw, live) = (m.raw(), || heap.stats().live_objects);
    let queued = || raw.local().queue.len();
    let (dropped, deferred) = (m.alloc(1), m.alloc(2));
    on_attached_thread(&heap, |_| drop(dropped));
    std::thread::scope(|scope| scope.spawn(|| drop(deferred)).join().expect("no panic"));
    let slot = AtomicGc::new(Some(m.alloc(3)));
    slot.store(&m, None);
    assert!(publish_retired(raw));
    let epoch = raw.model().epoch.load(SeqCst);
    raw.local().seen.store(epoch, SeqCst);
    let guard = crate::safepoint::traversing();
    merge_own_queue(raw);
    drain_list(raw);
    reap(raw);
    let listed = raw.model().deferred.lock().list.len();
    assert_eq!((queued(), listed, raw.model().retired.lock().len(), live()), (Some(1), 1, 1, 3));
    drop(guard);
    merge_own_queue(raw);
    assert_eq!((queued(), live()), (Some(0), 2));
    drain_list(raw);
    assert_eq!(live(), 1);
    reap(raw);
    assert_eq!((live(), raw.model().retired.lock().len()), (0, 0));
}

#[test]
fn a_mutator_that_ends_under_a_guard_leaves_its_lists_to_others() {
    use crate::AtomicGc;
    let heap = plain_heap();
    let live = || heap.stats().live_objects;
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut m = heap.attach();
            sender.send(0).expect("a receiver");
            asked.recv().expect("a sender");
            sender.send(m.raw().poll() & DRAIN_REQUEST).expect("a receiver");
            asked.recv().expect("a sender");
            m.safepoint();
            m.safepoint();
            sender.send(0).expect("a receiver");
            asked.recv().expect("a sender");
        });
        receiver.recv().expect("a sender");
        let m = heap.attach();
        let queued = m.alloc(1);
        on_attached_thread(heap, |_| drop(queued));
        let slot = AtomicGc::new(Some(m.alloc(2)));
        slot.store(&m, None);
        let core = Arc::clone(m.raw().core());
        let guard = crate::safepoint::traversing();
        drop(m);
        drop(guard);
        let lists = (core.model.deferred.lock().list.len(), core.model.retired.lock().len());
        assert_eq!((lists, live()), ((1, 1), 2));
        ask.send(()).expect("a receiver");
        assert_eq!(receiver.recv(), Ok(DRAIN_REQUEST), "whoever is attached is asked");
        ask.send(()).expect("a receiver");
        receiver.recv().expect("a sender");
        assert_eq!(live(), 0);
        ask.send(()).expect("a receiver");
    });
}

/// Empties its slot in its destructor.
struct Empties(crate::AtomicGc<u64>);

impl Trace for Empties {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

impl Drop for Empties {
    fn drop(&mut self) {
        Mutator::with_current(|m| self.0.store(m, None)).expect("an attached thread");
    }
}

/// Its destructor drops a reference on another thread, which it may attach before.
struct DropsElsewhere {
    to: Option<Gc<u64>>,
    heap: std::sync::Weak<Heap>,
    attaches: bool,
}

impl Trace for DropsElsewhere {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.to, tracer);
    }
}

impl Drop for DropsElsewhere {
    fn drop(&mut self) {
        let (to, heap) = (self.to.take(), self.heap.upgrade().expect("a heap"));
        if self.attaches {
            on_attached_thread(&heap, |_| drop(to));
        } else {
            std::thread::scope(|scope| scope.spawn(|| drop(to)).join().expect("no panic"));
        }
    }
}

#[test]
fn a_mutator_that_ends_drops_what_other_threads_drop_meanwhile() {
    let heap = Arc::new(plain_heap());
    for attaches in [false, true] {
        let m = heap.attach();
        let (to, heap) = (Some(m.alloc(1)), Arc::downgrade(&heap));
        let object = m.alloc(DropsElsewhere { to, heap, attaches });
        let heap = object.heap.upgrade().expect("a heap");
        on_attached_thread(&heap, |_| drop(object));
        assert_eq!(heap.stats().live_objects, 2);
        drop(m);
        assert_eq!(heap.stats().live_objects, 0);
    }
}

/// A value that a collection removes from an object, and drops in a batch.
#[test]
fn a_panic_of_a_value_in_a_batch_is_told_with_the_object_that_had_the_value() {
    use crate::GcCell;
    struct Loud;

    impl Trace for Loud {
        const TRACKED: bool = false;

        fn traverse(_: &Self, _: &mut Tracer) {}
    }

    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("a value that panics");
        }
    }

    struct Ring {
        to: GcCell<Option<Gc<Ring>>>,
        value: GcCell<Option<Gc<Loud>>>,
    }

    impl Trace for Ring {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.to, tracer);
            Trace::traverse(&this.value, tracer);
        }

        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.to, m);
            Trace::clear(&this.value, m);
        }
    }
    let stress = crate::Stress::none().small_constants(true);
    let pacing = crate::Pacing::manual();
    let heap = Heap::builder().reserve(1 << 30).stress(stress).pacing(pacing).build();
    let heap = heap.expect("a heap");
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    heap.on_unraisable(move |error| {
        let text = error.message.to_string();
        to.lock().expect("no panic").push((
            error.during,
            error.type_name.clone(),
            error.address,
            text,
        ));
    });
    let mut m = heap.attach();
    let value = GcCell::new(Some(m.alloc(Loud)));
    let ring = m.alloc(Ring { to: GcCell::new(None), value });
    ring.to.set(&m, Some(ring.clone()));
    let (name, address) = (std::any::type_name::<Ring>(), header_of(&ring).as_ptr() as usize);
    drop(ring);
    assert_eq!(m.collect().collected, 1);
    let text = "a value that panics".to_owned();
    assert_eq!(*told.lock().expect("no panic"), [(During::Clear, name.into(), address, text)]);
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_mutator_that_ends_leaves_nothing_that_it_can_drop() {
    use crate::AtomicGc;
    let heap = plain_heap();
    let live = || heap.stats().live_objects;
    let m = heap.attach();
    let slot = AtomicGc::new(Some(m.alloc(1)));
    slot.store(&m, None);
    assert_eq!(live(), 1);
    drop(m);
    assert_eq!(live(), 0, "retired");
    let m = heap.attach();
    let object = m.alloc(2);
    std::thread::scope(|scope| scope.spawn(|| drop(object)).join().expect("no panic"));
    assert_eq!(live(), 1);
    drop(m);
    assert_eq!(live(), 0, "deferred");
    // A destructor that runs at the end empties a slot.
    let m = heap.attach();
    let object = m.alloc(Empties(AtomicGc::new(Some(m.alloc(4)))));
    on_attached_thread(&heap, |_| drop(object));
    assert_eq!(live(), 2);
    drop(m);
    assert_eq!(live(), 0, "retired at the end");
    // A retired reference waits for the other threads. When they are gone, the next thread that
    // attaches drops it.
    let mut m = heap.attach();
    on_attached_thread(&heap, |m| {
        let slot = AtomicGc::new(Some(m.alloc(3)));
        slot.store(m, None);
    });
    assert_eq!((live(), m.raw().model().retired.lock().len()), (1, 1));
    m.detach(|| on_attached_thread(&heap, |_| assert_eq!(live(), 0)));
}

#[test]
fn callbacks_are_counted_and_headers_are_recognised() {
    let heap = plain_heap();
    let m = heap.attach();
    let model = m.raw().model();
    let number = m.alloc(7u64);
    // SAFETY: rule *counted*: alive.
    let callbacks = || Managed::callbacks(model, unsafe { Stopped::new(object(number.header())) });
    assert_eq!(callbacks(), 0);
    let first = m.alloc_weak(&number, (), |_, _| ());
    let second = m.alloc_weak(&number, (), |_, _| ());
    assert_eq!(callbacks(), 2);
    drop((first, second));
    // SAFETY: rule *counted*: alive.
    let index = unsafe { number.header().as_ref() }.type_index();
    let (check, last_type) = (
        |header: &Header| {
            // SAFETY: rules *counted* and *owner*: the headers are values on the stack, and the
            // functions follow no pointer in them.
            let object = unsafe { Stopped::new(object(NonNull::from(header))) };
            Managed::check(model, object)
        },
        |header: &Header| Managed::last_type(model, NonNull::from(header).cast()),
    );
    let (own, unknown) = (m.raw().id(), 0xff_fff0);
    assert_eq!(check(&Header::new(own, index)), Ok(()));
    assert!(check(&Header::new(own, unknown)).is_err_and(|text| text.contains("0xfffff0")));
    assert!(check(&Header::new(own + 1_000_000, index)).is_err_and(|text| text.contains("owner")));
    assert_eq!(last_type(&Header::new(own, index)), Some("u64"));
    assert_eq!(last_type(&Header::new(own, unknown)), None);
    #[cfg(feature = "cpython")]
    assert_eq!(last_type(&Header::new(own, crate::dynamic::TYPE_INDEX)), Some("dynamic object"));
}

#[test]
fn the_next_mutator_has_the_own_part_of_the_last_with_its_types_alone() {
    let heap = plain_heap();
    let own = |m: &Mutator| std::ptr::from_ref(m.raw().private());
    let known = |m: &Mutator| {
        m.raw().private().types.iter().filter(|entry| !entry.get().0.is_null()).count()
    };
    let m = heap.attach();
    let first = own(&m);
    assert_eq!(known(&m), 0);
    drop(m.alloc(7u64));
    m.raw().private().dying.borrow_mut().reserve(1000);
    m.raw().private().retired.borrow_mut().reserve(1000);
    drop(m);
    let m = heap.attach();
    assert_eq!((own(&m), known(&m)), (first, 1));
    assert_eq!(m.raw().private().dying.borrow().capacity(), DESTRUCTION_STACK_ROOM);
    assert_eq!(m.raw().private().retired.borrow().capacity(), 0);
}

#[test]
fn the_own_part_of_a_mutator_that_ends_inside_a_destruction_is_not_kept() {
    let heap = plain_heap();
    let model = &heap.core().model;
    let mut own = Managed::private(model).expect("memory");
    assert!(Managed::keeps_private(model, &mut own));
    own.enter(DESTRUCTION);
    assert!(!Managed::keeps_private(model, &mut own));
}
