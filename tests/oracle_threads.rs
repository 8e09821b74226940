//! The oracle with many threads: random programs at full speed on one graph, and checks of the
//! whole graph whenever all threads are quiet.
//!
//! While they run, each access through a reference checks its target: it is the expected object,
//! alive, and, if all handlers are honest, not cleared. At quiet points all references are listed
//! and the graph is walked from them. The walk must account for everything: the living objects are
//! the reached ones, and each count is the number of references.
//!
//! The same runs twice: with honest handlers, and with hostile ones. Hostile traversals lie or
//! panic, clear handlers do not clear or make new references, and destructors hand out handles or
//! panic. Hostile handlers may get reachable objects cleared, and lose nothing else: no memory is
//! freed while there is a reference, and once they are honest again, no object is left.
//!
//! A failure ends the process and prints the differences. The seed is printed at the start.
//! `STANDSTILL_SEED` repeats it: the same programs, though not the same interleaving.

#![cfg(not(loom))]

#[cfg(target_os = "linux")]
#[path = "common/children.rs"]
mod children;
mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, Once};

use common::{Census, Clock, Rng, Witness, deadline, die, live_for_ever, panic_text};
use standstill::dynamic::{self, Class, Type};
use standstill::{
    AnyGc, AtomicGc, Code, Collect, Finalizer, ForkedSearch, Gc, GcCell, GcWeak, Heap, HeapBuilder,
    KnownRoot, Mutator, Pacing, Trace, Tracer, WeakRef,
};

/// Mutators that live as long as the test.
const MUTATORS: usize = 3;
/// Operations of each between two quiet points.
const STEPS: usize = 4_000;
/// References that all threads know.
const PLACES: usize = 96;
/// The most references that one thread holds.
const HELD: usize = 24;
/// How often an object refers to others, at most: more, and one knot holds everything.
const EDGES: usize = 5;
/// Immortal objects, at most: nothing that they lead to ever dies.
const IMMORTALS: usize = 6;
/// The message of every panic that is part of the test.
const ON_PURPOSE: &str = "on purpose";

// ----------------------------------------------------------------------------------------- objects

/// The part that every object contains, and that dynamic ones have as an attribute.
struct Soul {
    witness: Witness,
    finalized: AtomicBool,
    cleared: AtomicUsize,
    world: Arc<World>,
}

impl Soul {
    fn new(world: &Arc<World>) -> Self {
        let witness = Witness::new(&world.census, world.names.fetch_add(1, SeqCst));
        Self {
            witness,
            finalized: AtomicBool::new(false),
            cleared: AtomicUsize::new(0),
            world: world.clone(),
        }
    }

    fn name(&self) -> usize {
        self.witness.check();
        self.witness.name()
    }

    /// Called by each finalizer.
    fn finalizing(&self) {
        self.witness.check();
        if self.finalized.swap(true, SeqCst) {
            die(&format!("{} is finalized twice", self.name()));
        }
        self.world.finalizers.fetch_add(1, SeqCst);
    }

    /// Once in a while, as long as there is hostility.
    fn turns_hostile(&self, once_in: usize) -> bool {
        self.world.is_hostile() && self.world.mood.fetch_add(1, SeqCst).is_multiple_of(once_in)
    }
}

impl Trace for Soul {
    const TRACKED: bool = false;

    fn traverse(this: &Self, _: &mut Tracer) {
        this.witness.check();
    }
}

struct Object<const FINAL: bool> {
    soul: Soul,
    edges: GcCell<Vec<Handle>>,
}

impl<const FINAL: bool> Trace for Object<FINAL> {
    const FINALIZER: Option<Finalizer<Self>> = if FINAL {
        Some(Finalizer::new(|this, m| {
            let object = this;
            object.soul.finalizing();
            let me = Handle { name: object.soul.name(), to: Handle::of(this.clone().into(), m) };
            finalize(&me, &object.soul.world, m);
        }))
    } else {
        None
    };

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.soul.witness.check();
        if this.soul.turns_hostile(500) {
            match this.soul.name() % 4 {
                // It says nothing, or everything twice.
                0 | 1 => return,
                2 => Trace::traverse(&this.edges, tracer),
                _ if this.soul.turns_hostile(50) => panic!("{ON_PURPOSE}, in a traversal"),
                _ => {}
            }
        }
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.soul.witness.check();
        this.soul.cleared.fetch_add(1, SeqCst);
        if this.soul.turns_hostile(20) {
            match this.soul.name() % 3 {
                0 => return,
                1 => panic!("{ON_PURPOSE}, in a clear handler"),
                _ => {
                    let new = this.soul.world.pick_by(this.soul.name());
                    this.edges.lock(m).extend(new);
                    return;
                }
            }
        }
        Trace::clear(&this.edges, m);
    }
}

