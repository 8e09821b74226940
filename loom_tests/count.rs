//! The biased count: the owner, other threads and a collector change the count of one object.
//! Exactly one of them destroys it, after the last use by any thread.
//!
//! In these models a *stranger* is an attached thread that does not own the object.
//!
//! [`Object`] does the work of `managed` around a [`Header`]. The owner's queue is the library's
//! [`MergeQueue`]. The memory of the object is a loom `UnsafeCell`. Every operation on the header
//! reads it, and the destruction writes it. So loom fails a model in which the header is used after
//! the destruction, or in which a use is not ordered before the destruction. `destroyed` fails a
//! model that destroys the object twice. The end of each model fails if the object was not
//! destroyed.
//!
//! # Transitions
//!
//! The page of `header` describes the states.
//!
//! * clone and drop by the owner, in `local`: `owner_and_stranger_count`
//! * a change of the value by the only reference: `a_value_that_nobody_shares_changes`
//! * clone by a stranger or an unattached thread, in `shared`: `owner_and_stranger_count`,
//!   `a_queued_object_waits_for_its_queue`
//! * last local drop, nothing shared: dead: `owners_last_drop_meets_a_stranger`,
//!   `owner_takes_the_last`, `owner_releases_garbage_that_had_a_weak_reference`
//! * last local drop, something shared: biased to merged: `owners_last_drop_meets_a_stranger`,
//!   `a_former_owner_comes_back`, `the_owner_and_two_other_threads_drop_the_last_references`
//! * foreign drop, above zero: `owners_last_drop_meets_a_stranger`
//! * foreign drop, below zero: biased to queued: `queue_of_two_strangers`,
//!   `owner_and_stranger_count`
//! * foreign drop that met another: biased to queued:
//!   `the_owner_and_two_other_threads_drop_the_last_references`
//! * last drop of a merged object: dead: `the_owner_and_two_other_threads_drop_the_last_references`
//! * drop of a merged, queued object: the queue decides: `a_queued_object_waits_for_its_queue`
//! * merge by the owner: queued to merged: `queue_of_two_strangers`
//! * merge by a thread that has suspended the owner: `stranger_merges_for_a_detached_owner`
//! * merge for an owner that has ended: `strangers_merge_for_an_owner_that_ends`
//! * merge in a stop: `managed::a_collection_merges_the_queues`
//! * claim in a stop: merged or biased to biased: `claimed_object_is_counted_on`,
//!   `managed::weak_handle_meets_a_collection`
//! * claim in a stop for any thread: biased to merged: `a_merged_claim_is_counted_by_all`
//! * inheritance of a biased or queued object whose owner has ended:
//!   `an_heir_meets_a_foreign_drop`,
//!   `two_mutators_inherit`, `an_heir_leaves_again`, `an_heir_ends`,
//!   `an_heir_meets_an_upgrade`, `an_inherited_object_is_claimed`, `an_heir_has_no_room`
//! * revival for a finalizer: merged or dead to biased: `revival_meets_an_upgrade`,
//!   `a_finalizer_drops_a_reference_that_another_thread_counted`
//! * an object becomes shared for life, by its owner, or merged: `an_owner_shares_its_object`,
//!   `a_queued_object_is_not_shared`, `a_merged_object_is_shared_for_life`
//! * clone, drop and upgrade of an object that is shared for life:
//!   `shared_handles_meet_an_upgrade`
//! * claim and revival of an object that is shared for life: no owner:
//!   `shared_handles_meet_a_claim`, `shared_handles_meet_a_revival`
//! * upgrade of a biased, merged, dead, immortal object: `upgrade_meets_the_last_drop`,
//!   `upgrade_meets_the_last_drop_of_a_stranger`, `revival_meets_an_upgrade`,
//!   `an_immortal_leaves_its_queue`
//! * `WEAK` set, before and after the object is shared: `upgrade_meets_the_last_drop`,
//!   `weak_flag_beside_counts`, `two_threads_make_one_record`
//! * a full local half moves to the shared half: `a_full_local_half_moves`
//! * any state to immortal, by a call: `an_immortal_stays`, `an_immortal_leaves_its_queue`
//! * any state to immortal, by overflow of the local half, of the shared half, below zero, in a
//!   merge: `the_local_half_saturates`, `the_shared_half_saturates`,
//!   `the_shared_half_saturates_below_zero`, `a_merge_saturates`

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use loom::thread;

use super::model;
use crate::base::shared::Shared;
use crate::base::sync::{Mutex, UnsafeCell};
use crate::managed::merge_queue::{MERGE_REQUEST, MergeQueue, OwnerEnded, enqueue};
use crate::object::header::{Dropped, Header};
use crate::object::weak::{HeaderPtr, WeakRecord, WeakTable};
use crate::safepoint::{Coordinator, Participant, ThreadId};

