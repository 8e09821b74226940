//! The biased count: its owner, strangers and a collector change one object's count, and exactly one of
//! them destroys it, after everybody's last use.
//!
//! [`Object`] plays what `managed` does around a [`Header`]: the queue of the owner, and the destruction.
//! The object's memory is a loom `UnsafeCell`: every operation on the header reads it while it runs, the
//! destruction writes it. So loom fails a model in which the header is touched after it is gone, or in
//! which a use is not ordered before the destruction; `destroyed` fails one that is destroyed twice, and
//! the end of each model one that is not destroyed at all.
//!
//! Each model names the mutations of `src/header.rs` (or of the file it names) that make it fail; each was
//! tried.

use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;

use super::model;
use crate::header::{Dropped, Header};
use crate::safepoint::{Coordinator, Participant, Suspend, ThreadId};
use crate::sync::{Mutex, UnsafeCell};
use crate::weak::{WeakRecord, WeakTable};

const OWNER: u64 = 1;
const STRANGER: u64 = 2;
const OTHER: u64 = 3;

/// An owner's queue, of one object: how often the object is in it; `None`: closed.
type Queue = Mutex<Option<usize>>;

struct Object {
    header: Header,
    /// The object's memory: whether it was destroyed.
    memory: UnsafeCell<bool>,
    queue: Queue,
    weak: WeakTable,
}

// SAFETY: this is the claim under test: memory is read by those who hold a reference, and written by the one
// who was told `Dead`. loom checks each access.
unsafe impl Sync for Object {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Object {}

impl Object {
    /// An object with one reference, held by `OWNER`.
    fn new() -> Arc<Self> {
        Self::owned_by(OWNER)
    }

    fn owned_by(owner: u64) -> Arc<Self> {
        Arc::new(Self {
            header: Header::new(owner, 0),
            memory: UnsafeCell::new(false),
            queue: Mutex::new(Some(0)),
            weak: WeakTable::default(),
        })
    }

    /// Does something with the header while the memory must be there.
    fn with<R>(&self, f: impl FnOnce(&Header) -> R) -> R {
        self.memory.with(|memory| {
            // SAFETY: see `Sync`.
            assert!(!unsafe { *memory }, "used after its destruction");
            f(&self.header)
        })
    }

    fn clone_ref(&self, me: u64) {
        self.with(|header| header.clone_ref(me));
    }

    /// `managed::drop_reference`, on a thread that is attached as `me`.
    fn drop_ref(&self, me: u64) {
        let dropped = self.with(|h| if h.is_owned_by(me) { h.drop_local() } else { h.drop_shared() });
        self.settle(dropped);
    }

    fn settle(&self, dropped: Dropped) {
        match dropped {
            Dropped::Alive => {}
            Dropped::Dead => self.destroy(),
            Dropped::Enqueue(owner) => self.enqueue(owner),
        }
    }

    /// `managed::enqueue`, without the call to the owner.
    fn enqueue(&self, owner: u64) {
        assert_eq!(owner, OWNER, "queued for somebody else");
        let queued = match &mut *self.queue.lock() {
            Some(queued) => {
                *queued += 1;
                true
            }
            None => false,
        };
        if !queued {
            let merged = self.with(Header::merge_ended);
            self.settle(merged);
        }
    }

    /// `managed::merge_queue`.
    fn merge_queue(&self) {
        let queued = self.queue.lock().as_mut().map_or(0, std::mem::take);
        for _ in 0..queued {
            let merged = self.with(Header::merge);
            self.settle(merged);
        }
    }

    /// `managed::ending`.
    fn end(&self) {
        loop {
            self.merge_queue();
            let mut queue = self.queue.lock();
            if *queue == Some(0) {
                *queue = None;
                return;
            }
        }
    }

    fn destroy(&self) {
        if self.with(Header::has_weak) {
            assert!(self.weak.died(NonNull::from(&self.header)).is_empty());
        }
        self.memory.with_mut(|memory| {
            // SAFETY: see `Sync`.
            let was = std::mem::replace(unsafe { &mut *memory }, true);
            assert!(!was, "destroyed twice");
        });
    }

