//! The biased count: its owner, strangers and a collector change one object's count, and exactly one of
//! them destroys it, after everybody's last use.
//!
//! [`Object`] does what `managed` does around a [`Header`]. The owner's queue is the library's [`MergeQueue`].
//! The object's memory is a loom `UnsafeCell`: every operation on the header reads it while it runs, the
//! destruction writes it. So loom fails a model in which the header is touched after it is gone, or in
//! which a use is not ordered before the destruction; `destroyed` fails one that is destroyed twice, and
//! the end of each model one that is not destroyed at all.
//!
//! # Transitions
//!
//! The states are those of `header`'s page.
//!
//! | transition | models |
//! |---|---|
//! | clone and drop by the owner: `local` | `owner_and_stranger_count` |
//! | clone by a stranger, or unattached: `shared` | `owner_and_stranger_count`, `a_queued_object_waits_for_its_queue` |
//! | last local drop, nothing shared: dead | `owners_last_drop_meets_a_stranger`, `owner_takes_the_last` |
//! | last local drop, something shared: biased to merged | `owners_last_drop_meets_a_stranger`, `a_former_owner_comes_back`, `two_strangers_share_what_the_owner_leaves` |
//! | foreign drop, above zero | `owners_last_drop_meets_a_stranger` |
//! | foreign drop, below zero: biased to queued | `queue_of_two_strangers`, `owner_and_stranger_count` |
//! | foreign drop that met another: biased to queued | `two_strangers_share_what_the_owner_leaves` |
//! | drop of a merged object, the last: dead | `two_strangers_share_what_the_owner_leaves` |
//! | drop of a merged, queued object: the queue decides | `a_queued_object_waits_for_its_queue` |
//! | merge by the owner: queued to merged | `queue_of_two_strangers` |
//! | merge by who has suspended the owner | `stranger_merges_for_a_detached_owner` |
//! | merge for an owner that has ended | `strangers_merge_for_an_owner_that_ends` |
//! | merge in a stop | `managed::a_collection_merges_the_queues` |
//! | claim in a stop: merged or biased to biased | `claimed_object_is_counted_on`, `managed::weak_handle_meets_a_collection` |
//! | revival for a finalizer: merged or dead to biased | `revival_meets_an_upgrade`, `a_finalizer_drops_what_a_stranger_counted` |
//! | upgrade: of a biased, merged, dead, immortal object | `upgrade_meets_the_last_drop`, `upgrade_meets_the_last_drop_of_a_stranger`, `revival_meets_an_upgrade`, `an_immortal_leaves_its_queue` |
//! | `WEAK` set: before others know the object, and after | `upgrade_meets_the_last_drop`, `weak_flag_beside_counts` |
//! | any state to immortal, asked for | `an_immortal_stays`, `an_immortal_leaves_its_queue` |
//! | any state to immortal, by overflow: local, shared, below zero, in a merge | `the_local_half_saturates`, `the_shared_half_saturates`, `the_shared_half_saturates_below_zero`, `a_merge_saturates` |

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use loom::thread;

use super::{Model, model};
use crate::base::shared::Shared;
use crate::base::sync::{Mutex, UnsafeCell};
use crate::managed::merge_queue::{MERGE_REQUEST, MergeQueue, OwnerEnded, enqueue};
use crate::object::header::{Dropped, Header};
use crate::object::weak::{HeaderPtr, WeakRecord, WeakTable};
use crate::safepoint::{Coordinator, Participant, ThreadId};

/// What `current` is on a thread that is not attached.
const UNATTACHED: u64 = 0;
const OWNER: u64 = 1;
const STRANGER: u64 = 2;
const OTHER: u64 = 3;

/// Where the shared half turns immortal, on either side of zero, and the local one: see `header`.
const SHARED_LIMIT: i32 = 1 << 26;
const LOCAL_PINNED: u32 = 1 << 31;

