//! Blocking operations of std during which the thread is detached, so that no stop waits for it.
//!
//! For example, thread 1 holds a mutex of the program and parks for a stop, while thread 2 wants
//! the mutex. Attached, thread 2 would never reach a safepoint, so the stop would never end.

#![forbid(unsafe_code)]

use std::panic::resume_unwind;
use std::sync::{LockResult, MutexGuard, TryLockError, mpsc};
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};

use crate::base::outside::guarded;
use crate::heap::detach::Reattach;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::{ModelMutator, set_inside_detach};
use crate::safepoint::Away;

/// A thread handle for [`Mutator::join`](crate::Mutator::join), which is one of std's two kinds.
pub trait Join: sealed::Sealed {
    /// The return value of the thread.
    type Output;

    /// Waits for the end of the thread.
    ///
    /// # Errors
    ///
    /// When the thread has panicked.
    fn join(self) -> std::thread::Result<Self::Output>;
}

mod sealed {
    pub trait Sealed {}

    impl<T> Sealed for std::thread::JoinHandle<T> {}
    impl<T> Sealed for std::thread::ScopedJoinHandle<'_, T> {}
}

impl<T> Join for JoinHandle<T> {
    type Output = T;

    fn join(self) -> std::thread::Result<T> {
        JoinHandle::join(self)
    }
}

impl<T> Join for ScopedJoinHandle<'_, T> {
    type Output = T;

    fn join(self) -> std::thread::Result<T> {
        ScopedJoinHandle::join(self)
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    /// Locks a std mutex outside the heap. It tries first, and otherwise waits detached, because a
    /// stop would never end if an attached thread waited for a mutex of a parked thread.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned, as in [`Mutex::lock`](std::sync::Mutex::lock).
    ///
    /// # Panics
    ///
    /// If the mutex is locked, and [`detach`](Self::detach) would panic.
    pub fn lock<'a, T: ?Sized>(
        &mut self,
        mutex: &'a std::sync::Mutex<T>,
    ) -> LockResult<MutexGuard<'a, T>> {
        match mutex.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => self.detach(|| mutex.lock()),
        }
    }

    /// Waits, detached, for the end of a thread.
    ///
    /// An attached thread that waited would delay every stop, and so every collection, until the
    /// other thread ends. If the other thread collects, neither would ever continue.
    ///
    /// # Errors
    ///
    /// If the thread has panicked, as in [`JoinHandle::join`].
    ///
    /// # Panics
    ///
    /// If [`detach`](Self::detach) would panic.
    pub fn join<J: Join>(&mut self, thread: J) -> std::thread::Result<J::Output> {
        self.detach(|| thread.join())
    }

    /// Receives the next message of a channel. It takes a message that is already there, and
    /// otherwise waits detached.
    ///
    /// # Errors
    ///
    /// If the channel is empty and all senders are dropped, as in [`mpsc::Receiver::recv`].
    ///
    /// # Panics
    ///
    /// If the channel is empty, and [`detach`](Self::detach) would panic.
    pub fn recv<T>(&mut self, receiver: &mpsc::Receiver<T>) -> Result<T, mpsc::RecvError> {
        match receiver.try_recv() {
            Ok(message) => Ok(message),
            Err(mpsc::TryRecvError::Disconnected) => Err(mpsc::RecvError),
            Err(mpsc::TryRecvError::Empty) => self.detach(|| receiver.recv()),
        }
    }

    /// Runs `f`, attached, with a scope for threads that borrow from this thread. When `f` has
    /// returned, it waits detached for these threads, as [`Mutator::scope`](crate::Mutator::scope)
    /// explains.
    ///
    /// # Panics
    ///
    /// If [`detach`](Self::detach) would panic, before `f` runs. As in [`std::thread::scope`], also
    /// if `f` panics, or if a thread panics that was not joined, although the thread is attached
    /// then.
    #[track_caller]
    pub fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>, &mut Self) -> R,
    ) -> R {
        /// Detaches when `f` has returned or panicked, and records the thread's previous state.
        struct DetachAtEnd<'a, M: ObjectModel>(
            &'a mut ModelMutator<M>,
            &'a mut Option<(bool, Away)>,
        );
        impl<M: ObjectModel> Drop for DetachAtEnd<'_, M> {
            fn drop(&mut self) {
                // Otherwise `f` or a hook has leaked a guard that forbids it, so the thread waits
                // attached.
                if self.0.may_park()
                    && let Some(away) = self.0.step_out()
                {
                    *self.1 = Some((set_inside_detach(true), away));
                }
            }
        }
        self.refuse_lent();
        assert!(
            self.may_park(),
            "`Mutator::scope` inside a traversal or a stop of this thread; open the scope when that is over"
        );
        let mut left = None;
        let result = guarded(|| {
            std::thread::scope(|scope| {
                let attached = DetachAtEnd(self, &mut left);
                f(scope, attached.0)
            })
        });
        drop(left.map(|(was_inside, away)| Reattach::new(self, was_inside, away)));
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }
}
