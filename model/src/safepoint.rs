//! Attach, detach, poll, park and stop: what `standstill::safepoint` does, in few steps.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::{AtomicU32, Condvar, Mutex, Order, Ordering, Plain, thread_local};

/// The bit of a poll word that requests a stop.
pub const STOP: u32 = 1;

thread_local! {
    /// The participant that this thread is attached as; 0: none.
    static CURRENT: std::cell::Cell<u64> = std::cell::Cell::default();
}

/// The participant that the calling thread is attached as, in any coordinator. 0: none.
pub fn current() -> u64 {
    CURRENT.try_with(std::cell::Cell::get).unwrap_or(0)
}

fn set_current(id: u64) {
    // A thread whose thread-locals are gone uses no objects any more.
    CURRENT.try_with(|current| current.set(id)).unwrap_or_default();
}

/// The number of a participant, which no other one of the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub(crate) u64);

/// Why a thread could not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The thread is attached, here or elsewhere.
    AlreadyAttached,
}

/// Why the world was not stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopError {
    /// This thread has stopped the world already.
    Nested,
    /// This thread is not attached to this coordinator.
    NotAttached,
}

/// What other threads know of a participant.
#[derive(Debug)]
pub(crate) struct Member<T> {
    id: u64,
    word: AtomicU32,
    pub(crate) data: T,
}

impl<T> Member<T> {
    pub(crate) fn raise(&self, bits: u32) {
        self.word.fetch_or(bits, Ordering::Release);
    }
}

struct Entry<T> {
    member: Arc<Member<T>>,
    is_attached: bool,
    /// The stop waits for it.
    is_awaited: bool,
}

struct Registry<T> {
    entries: Vec<Entry<T>>,
    stopper: Option<u64>,
    /// Those that wait to stop, in their order.
    requesters: VecDeque<u64>,
    /// Threads that have parked and not run since. The next stop waits until they have.
    owed: usize,
    sleepers: usize,
}

impl<T> Registry<T> {
    fn entry(&mut self, id: u64) -> Option<&mut Entry<T>> {
        self.entries.iter_mut().find(|entry| entry.member.id == id)
    }

    fn set_attached(&mut self, id: u64, is_attached: bool) {
        if let Some(entry) = self.entry(id) {
            (entry.is_attached, entry.is_awaited) = (is_attached, false);
        }
    }

    /// Begins a stop, if it is the turn of `id`.
    fn begin(&mut self, id: u64) -> bool {
        let is_turn = self.requesters.front().is_none_or(|&first| first == id);
        if self.stopper.is_some() || self.owed != 0 || !is_turn {
            return false;
        }
        self.requesters.pop_front();
        self.stopper = Some(id);
        self.set_attached(id, true);
        for entry in self.entries.iter_mut().filter(|entry| entry.member.id != id) {
            entry.is_awaited = entry.is_attached;
        }
        true
    }
}

/// Stops the threads that registered with it, and resumes them.
#[derive(Debug)]
pub struct Coordinator<T = ()> {
    registry: Plain<Registry<T>>,
    /// From each registration to each later request. Also a step of the end of a participant.
    registered: Order,
    /// From the end of each stop to each later attach.
    resumed: Order,
    /// From each detach to each later stop.
    stopped: Order,
    gate: Mutex<()>,
    changed: Condvar,
}

impl<T: Send + Sync + 'static> Coordinator<T> {
    /// A coordinator without threads.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            registry: Plain::new(Registry {
                entries: Vec::new(),
                stopper: None,
                requesters: VecDeque::new(),
                owed: 0,
                sleepers: 0,
            }),
            registered: Order::new(),
            resumed: Order::new(),
            stopped: Order::new(),
            gate: Mutex::new(()),
            changed: Condvar::new(),
        })
    }

    /// Makes the calling thread a participant, which is detached at first.
    pub fn register(self: &Arc<Self>, data: T) -> Participant<T> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Relaxed) + 1;
        let member = Arc::new(Member { id, word: AtomicU32::new(0), data });
        self.registered.release();
        let entry = Entry { member: member.clone(), is_attached: false, is_awaited: false };
        self.registry.with(|registry| registry.entries.push(entry));
        Participant { member, coordinator: self.clone(), not_send: PhantomData }
    }
}

