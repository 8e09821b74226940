//! Some values may only be used and dropped on the thread that made them, such as a window, a GPU
//! context or a connection to a database. But any thread may destroy an object of a heap. So an
//! [`AtHome`] value gives access to its thread alone, and a thread that would drop it elsewhere
//! sends it home instead.
//!
//! | state of the list | `head` | left by |
//! |---|---|---|
//! | open | null, or the value that returned last | a return: by a CAS; [`Home::drain`]: takes all |
//! | closed | [`CLOSED`] | nothing |
//!
//! The node of a value is made with it, so that a return takes no memory and no lock. A drain takes
//! all nodes by one exchange, so no node comes back while another thread looks at it as the head.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::base::sync::{AtomicPtr, Ordering, UnsafeCell, const_thread_local};
use crate::{Trace, Tracer};

/// The head of a closed list.
const CLOSED: *mut Returned = std::ptr::without_provenance_mut(1);

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);
static LEAKED: AtomicU64 = AtomicU64::new(0);

const_thread_local! {
    /// The number of this thread, which no other one ever has; 0: not yet chosen.
    static THREAD: Cell<u64> = Cell::new(0)
}

fn this_thread() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            // Relaxed: only the number counts.
            thread.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

/// A value on its way home.
struct Returned {
    next: UnsafeCell<*mut Self>,
    /// A box. Raw, because the home's thread uses the value until it is dropped.
    value: *mut dyn Any,
}

struct Door {
    head: AtomicPtr<Returned>,
    thread: u64,
    /// Called when the list is no longer empty.
    wake: Option<Box<dyn Fn() + Send + Sync>>,
}

/// A thread to which values return that were [bound](Self::bind) to it.
///
/// The thread calls [`drain`](Self::drain) from time to time, for example at each safepoint for
/// which [`is_waiting`](Self::is_waiting) is true, or in its event loop after a
/// [wake-up](Self::waking).
///
/// ```
/// use std::cell::RefCell;
/// use standstill::{AtHome, Heap, Home, Trace};
///
/// #[derive(Trace)]
/// struct Window(AtHome<RefCell<String>>);
///
/// let heap = Heap::new();
/// let home = Home::new();
/// let title = home.bind(RefCell::new(String::from("title")));
/// title.get().expect("its thread").borrow_mut().push('!');
/// std::thread::scope(|scope| {
///     let heap = &heap;
///     scope.spawn(move || {
///         let m = heap.attach();
///         let window = m.alloc(Window(title));
///         assert!(window.0.get().is_none(), "another thread");
///         // The object dies here, and the value returns.
///         drop(window);
///     });
/// });
/// assert_eq!(home.drain(), 1);
/// ```
pub struct Home {
    door: Arc<Door>,
    /// Not `Send`.
    thread: PhantomData<*mut ()>,
}