impl<const FINAL: bool> Drop for Object<FINAL> {
    fn drop(&mut self) {
        self.soul.witness.check();
        if self.soul.turns_hostile(50) {
            if let Some(child) = self.edges.get_mut().pop() {
                self.soul.world.shelf.lock().unwrap().push(child);
            }
            if self.soul.name().is_multiple_of(3) {
                panic!("{ON_PURPOSE}, in a destructor");
            }
        }
    }
}

/// The actions of finalizers, of typed and of dynamic objects.
fn finalize(me: &Handle, world: &Arc<World>, m: &Mutator) {
    if world.quiet.load(SeqCst) {
        return;
    }
    match me.name % 10 {
        // It comes back: for a while, in a place, or because something refers to it.
        0 => world.shelf.lock().unwrap().push(me.clone()),
        1 => drop(world.put_by(me.name, Some(me.clone()))),
        2 => {
            if let Some(other) = world.pick_by(me.name) {
                other.link(me, me.name, m);
            }
        }
        // It refers to something,
        3 => {
            if let Some(other) = world.pick_by(me.name) {
                me.link(&other, me.name, m);
            }
        }
        // to something new, in a cycle,
        4 => {
            let bred = Handle::make(world, me.name / 10, m);
            bred.link(me, 0, m);
            me.link(&bred, 0, m);
        }
        // or lets go.
        5 => drop(me.unlink(0, m)),
        6 => panic!("{ON_PURPOSE}, in a finalizer"),
        _ => {}
    }
}

/// The finalizer of dynamic objects.
fn finalize_dynamic(this: &AnyGc, m: &Mutator) {
    let Ok(soul) = this.attribute(m, "soul") else {
        die("a dynamic object is finalized without its soul")
    };
    let soul = soul.downcast::<Soul>(m).expect("a soul");
    soul.finalizing();
    let me = Handle { name: soul.name(), to: To::Dynamic(this.clone()) };
    let world = soul.world.clone();
    drop(soul);
    finalize(&me, &world, m);
}

// -------------------------------------------------------------------------------------- references

#[derive(Clone)]
enum To {
    Plain(Gc<Object<false>>),
    Final(Gc<Object<true>>),
    Dynamic(AnyGc),
}

/// A counted reference that knows its target's name.
#[derive(Clone)]
struct Handle {
    name: usize,
    to: To,
}

impl Trace for Handle {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        match &this.to {
            To::Plain(gc) => Trace::traverse(gc, tracer),
            To::Final(gc) => Trace::traverse(gc, tracer),
            To::Dynamic(gc) => Trace::traverse(gc, tracer),
        }
    }
}

/// An object that is cleared of its soul has lost its name.
const NAMELESS: usize = usize::MAX;
/// The attributes in which dynamic objects keep references.
const FIELDS: [&str; 3] = ["first", "second", "third"];

impl Handle {
    /// A new object of one of the kinds.
    fn make(world: &Arc<World>, kind: usize, m: &Mutator) -> Self {
        let soul = Soul::new(world);
        let name = soul.name();
        let to = match kind % 8 {
            0..4 => To::Plain(m.alloc(Object { soul, edges: GcCell::default() })),
            4..6 => To::Final(m.alloc(Object { soul, edges: GcCell::default() })),
            dynamic => {
                let made =
                    world.classes.lock().unwrap()[dynamic % 2].instantiate(m).expect("an instance");
                made.set_attribute(m, "soul", Some(m.alloc(soul).into())).expect("a new attribute");
                To::Dynamic(made)
            }
        };
        Self { name, to }
    }

    fn of(any: AnyGc, m: &Mutator) -> To {
        match any.downcast(m) {
            Ok(plain) => To::Plain(plain),
            Err(any) => any.downcast(m).map_or_else(To::Dynamic, To::Final),
        }
    }

    fn any(&self) -> AnyGc {
        match &self.to {
            To::Plain(gc) => gc.clone().into(),
            To::Final(gc) => gc.clone().into(),
            To::Dynamic(gc) => gc.clone(),
        }
    }