struct Object {
    header: Header,
    /// The object's memory: whether it was destroyed.
    memory: UnsafeCell<bool>,
    queue: MergeQueue,
    weak: WeakTable,
    record: OnceLock<Shared<WeakRecord>>,
    /// Whether the finalizer has left a reference here.
    given: Mutex<bool>,
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
            queue: MergeQueue::new(),
            weak: WeakTable::default(),
            record: OnceLock::new(),
            given: Mutex::new(false),
        })
    }

    /// With a weak reference.
    fn with_record(self: Arc<Self>) -> Arc<Self> {
        let Ok(record) = self.weak.record(&self.header) else { panic!("no memory") };
        assert!(self.record.set(record).is_ok());
        self
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
        if !self.with(|header| header.try_drop_local(me)) {
            let dropped =
                self.with(|h| if h.is_owned_by(me) { h.drop_local() } else { h.drop_shared() });
            self.settle(dropped);
        }
    }

    /// `managed::drop_slowly_to`, on a thread that is attached as `me`: the common end of an object is looked at first.
    fn drop_last(&self, me: u64) {
        if !self.with(|header| header.try_drop_local(me)) {
            if self.with(|header| header.take_last(me)) {
                self.destroy();
            } else {
                self.drop_ref(me);
            }
        }
    }

    fn settle(&self, dropped: Dropped) {
        match dropped {
            Dropped::Alive => {}
            Dropped::Dead => self.destroy(),
            Dropped::Enqueue(owner) => self.enqueue(owner),
        }
    }

    /// The object as lists of the library contain it.
    fn target(&self) -> HeaderPtr {
        HeaderPtr(NonNull::from(&self.header))
    }

    /// `release::enqueue`, without the request to the owner.
    fn enqueue(&self, owner: u64) {
        assert_eq!(owner, OWNER, "queued for another thread");
        if !self.queue.enqueue(self.target()) {
            self.merge_ended();
        }
    }

    /// Merges the object, whose owner has ended.
    fn merge_ended(&self) {
        let merged = self.with(Header::merge_ended);
        self.settle(merged);
    }

    /// `release::empty_queue`, of any queue with this object.
    fn merge_queued(&self, queue: &MergeQueue) {
        for _ in queue.merge(|_| self.with(Header::merge)) {
            self.destroy();
        }
    }

    /// `release::empty_queue`, by the owner.
    fn merge_queue(&self) {
        self.merge_queued(&self.queue);
    }

    /// The model's `ending`.
    fn end(&self) {
        loop {
            self.merge_queue();
            if self.queue.close_if_empty() {
                return;
            }
        }
    }

    fn destroy(&self) {
        if self.with(Header::has_weak) {
            assert!(self.weak.remove(NonNull::from(&self.header)).is_empty());
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

    /// `WeakRecord::upgrade`, with an eye on the memory; `true`: the caller has a reference.
    fn upgraded(&self, me: u64) -> bool {
        let record = self.record.get().unwrap();
        record.with_target(|_| self.with(|header| header.try_upgrade(me))) == Some(true)
    }

    /// The same, and a drop.
    fn upgrade(&self, me: u64) {
        if self.upgraded(me) {
            self.drop_ref(me);
        }
    }
}

/// Lets several threads loose on an object, and looks at it at the end.
///
/// Once for each role in front: loom compares an exchange with the *last* access to its atomic alone, so a load
/// before it, by the same thread, hides what another thread did, and the two are not tried in the other
/// order. Whoever runs on the first thread comes first to begin with.
///
/// Of three threads not every interleaving: that would take hours.
fn race<const N: usize>(make: fn() -> Arc<Object>, roles: [fn(&Object); N], end: fn(&Object)) {
    let depth = if N > 2 { Model::new().at_most(4) } else { Model::new() };
    race_to(depth, make, roles, end);
}

/// The same, as deep as it says.
fn race_to<const N: usize>(
    depth: Model,
    make: fn() -> Arc<Object>,
    roles: [fn(&Object); N],
    end: fn(&Object),
) {
    for first in 0..N {
        depth.check(move || {
            let object = make();
            let others = Vec::from_iter((1..N).map(|n| {
                let (object, role) = (Arc::clone(&object), roles[(first + n) % N]);
                thread::spawn(move || role(&object))
            }));
            roles[first](&object);
            others.into_iter().for_each(|other| other.join().unwrap());
            end(&object);
        });
    }
}

/// The owner counts while a stranger, who has a reference that the owner counted, clones and drops, below zero
/// in the end.
///
/// Mutations: a stranger counts in `local`; `merge` forgets `local`, or leaves `QUEUED` set.
#[test]
fn loom_owner_and_stranger_count() {
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    let owner = |object: &Object| {
        object.clone_ref(OWNER);
        object.drop_ref(OWNER);
        object.merge_queue();
        object.drop_ref(OWNER);
    };
    let stranger = |object: &Object| {
        object.clone_ref(STRANGER);
        object.drop_ref(STRANGER);
        object.drop_ref(STRANGER);
    };
    race(make, [owner, stranger], Object::assert_destroyed);
}

/// The owner's last drop, while a stranger drops a shared reference.
///
/// Mutations: the owner's look at `shared` before it says `Dead` is `Relaxed`; the foreign drop is; `merge_last`
/// stores what it read instead of exchanging it, or exchanges it with `Release` or `Acquire` alone;
/// `drop_merged` is `Release` alone; `merge_last` gives up the ownership only after the exchange, or is `Dead`
/// whatever is left.
#[test]
fn loom_owners_last_drop_meets_a_stranger() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object
    };
    race(
        make,
        [|object| object.drop_ref(OWNER), |object| object.drop_ref(STRANGER)],
        Object::assert_destroyed,
    );
}