/// The `current` word of a thread that is not attached.
const UNATTACHED: u64 = 0;
const OWNER: u64 = 1;
const STRANGER: u64 = 2;
const OTHER: u64 = 3;

/// The distance from zero at which the shared half saturates. See `header`.
const SHARED_LIMIT: i32 = 1 << 26;
/// The local half counts fewer references than this. See `header`.
const LOCAL_LIMIT: u32 = 1 << 25;

struct Object {
    header: Header,
    /// The object's memory: whether it was destroyed.
    memory: UnsafeCell<bool>,
    queue: MergeQueue,
    /// The queues of `STRANGER` and `OTHER`, which may inherit the object.
    queues: [MergeQueue; 2],
    weak: WeakTable,
    record: OnceLock<Shared<WeakRecord>>,
    /// Whether the finalizer has stored a reference here.
    given: Mutex<bool>,
}

// SAFETY: this is the claim under test: threads with a reference read the memory, and the thread
// that gets `Dead` writes it. loom checks each access.
unsafe impl Sync for Object {}
// SAFETY: it belongs to no thread.
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
            queues: [MergeQueue::new(), MergeQueue::new()],
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

    /// Uses the header while the memory must exist.
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
            self.destroy_if_dead(dropped);
        }
    }

    /// `release::drop_slowly_to`, on a thread that is attached as `me`. It checks the most common
    /// case first: the last reference.
    fn drop_last(&self, me: u64) {
        if !self.with(|header| header.try_drop_local(me)) {
            if self.with(|header| header.take_last(me)) {
                self.destroy();
            } else {
                self.drop_ref(me);
            }
        }
    }

    /// `Gc::get_mut`, on a thread that is attached as `me`: a write that no use may overlap.
    fn change_if_unique(&self, me: u64) {
        if self.with(|header| header.is_unique(me)) {
            // SAFETY: see `Sync`.
            self.memory.with_mut(|memory| assert!(!unsafe { *memory }, "changed after its end"));
        }
    }

    /// The same, and then the drop of the reference.
    fn change_and_drop(&self, me: u64) {
        self.change_if_unique(me);
        self.drop_last(me);
    }

    /// `release::drop_attached`, by the owner `me`.
    fn drop_attached(&self, me: u64) {
        let taken = self.with(|header| header.take_last(me)) || self.take_last_of_weak(me);
        if taken {
            self.destroy();
        } else {
            self.drop_ref(me);
        }
    }

    /// `release::take_last_of_weak`.
    fn take_last_of_weak(&self, me: u64) -> bool {
        if !self.with(|header| header.is_last_but_weak(me))
            || self.weak.get(self.target().0).is_some()
        {
            return false;
        }
        self.with(Header::unset_weak);
        self.with(|header| header.take_last(me))
    }

    /// Makes the object shared for life.
    fn share(&self, me: u64) -> bool {
        self.with(|header| header.share_for_life(me))
    }

    /// The clone of a `SharedGc`.
    fn clone_shared(&self) {
        self.with(Header::clone_shared);
    }

    /// `managed::drop_shared_for_life`, on an attached thread.
    fn drop_shared(&self) {
        let dropped = self.with(Header::drop_merged);
        self.destroy_if_dead(dropped);
    }

    /// The drop of the last handle runs a finalizer, once, which gives a reference away.
    fn drop_and_revive(&self, me: u64) {
        if self.with(Header::drop_merged) == Dropped::Dead {
            self.with(|header| header.revive(me));
            self.clone_shared();
            *self.given.lock() = true;
            let dropped = self.with(|header| header.drop_ref(me));
            self.destroy_if_dead(dropped);
        }
    }

    /// Drops the reference that the finalizer has given away.
    fn take_given(&self) {
        if std::mem::take(&mut *self.given.lock()) {
            self.drop_shared();
        }
    }

    fn destroy_if_dead(&self, dropped: Dropped) {
        match dropped {
            Dropped::Alive => {}
            Dropped::Dead => self.destroy(),
            Dropped::Enqueue(owner) => self.enqueue(owner),
        }
    }

    /// The object as it stands in lists of the library.
    fn target(&self) -> HeaderPtr {
        HeaderPtr(NonNull::from(&self.header))
    }

    /// The queue of a mutator.
    fn queue_of(&self, id: u64) -> &MergeQueue {
        match id {
            OWNER => &self.queue,
            STRANGER => &self.queues[0],
            OTHER => &self.queues[1],
            _ => panic!("queued for no owner: {id}"),
        }
    }

    /// `foreign::enqueue`, without the request to the owner.
    fn enqueue(&self, owner: u64) {
        if !self.queue_of(owner).enqueue(self.target()) {
            self.merge_ended(owner);
        }
    }

    /// Merges the object after its owner has ended, or queues it for the next owner.
    fn merge_ended(&self, owner: u64) {
        let merged = self.with(|header| header.merge_ended(owner));
        self.destroy_if_dead(merged);
    }

    /// `foreign::inherit`, without the hint. A closed queue tells of the owner's end.
    fn inherit(&self, me: u64) -> bool {
        let owner = self.with(Header::owner);
        owner <= OTHER
            && owner != me
            && self.queue_of(owner).len().is_none()
            && self.with(|header| header.inherit(owner, me))
    }

    /// `foreign::drop_shared`, on a thread that may inherit the object.
    fn drop_inheriting(&self, me: u64) {
        if self.with(|header| header.is_owned_by(me)) || !self.inherit(me) {
            return self.drop_ref(me);
        }
        let dropped = self.with(Header::drop_local);
        self.destroy_if_dead(dropped);
    }

    /// `foreign::merge_queue`, of any queue with this object.
    fn merge_queued(&self, queue: &MergeQueue) {
        for _ in queue.merge(|_| self.with(Header::merge)) {
            self.destroy();
        }
    }

    /// `foreign::merge_own_queue`.
    fn merge_queue(&self) {
        self.merge_queued(&self.queue);
    }

    /// The model's `ending`, of the owner.
    fn end(&self) {
        self.end_of(OWNER);
    }

    fn end_of(&self, id: u64) {
        loop {
            self.merge_queued(self.queue_of(id));
            if self.queue_of(id).close_if_empty() {
                return;
            }
        }
    }

    fn destroy(&self) {
        if self.with(Header::has_weak) {
            let last = self.weak.remove(NonNull::from(&self.header));
            assert!(last.is_none_or(|(_, last)| last.watchers.is_empty()));
        }
        self.memory.with_mut(|memory| {
            // SAFETY: see `Sync`.
            let was = std::mem::replace(unsafe { &mut *memory }, true);
            assert!(!was, "destroyed twice");
        });
    }

    /// All threads are done. Each reaches one more safepoint, and then the object must be
    /// destroyed.
    fn assert_destroyed(&self) {
        for queue in [&self.queue, &self.queues[0], &self.queues[1]] {
            self.merge_queued(queue);
        }
        // SAFETY: see `Sync`.
        assert!(self.memory.with(|memory| unsafe { *memory }), "never destroyed");
    }

    /// `WeakRecord::upgrade`, with a check of the memory. `true`: the caller has a reference.
    fn upgraded(&self, me: u64) -> bool {
        let record = self.record.get().unwrap();
        record.with_target(|_| self.with(|header| header.try_upgrade(me))) == Some(true)
    }

    /// The same, followed by a drop.
    fn upgrade(&self, me: u64) {
        if self.upgraded(me) {
            self.drop_ref(me);
        }
    }
}