    /// Calls `f` with the object's soul; `None`: it is a dynamic one that was cleared of it.
    fn with_soul<R>(&self, m: &Mutator, f: impl FnOnce(&Soul) -> R) -> Option<R> {
        match &self.to {
            To::Plain(gc) => Some(f(&gc.soul)),
            To::Final(gc) => Some(f(&gc.soul)),
            To::Dynamic(gc) => gc.attribute(m, "soul").ok()?.downcast_ref(m).map(f),
        }
    }

    /// Each reference leads to the expected object, alive, and not cleared.
    fn check(&self, world: &World, m: &Mutator) {
        let found = self.with_soul(m, |soul| (soul.name(), soul.cleared.load(SeqCst) > 0));
        if found.is_some_and(|(name, _)| name != self.name) {
            die(&format!("a reference to {} leads to {found:?}", self.name));
        }
        // Hostile neighbours may get it cleared.
        if !world.hostile && found.is_none_or(|(_, cleared)| cleared) {
            die(&format!("{} is cleared, and reachable", self.name));
        }
    }

    /// The object's references, copied.
    fn edges(&self, m: &Mutator) -> Vec<Self> {
        match &self.to {
            To::Plain(gc) => gc.edges.get(m),
            To::Final(gc) => gc.edges.get(m),
            To::Dynamic(gc) => {
                let fields = FIELDS.iter().filter_map(|field| gc.attribute(m, field).ok());
                fields.map(|any| Self::from_any(any, m)).collect()
            }
        }
    }

    /// A reference to any object.
    fn from_any(any: AnyGc, m: &Mutator) -> Self {
        let handle = Self { name: NAMELESS, to: Self::of(any, m) };
        let name = handle.with_soul(m, Soul::name).unwrap_or(NAMELESS);
        Self { name, ..handle }
    }

    /// Which object it leads to.
    fn address(&self) -> usize {
        dynamic::as_raw(&self.any()).as_ptr() as usize
    }

    /// Lets the object refer to another, in place of an earlier target, if it has too many or
    /// `random` says so.
    fn link(&self, to: &Self, random: usize, m: &Mutator) {
        let old = match &self.to {
            To::Plain(gc) => Self::push(&gc.edges, to, random, m),
            To::Final(gc) => Self::push(&gc.edges, to, random, m),
            To::Dynamic(gc) => {
                gc.set_attribute(m, FIELDS[random % FIELDS.len()], Some(to.any()))
                    .expect("attributes");
                None
            }
        };
        drop(old);
    }

    fn push(edges: &GcCell<Vec<Self>>, to: &Self, random: usize, m: &Mutator) -> Option<Self> {
        let mut edges = edges.lock(m);
        let old = if edges.len() < EDGES { None } else { Some(edges.swap_remove(random % EDGES)) };
        edges.push(to.clone());
        old
    }

    /// Takes one of the object's references out.
    fn unlink(&self, random: usize, m: &Mutator) -> Option<Self> {
        let pop = |edges: &GcCell<Vec<Self>>| {
            let mut edges = edges.lock(m);
            let at = random.checked_rem(edges.len())?;
            Some(edges.swap_remove(at))
        };
        match &self.to {
            To::Plain(gc) => pop(&gc.edges),
            To::Final(gc) => pop(&gc.edges),
            To::Dynamic(gc) => {
                // Another thread may have been first.
                let _ = gc.set_attribute(m, FIELDS[random % FIELDS.len()], None);
                None
            }
        }
    }
}

/// A weak reference that knows its target's name.
#[derive(Clone)]
enum Weak {
    Plain(usize, GcWeak<Object<false>>),
    Final(usize, GcWeak<Object<true>>),
}

impl Weak {
    fn to(handle: &Handle, m: &Mutator) -> Option<Self> {
        match &handle.to {
            To::Plain(gc) => Some(Self::Plain(handle.name, Gc::downgrade(gc, m))),
            To::Final(gc) => Some(Self::Final(handle.name, Gc::downgrade(gc, m))),
            To::Dynamic(_) => None,
        }
    }

    fn upgrade(&self, m: &Mutator) -> Option<Handle> {
        match self {
            Self::Plain(name, weak) => {
                weak.upgrade(m).map(|gc| Handle { name: *name, to: To::Plain(gc) })
            }
            Self::Final(name, weak) => {
                weak.upgrade(m).map(|gc| Handle { name: *name, to: To::Final(gc) })
            }
        }
    }
}