/// The same, and the owner looks first whether it has the only reference.
#[test]
fn loom_owner_takes_the_last() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object
    };
    race(
        make,
        [|object| object.drop_last(OWNER), |object| object.drop_last(STRANGER)],
        Object::assert_destroyed,
    );
    // And the stranger, with a reference that the owner counted, takes nothing for its own.
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    race(
        make,
        [|object| object.drop_last(OWNER), |object| object.drop_last(STRANGER)],
        Object::assert_destroyed,
    );
}

/// The owner gives up its last local reference, and comes back through a weak one: it is the owner no more.
#[test]
fn loom_a_former_owner_comes_back() {
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(STRANGER);
        object
    };
    let owner = |object: &Object| {
        object.drop_ref(OWNER);
        object.upgrade(OWNER);
    };
    race(make, [owner, |object| object.drop_ref(STRANGER)], Object::assert_destroyed);
}

/// Somebody asks for a weak reference while others let go of the object.
#[test]
fn loom_weak_flag_beside_counts() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object.clone_ref(OTHER);
        object
    };
    let asker = |object: &Object| {
        object.with(Header::set_weak);
        object.drop_ref(STRANGER);
    };
    race(
        make,
        [|object| object.drop_ref(OWNER), asker, |object| object.drop_ref(OTHER)],
        Object::assert_destroyed,
    );
}

/// Two strangers drop the last references while the owner drops its own.
///
/// Mutations: `drop_merged` is `Acquire` alone, or answers `Dead` one early; a contended drop queues an object that its
/// owner is just merging (without `owner != NO_OWNER`).
#[test]
fn loom_two_strangers_share_what_the_owner_leaves() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object.clone_ref(OTHER);
        object
    };
    race(
        make,
        [
            |object| object.drop_ref(OWNER),
            |object| object.drop_ref(STRANGER),
            |object| object.drop_ref(OTHER),
        ],
        Object::assert_destroyed,
    );
}

/// Two strangers have references that the owner counted, and drop them while it merges its queue.
///
/// Mutations: a foreign drop goes down first and sets `QUEUED` afterwards; `merge` forgets `local`, or leaves
/// `QUEUED` set; its exchange is `Release` or `Acquire` alone, or a store.
#[test]
fn loom_queue_of_two_strangers() {
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    race(
        make,
        [
            |object| object.merge_queue(),
            |object| object.drop_ref(STRANGER),
            |object| object.drop_ref(OTHER),
        ],
        Object::assert_destroyed,
    );
}