impl<T> Coordinator<T> {
    /// Raises request bits in the poll word of a thread, except for [`STOP`]. `false`: the thread
    /// has ended. Once the thread has taken the bits, it sees the writes made before this call.
    pub fn poke(&self, id: ThreadId, bits: u32) -> bool {
        self.registered.acquire();
        let member = self.inspect(id.0, |member, _| member.clone());
        member.map(|member| member.raise(bits & !STOP)).is_some()
    }

    /// Raises request bits in the poll words of all attached threads, and returns their number. A
    /// thread that is attaching or parked may be missed.
    pub fn poke_attached(&self, bits: u32) -> usize {
        self.resumed.step();
        self.stopped.step();
        let attached = self.attached();
        self.registered.acquire();
        attached.iter().for_each(|member| member.raise(bits & !STOP));
        attached.len()
    }

    fn attached(&self) -> Vec<Arc<Member<T>>> {
        self.registry.with(|registry| {
            let attached = registry.entries.iter().filter(|entry| entry.is_attached);
            attached.map(|entry| entry.member.clone()).collect()
        })
    }

    /// Makes the next [`inspect`](Self::inspect) come before or after each detach.
    pub(crate) fn step(&self) {
        self.stopped.step();
    }

    /// Calls `f` with a participant, and whether it is attached. None can attach or detach
    /// meanwhile.
    pub(crate) fn inspect<R>(
        &self,
        id: u64,
        f: impl FnOnce(&Arc<Member<T>>, bool) -> R,
    ) -> Option<R> {
        self.registry
            .with(|registry| registry.entry(id).map(|entry| f(&entry.member, entry.is_attached)))
    }

    /// Sleeps until `f` succeeds. Returns whether it had to sleep.
    fn sleep_until(&self, mut f: impl FnMut(&mut Registry<T>) -> bool) -> bool {
        if self.registry.with(&mut f) {
            return false;
        }
        let mut gate = self.gate.lock().unwrap();
        let mut is_done = |registry: &mut Registry<T>| {
            let done = f(registry);
            registry.sleepers += usize::from(!done);
            done
        };
        while !self.registry.with(&mut is_done) {
            gate = self.changed.wait(gate).unwrap();
            self.registry.with(|registry| registry.sleepers -= 1);
        }
        true
    }

    /// Has all sleepers look again.
    fn wake(&self) {
        if self.registry.with(|registry| registry.sleepers != 0) {
            drop(self.gate.lock().unwrap());
            self.changed.notify_all();
        }
    }
}

/// The membership of one thread in a [`Coordinator`]. Dropping it ends the membership. Neither
/// `Send` nor `Sync`.
#[derive(Debug)]
pub struct Participant<T = ()> {
    member: Arc<Member<T>>,
    coordinator: Arc<Coordinator<T>>,
    not_send: PhantomData<*mut ()>,
}

impl<T> Participant<T> {
    /// The id of the participant.
    pub fn id(&self) -> ThreadId {
        ThreadId(self.member.id)
    }

    /// The data that the thread shares with other threads.
    pub fn data(&self) -> &T {
        &self.member.data
    }

    /// The coordinator that the thread is registered with.
    pub fn coordinator(&self) -> &Arc<Coordinator<T>> {
        &self.coordinator
    }

    /// Attaches. Waits while a stop is on.
    ///
    /// # Errors
    ///
    /// If the thread is attached, here or elsewhere.
    pub fn attach(&self) -> Result<(), AttachError> {
        if current() != 0 {
            return Err(AttachError::AlreadyAttached);
        }
        self.enter(0);
        Ok(())
    }

    /// Attaches, and has run as it was owed, if `owed` is 1.
    fn enter(&self, owed: usize) {
        let (id, coordinator) = (self.member.id, &*self.coordinator);
        coordinator.resumed.acquire();
        let enter = |registry: &mut Registry<T>| {
            let may_enter = registry.stopper.is_none();
            if may_enter {
                registry.set_attached(id, true);
                registry.owed -= owed;
            }
            may_enter
        };
        if coordinator.sleep_until(enter) {
            // The end of the stop that it has waited for.
            coordinator.resumed.acquire();
        }
        set_current(id);
        if owed != 0 {
            coordinator.wake();
        }
    }

    /// Detaches. `false`: nothing has changed, because the thread is not attached, or has stopped
    /// the world.
    pub fn detach(&self) -> bool {
        self.may_detach() && self.leave(|_| true)
    }

    /// Detaches, if `f` agrees, at the same time.
    pub(crate) fn leave(&self, f: impl FnOnce(&mut usize) -> bool) -> bool {
        self.coordinator.stopped.release();
        let has_left = self.coordinator.registry.with(|registry| {
            let agreed = f(&mut registry.owed);
            if agreed {
                registry.set_attached(self.member.id, false);
            }
            agreed
        });
        if has_left {
            set_current(0);
            self.coordinator.wake();
        }
        has_left
    }