/// An object of the heap that is always held, with slots that are read without a lock.
struct Board([AtomicGc<Object<false>>; 8]);

impl Trace for Board {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

// ----------------------------------------------------------------------------------------- threads

/// The data that the threads of one test share, besides the heap.
struct World {
    hostile: bool,
    /// All is quiet: handlers are honest.
    quiet: AtomicBool,
    mood: AtomicUsize,
    census: Arc<Census>,
    names: AtomicUsize,
    classes: Mutex<Vec<Type>>,
    places: Vec<Mutex<Option<Handle>>>,
    weaks: Vec<Mutex<Option<Weak>>>,
    /// The handles from finalizers and destructors.
    shelf: Mutex<Vec<Handle>>,
    untracked: Mutex<Vec<Weak>>,
    immortals: Mutex<Vec<Handle>>,
    board: Mutex<Option<Gc<Board>>>,
    /// The handles of the threads while all is quiet.
    laid_open: Mutex<Vec<Handle>>,
    operations: AtomicUsize,
    finalizers: AtomicUsize,
    callbacks: AtomicUsize,
}

impl World {
    fn new(hostile: bool, m: &Mutator) -> Arc<Self> {
        let classes = vec![
            Class::new("oracle.Plain").make(m).expect("a class"),
            Class::new("oracle.Final").finalizer(finalize_dynamic).make(m).expect("a class"),
        ];
        Arc::new(Self {
            hostile,
            quiet: AtomicBool::new(false),
            mood: AtomicUsize::new(0),
            census: Census::new(),
            names: AtomicUsize::new(0),
            classes: Mutex::new(classes),
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            weaks: (0..PLACES).map(|_| Mutex::default()).collect(),
            shelf: Mutex::default(),
            untracked: Mutex::default(),
            immortals: Mutex::default(),
            board: Mutex::new(Some(m.alloc(Board(std::array::from_fn(|_| AtomicGc::new(None)))))),
            laid_open: Mutex::default(),
            operations: AtomicUsize::new(0),
            finalizers: AtomicUsize::new(0),
            callbacks: AtomicUsize::new(0),
        })
    }

    fn is_hostile(&self) -> bool {
        self.hostile && !self.quiet.load(SeqCst)
    }

    fn pick_by(&self, random: usize) -> Option<Handle> {
        self.places[random % PLACES].lock().unwrap().clone()
    }

    /// Puts a reference into a place. The caller drops the previous one.
    #[must_use]
    fn put_by(&self, random: usize, handle: Option<Handle>) -> Option<Handle> {
        std::mem::replace(&mut *self.places[random % PLACES].lock().unwrap(), handle)
    }
}

/// The handles of one mutator.
struct Hands {
    world: Arc<World>,
    rng: Rng,
    held: Vec<Handle>,
    named: Vec<KnownRoot>,
    watching: Vec<AnyGc>,
}

impl Hands {
    fn new(world: &Arc<World>, seed: u64) -> Self {
        let world = world.clone();
        Self {
            world,
            rng: Rng::new(seed),
            held: Vec::new(),
            named: Vec::new(),
            watching: Vec::new(),
        }
    }

    fn random(&mut self) -> usize {
        self.rng.next() as usize
    }

    fn keep(&mut self, handle: Option<Handle>) {
        if self.held.len() >= HELD {
            let old = self.take();
            drop(old);
        }
        self.held.extend(handle);
    }

    fn take(&mut self) -> Option<Handle> {
        if self.held.is_empty() {
            None
        } else {
            Some(self.held.swap_remove(self.rng.below(self.held.len())))
        }
    }

    /// One of the handles, checked.
    fn any(&mut self, m: &Mutator) -> Option<Handle> {
        let handle = self.held.get(self.rng.below(HELD))?.clone();
        handle.check(&self.world, m);
        Some(handle)
    }

