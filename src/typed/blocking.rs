//! Floor 5: waiting for others without holding up a stop: [`Mutator::lock`],
//! [`join`](Mutator::join), [`recv`](Mutator::recv) and [`scope`](Mutator::scope). Each of them
//! waits detached.

use std::sync::{LockResult, MutexGuard, TryLockError, mpsc};
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};

use crate::Mutator;

/// A handle to a thread that [`Mutator::join`] can wait for: std's two kinds.
pub trait Join: sealed::Sealed {
    /// What the thread gives back.
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

impl Mutator {
    /// Locks an ordinary mutex that lies outside the heap: tries, and else waits detached. A thread
    /// that waits attached for somebody who is parked with the lock would make the stop wait for
    /// ever.
    ///
    /// # Errors
    ///
    /// When the mutex is poisoned, like [`Mutex::lock`](std::sync::Mutex::lock).
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
    /// A thread that waited attached would hold up every stop, and so every collection, until the
    /// other thread has ended; and for ever, if that one collects.
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
    /// When the thread has panicked, as [`JoinHandle::join`].
    ///
    /// # Panics
    ///
    /// Where [`detach`](Self::detach) does.
    pub fn join<J: Join>(&mut self, thread: J) -> std::thread::Result<J::Output> {
        self.detach(|| thread.join())
    }

    /// Receives the next message of a channel: takes one that is there, and else waits detached.
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
    /// When the channel is empty and has no sender any more, as [`mpsc::Receiver::recv`].
    ///
    /// # Panics
    ///
    /// Where [`detach`](Self::detach) does, unless a message is there.
    pub fn recv<T>(&mut self, receiver: &mpsc::Receiver<T>) -> Result<T, mpsc::RecvError> {
        match receiver.try_recv() {
            Ok(message) => Ok(message),
            Err(mpsc::TryRecvError::Disconnected) => Err(mpsc::RecvError),
            Err(mpsc::TryRecvError::Empty) => self.detach(|| receiver.recv()),
        }
    }

    /// Runs `f`, attached, with a scope in which it can start threads that borrow from this one.
    /// When `f` has returned, waits for these threads, detached.
    ///
    /// It is [`std::thread::scope`] for attached threads: that function waits at its end too, and a
    /// thread that is attached then holds up every stop until its threads have ended.
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
    /// Where [`detach`](Self::detach) does, before `f` is run; and, as [`std::thread::scope`], when
    /// `f` panics, or one of the threads that nobody has joined. The thread is attached again then,
    /// too.
    #[track_caller]
    pub fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>, &mut Self) -> R,
    ) -> R {
        self.raw_mut().scope(|scope, raw| f(scope, Self::from_raw_mut(raw)))
    }
}