/// The object is queued, then its owner lets go of it, and it dies in the queue: not with the owner, who has
/// cloned while detached, nor with the stranger, who comes back through a weak reference.
///
/// Mutations: `merge_last` or `drop_merged` ignores `QUEUED`: the queue then holds what is gone; the merge of
/// a queued object that is merged already never answers `Dead`.
#[test]
fn loom_a_queued_object_waits_for_its_queue() {
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(OWNER);
        object
    };
    let owner = |object: &Object| {
        object.clone_ref(UNATTACHED);
        object.drop_ref(OWNER);
        object.drop_ref(OWNER);
        object.merge_queue();
    };
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        object.upgrade(STRANGER);
    };
    race_to(Model::new().at_most(5), make, [owner, stranger], Object::assert_destroyed);
}

/// The owner ends while two strangers drop what it counted: whoever finds the queue closed merges.
///
/// Mutations: `merge_ended` forgets `local`; the queue is closed without a look at what came meanwhile
/// (`MergeQueue::close_if_empty`).
#[test]
fn loom_strangers_merge_for_an_owner_that_ends() {
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    race(
        make,
        [
            |object| object.end(),
            |object| object.drop_ref(STRANGER),
            |object| object.drop_ref(OTHER),
        ],
        Object::assert_destroyed,
    );
}

/// Somebody makes the object immortal while others let go of it: nobody destroys it.
///
/// Mutations: `merge_last` ignores `IMMORTAL`; `make_immortal` is a load and a store.
#[test]
fn loom_an_immortal_stays() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object
    };
    let owner = |object: &Object| object.drop_ref(OWNER);
    let stranger = |object: &Object| object.drop_ref(STRANGER);
    let immortal_owner = |object: &Object| {
        object.with(Header::make_immortal);
        object.drop_ref(OWNER);
    };
    let immortal_stranger = |object: &Object| {
        object.with(Header::make_immortal);
        object.drop_ref(STRANGER);
    };
    let end = |object: &Object| assert_eq!(object.with(Header::count), None);
    race(make, [immortal_owner, stranger], end);
    race(make, [owner, immortal_stranger], end);
}

/// Somebody makes the object immortal while it lies in its owner's queue, and while a stranger, who has come back
/// through a weak reference, lets go of it: the queue lets it go, and nobody destroys it.
#[test]
fn loom_an_immortal_leaves_its_queue() {
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(OWNER);
        object
    };
    let owner = |object: &Object| {
        object.merge_queue();
        object.drop_ref(OWNER);
        object.merge_queue();
    };
    let stranger = |object: &Object| {
        let record = object.record.get().unwrap();
        // So that the object may be queued while somebody still refers to it.
        let upgraded = record.with_target(|_| object.with(|header| header.try_upgrade(STRANGER)));
        object.drop_ref(STRANGER);
        if upgraded == Some(true) {
            object.with(Header::make_immortal);
            object.drop_ref(STRANGER);
        }
    };
    let end = |object: &Object| {
        object.merge_queue();
        assert_eq!(object.with(Header::count), None);
        assert_eq!(object.record.get().unwrap().with_target(|h| h.try_upgrade(OTHER)), Some(true));
        object.drop_ref(OTHER);
        assert_eq!(object.with(Header::count), None);
    };
    race(make, [owner, stranger], end);
}

/// An object whose halves are near their limits.
fn preset(local: u32, shared: i32) -> Arc<Object> {
    let object = Object::new();
    object.header.preset(local, shared);
    object
}

/// Looks whether the object has become immortal, and is not freed by drops.
fn assert_immortal(object: &Object) {
    object.merge_queue();
    assert_eq!(object.with(Header::count), None);
    if let Some(record) = object.record.get() {
        assert_eq!(record.with_target(|header| header.try_upgrade(OTHER)), Some(true));
    }
    object.drop_ref(OWNER);
    object.drop_ref(OTHER);
    object.merge_queue();
    assert_eq!(object.with(Header::count), None);
}