    /// One thing that a mutator may do.
    fn act(&mut self, m: &mut Mutator) {
        let random = self.random();
        match self.rng.below(64) {
            0..12 => {
                let new = Handle::make(&self.world, random, m);
                if let Some(other) = self.any(m) {
                    new.link(&other, random, m);
                }
                self.keep(Some(new));
            }
            12..14 => {
                let ring: Vec<_> =
                    (0..4).map(|i| Handle::make(&self.world, random + i, m)).collect();
                (0..4).for_each(|i| ring[i].link(&ring[(i + 1) % 4], 0, m));
            }
            14..24 => {
                if let (Some(from), Some(to)) = (self.any(m), self.any(m)) {
                    from.link(&to, random, m);
                }
            }
            24..28 => {
                let out = self.any(m).and_then(|handle| handle.unlink(random, m));
                self.keep(out);
            }
            28..32 => {
                // Along an edge.
                let next = self.any(m).and_then(|handle| handle.edges(m).pop());
                if let Some(next) = &next {
                    next.check(&self.world, m);
                }
                self.keep(next);
            }
            32..36 => {
                let handle = self.take();
                drop(self.world.put_by(random, handle));
            }
            36..40 => {
                let handle = self.world.pick_by(random);
                self.keep(handle);
            }
            40..44 => drop(self.take()),
            44 => {
                if let Some(weak) = self.any(m).and_then(|handle| Weak::to(&handle, m)) {
                    let old = self.world.weaks[random % PLACES].lock().unwrap().replace(weak);
                    drop(old);
                }
            }
            45 | 46 => {
                let weak = self.world.weaks[random % PLACES].lock().unwrap().clone();
                let handle = weak.and_then(|weak| weak.upgrade(m));
                if let Some(handle) = &handle {
                    handle.check(&self.world, m);
                }
                self.keep(handle);
            }
            47 => self.watch(m),
            48..51 => self.slot(m),
            51 => {
                if let Some(handle) = self.any(m)
                    && let Some(weak) = Weak::to(&handle, m)
                {
                    self.world.untracked.lock().unwrap().push(weak);
                    handle.any().untrack(m);
                    if self.rng.one_in(2) {
                        handle.any().track(m);
                    }
                }
            }
            52..54 => self.detach(m),
            54 => {
                let handle = self.world.shelf.lock().unwrap().pop();
                self.keep(handle);
            }
            55 => self.seldom(m),
            _ => m.safepoint(),
        }
    }

    fn watch(&mut self, m: &Mutator) {
        fn called<T>(weak: &Gc<WeakRef<T, Arc<Called>>>, _: &Mutator)
        where
            T: Trace,
        {
            let data = weak.data();
            if data.0.swap(true, SeqCst) {
                die("a callback is called twice");
            }
            data.1.callbacks.fetch_add(1, SeqCst);
        }
        let data = Arc::new(Called(AtomicBool::new(false), self.world.clone()));
        let weak_ref = match self.any(m).map(|handle| handle.to) {
            Some(To::Plain(gc)) => m.alloc_weak(&gc, data, called).into(),
            Some(To::Final(gc)) => m.alloc_weak(&gc, data, called).into(),
            _ => return,
        };
        self.watching.push(weak_ref);
        if self.watching.len() > 10 {
            drop(std::mem::take(&mut self.watching));
        }
    }

    fn slot(&mut self, m: &Mutator) {
        let board = self.world.board.lock().unwrap().clone().expect("held until the end");
        let slot = &board.0[self.rng.below(8)];
        let new = self.any(m).and_then(|handle| match handle.to {
            To::Plain(gc) => Some(gc),
            _ => None,
        });
        let found = match self.rng.below(4) {
            0 => {
                slot.store(m, new);
                None
            }
            1 => slot.swap(m, new),
            2 => {
                if let Some(object) = slot.peek(m) {
                    object.soul.witness.check();
                }
                None
            }
            _ => slot.load(m),
        };
        let found = found.map(|gc| Handle { name: gc.soul.name(), to: To::Plain(gc) });
        if let Some(found) = &found {
            found.check(&self.world, m);
        }
        self.keep(found);
    }

    /// References are cloned and dropped while the thread is detached, also as another mutator.
    fn detach(&mut self, m: &mut Mutator) {
        let (heap, mine, random) = (m.heap().clone(), self.take(), self.random());
        let world = &self.world;
        m.detach(|| {
            let copy = mine.clone();
            drop(mine);
            if random.is_multiple_of(4) {
                heap.attach_scoped(|m| {
                    let new = Handle::make(world, random / 4, m);
                    if let Some(copy) = &copy {
                        copy.check(world, m);
                        new.link(copy, 0, m);
                    }
                    drop(world.put_by(random / 32, Some(new)));
                    m.safepoint();
                });
            }
            drop(world.put_by(random, copy));
        });
    }

