//! Blocking operations during which the thread is detached, so stops do not wait for it:
//! [`Mutator::lock`], [`join`](Mutator::join), [`recv`](Mutator::recv) and
//! [`scope`](Mutator::scope).

#![forbid(unsafe_code)]

use std::sync::{LockResult, MutexGuard, mpsc};
use std::thread::Scope;

use crate::heap::blocking::Join;
use crate::typed::mutator::Mutator;

impl Mutator {
    /// Locks a std mutex outside the heap. Tries first, and otherwise waits detached. If an
    /// attached thread waited for a mutex of a parked thread, the stop would never end.
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
        self.raw_mut().lock(mutex)
    }

    /// Waits, detached, for the end of a thread.
    ///
    /// An attached thread that waited would delay every stop, and so every collection, until the
    /// other thread ends. If the other thread collects, neither would ever continue.
    ///
    /// ```
    /// use standstill::Heap;
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let heap2 = heap.clone();
    /// let other = std::thread::spawn(move || heap2.attach().collect().collected);
    /// assert_eq!(m.join(other).unwrap(), 0);
    /// ```
    ///
    /// # Errors
    ///
    /// If the thread has panicked, as in [`JoinHandle::join`](std::thread::JoinHandle::join).
    ///
    /// # Panics
    ///
    /// If [`detach`](Self::detach) would panic.
    pub fn join<J: Join>(&mut self, thread: J) -> std::thread::Result<J::Output> {
        self.raw_mut().join(thread)
    }

    /// Receives the next message of a channel. Takes a message that is already there, and otherwise
    /// waits detached.
    ///
    /// ```
    /// use standstill::{Gc, Heap};
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let (sender, receiver) = std::sync::mpsc::channel::<Gc<u32>>();
    /// let heap2 = heap.clone();
    /// let other = std::thread::spawn(move || {
    ///     let mut m = heap2.attach();
    ///     m.collect();
    ///     sender.send(m.alloc(7)).unwrap();
    /// });
    /// assert_eq!(*m.recv(&receiver).unwrap(), 7);
    /// m.join(other).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// If the channel is empty and all senders are dropped, as in [`mpsc::Receiver::recv`].
    ///
    /// # Panics
    ///
    /// If the channel is empty, and [`detach`](Self::detach) would panic.
    pub fn recv<T>(&mut self, receiver: &mpsc::Receiver<T>) -> Result<T, mpsc::RecvError> {
        self.raw_mut().recv(receiver)
    }

    /// Runs `f`, attached, with a scope for threads that borrow from this thread. When `f` has
    /// returned, waits detached for these threads.
    ///
    /// This is [`std::thread::scope`] for attached threads. The function of std waits at its end
    /// too, and an attached thread would delay every stop until the scope's threads end.
    ///
    /// ```
    /// use standstill::Heap;
    ///
    /// let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let numbers = [1, 2, 3];
    /// let sum = m.scope(|s, m| {
    ///     s.spawn(|| heap.attach().collect()); // waited for at the end of the scope
    ///     let sum = s.spawn(|| numbers.iter().sum::<i32>());
    ///     m.join(sum).unwrap()
    /// });
    /// assert_eq!(sum, 6);
    /// ```
    ///
    /// # Panics
    ///
    /// If [`detach`](Self::detach) would panic; `f` does not run then. As in
    /// [`std::thread::scope`], also if `f` panics, or if a thread panics that was not joined. The
    /// thread is attached again in these cases too.
    #[track_caller]
    pub fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>, &mut Self) -> R,
    ) -> R {
        self.raw_mut().scope(|scope, raw| f(scope, Self::from_raw_mut(raw)))
    }
}
