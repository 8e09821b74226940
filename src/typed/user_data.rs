//! A finalizer gets an object and a mutator, and a function that the program calls back often gets
//! no more. So a heap and a mutator can carry data of the program, such as the interpreter's tables
//! or a queue of what the finalizers found. The data are of one type, which the caller knows.
//!
//! They may have references to objects, and their destructors may use the heap. So a mutator drops
//! its data before its thread leaves, and a heap drops its data before its last collection.

#![forbid(unsafe_code)]

use std::any::Any;
use std::rc::Rc;

use crate::base::settings_lock::SettingsHold;
use crate::{Heap, Mutator};

impl Heap {
    /// Gives the heap data of the program, once in its life. Every function that has a handle or a
    /// mutator of the heap finds them with [`user_data`](Self::user_data), also a finalizer.
    ///
    /// When the last handle and the last mutator are dropped, the heap collects, drops the data,
    /// and collects once more. References of the data keep objects alive until then, and the
    /// finalizers of these objects find no data. A [`Heap`] in the data keeps the heap open for
    /// ever. The heap of an [`ObjectModel`](crate::model::ObjectModel) has no such data, because it
    /// has its model.
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use standstill::{Gc, Heap, Mutator, Trace};
    ///
    /// #[derive(Trace)]
    /// #[trace(finalize)]
    /// struct Table(u32);
    ///
    /// /// The tables whose finalizers in the language are due.
    /// #[derive(Default)]
    /// struct Runtime { due: Mutex<Vec<Gc<Table>>> }
    ///
    /// impl Table {
    ///     fn finalize(this: &Gc<Self>, m: &Mutator) {
    ///         if let Some(runtime) = m.heap().user_data::<Runtime>() {
    ///             runtime.due.lock().unwrap().push(this.clone());
    ///         }
    ///     }
    /// }
    ///
    /// let heap = Heap::new();
    /// assert!(heap.set_user_data(Runtime::default()).is_ok());
    /// let m = heap.attach();
    /// drop(m.alloc(Table(7)));
    /// let due = std::mem::take(&mut *heap.user_data::<Runtime>().unwrap().due.lock().unwrap());
    /// assert_eq!(due[0].0, 7);
    /// ```
    ///
    /// # Errors
    ///
    /// If the heap has data already. The error is `data`.
    pub fn set_user_data<T: Send + Sync + 'static>(&self, data: T) -> Result<(), T> {
        let data: crate::heap::core::UserData = Box::new(data);
        // A fork holds this lock, so that its child does not find the data half set.
        let held = SettingsHold::new();
        let set = self.0.0.user.set(data);
        drop(held);
        set.map_err(|data| *data.downcast().expect("the data of this call"))
    }

    /// The data of the heap. `None`: it has none, or they are of another type.
    pub fn user_data<T: 'static>(&self) -> Option<&T> {
        self.0.0.user.get()?.downcast_ref()
    }
}

impl Mutator {
    /// Gives the mutator data of the program, instead of those that it has. They stay on this
    /// thread, so they need not be `Send`. They are dropped when the mutator is, while the thread
    /// is still attached. A thread that the child of a fork has lost drops none.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use standstill::{Heap, Mutator};
    ///
    /// #[derive(Default)]
    /// struct Thread { calls: Cell<u32> }
    ///
    /// fn native(m: &Mutator) {
    ///     let thread = m.user_data::<Thread>().expect("set by each thread");
    ///     thread.calls.set(thread.calls.get() + 1);
    /// }
    ///
    /// let m = Heap::new().attach();
    /// m.set_user_data(Thread::default());
    /// native(&m);
    /// assert_eq!(m.user_data::<Thread>().unwrap().calls.get(), 1);
    /// ```
    pub fn set_user_data<T: 'static>(&self, data: T) {
        let data: Rc<dyn Any> = Rc::new(data);
        let old = self.raw().private().user_data.replace(Some(data));
        // Dropped without the borrow, because a destructor may use this function.
        drop(old);
    }

    /// The data of the mutator. `None`: it has none, or they are of another type.
    pub fn user_data<T: 'static>(&self) -> Option<Rc<T>> {
        let data = self.raw().private().user_data.borrow();
        Rc::clone(data.as_ref()?).downcast().ok()
    }
}