    /// Whether the thread is attached.
    pub fn is_attached(&self) -> bool {
        current() == self.member.id
    }

    fn has_stopped(&self) -> bool {
        self.coordinator.registry.with(|registry| registry.stopper == Some(self.member.id))
    }

    pub(crate) fn may_detach(&self) -> bool {
        self.is_attached() && !self.has_stopped()
    }

    /// The requests to this thread; 0: none. If [`STOP`] is among the bits, the thread should
    /// [`park`](Self::park) soon.
    pub fn poll(&self) -> u32 {
        self.member.word.load(Ordering::Relaxed)
    }

    /// Clears the user's request bits in `mask`, and returns the bits that were set. Writes made
    /// before the bits were raised are visible afterwards.
    pub fn take_requests(&self, mask: u32) -> u32 {
        let mask = mask & !STOP;
        self.member.word.fetch_and(!mask, Ordering::Acquire) & mask
    }

    /// A safepoint: while a stop is on, waits detached for its end. `false`: the thread did
    /// nothing, because it is not attached, or has stopped the world.
    pub fn park(&self) -> bool {
        if !self.may_detach() {
            return false;
        }
        if self.poll() & STOP != 0 {
            self.leave(|owed| {
                *owed += 1;
                true
            });
            self.enter(1);
        }
        true
    }

    /// Stops the world: waits, detached, for its turn, and then until no other thread is attached.
    ///
    /// # Errors
    ///
    /// If this thread is not attached to this coordinator, or has stopped it already.
    pub fn stop(&self) -> Result<WorldStopped<'_, T>, StopError> {
        if !self.is_attached() {
            return Err(StopError::NotAttached);
        }
        if self.has_stopped() {
            return Err(StopError::Nested);
        }
        let (id, coordinator) = (self.member.id, &*self.coordinator);
        coordinator.resumed.acquire();
        if !coordinator.registry.with(|registry| registry.begin(id)) {
            coordinator.registry.with(|registry| registry.requesters.push_back(id));
            self.leave(|_| true);
            coordinator.sleep_until(|registry| registry.begin(id));
            coordinator.resumed.acquire();
            set_current(id);
        }
        let mut asked = coordinator.attached();
        asked.retain(|member| member.id != id);
        coordinator.registered.acquire();
        asked.iter().for_each(|member| member.raise(STOP));
        coordinator.sleep_until(|registry| registry.entries.iter().all(|e| !e.is_awaited));
        coordinator.stopped.acquire();
        Ok(WorldStopped { stopper: self, asked })
    }
}

impl<T> Drop for Participant<T> {
    fn drop(&mut self) {
        let id = self.member.id;
        self.coordinator.stopped.release();
        self.coordinator.registered.step();
        self.coordinator.registry.with(|registry| {
            registry.entries.retain(|entry| entry.member.id != id);
        });
        if self.is_attached() {
            set_current(0);
        }
        self.coordinator.wake();
    }
}

/// While this lives, no other thread is attached. Dropping it resumes the world.
#[must_use = "the world resumes when this is dropped"]
#[derive(Debug)]
pub struct WorldStopped<'a, T = ()> {
    stopper: &'a Participant<T>,
    asked: Vec<Arc<Member<T>>>,
}

impl<T> WorldStopped<'_, T> {
    /// The participant that stopped the world.
    pub fn requester(&self) -> ThreadId {
        self.stopper.id()
    }

    /// Calls `f` with every registered thread: parked threads, detached threads, the requester
    /// itself. A thread that registers or ends meanwhile may be missed.
    pub fn threads(&self, mut f: impl FnMut(ThreadId, &T)) {
        let members: Vec<_> =
            self.stopper.coordinator.registry.with(|registry| {
                registry.entries.iter().map(|entry| entry.member.clone()).collect()
            });
        members.iter().for_each(|member| f(ThreadId(member.id), &member.data));
    }
}

impl<T> Drop for WorldStopped<'_, T> {
    fn drop(&mut self) {
        let coordinator = &*self.stopper.coordinator;
        for member in &self.asked {
            member.word.fetch_and(!STOP, Ordering::Relaxed);
        }
        coordinator.resumed.release();
        coordinator.registry.with(|registry| registry.stopper = None);
        coordinator.wake();
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