/// The local half overflows while a stranger drops what the owner counted, below zero.
#[test]
fn loom_the_local_half_saturates() {
    let owner = |object: &Object| {
        object.clone_ref(OWNER);
        // At once: what is merged later saturates by itself.
        assert_eq!(object.with(Header::count), None);
        object.merge_queue();
        object.drop_ref(OWNER);
    };
    // In the end the shared half says 0, in the queue.
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        object.clone_ref(OTHER);
    };
    race(|| preset(LOCAL_PINNED - 1, 0).with_record(), [owner, stranger], assert_immortal);
}

/// The shared half reaches its limit by two strangers at once: one clones, the other upgrades.
#[test]
fn loom_the_shared_half_saturates() {
    let make = || preset(1, SHARED_LIMIT).with_record();
    let cloner = |object: &Object| {
        object.clone_ref(STRANGER);
        object.drop_ref(STRANGER);
    };
    race(make, [cloner, |object| object.upgrade(OTHER)], assert_immortal);
    race(make, [|object| object.drop_ref(OWNER), |object| object.upgrade(OTHER)], assert_immortal);
    race(make, [|object| object.drop_ref(OWNER), cloner], assert_immortal);
}

/// The shared half reaches its limit below zero, by drops of what the owner counted.
#[test]
fn loom_the_shared_half_saturates_below_zero() {
    let make = || preset(LOCAL_PINNED - 2, -SHARED_LIMIT);
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        assert_eq!(object.with(Header::count), None);
    };
    race(make, [|object| object.drop_ref(OWNER), stranger], assert_immortal);
}

/// A merge finds more references than the shared half can count.
#[test]
fn loom_a_merge_saturates() {
    let make = || preset(SHARED_LIMIT as u32 + 8, 0);
    race(make, [Object::merge_queue, |object| object.drop_ref(STRANGER)], assert_immortal);
}

/// A stranger upgrades a weak reference while the owner drops the last strong one.
///
/// Mutations: `try_upgrade` does not look for merged and 0; the record is made without the `WEAK` flag; in
/// `src/object/weak.rs`: `with_target` lets go of the lock before it looks, `died` does not empty the record.
#[test]
fn loom_upgrade_meets_the_last_drop() {
    let make = || Object::new().with_record();
    race(
        make,
        [|object| object.drop_ref(OWNER), |object| object.upgrade(STRANGER)],
        Object::assert_destroyed,
    );
}

/// A stranger upgrades while another drops the last strong reference of an object that its owner has left.
///
/// Mutation: `try_upgrade` adds first and looks afterwards.
#[test]
fn loom_upgrade_meets_the_last_drop_of_a_stranger() {
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(STRANGER);
        object.drop_ref(OWNER);
        object
    };
    race(
        make,
        [|object| object.drop_ref(STRANGER), |object| object.upgrade(OTHER)],
        Object::assert_destroyed,
    );
}

/// The last drop runs a finalizer, which takes the object back and gives a reference away, while a stranger
/// upgrades a weak one. Both drop; the later one goes below zero, and must know the owner by then.
///
/// Mutations: `revive` clears `MERGED` with `Relaxed`, or before it names the owner; the upgrade's exchange
/// is `Relaxed`.
#[test]
fn loom_revival_meets_an_upgrade() {
    let owner = |object: &Object| match object.with(Header::drop_local) {
        Dropped::Dead => {
            object.with(|header| header.revive(OWNER));
            object.clone_ref(OWNER);
            *object.given.lock() = true;
            object.drop_ref(OWNER);
        }
        // The stranger has upgraded, and is the last.
        dropped => assert_eq!(dropped, Dropped::Alive),
    };
    let take = |object: &Object| {
        if std::mem::take(&mut *object.given.lock()) {
            object.drop_ref(OTHER);
        }
    };
    let end = |object: &Object| {
        if std::mem::take(&mut *object.given.lock()) {
            object.drop_ref(OTHER);
        }
        object.assert_destroyed();
    };
    race(|| Object::new().with_record(), [owner, take, |object| object.upgrade(STRANGER)], end);
    // Without a weak reference it was never merged.
    race(Object::new, [owner, take], end);
}