/// Runs several threads on an object, and calls `end` afterwards.
///
/// It explores the threads once with each role first. loom compares an exchange only with the
/// *last* access to its atomic. So a load before the exchange, by the same thread, hides the access
/// of another thread, and loom does not try the other order of the two. The role on the first
/// thread begins.
fn race<const N: usize>(make: fn() -> Arc<Object>, roles: [fn(&Object); N], end: fn(&Object)) {
    for first in 0..N {
        model(move || {
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

/// The owner counts, while a stranger with a reference that the owner counted clones and drops. At
/// the end the shared half is below zero.
///
/// Mutations: a stranger counts in `local`; `merge` ignores `local`, or leaves `QUEUED` set.
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
/// Mutations: the owner's load of `shared` before `Dead` is `Relaxed`; so is the foreign drop;
/// `merge_last` stores instead of exchanging, or exchanges with `Release` or `Acquire` alone;
/// `drop_merged` is `Release` alone; `merge_last` gives up the ownership only after the exchange,
/// or always returns `Dead`.
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

/// The same, but the owner first checks whether it has the only reference.
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
    // The stranger drops a reference that the owner counted, and must not take the object for its
    // own.
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

/// Each thread changes the value if it knows that nobody else refers to it, and drops its
/// reference: the owner beside a stranger that has counted its own, or got one that the owner
/// counted; two strangers; the owner beside an upgrade.
///
/// Mutations: `is_unique` loads relaxed, or ignores the owner, a half of the count, or a flag.
#[test]
fn loom_a_value_that_nobody_shares_changes() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object
    };
    race(
        make,
        [|it| it.change_and_drop(OWNER), |it| it.change_and_drop(STRANGER)],
        Object::assert_destroyed,
    );
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    race(
        make,
        [|it| it.change_and_drop(OWNER), |it| it.change_and_drop(STRANGER)],
        Object::assert_destroyed,
    );
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object.clone_ref(OTHER);
        object.drop_last(OWNER);
        object
    };
    race(
        make,
        [|it| it.change_and_drop(OTHER), |it| it.change_and_drop(STRANGER)],
        Object::assert_destroyed,
    );
    let make = || Object::new().with_record();
    race(
        make,
        [|it| it.change_and_drop(OWNER), |it| it.upgrade(STRANGER)],
        Object::assert_destroyed,
    );
}

/// Garbage that had a weak reference: a collection has removed its record, and the flag is left. A
/// stranger is the destructor of another member of the garbage. It uses the object and drops the
/// reference that it had, while the owner releases the object.
///
/// Mutation: `is_last_but_weak` loads relaxed.
#[test]
fn loom_owner_releases_garbage_that_had_a_weak_reference() {
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(STRANGER);
        // The collection, in a stop.
        object.weak.clear(object.target().0);
        object
    };
    race(
        make,
        [|object| object.drop_attached(OWNER), |object| object.drop_ref(STRANGER)],
        Object::assert_destroyed,
    );
}

