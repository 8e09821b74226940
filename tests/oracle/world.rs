//! The shared data of one run's objects, and the data of each.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use standstill::dynamic::Type;
use standstill::{Gc, GcWeak, Mutator, Trace, Tracer};

use crate::common::{Census, Witness};
use crate::model::{BRED, Events, Id};
use crate::objects::{Object, Ref};
use crate::program::{Kind, Shape};

/// The data outside of the heap that finalizers and destructors use.
#[derive(Default)]
pub(crate) struct World {
    /// Objects with a destructor that has not run.
    pub(crate) alive: Mutex<BTreeSet<Id>>,
    /// The object that was allocated last at an address: for handles that do not name their
    /// targets.
    pub(crate) names: Mutex<BTreeMap<usize, Id>>,
    pub(crate) shelf: Mutex<Vec<(Id, Ref)>>,
    /// The one that objects reach for, and the one that they cling to.
    pub(crate) anchors: Mutex<Vec<GcWeak<Object<false>>>>,
    /// The heap types of instances without a finalizer, and with one.
    pub(crate) types: Mutex<Vec<Type>>,
    pub(crate) events: Mutex<Events>,
    /// How often each weak callback was called.
    pub(crate) called: Mutex<BTreeMap<Id, usize>>,
    /// Mistakes that the library noticed.
    pub(crate) faults: Mutex<Vec<String>>,
    /// The end is near: clear handlers panic no longer, and nothing rises.
    pub(crate) meek: AtomicBool,
    pub(crate) census: Arc<Census>,
}

impl World {
    fn panics(&self, what: &str, id: Id) -> ! {
        // Not `panic!`: no hook should print an intended panic.
        resume_unwind(Box::new(format!("{what} {id}")))
    }

    /// Drops a program's reference. Records the panic of a destructor that comes back.
    pub(crate) fn release<T>(&self, value: T) {
        self.recording_bursts(|| drop(value));
    }

    /// Calls `f`, and notes the panic of a destructor that leaves it.
    pub(crate) fn recording_bursts(&self, f: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
            match payload.downcast::<String>() {
                Ok(text) if text.starts_with("burst ") => {
                    self.events.lock().unwrap().panics.push(*text)
                }
                Ok(text) => resume_unwind(text),
                Err(payload) => resume_unwind(payload),
            }
        }
    }

    pub(crate) fn was_called(&self, id: Id) {
        *self.called.lock().unwrap().entry(id).or_default() += 1;
    }
}

/// An object's own part.
pub(crate) struct Tag {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    pub(crate) world: Arc<World>,
    state: Witness,
}

impl Tag {
    pub(crate) fn new(world: &Arc<World>, id: Id, kind: Kind) -> Self {
        assert!(world.alive.lock().unwrap().insert(id), "born twice");
        Self { id, kind, world: world.clone(), state: Witness::new(&world.census, id) }
    }

    /// Aborts unless its object is alive.
    pub(crate) fn check(&self) {
        self.state.check();
    }

    /// The action of the finalizer. `me` makes a handle to the object.
    pub(crate) fn finalize(&self, m: &Mutator, me: impl Fn() -> Ref) {
        self.check();
        self.world.events.lock().unwrap().finalized.push(self.id);
        let anchor = |at: usize| -> Gc<Object<false>> {
            self.world.anchors.lock().unwrap()[at].upgrade(m).expect("anchors are held")
        };
        match self.kind {
            Kind::Plain | Kind::Quiet | Kind::Stubborn | Kind::Burst => {}
            Kind::Rise if self.world.meek.load(SeqCst) => {}
            Kind::Rise => self.world.shelf.lock().unwrap().push((self.id, me())),
            Kind::Cling => drop(Ref::Plain(anchor(1)).push(m, me())),
            Kind::Reach => drop(me().push(m, Ref::Plain(anchor(0)))),
            Kind::Breed => {
                if me().has_room(m) {
                    let child =
                        Ref::alloc(m, &self.world, BRED + self.id, Shape::List, Kind::Plain);
                    assert!(child.push(m, me()) && me().push(m, child));
                }
            }
            Kind::Cut => drop(me().take_all(m)),
            Kind::Throw => self.world.panics("throw", self.id),
        }
    }

    /// The action of the clear handler, before it clears anything.
    pub(crate) fn clear(&self) {
        self.check();
        if self.kind == Kind::Stubborn && !self.world.meek.load(SeqCst) {
            self.world.panics("stubborn", self.id);
        }
    }
}

/// As the header of a slice.
impl Trace for Tag {
    fn traverse(this: &Self, _: &mut Tracer) {
        this.check();
    }

    fn clear(this: &Self, _: &Mutator) {
        this.clear();
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        assert!(self.world.alive.lock().unwrap().remove(&self.id), "died twice");
        if self.kind == Kind::Burst {
            self.world.panics("burst", self.id);
        }
    }
}