    /// Everybody is done: the owner reaches one more safepoint, and then the object is gone.
    fn assert_destroyed(&self) {
        self.merge_queue();
        // SAFETY: see `Sync`.
        assert!(self.memory.with(|memory| unsafe { *memory }), "never destroyed");
    }

    /// `WeakRecord::upgrade`, with an eye on the memory.
    fn upgrade(&self, record: &WeakRecord, me: u64) -> bool {
        record.with_target(|_| self.with(|header| header.try_upgrade(me))).unwrap_or(false)
    }
}

fn spawn(object: &Arc<Object>, f: impl FnOnce(&Object) + 'static) -> thread::JoinHandle<()> {
    let object = Arc::clone(object);
    thread::spawn(move || f(&object))
}

/// The owner counts while a stranger clones and drops, below zero in the end.
///
/// Mutations: the foreign drop goes down first and sets `QUEUED` afterwards; it is `Relaxed`; the owner's
/// last drop looks at `shared` with `Relaxed`; a stranger counts in `local`.
#[test]
fn loom_owner_and_stranger_count() {
    model(|| {
        let object = Object::new();
        // A reference that is counted locally goes to the stranger.
        object.clone_ref(OWNER);
        let stranger = spawn(&object, |object| {
            object.clone_ref(STRANGER);
            object.drop_ref(STRANGER);
            object.drop_ref(STRANGER);
        });
        object.clone_ref(OWNER);
        object.drop_ref(OWNER);
        object.merge_queue();
        object.drop_ref(OWNER);
        stranger.join().unwrap();
        object.assert_destroyed();
    });
}

/// The owner's last drop, while a stranger drops a shared reference.
///
/// Mutations: the owner's look at `shared` before it says `Dead` is `Relaxed`; `merge_last` stores what it
/// read instead of exchanging it, or exchanges it `Relaxed`; `drop_merged` is `Relaxed`; `merge_last` names
/// no owner only after the exchange.
#[test]
fn loom_owners_last_drop_meets_a_stranger() {
    model(|| {
        let object = Object::new();
        object.clone_ref(STRANGER);
        let stranger = spawn(&object, |object| object.drop_ref(STRANGER));
        object.drop_ref(OWNER);
        stranger.join().unwrap();
        object.assert_destroyed();
    });
}

/// Two strangers drop the last references while the owner drops its own.
///
/// Mutations: `drop_merged` is `Relaxed`, or answers `Dead` at 0; `merge_last` is `Dead` whatever is left.
#[test]
fn loom_two_strangers_share_what_the_owner_leaves() {
    model(|| {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object.clone_ref(OTHER);
        let strangers = [STRANGER, OTHER].map(|me| spawn(&object, move |object| object.drop_ref(me)));
        object.drop_ref(OWNER);
        for stranger in strangers {
            stranger.join().unwrap();
        }
        object.assert_destroyed();
    });
}

/// Two strangers have references that the owner counted, and drop them while it merges its queue.
///
/// Mutations: a foreign drop queues although the object is queued; `merge` forgets `local`, or leaves
/// `QUEUED` set; `merge` is `Dead` when it is not its to say (`mine` is always so).
#[test]
fn loom_queue_of_two_strangers() {
    model(|| {
        let object = Object::new();
        object.clone_ref(OWNER);
        let strangers = [STRANGER, OTHER].map(|me| spawn(&object, move |object| object.drop_ref(me)));
        object.merge_queue();
        for stranger in strangers {
            stranger.join().unwrap();
        }
        object.assert_destroyed();
    });
}

/// The object is queued, the owner lets go of it, and what is left dies in the queue or with a stranger.
///
/// Mutations: `merge_last` ignores `QUEUED`; `drop_merged` ignores it: the queue then holds what is gone.
#[test]
fn loom_a_queued_object_waits_for_its_queue() {
    model(|| {
        let object = Object::new();
        object.clone_ref(OWNER);
        object.clone_ref(OWNER);
        let strangers = [STRANGER, OTHER].map(|me| spawn(&object, move |object| object.drop_ref(me)));
        object.drop_ref(OWNER);
        object.merge_queue();
        for stranger in strangers {
            stranger.join().unwrap();
        }
        object.assert_destroyed();
    });
}

/// The owner ends while two strangers drop what it counted: whoever finds the queue closed merges.
///
/// Mutations: `merge_ended` forgets `local`; a foreign drop does not set `QUEUED`; the exchange of
/// `merge_with` is `Relaxed`; the queue is closed without a look at what came meanwhile (`managed`'s
/// `ending`, here `end`).
#[test]
fn loom_strangers_merge_for_an_owner_that_ends() {
    model(|| {
        let object = Object::new();
        object.clone_ref(OWNER);
        let strangers = [STRANGER, OTHER].map(|me| spawn(&object, move |object| object.drop_ref(me)));
        object.end();
        for stranger in strangers {
            stranger.join().unwrap();
        }
        object.assert_destroyed();
    });
}

/// A mutator of the two models below: its queue is what it shows to others.
fn mutator(coordinator: &Arc<Coordinator<Queue>>) -> Participant<Queue> {
    coordinator.register(Mutex::new(Some(0)))
}

/// A stranger drops below zero while the owner is detached, or about to attach and count again: it suspends
/// the owner and merges for it, or leaves it to the owner.
///
/// Mutations: the stranger merges without suspending; `Coordinator::suspend` steps `Relaxed`; a poke's
/// request is not looked at after the attach.
#[test]
fn loom_stranger_merges_for_a_detached_owner() {
    model(|| {
        let coordinator = Coordinator::new();
        let owner = mutator(&coordinator);
        let id = owner.id();
        let object = Object::owned_by(id.get());
        object.clone_ref(id.get());
        let stranger = {
            let coordinator = Arc::clone(&coordinator);
            spawn(&object, move |object| drop_and_merge(object, &coordinator, id))
        };
        owner.attach().unwrap();
        object.clone_ref(id.get());
        object.drop_ref(id.get());
        if owner.take_requests(MERGE) != 0 {
            merge_for(&object, owner.data());
        }
        object.drop_ref(id.get());
        // A request that comes now is answered at the end.
        stranger.join().unwrap();
        merge_for(&object, owner.data());
        object.assert_destroyed();
    });
}

const MERGE: u32 = 1 << 8;

/// `managed::drop_shared` and `managed::enqueue`, by a stranger.
fn drop_and_merge(object: &Object, coordinator: &Coordinator<Queue>, owner: ThreadId) {
    match object.with(Header::drop_shared) {
        Dropped::Enqueue(named) => {
            assert_eq!(named, owner.get());
            coordinator.with_data(owner, |queue| *queue.lock() = Some(1));
            coordinator.poke(owner, MERGE);
            if let Suspend::Suspended(owner) = coordinator.suspend(owner) {
                merge_for(object, &owner);
            }
        }
        dropped => object.settle(dropped),
    }
}

/// `managed::merge_queue`, of the queue that an owner shows.
fn merge_for(object: &Object, queue: &Queue) {
    if queue.lock().replace(0) == Some(1) {
        let merged = object.with(Header::merge);
        object.settle(merged);
    }
}

/// Somebody makes the object immortal while the others let go of it: nobody destroys it.
///
/// Mutations: `merge_last` or `drop_merged` ignores `IMMORTAL`; `make_immortal` is a load and a store.
#[test]
fn loom_an_immortal_stays() {
    model(|| {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object.clone_ref(OTHER);
        let maker = spawn(&object, |object| {
            object.with(Header::make_immortal);
            object.drop_ref(STRANGER);
        });
        let other = spawn(&object, |object| object.drop_ref(OTHER));
        object.drop_ref(OWNER);
        maker.join().unwrap();
        other.join().unwrap();
        object.merge_queue();
        assert_eq!(object.with(Header::count), None);
    });
}

/// A stranger upgrades a weak reference while the owner drops the last strong one.
///
/// Mutations: `try_upgrade` does not look for merged and 0; the record is made without the `WEAK` flag; in
/// `src/weak.rs`: `with_target` lets go of the lock before it looks, `died` does not empty the record.
#[test]
fn loom_upgrade_meets_the_last_drop() {
    model(|| {
        let object = Object::new();
        let record = object.weak.record(&object.header);
        let stranger = spawn(&object, move |object| {
            if object.upgrade(&record, STRANGER) {
                object.drop_ref(STRANGER);
            }
        });
        object.drop_ref(OWNER);
        stranger.join().unwrap();
        object.assert_destroyed();
    });
}

/// A stranger upgrades while another drops the last strong reference of an object that its owner has left.
///
/// Mutations: `try_upgrade` adds first and looks afterwards; `drop_merged` is `Relaxed`.
#[test]
fn loom_upgrade_meets_the_last_drop_of_a_stranger() {
    model(|| {
        let object = Object::new();
        let record = object.weak.record(&object.header);
        object.clone_ref(STRANGER);
        object.drop_ref(OWNER);
        let upgrader = spawn(&object, move |object| {
            if object.upgrade(&record, OTHER) {
                object.drop_ref(OTHER);
            }
        });
        let dropper = spawn(&object, |object| object.drop_ref(STRANGER));
        upgrader.join().unwrap();
        dropper.join().unwrap();
        object.assert_destroyed();
    });
}

/// The last drop runs a finalizer, which takes the object back and gives a reference away, while a stranger
/// upgrades a weak one. Both drop; the later one goes below zero, and must know the owner by then.
///
/// Mutations: `revive` clears `MERGED` with `Relaxed`, or before it names the owner; the upgrade's exchange
/// is `Relaxed`.
#[test]
fn loom_revival_meets_an_upgrade() {
    model(|| {
        let object = Object::new();
        let record = object.weak.record(&object.header);
        let given = Arc::new(Mutex::new(false));
        let stranger = spawn(&object, move |object| {
            if object.upgrade(&record, STRANGER) {
                object.drop_ref(STRANGER);
            }
        });
        let other = {
            let given = Arc::clone(&given);
            spawn(&object, move |object| {
                if std::mem::take(&mut *given.lock()) {
                    object.drop_ref(OTHER);
                }
            })
        };
        match object.with(Header::drop_local) {
            Dropped::Dead => {
                object.with(|header| header.revive(OWNER));
                object.clone_ref(OWNER);
                *given.lock() = true;
                object.drop_ref(OWNER);
            }
            // The stranger was faster, and is the last.
            dropped => assert_eq!(dropped, Dropped::Alive),
        }
        stranger.join().unwrap();
        other.join().unwrap();
        if *given.lock() {
            object.drop_ref(OTHER);
        }
        object.assert_destroyed();
    });
}

/// A collector claims an object that its owner has left, and lets go of it while a stranger, who had it from
/// a weak reference, drops his.
///
/// Mutations: `claim` leaves `MERGED` set; it does not name the new owner.
#[test]
fn loom_claimed_object_is_counted_on() {
    model(|| {
        let object = Object::owned_by(OTHER);
        // Its own cycle, say: this reference is taken out of it below.
        object.clone_ref(STRANGER);
        object.drop_ref(OTHER);
        // Nobody else runs: the stop.
        object.with(|header| header.claim(OWNER));
        object.clone_ref(OWNER);
        let stranger = spawn(&object, |object| {
            object.drop_ref(STRANGER);
            object.drop_ref(STRANGER);
        });
        object.drop_ref(OWNER);
        object.merge_queue();
        stranger.join().unwrap();
        object.assert_destroyed();
    });
}