/// The owner drops its last local reference, and upgrades a weak one: it is not the owner any more.
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

/// A thread makes a weak reference while others drop the object.
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

/// Two threads make the first weak reference to the object, and drop their references. They get the
/// same record, and it is empty after the object's death.
///
/// Mutations: in `src/base/shared.rs`, a record is put into its place, and in
/// `src/base/shared.rs` a node into the tree, by a store; `take` leaves the record in its place.
#[test]
fn loom_two_threads_make_one_record() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object
    };
    fn downgrade(object: &Object, me: u64) {
        let Ok(record) = object.with(|header| object.weak.record(header)) else {
            panic!("no memory")
        };
        let first = object.record.get_or_init(|| record.clone());
        assert!(std::ptr::eq(&raw const **first, &raw const *record), "two records");
        object.drop_ref(me);
    }
    let end = |object: &Object| {
        object.assert_destroyed();
        assert!(object.record.get().unwrap().with_target(|_| ()).is_none());
        assert!(object.weak.get(object.target().0).is_none());
    };
    race(make, [|object| downgrade(object, OWNER), |object| downgrade(object, STRANGER)], end);
}

/// Two strangers drop the last references while the owner drops its own.
///
/// Mutations: `drop_merged` is `Acquire` alone, or returns `Dead` one reference early; a contended
/// drop queues an object that its owner is merging (without `owner != NO_OWNER`).
#[test]
fn loom_the_owner_and_two_other_threads_drop_the_last_references() {
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

/// Two strangers drop references that the owner counted, while the owner merges its queue.
///
/// Mutations: a foreign drop decrements first and sets `QUEUED` afterwards; `merge` ignores
/// `local`, or leaves `QUEUED` set; its exchange is `Release` or `Acquire` alone, or a store.
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

/// The object is queued, then its owner drops it, and it dies in the queue. It does not die with
/// the owner, which has cloned while detached, nor with the stranger, which upgrades a weak
/// reference.
///
/// Mutations: `merge_last` or `drop_merged` ignores `QUEUED`: then the queue holds a dead object;
/// the merge of a queued, merged object never returns `Dead`.
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
    race(make, [owner, stranger], Object::assert_destroyed);
}

/// The owner ends while two strangers drop references that it counted. A thread that finds the
/// queue closed merges.
///
/// Mutations: `merge_ended` ignores `local`; the queue is closed without a check for late entries
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

/// One thread makes the object immortal while others drop it: it is not destroyed.
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

/// A thread makes the object immortal while it lies in its owner's queue, and while a stranger,
/// which has upgraded a weak reference, drops it. The object leaves the queue and is not destroyed.
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
        // Thus the object may be queued while a thread still refers to it.
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

    // The owner counted both references. The merge finds a sum of 0 if the stranger was first.
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(OWNER);
        object
    };
    let owner = |object: &Object| {
        object.with(Header::make_immortal);
        object.drop_ref(OWNER);
        object.merge_queue();
    };
    race(make, [owner, |object| object.drop_ref(STRANGER)], assert_immortal);
}

/// An object with halves near their limits.
fn preset(local: u32, shared: i32) -> Arc<Object> {
    let object = Object::new();
    object.header.preset(local, shared);
    object
}

/// Checks that the object is immortal, and that drops do not free it.
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