    fn seldom(&mut self, m: &mut Mutator) {
        match self.rng.below(60) {
            0 => drop(m.try_collect(Collect::full().forked(self.rng.below(2) == 0))),
            1..5 => drop(m.collect_young()),
            5..8 => drop(m.try_collect(Collect::full().wait(false))),
            8 => drop(m.freeze()),
            9..11 => m.unfreeze(),
            11 => {
                for any in m.objects() {
                    let handle = Handle::from_any(any, m);
                    if handle.name != NAMELESS {
                        handle.check(&self.world, m);
                    }
                }
            }
            12 | 13 => {
                if let Some(handle) = self.any(m) {
                    drop((m.referrers(&handle.any()), m.referents(&handle.any())));
                }
            }
            14 => {
                if let Some(handle) = self.any(m) {
                    let mut immortals = self.world.immortals.lock().unwrap();
                    if immortals.len() < IMMORTALS {
                        handle.any().immortalize(m);
                        immortals.push(handle);
                    }
                }
            }
            15..20 => {
                if let Some(handle) = self.any(m) {
                    self.named.push(m.heap().known_root(handle.any()));
                }
                if self.named.len() > 3 {
                    self.named.clear();
                }
            }
            20 if !self.world.hostile => m.verify().unwrap_or_else(|error| die(&error)),
            _ => {}
        }
    }

    /// So many operations.
    fn go(&mut self, steps: usize, m: &mut Mutator) {
        (0..steps).for_each(|_| composed(|| self.act(m)));
        self.world.operations.fetch_add(steps, SeqCst);
    }

    /// Everything in hand is there for all to see.
    fn lay_open(&mut self) {
        composed(|| self.named.clear());
        composed(|| drop(std::mem::take(&mut self.watching)));
        self.world.laid_open.lock().unwrap().append(&mut self.held);
    }
}

struct Called(AtomicBool, Arc<World>);

impl Trace for Called {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

/// Continues after a panic that is part of the test: a hostile destructor's panic comes to the
/// thread that dropped the last reference.
fn composed(f: impl FnOnce()) {
    if let Some(text) = panic_text(f)
        && !text.contains(ON_PURPOSE)
    {
        die(&format!("an unexpected panic: {text}"));
    }
}

/// Panics that are part of the test print nothing.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.to_string().contains(ON_PURPOSE) {
                before(info);
            }
        }));
    });
}

// ------------------------------------------------------------------------------------ quiet points

/// The facts that the walk has found about one object.
struct Found {
    handle: Handle,
    /// References by roots and by objects.
    references: usize,
    has_soul: bool,
}

/// Every object that the roots lead to, by address.
#[derive(Default)]
struct Walk {
    found: BTreeMap<usize, Found>,
    unseen: Vec<Handle>,
}

impl Walk {
    fn from(roots: Vec<Handle>, world: &World, m: &Mutator) -> BTreeMap<usize, Found> {
        let mut walk = Self::default();
        roots.into_iter().for_each(|root| walk.meet(root, world, m));
        while let Some(handle) = walk.unseen.pop() {
            handle.edges(m).into_iter().for_each(|edge| walk.meet(edge, world, m));
        }
        walk.found
    }

    fn meet(&mut self, handle: Handle, world: &World, m: &Mutator) {
        handle.check(world, m);
        let found = self.found.entry(handle.address()).or_insert_with(|| {
            self.unseen.push(handle.clone());
            let has_soul = handle.with_soul(m, |_| ()).is_some();
            Found { handle, references: 0, has_soul }
        });
        found.references += 1;
    }
}