impl Home {
    /// A home on this thread.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// A home on this thread that calls `wake` whenever values wait for [`drain`](Self::drain),
    /// once for all until the next one. It runs on the thread that drops a value, which may be in a
    /// destructor, so it should only send an event.
    pub fn waking(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(wake)))
    }

    fn with(wake: Option<Box<dyn Fn() + Send + Sync>>) -> Self {
        let (head, thread) = (AtomicPtr::new(null_mut()), this_thread());
        Self { door: Arc::new(Door { head, thread, wake }), thread: PhantomData }
    }

    /// Binds a value to this thread.
    pub fn bind<T: 'static>(&self, value: T) -> AtHome<T> {
        let value = Box::into_raw(Box::new(value));
        let node = Box::new(Returned { next: UnsafeCell::new(null_mut()), value });
        AtHome {
            node: NonNull::from(Box::leak(node)),
            // SAFETY: rule *boxed*: of a box.
            value: unsafe { NonNull::new_unchecked(value) },
            door: Arc::clone(&self.door),
        }
    }

    /// Drops the values that have returned, and returns their number. The first panic of a
    /// destructor goes on when all are dropped.
    pub fn drain(&self) -> usize {
        self.door.take(null_mut())
    }

    /// Whether values wait for [`drain`](Self::drain): one load.
    pub fn is_waiting(&self) -> bool {
        // Relaxed: a hint.
        !self.door.head.load(Ordering::Relaxed).is_null()
    }

    /// The number of values of all homes, in this process, that could not be dropped because their
    /// home was gone. They are leaked.
    pub fn leaked() -> u64 {
        LEAKED.load(Ordering::Relaxed)
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Home {
    /// Drops the values that have returned. Those that return later are [leaked](Self::leaked).
    fn drop(&mut self) {
        // A destructor may return more, in this thread or meanwhile in others.
        let drained = catch_unwind(AssertUnwindSafe(|| self.drain()));
        self.door.take(CLOSED);
        if let Err(payload) = drained {
            resume_unwind(payload);
        }
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("is_waiting", &self.is_waiting()).finish_non_exhaustive()
    }
}

impl Door {
    /// Drops all values of the list, which is `rest` afterwards. On the home's thread.
    fn take(&self, rest: *mut Returned) -> usize {
        // Acquire: pairs with the release of each return, which wrote the node.
        let mut at = self.head.swap(rest, Ordering::Acquire);
        let (mut number, mut thrown) = (0, None);
        while let Some(node) = NonNull::new(at) {
            // SAFETY: rule *boxed*: a node of this list, which the exchange has taken out of it.
            let Returned { next, value } = *unsafe { Box::from_raw(node.as_ptr()) };
            // SAFETY: rule *boxed*: as above.
            at = next.with_mut(|next| unsafe { *next });
            number += 1;
            // SAFETY: rule *boxed*: the value of a node, which is gone.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(value) })));
            thrown = thrown.or(dropped.err());
        }
        if let Some(payload) = thrown {
            resume_unwind(payload);
        }
        number
    }

    /// Puts a node into the list.
    fn give(&self, node: NonNull<Returned>) {
        // Relaxed: the exchange that succeeds releases, and this thread reads nothing there.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                LEAKED.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // SAFETY: rule *boxed*: this thread has the node until it is in the list.
            unsafe { node.as_ref().next.with_mut(|next| *next = head) };
            // Release: pairs with the acquire in `take`, for the node and what this thread wrote.
            let given = self.head.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match given {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if let Some(wake) = self.wake.as_ref().filter(|_| head.is_null()) {
            wake();
        }
    }
}

/// A value that only the thread of its [`Home`] can use, and that is dropped there, or
/// [leaked](Home::leaked) if it returns after the end of its home. It can be a field of an object,
/// and the collector sees nothing in it: handles that it holds count, and a
/// cycle through it is never freed.
pub struct AtHome<T: 'static> {
    node: NonNull<Returned>,
    value: NonNull<T>,
    door: Arc<Door>,
}

// SAFETY: rule *guarded*: only the home's thread gets at the value, and drops it. Other threads
// move its address.
unsafe impl<T> Send for AtHome<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for AtHome<T> {}

impl<T> AtHome<T> {
    /// The value, on the thread of its home. `None` on other threads.
    pub fn get(&self) -> Option<&T> {
        if !self.is_home() {
            return None;
        }
        // SAFETY: rule *guarded*: this is the only thread that gets at the value, which lives as
        // long as `self`.
        Some(unsafe { self.value.as_ref() })
    }

    /// Exclusive access to the value, on the thread of its home.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if !self.is_home() {
            return None;
        }
        // SAFETY: as in `get`.
        Some(unsafe { self.value.as_mut() })
    }

    fn is_home(&self) -> bool {
        self.door.thread == this_thread()
    }
}

impl<T> Drop for AtHome<T> {
    fn drop(&mut self) {
        if self.is_home() {
            // SAFETY: rule *boxed*: `bind` has made both boxes, and the node is in no list.
            unsafe {
                drop(Box::from_raw(self.node.as_ptr()));
                drop(Box::from_raw(self.value.as_ptr()));
            }
        } else {
            self.door.give(self.node);
        }
    }
}

impl<T> Trace for AtHome<T> {
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl<T> fmt::Debug for AtHome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtHome").field("is_home", &self.is_home()).finish_non_exhaustive()
    }
}