/// The owner clones with a full local half, while a stranger drops references that the owner
/// counted, below zero. Both drop all references.
///
/// Mutations: the owner's references stay; they move, and stay too; the move loads and stores.
#[test]
fn loom_a_full_local_half_moves() {
    // Three references: the owner has one, and the stranger has two.
    let make = || preset(LOCAL_LIMIT - 1, 4 - LOCAL_LIMIT as i32);
    let owner = |object: &Object| {
        object.clone_ref(OWNER);
        // At once, the sum is in range: a later merge cannot wrap.
        assert!(object.with(|header| header.check(|_| true)).is_ok());
        object.drop_ref(OWNER);
        object.merge_queue();
        object.drop_ref(OWNER);
    };
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        object.drop_ref(STRANGER);
    };
    race(make, [owner, stranger], Object::assert_destroyed);
}

/// The owner clones with a full local half, and the shared half cannot take it. A stranger drops
/// and clones.
#[test]
fn loom_the_local_half_saturates() {
    let owner = |object: &Object| {
        object.clone_ref(OWNER);
        // Immediately: a later merge saturates without this.
        assert_eq!(object.with(Header::count), None);
        object.merge_queue();
        object.drop_ref(OWNER);
    };
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        object.clone_ref(OTHER);
    };
    const SHARED: i32 = SHARED_LIMIT - LOCAL_LIMIT as i32 + 2;
    let make = || preset(LOCAL_LIMIT - 1, SHARED).with_record();
    race(make, [owner, stranger], assert_immortal);
}

/// Two strangers bring the shared half to its limit at once: one clones, the other upgrades.
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

/// The shared half reaches its limit below zero, by drops of references that the owner counted.
#[test]
fn loom_the_shared_half_saturates_below_zero() {
    let make = || preset(LOCAL_LIMIT - 1, -SHARED_LIMIT);
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        assert_eq!(object.with(Header::count), None);
    };
    race(make, [|object| object.drop_ref(OWNER), stranger], assert_immortal);
}

/// A merge finds more references than the shared half can count.
#[test]
fn loom_a_merge_saturates() {
    let make = || preset(8, SHARED_LIMIT);
    let owner = |object: &Object| assert_eq!(object.with(Header::merge), Dropped::Alive);
    race(make, [owner, |object| object.drop_ref(STRANGER)], assert_immortal);
}

/// A stranger upgrades a weak reference while the owner drops the last strong one.
///
/// Mutations: `try_upgrade` does not check for merged and 0; the record is made without the `WEAK`
/// flag; in `src/object/weak.rs`: `with_target` unlocks before its check, `died` does not empty the
/// record.
#[test]
fn loom_upgrade_meets_the_last_drop() {
    let make = || Object::new().with_record();
    race(
        make,
        [|object| object.drop_ref(OWNER), |object| object.upgrade(STRANGER)],
        Object::assert_destroyed,
    );
}

/// A stranger upgrades while another stranger drops the last strong reference of an object that its
/// owner has left.
///
/// Mutation: `try_upgrade` adds first and checks afterwards.
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

/// The last drop runs a finalizer, which revives the object and gives a reference away, while a
/// stranger upgrades a weak reference. Both drop. The later drop goes below zero, and must know the
/// owner by then.
///
/// Mutations: `revive` clears `MERGED` with `Relaxed`, or before it sets the owner; the upgrade's
/// exchange is `Relaxed`.
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