/// All threads are quiet: collects twice, walks the graph from every reference there is, and
/// compares.
fn survey(world: &Arc<World>, m: &mut Mutator) {
    world.quiet.store(true, SeqCst);
    m.unfreeze();
    let untracked = std::mem::take(&mut *world.untracked.lock().unwrap());
    for handle in untracked.iter().filter_map(|weak| weak.upgrade(m)) {
        handle.any().track(m);
    }
    m.safepoint();
    m.collect();
    m.collect();
    m.verify().unwrap_or_else(|error| die(&error));

    let copied = |list: &Mutex<Vec<Handle>>| list.lock().unwrap().clone();
    let mut roots = copied(&world.laid_open);
    roots.extend(copied(&world.shelf));
    roots.extend(copied(&world.immortals));
    roots.extend(world.places.iter().filter_map(|place| place.lock().unwrap().clone()));
    if let Some(board) = world.board.lock().unwrap().clone() {
        let slots = board.0.iter().filter_map(|slot| slot.load(m));
        roots.extend(slots.map(|gc| Handle { name: gc.soul.name(), to: To::Plain(gc) }));
    }
    let found = Walk::from(roots, world, m);

    let mut wrong = Vec::new();
    for Found { handle, references, .. } in found.values() {
        // Its own, and the walk's.
        let count = handle.any().strong_count();
        if count != usize::MAX && count != references + 2 {
            wrong.push(format!(
                "{} has {references} references, and counts {}",
                handle.name,
                count - 2
            ));
        }
    }
    let souls = found.values().filter(|found| found.has_soul).count();
    if souls != world.census.alive() {
        wrong.push(format!("{souls} objects are reached, and {} live", world.census.alive()));
    }
    if !wrong.is_empty() {
        let all: Vec<_> = m.objects().into_iter().map(|any| Handle::from_any(any, m)).collect();
        let unreached: Vec<_> = all
            .iter()
            .filter(|handle| !found.contains_key(&handle.address()))
            .map(|handle| {
                let any = handle.any();
                let named = |others: Vec<AnyGc>, m: &Mutator| -> Vec<_> {
                    others.into_iter().map(|any| Handle::from_any(any, m).name).collect()
                };
                let referrers = m.referrers(&any);
                let referents = m.referents(&any);
                let (referrers, referents) = (named(referrers, m), named(referents, m));
                let soul =
                    handle.with_soul(m, |s| (s.finalized.load(SeqCst), s.cleared.load(SeqCst)));
                let kind = match &handle.to {
                    To::Plain(_) => "plain",
                    To::Final(_) => "final",
                    To::Dynamic(_) => "dynamic",
                };
                (handle.name, kind, any.strong_count(), soul, referrers, referents)
            })
            .collect();
        die(&format!(
            "{wrong:#?}\nnot reached (name, kind, count, (finalized, cleared), referrers, referents): {unreached:#?}"
        ));
    }
    drop(found);
    // More handles were handed out than any thread takes.
    let shelf = std::mem::take(&mut *world.shelf.lock().unwrap());
    shelf.into_iter().take(PLACES).for_each(|handle| world.shelf.lock().unwrap().push(handle));
    // The targets of immortal objects would never die, and more and more objects with them.
    for immortal in copied(&world.immortals) {
        (0..EDGES).for_each(|at| drop(immortal.unlink(at, m)));
    }
    world.quiet.store(false, SeqCst);
}

/// Random programs on one heap until the time is over, with quiet points in between.
fn rounds(name: &str, hostile: bool, builder: HeapBuilder) {
    silence();
    let _watch = deadline(name);
    let seed = std::env::var("STANDSTILL_SEED").map_or_else(
        |_| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), name) >> 16,
        |seed| seed.parse().expect("STANDSTILL_SEED is a number"),
    );
    // Not captured: an abort would lose it.
    let _ = writeln!(std::io::stderr(), "{name}: STANDSTILL_SEED={seed}");
    let pacing = Pacing::default()
        .with_young_objects(500)
        .with_full_minimum(300)
        .with_full_growth(0.0)
        .with_forked(ForkedSearch::Always);
    let heap = builder.reserve(1 << 30).pacing(pacing).build().expect("a heap");
    heap.on_misuse(move |fault| {
        if !(hostile && fault.code == Code::OverVisited) {
            die(&format!("a false report of misuse: {fault:?}"));
        }
    });
    let world = heap.attach_scoped(|m| World::new(hostile, m));
    heap.on_unraisable({
        let world = world.clone();
        move |report| {
            let text = format!("{report:?}");
            let expected =
                text.contains(ON_PURPOSE) || world.is_hostile() && text.contains("abandoned");
            if !expected {
                die(&format!("an unexpected report: {text}"));
            }
        }
    });
    let clock = Clock::start(2);
    let barrier = Barrier::new(MUTATORS + 1);
    let over = AtomicBool::new(false);
    let mut quiet_points = 0;
    std::thread::scope(|scope| {
        for thread in 0..MUTATORS as u64 {
            let (heap, world, barrier, over) = (&heap, &world, &barrier, &over);
            scope.spawn(move || {
                let mut hands = Hands::new(world, seed ^ thread);
                let mut mutator = None;
                let mut ends = false;
                while !over.load(SeqCst) {
                    let m = mutator.get_or_insert_with(|| heap.attach());
                    hands.go(STEPS, m);
                    hands.lay_open();
                    m.safepoint();
                    // All is quiet between the two.
                    let quiet = || {
                        barrier.wait();
                        barrier.wait();
                    };
                    // At every other quiet point the mutators have ended, and others inherit their
                    // objects.
                    if ends {
                        composed(|| drop(mutator.take()));
                        quiet();
                    } else {
                        m.detach(quiet);
                    }
                    ends = !ends;
                    let share = PLACES.min(HELD);
                    let mut laid_open = world.laid_open.lock().unwrap();
                    let keep = laid_open.len().saturating_sub(share);
                    hands.held = laid_open.split_off(keep);
                }
                hands.lay_open();
            });
        }
        #[cfg(target_os = "linux")]
        scope.spawn(|| {
            while !over.load(SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(15));
                children::kill_children();
            }
        });
        while !over.load(SeqCst) {
            come_and_go(&heap, &world, seed.wrapping_add(1_000 * (quiet_points + 1)));
            barrier.wait();
            heap.attach_scoped(|m| survey(&world, m));
            quiet_points += 1;
            over.store(!clock.running(), SeqCst);
            barrier.wait();
        }
    });
    finish(&heap, &world);
    eprintln!(
        "{name}: {} operations, {} objects, {} finalizers, {} callbacks, {quiet_points} quiet points, {:?}",
        world.operations.load(SeqCst),
        world.census.born(),
        world.finalizers.load(SeqCst),
        world.callbacks.load(SeqCst),
        heap.stats()
    );
}