/// A finalizer drops what a stranger, who has upgraded a weak reference meanwhile, has counted: the reference with which the
/// object was taken back then is the shared half's. Nobody is left, and nothing.
///
/// Mutation: the finalizer's own reference is dropped as a local one, whoever owns the object by then.
#[test]
fn loom_a_finalizer_drops_what_a_stranger_counted() {
    let owner = |object: &Object| match object.with(Header::drop_local) {
        Dropped::Dead => {
            object.with(|header| header.revive(OWNER));
            if std::mem::take(&mut *object.given.lock()) {
                object.drop_ref(OWNER);
            }
            let dropped = object.with(|header| header.drop_ref(OWNER));
            object.settle(dropped);
        }
        dropped => assert_eq!(dropped, Dropped::Alive),
    };
    let stranger = |object: &Object| {
        if object.upgraded(STRANGER) {
            *object.given.lock() = true;
        }
    };
    let end = |object: &Object| {
        if std::mem::take(&mut *object.given.lock()) {
            object.drop_ref(OTHER);
        }
        object.assert_destroyed();
    };
    race(|| Object::new().with_record(), [owner, stranger], end);
}

/// A collector has claimed an object that its owner had left, and counts on it while a stranger drops what was
/// shared, and what the collector counted.
///
/// Mutations: `claim` leaves `MERGED` set; it does not name the new owner.
#[test]
fn loom_claimed_object_is_counted_on() {
    let make = || {
        let object = Object::owned_by(OTHER);
        object.clone_ref(STRANGER);
        object.drop_ref(OTHER);
        // Nobody else runs: the stop.
        object.with(|header| header.claim(OWNER));
        object.clone_ref(OWNER);
        object
    };
    let collector = |object: &Object| {
        object.drop_ref(OWNER);
        object.merge_queue();
    };
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        object.drop_ref(STRANGER);
    };
    race(make, [collector, stranger], Object::assert_destroyed);
}

/// A mutator of the model below: its queue is the part that other threads see.
fn mutator(coordinator: &Arc<Coordinator<MergeQueue>>) -> Participant<MergeQueue> {
    coordinator.register(MergeQueue::new())
}

/// A stranger drops below zero while the owner is detached, or about to attach and count again: it suspends
/// the owner and merges for it, or leaves it to the owner.
///
/// Mutations: the stranger merges without suspending; `Coordinator::suspend` leaves the owner's state alone.
#[test]
fn loom_stranger_merges_for_a_detached_owner() {
    model(|| {
        let coordinator = Coordinator::new();
        let owner = mutator(&coordinator);
        let id = owner.id();
        let object = Object::owned_by(id.get());
        object.clone_ref(id.get());
        let stranger = {
            let (coordinator, object) = (Arc::clone(&coordinator), Arc::clone(&object));
            thread::spawn(move || drop_and_merge(&object, &coordinator, id))
        };
        owner.attach().unwrap();
        object.clone_ref(id.get());
        object.drop_ref(id.get());
        if owner.take_requests(MERGE_REQUEST) != 0 {
            object.merge_queued(owner.data());
        }
        object.drop_ref(id.get());
        // A request that comes now is answered at the end.
        stranger.join().unwrap();
        object.merge_queued(owner.data());
        object.assert_destroyed();
    });
}

/// A foreign drop, and the library's `enqueue`.
fn drop_and_merge(object: &Object, coordinator: &Coordinator<MergeQueue>, owner: ThreadId) {
    fn queue(data: &MergeQueue) -> &MergeQueue {
        data
    }
    let merge = |_| object.with(Header::merge);
    match object.with(Header::drop_shared) {
        Dropped::Enqueue(named) => {
            assert_eq!(named, owner.get());
            match enqueue(coordinator, &None, named, object.target(), queue, merge) {
                Ok(dead) => dead.iter().for_each(|_| object.destroy()),
                Err(OwnerEnded) => object.merge_ended(),
            }
        }
        dropped => object.settle(dropped),
    }
}