/// A finalizer drops a reference that a stranger, which has upgraded a weak reference, has counted.
/// Then the shared half counts the reference with which the object was revived. At the end no
/// reference and no object is left.
///
/// Mutation: the finalizer's own reference is dropped as a local one, for any owner of the object.
#[test]
fn loom_a_finalizer_drops_a_reference_that_another_thread_counted() {
    let owner = |object: &Object| match object.with(Header::drop_local) {
        Dropped::Dead => {
            object.with(|header| header.revive(OWNER));
            if std::mem::take(&mut *object.given.lock()) {
                object.drop_ref(OWNER);
            }
            let dropped = object.with(|header| header.drop_ref(OWNER));
            object.destroy_if_dead(dropped);
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

/// A collector has claimed an object that its owner had left. It counts the object, while a
/// stranger drops shared references and references that the collector counted.
///
/// Mutations: `claim` leaves `MERGED` set; it does not set the new owner.
#[test]
fn loom_claimed_object_is_counted_on() {
    let make = || {
        let object = Object::owned_by(OTHER);
        object.clone_ref(STRANGER);
        object.drop_ref(OTHER);
        // No other thread runs: this is the stop.
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

/// A collector has claimed an object for any thread, which its owner and a stranger then count at
/// once.
///
/// Mutations: `claim_merged` does not merge; it keeps the owner; it takes no reference.
#[test]
fn loom_a_merged_claim_is_counted_by_all() {
    let make = || {
        let object = Object::owned_by(OWNER);
        object.clone_ref(STRANGER);
        object.with(Header::claim_merged);
        object
    };
    let owner = |object: &Object| {
        object.drop_ref(OWNER);
        object.drop_ref(OWNER);
    };
    let stranger = |object: &Object| object.drop_ref(STRANGER);
    // Neither thread merges a queue.
    race(make, [owner, stranger], Object::assert_destroyed);
}

/// An object with some references, all counted by its owner, which has ended.
fn left_with(references: usize) -> Arc<Object> {
    let object = Object::new();
    (1..references).for_each(|_| object.clone_ref(OWNER));
    object.end();
    object
}

/// A mutator inherits an object whose owner has ended, clones and drops. Another thread drops a
/// reference that the ended owner counted. It may have read the owner's id before the inheritance,
/// and then find the shared half as it was.
///
/// Mutations: `inherit` or `merge_ended` replaces the owner's id without a check; `merge_ended`
/// leaves the id, or merges after another mutator has inherited; `inherit` moves the shared half by
/// a store, and leaves it, or forgets it.
#[test]
fn loom_an_heir_meets_a_foreign_drop() {
    let heir = |object: &Object| {
        object.clone_ref(STRANGER);
        object.drop_inheriting(STRANGER);
        object.clone_ref(STRANGER);
        object.drop_inheriting(STRANGER);
        object.drop_inheriting(STRANGER);
    };
    race(|| left_with(2), [heir, |object| object.drop_ref(OTHER)], Object::assert_destroyed);
    let clones = |object: &Object| {
        object.clone_ref(OTHER);
        object.drop_ref(OTHER);
        object.drop_ref(OTHER);
    };
    race(|| left_with(2), [heir, clones], Object::assert_destroyed);
}

/// Two mutators inherit an object whose owner has ended. One of them becomes the owner.
///
/// Mutations: `inherit` replaces the owner's id without a check, or names no owner.
#[test]
fn loom_two_mutators_inherit() {
    fn inherits(object: &Object, me: u64) {
        object.clone_ref(me);
        object.drop_inheriting(me);
        object.drop_inheriting(me);
    }
    let roles: [fn(&Object); 2] =
        [|object| inherits(object, STRANGER), |object| inherits(object, OTHER)];
    race(|| left_with(2), roles, Object::assert_destroyed);
    // A third one, while the owner ends.
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    race(
        make,
        [
            |object| object.end(),
            |object| object.drop_inheriting(STRANGER),
            |object| object.drop_inheriting(OTHER),
        ],
        Object::assert_destroyed,
    );
}

/// A mutator inherits an object and drops all its references, so the object is merged. Another
/// thread has read the id of the ended owner before, and queues the object for it.
///
/// Mutations: `merge_ended` adds a local half that is void; it takes an object for dead that is not
/// merged yet.
#[test]
fn loom_an_heir_leaves_again() {
    let heir = |object: &Object| {
        object.clone_ref(STRANGER);
        object.clone_ref(STRANGER);
        object.drop_inheriting(STRANGER);
        object.drop_inheriting(STRANGER);
        object.drop_inheriting(STRANGER);
    };
    let other = |object: &Object| object.drop_ref(OTHER);
    race(|| left_with(2), [heir, other], Object::assert_destroyed);
}

/// A mutator inherits an object and ends, with a reference left. Another thread drops that
/// reference, and one that the first owner counted.
///
/// Mutation: `merge_ended` names the first owner again.
#[test]
fn loom_an_heir_ends() {
    let heir = |object: &Object| {
        object.drop_inheriting(STRANGER);
        object.end_of(STRANGER);
    };
    let other = |object: &Object| {
        object.drop_ref(OTHER);
        object.drop_ref(OTHER);
    };
    race(|| left_with(3), [heir, other], Object::assert_destroyed);
    let inherits = |object: &Object| {
        object.drop_inheriting(OTHER);
        object.drop_inheriting(OTHER);
    };
    race(|| left_with(3), [heir, inherits], Object::assert_destroyed);
}

/// A mutator inherits an object and drops the last reference, while another thread upgrades a weak
/// reference.
///
/// Mutation: `inherit` moves the shared half by a store.
#[test]
fn loom_an_heir_meets_an_upgrade() {
    let make = || {
        let object = Object::new().with_record();
        object.end();
        object
    };
    let heir = |object: &Object| {
        object.clone_ref(STRANGER);
        object.drop_inheriting(STRANGER);
        object.drop_inheriting(STRANGER);
    };
    race(make, [heir, |object| object.upgrade(OTHER)], Object::assert_destroyed);
    let upgrade = |object: &Object| {
        if object.upgraded(OTHER) {
            object.drop_inheriting(OTHER);
        }
    };
    race(make, [heir, upgrade], Object::assert_destroyed);
}

/// A collector claims an object that a mutator has inherited, or one whose owner ends before it
/// releases the object, so that a mutator inherits the object afterwards.
///
/// Mutation: `claim` does not set the new owner.
#[test]
fn loom_an_inherited_object_is_claimed() {
    let make = || {
        let object = left_with(2);
        object.drop_inheriting(STRANGER);
        // No other thread runs: this is the stop.
        object.with(|header| header.claim(OTHER));
        object
    };
    let former = |object: &Object| {
        object.clone_ref(STRANGER);
        object.drop_inheriting(STRANGER);
        object.drop_inheriting(STRANGER);
    };
    race(make, [former, |object| object.drop_attached(OTHER)], Object::assert_destroyed);
    let make = || {
        let object = Object::owned_by(OTHER);
        object.with(|header| header.claim(OWNER));
        object.end();
        object
    };
    let heir = |object: &Object| object.drop_inheriting(STRANGER);
    race(make, [heir, |object| object.drop_ref(OTHER)], Object::assert_destroyed);
}

/// A mutator inherits an object with so many references that the local half cannot take them all.
/// An unattached thread clones.
///
/// Mutation: `inherit` moves them all the same.
#[test]
fn loom_an_heir_has_no_room() {
    let make = || {
        let object = preset(LOCAL_LIMIT - 2, 2);
        object.end();
        object
    };
    let heir = |object: &Object| {
        assert!(object.inherit(STRANGER));
        assert!(object.with(|header| header.check(|_| true)).is_ok());
        object.clone_ref(STRANGER);
    };
    let end = |object: &Object| {
        let count = i64::from(LOCAL_LIMIT) + 2;
        assert_eq!(object.with(Header::count), Some(count));
        assert!(object.with(|header| header.check(|_| true)).is_ok());
    };
    race(make, [heir, |object| object.clone_ref(UNATTACHED)], end);
}

/// An object that is shared for life, with one reference.
fn shared_for_life() -> Arc<Object> {
    let object = Object::new();
    assert!(object.share(OWNER));
    object
}

/// Two threads clone and drop an object that is shared for life, one of them by a `Gc`. A third
/// thread upgrades a weak reference.
///
/// Mutations: `share_for_life` does not set `MERGED`; `drop_merged` is `Acquire` or `Release`
/// alone.
#[test]
fn loom_shared_handles_meet_an_upgrade() {
    let make = || {
        let object = shared_for_life().with_record();
        object.clone_shared();
        object
    };
    let by_shared = |object: &Object| {
        object.clone_shared();
        object.drop_shared();
        object.drop_shared();
    };
    // The thread that owned the object.
    let by_gc = |object: &Object| {
        object.clone_ref(OWNER);
        object.drop_ref(OWNER);
        object.drop_last(OWNER);
    };
    race(make, [by_shared, by_gc], Object::assert_destroyed);
    let upgrade = |object: &Object| object.upgrade(STRANGER);
    let drop = |object: &Object| object.drop_shared();
    race(make, [drop, drop, upgrade], Object::assert_destroyed);
}

/// The last drop of an object that is shared for life runs a finalizer, which gives a reference
/// away. Other threads drop and upgrade meanwhile.
///
/// Mutation: `revive` makes the object biased.
#[test]
fn loom_shared_handles_meet_a_revival() {
    let make = || {
        let object = shared_for_life().with_record();
        object.clone_shared();
        object
    };
    let reviver = |object: &Object| object.drop_and_revive(OWNER);
    let other = |object: &Object| {
        object.take_given();
        object.drop_and_revive(STRANGER);
    };
    // Two threads may revive it in turn: each time the count was 0.
    let end = |object: &Object| {
        object.take_given();
        object.assert_destroyed();
    };
    race(make, [reviver, other], end);
    let make = || shared_for_life().with_record();
    let upgrade = |object: &Object| object.upgrade(STRANGER);
    let take = |object: &Object| object.take_given();
    race(make, [reviver, take, upgrade], end);
}

/// A collector has claimed an object that is shared for life, and whose former owner has ended. No
/// mutator inherits it. The collector releases the object while other threads drop their handles.
///
/// Mutations: `claim` makes the object biased; `share_for_life` leaves the owner's id.
#[test]
fn loom_shared_handles_meet_a_claim() {
    let make = || {
        let object = shared_for_life();
        object.clone_shared();
        // No other thread runs: this is the stop.
        object.with(|header| header.claim(OWNER));
        assert!(!object.with(|header| header.inherit(OWNER, STRANGER)));
        assert!(!object.with(|header| header.is_owned_by(OWNER)));
        assert_eq!(object.with(Header::count), Some(3));
        object
    };
    let collector = |object: &Object| object.drop_attached(OWNER);
    let drop = |object: &Object| object.drop_shared();
    race(make, [collector, drop, drop], Object::assert_destroyed);
    let counts = |object: &Object| {
        object.clone_shared();
        object.drop_shared();
        object.drop_shared();
        object.drop_shared();
    };
    race(make, [collector, counts], Object::assert_destroyed);
}

/// The owner makes its object shared for life, while a stranger drops and clones references. If the
/// stranger's drop has queued the object, the owner goes on without.
///
/// Mutations: `share_for_life` forgets the local half, or stores instead of exchanging.
#[test]
fn loom_an_owner_shares_its_object() {
    let make = || {
        let object = Object::new();
        object.clone_ref(OWNER);
        object
    };
    let owner = |object: &Object| {
        if object.share(OWNER) {
            object.clone_shared();
            object.drop_shared();
            object.drop_shared();
        } else {
            object.merge_queue();
            object.drop_ref(OWNER);
        }
    };
    let stranger = |object: &Object| {
        object.clone_ref(STRANGER);
        object.drop_ref(STRANGER);
        object.drop_ref(STRANGER);
    };
    race(make, [owner, |object| object.drop_ref(STRANGER)], Object::assert_destroyed);
    race(make, [owner, stranger], Object::assert_destroyed);
}

/// The object is queued and merged, while a stranger upgrades a weak reference and asks for a
/// shared object. It gets one only after the object has left the queue. The object then stays
/// shared for life: a collector that claims it afterwards does not own it.
///
/// Mutation: `share_for_life` ignores the queue.
#[test]
fn loom_a_queued_object_is_not_shared() {
    let make = || {
        let object = Object::new().with_record();
        object.clone_ref(OWNER);
        object
    };
    // It has cloned twice while detached, and keeps one reference.
    let owner = |object: &Object| {
        object.clone_ref(UNATTACHED);
        object.clone_ref(UNATTACHED);
        object.drop_ref(OWNER);
        object.drop_ref(OWNER);
        object.merge_queue();
    };
    let stranger = |object: &Object| {
        object.drop_ref(STRANGER);
        if object.upgraded(STRANGER) {
            *object.given.lock() = object.share(STRANGER);
            object.drop_ref(STRANGER);
        }
    };
    race(make, [owner, stranger], shared_or_not);
}

/// After the threads of a model one reference is left. If the object is shared for life, a claim
/// leaves it so.
fn shared_or_not(object: &Object) {
    object.merge_queue();
    let shared = *object.given.lock() || object.share(OTHER);
    object.with(|header| header.claim(OWNER));
    assert_ne!(object.with(|header| header.is_owned_by(OWNER)), shared);
    object.drop_attached(OWNER);
    if shared {
        object.drop_shared()
    } else {
        object.drop_ref(OWNER)
    }
    object.assert_destroyed();
}

/// Two strangers make an object shared for life, as soon as its owner has dropped its last
/// reference, and not before.
///
/// Mutation: `share_for_life` ignores the owner.
#[test]
fn loom_a_merged_object_is_shared_for_life() {
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object.clone_ref(OTHER);
        object
    };
    let stranger = |object: &Object| {
        if object.share(STRANGER) {
            *object.given.lock() = true;
            object.clone_shared();
            object.drop_shared();
        }
    };
    let other = |object: &Object| {
        if object.share(OTHER) {
            object.drop_shared();
        } else {
            object.drop_ref(OTHER);
        }
    };
    let owner = |object: &Object| object.drop_ref(OWNER);
    race(make, [owner, stranger, other], shared_or_not);
    let make = || {
        let object = Object::new();
        object.clone_ref(STRANGER);
        object
    };
    race(make, [owner, stranger], shared_or_not);
}

/// A mutator of the model below. Other threads read only its queue.
fn mutator(coordinator: &Arc<Coordinator<MergeQueue>>) -> Participant<MergeQueue> {
    coordinator.register(MergeQueue::new())
}

/// A stranger drops below zero while the owner is detached, or is about to attach and count again.
/// The stranger suspends the owner and merges on its behalf, or leaves the merge to the owner.
///
/// Mutations: the stranger merges without a suspension; `Coordinator::suspend` does not change the
/// owner's state.
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
                Err(OwnerEnded) => object.merge_ended(named),
            }
        }
        dropped => object.destroy_if_dead(dropped),
    }
}