/// Threads that live for a few operations only. They leave objects behind, and send their handles
/// to a thread that is never attached.
fn come_and_go(heap: &Heap, world: &Arc<World>, seed: u64) {
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel::<Vec<Handle>>();
        scope.spawn(move || {
            for handles in receive {
                let more = handles.clone();
                drop(handles);
                more.into_iter()
                    .enumerate()
                    .for_each(|(at, handle)| drop(world.put_by(at * 7, Some(handle))));
            }
        });
        for life in 0..4 {
            let send = send.clone();
            scope.spawn(move || {
                let mut hands = Hands::new(world, seed + life);
                let mut m = heap.attach();
                hands.go(STEPS / 10, &mut m);
                let held = std::mem::take(&mut hands.held);
                composed(|| drop(hands));
                if life % 2 == 0 {
                    composed(|| drop(m));
                }
                send.send(held).expect("the receiver waits");
            });
        }
    });
}

/// All handles are dropped except those to immortal objects: only these are left.
fn finish(heap: &Heap, world: &Arc<World>) {
    world.quiet.store(true, SeqCst);
    heap.attach_scoped(|m| {
        let lists =
            [&world.laid_open, &world.shelf].map(|list| std::mem::take(&mut *list.lock().unwrap()));
        drop(lists);
        for (place, weak) in world.places.iter().zip(&world.weaks) {
            let old = (place.lock().unwrap().take(), weak.lock().unwrap().take());
            drop(old);
        }
        let board = world.board.lock().unwrap().take();
        drop(board);
        survey(world, m);
        if world.immortals.lock().unwrap().is_empty() {
            assert_eq!(world.census.alive(), 0);
        }
        world.quiet.store(true, SeqCst);
        let immortals = std::mem::take(&mut *world.immortals.lock().unwrap());
        let classes = std::mem::take(&mut *world.classes.lock().unwrap());
        if !immortals.is_empty() {
            let left: Vec<_> =
                Walk::from(immortals, world, m).into_values().map(|found| found.handle).collect();
            let own = |any: &AnyGc| dynamic::as_raw(any).as_ptr() as usize;
            let souls = left.iter().filter_map(|handle| handle.any().attribute(m, "soul").ok());
            let souls: Vec<_> = souls.map(|soul| own(&soul)).collect();
            let types = classes.iter().filter_map(|class| class.object().map(own));
            live_for_ever(heap, left.iter().map(Handle::address).chain(souls).chain(types));
        }
    });
}

fn several_markers() -> HeapBuilder {
    Heap::builder().workers(3).serial_below(0).checked(true)
}

#[test]
fn honest_programs_on_many_threads() {
    rounds("honest", false, Heap::builder());
}

#[test]
fn honest_programs_with_several_markers() {
    rounds("honest, several markers", false, several_markers());
}

#[test]
fn hostile_programs_on_many_threads() {
    rounds("hostile", true, several_markers());
}

#[test]
fn hostile_programs_with_one_marker() {
    rounds("hostile, one marker", true, Heap::builder());
}
